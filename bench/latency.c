#include "bench/latency.h"

#include <errno.h>
#include <math.h>
#include <time.h>

#define BUCKETS_PER_DECADE 50

void latency_add(struct latency *l, double seconds)
{
	int bucket = (int)(BUCKETS_PER_DECADE * log10(seconds * 1e6 + 1));

	if (bucket >= LATENCY_BUCKETS)
		bucket = LATENCY_BUCKETS - 1;
	l->bucket[bucket]++;
	l->count++;
	if (seconds > l->max_s)
		l->max_s = seconds;
}

void latency_merge(struct latency *into, const struct latency *from)
{
	for (int i = 0; i < LATENCY_BUCKETS; i++)
		into->bucket[i] += from->bucket[i];
	into->count += from->count;
	if (from->max_s > into->max_s)
		into->max_s = from->max_s;
}

double latency_quantile_ms(const struct latency *l, double quantile)
{
	double wanted = quantile * (double)l->count;
	uint64_t seen = 0;

	for (int i = 0; i < LATENCY_BUCKETS; i++) {
		seen += l->bucket[i];
		if (seen > 0 && (double)seen >= wanted) {
			double end_us = pow(10, (i + 1) / (double)BUCKETS_PER_DECADE) - 1;

			return fmin(end_us / 1e3, l->max_s * 1e3);
		}
	}
	return 0;
}

double seconds_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

void sleep_until(double when_s)
{
	double whole = floor(when_s);
	struct timespec ts = {(time_t)whole, (long)((when_s - whole) * 1e9)};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
		;
}
