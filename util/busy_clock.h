/* busy_clock.h - how long a device has been at work: the time with requests in flight, without
 * what a stall lasted beyond a second (a device that is silent is not slow). The only time that
 * says how fast it is. Plain arithmetic; the caller's lock.
 */
#ifndef PACEFS_UTIL_BUSY_CLOCK_H
#define PACEFS_UTIL_BUSY_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#define BUSY_GAP_US 1000000ull /* a longer gap without completions is a stall */

struct busy_clock {
	uint64_t busy_us;     /* counted so far */
	uint64_t counted_us;  /* up to this time; 0 = nothing in flight */
	uint64_t progress_us; /* last completion, or start from idle */
	uint64_t nr_stalls;
};

/* Busy time up to now. */
static inline uint64_t busy_clock_read(const struct busy_clock *c, uint64_t now_us)
{
	uint64_t end = c->progress_us + BUSY_GAP_US;

	if (end > now_us)
		end = now_us;
	return c->busy_us + (c->counted_us && end > c->counted_us ? end - c->counted_us : 0);
}

/* Now requests are in flight or not; completed: at least one has ended just now. */
static inline void busy_clock_update(
	struct busy_clock *c, bool in_flight, bool completed, uint64_t now_us)
{
	c->busy_us = busy_clock_read(c, now_us);
	if (completed && c->counted_us && now_us > c->progress_us + BUSY_GAP_US)
		c->nr_stalls++;
	if (completed || !c->counted_us)
		c->progress_us = now_us;
	c->counted_us = in_flight ? now_us : 0;
}

#endif
