/* latency.h - a histogram of times, for the load and probe programs. */
#ifndef PACEFS_BENCH_LATENCY_H
#define PACEFS_BENCH_LATENCY_H

#include <stdint.h>

/* 50 buckets per factor of ten from 1 us on: values are within 5 %. */
#define LATENCY_BUCKETS 450

struct latency {
	uint64_t count;
	double max_s;
	uint32_t bucket[LATENCY_BUCKETS];
};

void latency_add(struct latency *l, double seconds);
void latency_merge(struct latency *into, const struct latency *from);

/* The quantile (0..1) in milliseconds, rounded up to its bucket's end but never above the
 * largest value; 0 when empty. */
double latency_quantile_ms(const struct latency *l, double quantile);

/* CLOCK_MONOTONIC in seconds, and sleeping until then. */
double seconds_now(void);
void sleep_until(double when_s);

#endif
