/* clock.h - the monotonic clock in microseconds. The only place that reads it for pacing. */
#ifndef PACEFS_UTIL_CLOCK_H
#define PACEFS_UTIL_CLOCK_H

#include <stdint.h>
#include <time.h>

#define US_PER_S 1000000ull
#define US_PER_MS 1000ull
#define US_PER_CENTISEC 10000ull

static inline uint64_t clock_now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * US_PER_S + (uint64_t)ts.tv_nsec / 1000;
}

#endif
