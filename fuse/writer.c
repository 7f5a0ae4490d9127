#include "fuse/writer.h"

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
	}
	w->last_us = now_us;
	return w;
}

struct writers_summary writers_sum_up(const struct writers *ws, uint64_t now_us)
{
	struct writers_summary sum = {0};

	for (const struct writer *w = ws->table; w; w = w->hh.next) {
		sum.nr_active += w->held || now_us - w->last_us < RECENT_US;
		if (w->held || (w->paused_us && now_us - w->paused_us < RECENT_US))
			sum.nr_throttled++;
		else
			sum.unthrottled_rate += throttle_writer_rate_now(&w->throttle, now_us);
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
		uint64_t idle_us = now_us - w->last_us;
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
