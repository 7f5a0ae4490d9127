#include "backend/flush/plan.h"

static const uint64_t page_bytes = 4096;

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static struct flush_plan periodic(const struct flush_view *v, struct flush_plan p)
{
	if (v->writeback_us == 0)
		return p;
	if (!v->periodic_round && v->now_us >= v->next_periodic_us)
		p.periodic_round = true;
	if (p.periodic_round) {
		uint64_t cutoff = v->now_us > v->expire_us ? v->now_us - v->expire_us : 0;
		if (v->oldest_dirtied_us <= cutoff) {
			p.reason = FLUSH_PERIODIC;
			p.cutoff_us = cutoff;
			return p;
		}
		p.periodic_round = false;
		p.next_periodic_us = v->now_us + v->writeback_us;
	}
	p.wake_us = min_u64(p.wake_us, max_u64(p.next_periodic_us, v->now_us + 1));
	return p;
}

struct flush_plan flush_plan_make(const struct flush_view *v)
{
	struct flush_plan p = {
		.reason = FLUSH_NONE,
		.cutoff_us = v->now_us,
		.wake_us = FLUSH_NEVER_US,
		.periodic_round = v->periodic_round,
		.next_periodic_us = v->next_periodic_us,
	};

	if (v->dirty_pages == 0)
		return p;
	p.time_round = v->dirty_pages > v->bg_time_pages ||
		(v->time_round && v->dirty_pages > v->bg_time_pages / 4 * 3);
	if (v->tagged_pages)
		p.reason = FLUSH_SYNC;
	else if (v->drain)
		p.reason = FLUSH_DRAIN;
	else if (v->blocked)
		p.reason = FLUSH_BLOCKED;
	else if (v->dirty_pages > v->bg_pages)
		p.reason = FLUSH_BACKGROUND;
	else if (p.time_round)
		p.reason = FLUSH_TIME;
	if (p.reason != FLUSH_NONE)
		return p;
	if (v->bg_age_us && v->oldest_dirtied_us != FLUSH_NEVER_US) {
		uint64_t due = v->oldest_dirtied_us + v->bg_age_us;
		if (due <= v->now_us) {
			p.reason = FLUSH_AGE;
			p.cutoff_us = v->now_us - v->bg_age_us;
			return p;
		}
		p.wake_us = due;
	}
	return periodic(v, p);
}

void flush_window_init(struct flush_window *w)
{
	*w = (struct flush_window){.bytes = 2 * 131072};
}

void flush_window_completed(
	struct flush_window *w, uint64_t submitted_us, uint64_t now_us, uint64_t inflight_bytes)
{
	/* Around 40 ms: two requests of 20 ms each keep any disk busy. */
	enum { SHORT_US = 30000, MEANT_US = 40000, LONG_US = 60000 };
	uint64_t took_us = now_us - submitted_us;

	if (submitted_us < w->judged_us)
		return; /* it was under way under another window */
	if (took_us < SHORT_US && inflight_bytes >= w->bytes / 4 * 3)
		w->bytes = min_u64(2 * w->bytes, FLUSH_WINDOW_MOST);
	else if (took_us > LONG_US)
		w->bytes = max_u64(max_u64(w->bytes / 2, w->bytes * MEANT_US / took_us),
			FLUSH_WINDOW_LEAST);
	else
		return;
	w->judged_us = now_us;
}

struct flush_sizes flush_sizes_make(const struct flush_window *w, double bytes_per_s,
	uint64_t limit_pages, unsigned max_request_pages)
{
	/* One eighth of the limit at most for a private batch, so that none is the whole of a
	 * small limit; two of them in flight. */
	uint64_t eighth = max_u64(limit_pages / 8, 1);
	/* 128 KiB: below that the cost of each request shows on any disk. */
	uint64_t request = max_u64(w->bytes / 2 / page_bytes, 32);
	/* Half a second of the device, at least 4 MiB, for one node before the next one. */
	uint64_t slice = max_u64((uint64_t)(bytes_per_s * 0.5) / page_bytes, 1024);

	request = min_u64(min_u64(request, eighth), max_request_pages);
	return (struct flush_sizes){
		.request_pages = (unsigned)request,
		.slice_pages = min_u64(slice, eighth),
		.inflight_bytes = min_u64(w->bytes, 2 * eighth * page_bytes),
	};
}
