/* clock.h - the monotonic clock in microseconds. The only place that reads it for pacing. */
#ifndef PACEFS_UTIL_CLOCK_H
#define PACEFS_UTIL_CLOCK_H

#include <stdbool.h>
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

static inline bool clock_same(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static inline int64_t clock_ns(const struct timespec *t)
{
	return t->tv_sec * 1000000000ll + t->tv_nsec;
}

#endif
