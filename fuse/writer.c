#include "fuse/writer.h"

#include <math.h>
#include <stdlib.h>

enum { RECENT_US = 1000000 }; /* a writer counts as active or throttled for so long */

struct writer *writers_get(struct writers *ws, const struct writer_key *key, uint64_t now_us)
{
	struct writer *w;

	HASH_FIND(hh, ws->table, key, sizeof(*key), w);
	if (!w) {
		w = calloc(1, sizeof(*w));
		if (!w)
			return NULL;
		w->key = *key;
		throttle_writer_init(&w->throttle);
		HASH_ADD(hh, ws->table, key, sizeof(w->key), w);
		if (!hash_added(w)) {
			free(w);
			return NULL;
		}
	}
	w->last_us = now_us;
	return w;
}

/* Readers take the time before the lock: it may step back a little between two calls. */
static uint64_t since_us(uint64_t then_us, uint64_t now_us)
{
	return now_us > then_us ? now_us - then_us : 0;
}

static bool is_throttled(const struct writer *w, uint64_t now_us)
{
	return w->held || (w->paused_us && since_us(w->paused_us, now_us) < RECENT_US);
}

static double rate_at(const struct fading_rate *r, uint64_t now_us)
{
	if (r->rate == 0)
		return 0;
	return r->rate * exp(-(double)since_us(r->stamp_us, now_us) / RECENT_US);
}

/* rate may be negative. */
static void rate_add(struct fading_rate *r, double rate, uint64_t now_us)
{
	r->rate = fmax(rate_at(r, now_us) + rate, 0);
	if (now_us > r->stamp_us)
		r->stamp_us = now_us;
}

void writers_dirtied(struct writers *ws, struct writer *w, double pages, uint64_t now_us)
{
	double rate = pages * 1e6 / RECENT_US;

	if (w->paused_us && since_us(w->paused_us, now_us) < RECENT_US)
		return;
	rate_add(&w->free, rate, now_us);
	rate_add(&ws->free, rate, now_us);
}

void writers_throttle(struct writers *ws, struct writer *w, uint64_t now_us)
{
	w->paused_us = now_us;
	if (w->free.rate == 0)
		return;
	rate_add(&ws->free, -rate_at(&w->free, now_us), now_us);
	w->free.rate = 0;
}

struct writers_summary writers_sum_up(const struct writers *ws, uint64_t now_us)
{
	struct writers_summary sum = {.unthrottled_rate = rate_at(&ws->free, now_us)};

	for (const struct writer *w = ws->table; w; w = w->hh.next) {
		sum.nr_active += w->held || since_us(w->last_us, now_us) < RECENT_US;
		sum.nr_throttled += is_throttled(w, now_us);
	}
	if (!sum.nr_active)
		sum.nr_active = 1;
	return sum;
}

double writers_expire(
	struct writers *ws, bool (*has_ended)(const struct writer *w), uint64_t now_us)
{
	struct writer *w, *next;
	double debt = 0;

	HASH_ITER (hh, ws->table, w, next) {
		uint64_t idle_us = since_us(w->last_us, now_us);
		if (w->held || idle_us <= WRITER_QUIET_US)
			continue;
		bool ended = has_ended(w);
		if (ended)
			debt += w->throttle.nr_dirtied;
		if (ended || idle_us > WRITER_IDLE_US) {
			HASH_DEL(ws->table, w);
			free(w);
		}
	}
	return debt;
}

void writers_finish(struct writers *ws)
{
	struct writer *w, *next;

	HASH_ITER (hh, ws->table, w, next) {
		HASH_DEL(ws->table, w);
		free(w);
	}
}
