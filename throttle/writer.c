/* writer.c - what is remembered about one writer between its requests. */
#include "throttle/formulas.h"

#include <math.h>

void throttle_writer_init(struct throttle_writer *w)
{
	*w = (struct throttle_writer){.nr_dirtied_pause = POLL_PAGES};
}

/* How much a window of elapsed seconds counts against the memory of the writer: a running
 * mean during the first second, the exponential one from then on. */
static double weight(const struct throttle_writer *w, uint64_t window_us, uint64_t now_us)
{
	uint64_t age = elapsed_us(now_us, w->rate_since_us);

	if (age < window_us)
		age = window_us;
	if (us_to_s((double)age) <= RATE_TAU_S)
		return (double)window_us / (double)age;
	if (window_us == RATE_MIN_WINDOW_US) /* nearly always: spare the call */
		return RATE_MIN_WEIGHT;
	return 1 - exp(-us_to_s((double)window_us) / RATE_TAU_S);
}

static double blend(const struct throttle_writer *w, uint64_t window_us, uint64_t now_us)
{
	double rate = w->rate_pages / us_to_s((double)window_us);

	return w->rate + weight(w, window_us, now_us) * (rate - w->rate);
}

/* The writer has asked for pages more. Returns its rate including them, over at least
 * RATE_MIN_WINDOW_US: a first small request is a low rate, the tenth one within a
 * millisecond is not. */
double throttle_writer_rate(struct throttle_writer *w, double pages, uint64_t now_us)
{
	uint64_t window = elapsed_us(now_us, w->rate_stamp_us);

	if (w->rate_since_us == 0) {
		w->rate_since_us = now_us;
		w->rate_stamp_us = now_us;
		window = 0;
	}
	if (window >= RATE_MIN_WINDOW_US) {
		w->rate = blend(w, window, now_us);
		w->rate_pages = 0;
		w->rate_stamp_us = now_us;
		window = 0;
	}
	w->rate_pages += at_least(pages, 0);
	w->rate_last_us = now_us;
	return blend(w, window > RATE_MIN_WINDOW_US ? window : RATE_MIN_WINDOW_US, now_us);
}

static double faded(uint64_t since_us, uint64_t now_us)
{
	return exp(-us_to_s((double)elapsed_us(now_us, since_us)) / RATE_TAU_S);
}

/* Its mean over time is the rate, also of a writer that asks once in a while for a lot. */
double throttle_writer_rate_now(const struct throttle_writer *w, uint64_t now_us)
{
	if (w->rate_since_us == 0)
		return 0;
	return w->rate * faded(w->rate_stamp_us, now_us) +
		w->rate_pages / RATE_TAU_S * faded(w->rate_last_us, now_us);
}
