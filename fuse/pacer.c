#include "fuse/pacer.h"

#include "fuse/held.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

enum {
	US_PER_CENTISEC = 10000,
	US_PER_MS = 1000,
	US_PER_S = 1000000,
};

/* One request of the largest kind in time must fit: below a megabyte of limit no disk streams,
 * and a stick of 0.5 MB/s still writes it within the default two seconds. */
static const double least_time_limit = 1048576.0 / THROTTLE_PAGE_SIZE;

/* ---- sample and settings ---- */

static double request_pages(const struct held *h)
{
	return ceil((double)h->bytes / THROTTLE_PAGE_SIZE);
}

/* The device's own limit, from its settings and the bandwidth now believed. */
static void set_cap(struct pacer_device *pd)
{
	double cap = THROTTLE_NO_CAP;

	pd->reference_bw = throttle_reference_bandwidth(&pd->throttle, pd->prior_bw);
	if (pd->settings.max_bytes)
		cap = (double)pd->settings.max_bytes / THROTTLE_PAGE_SIZE;
	if (pd->settings.dirty_centisecs)
		cap = fmin(cap,
			fmax(pd->reference_bw * (double)pd->settings.dirty_centisecs / 100,
				least_time_limit));
	pd->cap_pages = floor(cap);
}

struct throttle_sample pacer_sample(
	const struct pacer *p, const struct pacer_device *pd, uint64_t now_us)
{
	const struct device *dev = pd->dev;

	return (struct throttle_sample){
		.now_us = now_us,
		.dirty = (double)(p->dom->nr_dirty + p->dom->nr_writeback),
		.reclaimable = (double)p->dom->nr_dirty,
		.thresh = p->thresh,
		.bg_thresh = p->bg_thresh,
		.wb_dirty = (double)(dev->nr_dirty + dev->nr_writeback),
		.wb_reclaimable = (double)dev->nr_dirty,
		.wb_written = dev->written,
		.wb_busy_us = busy_clock_read(&dev->busy, now_us),
		.wb_dirtied = dev->dirtied,
		.cap_thresh = pd->cap_pages,
		.min_ratio = (double)pd->settings.min_ratio / 100,
		.max_ratio = (double)pd->settings.max_ratio / 100,
		.nr_writers = pd->summary.nr_active,
		.nr_throttled = pd->summary.nr_throttled,
		.unthrottled_rate = pd->summary.unthrottled_rate,
		.sum_min_ratio = p->sum_min_ratio,
		.strict_limit = pd->settings.strict_limit,
	};
}

/* The law hears of what the device did since the last time. */
static void observe(struct pacer *p, struct pacer_device *pd, uint64_t now_us)
{
	uint64_t done = pd->dev->written - pd->seen_written;

	if (!done)
		return;
	pd->seen_written = pd->dev->written;
	throttle_completed(&p->throttle, &pd->throttle, (double)done,
		(double)pd->settings.max_ratio / 100, now_us);
	if (p->throttle.dirty_limit > p->thresh || pd->throttle.cap_limit > pd->cap_pages) {
		struct throttle_sample s = pacer_sample(p, pd, now_us);
		throttle_lower_limits(&p->throttle, &pd->throttle, &s, (double)done);
	}
}

/* Limits rise at once; the smoothed ones are updated at the next tick. A page is always let
 * in. */
double pacer_domain_limit(const struct pacer *p)
{
	return fmax(fmax(p->throttle.dirty_limit, p->thresh), 1);
}

static double device_cap(const struct pacer_device *pd)
{
	return fmax(fmax(pd->throttle.cap_limit, pd->cap_pages), 1);
}

double pacer_limit(const struct pacer *p, const struct pacer_device *pd)
{
	return fmin(pacer_domain_limit(p), device_cap(pd));
}

struct throttle_thresholds pacer_device_thresholds(
	const struct pacer *p, const struct pacer_device *pd, uint64_t now_us)
{
	struct throttle_sample s = pacer_sample(p, pd, now_us);
	struct throttle_thresholds t =
		throttle_device_thresholds(&p->throttle, &pd->throttle, &s);

	t.thresh = fmin(t.thresh, pd->cap_pages);
	t.bg_thresh = fmin(t.bg_thresh, pd->cap_pages / 2);
	return t;
}

static uint64_t to_pages(double pages)
{
	return pages < 0 ? 0 : pages >= 1e15 ? UINT64_MAX : (uint64_t)pages;
}

/* What the flusher goes by, from the same sample that writers are judged by. */
static void set_flush_targets(
	struct pacer *p, struct pacer_device *pd, const struct throttle_sample *s)
{
	struct device *dev = pd->dev;
	uint64_t cs = pd->settings.dirty_background_centisecs;

	dev->bg_pages = to_pages(throttle_background_target(&p->throttle, &pd->throttle, s));
	dev->bg_time_pages = cs ? to_pages(pd->reference_bw * (double)cs / 100) : UINT64_MAX;
	dev->bg_age_us = cs * US_PER_CENTISEC;
	dev->limit_pages = to_pages(fmin(s->thresh, s->cap_thresh));
	dev->bytes_per_s = pd->reference_bw * THROTTLE_PAGE_SIZE;
	dev->writeback_us = p->settings.dirty_writeback_centisecs * US_PER_CENTISEC;
	dev->expire_us = p->settings.dirty_expire_centisecs * US_PER_CENTISEC;
}

static void read_knobs(struct pacer *p)
{
	struct throttle_knobs knobs = {
		.dirty_bytes = p->settings.dirty_bytes,
		.dirty_background_bytes = p->settings.dirty_background_bytes,
		.dirty_ratio = (double)p->settings.dirty_ratio,
		.dirty_background_ratio = (double)p->settings.dirty_background_ratio,
	};
	/* A clean reserve, so that receiving and reading never wait for writeback. */
	double dirtyable = (double)p->dom->cache_frames * 0.98;
	struct throttle_thresholds t = throttle_domain_thresholds(&knobs, dirtyable);
	/* A larger limit asks for a larger arena, and may not have all of it: a quarter stays
	 * for the payloads of readers and held requests. */
	double most = floor((double)p->dom->arena.max_frames * 3 / 4);

	p->thresh_asked = t.thresh;
	p->thresh = fmin(t.thresh, most);
	p->bg_thresh = t.thresh > most ? fmin(t.bg_thresh, most / 2) : t.bg_thresh;
	p->throttle.law = p->settings.law;
	p->sum_min_ratio = 0;
	for (const struct pacer_device *pd = p->devices; pd; pd = pd->next)
		p->sum_min_ratio += (double)pd->settings.min_ratio / 100;
}

void pacer_settings_changed(struct pacer *p, uint64_t now_us)
{
	struct pacer_device *pd;

	read_knobs(p);
	DL_FOREACH (p->devices, pd) {
		set_cap(pd);
		struct throttle_sample s = pacer_sample(p, pd, now_us);
		throttle_limits_changed(&p->throttle, &pd->throttle, &s);
		set_flush_targets(p, pd, &s);
		p->ops->kick(pd->dev);
	}
}

static void tick_device(struct pacer *p, struct pacer_device *pd, uint64_t now_us)
{
	observe(p, pd, now_us);
	pd->summary = writers_sum_up(&pd->writers, now_us);
	struct throttle_sample s = pacer_sample(p, pd, now_us);
	throttle_tick(&p->throttle, &pd->throttle, &s);
	/* The limit in time follows the bandwidth just measured. */
	set_cap(pd);
	s.cap_thresh = pd->cap_pages;
	set_flush_targets(p, pd, &s);
	if (now_us >= pd->expire_us) {
		pd->expire_us = now_us + US_PER_S;
		pd->exit_debt += writers_expire(&pd->writers, p->ops->has_ended, now_us);
	}
	if (pd->dev->nr_dirty)
		p->ops->kick(pd->dev);
}

static void tick(struct pacer *p, uint64_t now_us)
{
	struct pacer_device *pd;

	/* With nothing dirty only old writers are left to forget. */
	p->tick_us = now_us +
		(p->dom->nr_dirty + p->dom->nr_writeback ? THROTTLE_TICK_US : US_PER_S);
	DL_FOREACH (p->devices, pd)
		tick_device(p, pd, now_us);
}

/* ---- admission ---- */

static void count_dirty(struct pacer *p, const struct pacer_device *pd, bool forced)
{
	struct pacer_counters *c = &p->counters;
	uint64_t dirty = p->dom->nr_dirty + p->dom->nr_writeback;
	double wb_dirty = (double)(pd->dev->nr_dirty + pd->dev->nr_writeback);
	double over = (double)dirty - pacer_domain_limit(p);

	over = fmax(over, wb_dirty - device_cap(pd));
	if (dirty > c->max_dirty_pages)
		c->max_dirty_pages = dirty;
	if (!forced && over > (double)c->over_limit_pages)
		c->over_limit_pages = (uint64_t)ceil(over);
}

/* Admit as much of the request as fits now. Returns true when all of it is in (or it failed). */
static bool admit(struct pacer *p, struct held *h, uint64_t now_us)
{
	struct pacer_device *pd = h->pd;
	double want = p->ops->count_new(h);
	double room = HUGE_VAL;
	uint64_t before = h->done;

	if (want > 0) {
		struct throttle_sample s = pacer_sample(p, pd, now_us);
		room = throttle_admissible(&p->throttle, &pd->throttle, &s, want, 0,
			pd->summary.nr_active, p->nr_queued > 0);
	}
	bool all = p->ops->take(h, room, now_us);
	if (h->done > before)
		count_dirty(p, pd, false);
	return all;
}

/* ---- verdict ---- */

static void count_pause(struct pacer *p, struct pacer_device *pd, struct writer *w,
	const struct throttle_verdict *v, uint64_t now_us)
{
	struct pacer_counters *c = &p->counters;
	unsigned slot = 0;

	for (uint64_t ms = 1; ms <= 128 && v->pause_us >= ms * US_PER_MS; ms *= 2)
		slot++;
	c->pause_histogram[slot < 8 ? slot : 8]++;
	c->pauses++;
	c->pause_us += v->pause_us;
	if (v->pause_us > c->max_pause_us)
		c->max_pause_us = v->pause_us;
	w->pauses++;
	w->pause_us += v->pause_us;
	writers_throttle(&pd->writers, w, now_us);
}

/* From now on a signal to the thread is noticed. */
static void watch(struct pacer *p, struct held *h)
{
	if (h->watched)
		return;
	h->watched = true;
	p->ops->watch(h);
}

/* Many writers released together would come back together. The law's virtual time is not
 * touched, so what is given here is taken back at the writer's next pause. */
static uint64_t spread(struct pacer *p, const struct pacer_device *pd, uint64_t pause_us)
{
	if (pd->summary.nr_active <= PACER_MOST_TOGETHER)
		return pause_us;
	p->spread = p->spread * 6364136223846793005ull + 1442695040888963407ull;
	return pause_us - pause_us / 4 * (p->spread >> 48) / 65536;
}

/* What every verdict leads to, the first on a request or a later one. */
static void heed(struct pacer *p, struct held *h, const struct throttle_sample *s,
	struct throttle_verdict *v)
{
	struct pacer_device *pd = h->pd;

	p->ops->judged(h, s, v);
	if (h->error) { /* being killed, or refused: it has waited enough */
		v->pause_us = 0;
		v->again = false;
	}
	if (v->start_background) {
		if (pd->dev->nr_dirty <= pd->dev->bg_pages) /* it was over a moment ago */
			set_flush_targets(p, pd, s);
		p->ops->kick(pd->dev);
	}
	if (h->shared) {
		v->again = false;
		v->pause_us = v->pause_us < PACER_SHARED_PAUSE_US ? v->pause_us
								  : PACER_SHARED_PAUSE_US;
	}
	pd->verdict = *v;
	h->again = v->again;
	if (v->pause_us)
		count_pause(p, pd, h->writer, v, s->now_us);
	h->deadline_us = s->now_us + spread(p, pd, v->pause_us);
}

/* All is admitted: how long is the reply held? */
static uint64_t judge(struct pacer *p, struct held *h, uint64_t now_us)
{
	struct pacer_device *pd = h->pd;
	struct throttle_verdict v;

	observe(p, pd, now_us);
	struct throttle_sample s = pacer_sample(p, pd, now_us);
	throttle_balance(&p->throttle, &pd->throttle, &h->writer->throttle, &s,
		(double)h->new_pages, request_pages(h), &v);
	p->counters.freerun += v.kind == THROTTLE_FREERUN;
	p->counters.exempt += v.kind == THROTTLE_EXEMPT;
	p->counters.blocked += v.kind == THROTTLE_BLOCKED;
	writers_dirtied(&pd->writers, h->writer, (double)h->new_pages, now_us);
	heed(p, h, &s, &v);
	h->writer->bytes += h->done;
	return v.pause_us;
}

/* The request never entered the queue or leaves it: held until its deadline, or answered. */
static void settle(struct pacer *p, struct held *h, uint64_t now_us, struct held **ready)
{
	uint64_t pause = judge(p, h, now_us);

	p->ops->settled(h, now_us);
	if (h->again)
		watch(p, h);
	if (pause && held_push(p, h))
		return;
	h->writer->held--;
	DL_APPEND(*ready, h);
}

static bool killed_now(const struct pacer *p, struct held *h)
{
	return __atomic_load_n(&h->interrupted, __ATOMIC_ACQUIRE) && p->ops->is_killed(h);
}

/* Its task must be frozen soon. */
static bool keeps_awake(const struct pacer *p, const struct held *h, uint64_t now_us)
{
	return p->sleeping &&
		(h->queued_us <= p->sleep_us || now_us >= h->queued_us + PACER_SLEEP_WAIT_US);
}

/* A request whose thread is being killed, or cannot be waited for, ends with what was admitted so
 * far. */
static bool ends_early(const struct pacer *p, struct held *h, uint64_t now_us)
{
	if (!killed_now(p, h) && !keeps_awake(p, h, now_us))
		return false;
	if (h->done < h->bytes)
		h->error = EINTR;
	return true;
}

/* How long a request of this size may be held on: its fair share of the device's time. At the
 * limit the law's rate is near 0, and what is unpaid then is better left to the next request. */
static bool held_long_enough(const struct held *h, uint64_t now_us)
{
	const struct pacer_device *pd = h->pd;
	double fair_us = request_pages(h) * pd->summary.nr_active /
		pd->throttle.avg_write_bandwidth * US_PER_S;

	return (double)(now_us - h->arrived_us) >= fair_us;
}

/* The pause of a request is over that one pause does not pay for. True when it is held on. */
static bool judge_again(struct pacer *p, struct held *h, uint64_t now_us)
{
	struct pacer_device *pd = h->pd;
	struct throttle_verdict v;

	if (pd->dev->health == DEVICE_GONE)
		h->error = EIO;
	if (h->error || !h->again || p->stopping || p->sleeping ||
		held_long_enough(h, now_us) || killed_now(p, h))
		return false;
	observe(p, pd, now_us);
	struct throttle_sample s = pacer_sample(p, pd, now_us);
	throttle_balance_again(&p->throttle, &pd->throttle, &h->writer->throttle, &s, &v);
	heed(p, h, &s, &v);
	return v.pause_us && held_push(p, h);
}

/* ---- the queues ---- */

/* A small request of a writer well below its share does not stand behind greedy ones. */
static bool is_small(const struct held *h)
{
	const struct pacer_device *pd = h->pd;

	return h->writer->bytes > 0 &&
		throttle_is_small(&pd->throttle, pd->summary.nr_active,
			throttle_writer_rate_now(&h->writer->throttle, h->arrived_us),
			request_pages(h));
}

static struct held **queue_of(const struct held *h)
{
	return h->small ? &h->pd->small_queue : &h->pd->queue;
}

/* A writer has one turn, however many threads it writes with: one of its requests is in the queue,
 * the others stand behind that. */
static void line_up(struct held *h)
{
	struct writer *w = h->writer;

	if (w->at_gate) {
		DL_APPEND(w->behind, h);
		return;
	}
	w->at_gate = h;
	DL_APPEND(*queue_of(h), h);
}

static void leave_line(struct held *h)
{
	struct writer *w = h->writer;
	struct held *next = w->behind;

	if (w->at_gate != h) {
		DL_DELETE(w->behind, h);
		return;
	}
	DL_DELETE(*queue_of(h), h);
	w->at_gate = NULL;
	if (next) {
		DL_DELETE(w->behind, next);
		line_up(next);
	}
}

static void enqueue(struct pacer *p, struct held *h, uint64_t now_us)
{
	struct pacer_device *pd = h->pd;

	h->queued_us = now_us;
	h->small = is_small(h);
	writers_throttle(&pd->writers, h->writer, now_us);
	line_up(h);
	if (pd->nr_queued++ == 0)
		pd->look_us = now_us + PACER_LOOK_US;
	p->nr_queued++;
	p->counters.queued++;
	pd->dev->nr_blocked++;
	p->ops->kick(pd->dev);
	p->ops->queued(h, now_us);
	watch(p, h);
}

static void dequeue(struct pacer *p, struct held *h, uint64_t now_us, struct held **ready)
{
	struct pacer_device *pd = h->pd;

	leave_line(h);
	pd->nr_queued--;
	p->nr_queued--;
	pd->dev->nr_blocked--;
	p->counters.queue_us += now_us - h->queued_us;
	settle(p, h, now_us, ready);
}

static void look_at(struct pacer *p, struct held *queue, uint64_t now_us, struct held **ready)
{
	struct held *h, *next, *other, *next_other;

	DL_FOREACH_SAFE (queue, h, next) {
		DL_FOREACH_SAFE (h->writer->behind, other, next_other)
			if (ends_early(p, other, now_us))
				dequeue(p, other, now_us, ready);
		if (ends_early(p, h, now_us))
			dequeue(p, h, now_us, ready);
	}
}

/* Those that need not or must not wait for room. */
static void look_at_queues(struct pacer *p, uint64_t now_us, struct held **ready)
{
	struct pacer_device *pd;

	DL_FOREACH (p->devices, pd) {
		if (!pd->nr_queued || now_us < pd->look_us)
			continue;
		pd->look_us = now_us + PACER_LOOK_US;
		look_at(p, pd->small_queue, now_us, ready);
		look_at(p, pd->queue, now_us, ready);
	}
}

/* Who is served next. A small request goes first when it has waited longer, and otherwise every
 * other time: while many writers start, those who have had something come back as small ones, and
 * the rest would stand behind them for as long as they do. */
static struct held *first_of(const struct pacer_device *pd)
{
	struct held *small = pd->small_queue, *other = pd->queue;

	if (!small || !other)
		return small ? small : other;
	return !pd->served_small || small->queued_us < other->queued_us ? small : other;
}

/* One slice for whoever is first in the device's queues. False when nothing fits. */
static bool serve(
	struct pacer *p, struct pacer_device *pd, uint64_t now_us, struct held **ready)
{
	struct held *h = first_of(pd);

	if (!h)
		return false;
	uint64_t before = h->done;
	bool all = admit(p, h, now_us);
	if (h->done == before && !all)
		return false;
	pd->served_small = h->small;
	/* Others wait for this to be written, whatever the verdict says: the flusher may have
	 * gone to sleep with nothing dirty. */
	p->ops->kick(pd->dev);
	if (all) {
		dequeue(p, h, now_us, ready);
		return true;
	}
	DL_DELETE(*queue_of(h), h);
	DL_APPEND(*queue_of(h), h);
	return true;
}

/* Completions made room: one slice for each device and writer in turn, until nothing fits. */
static void admit_queued(struct pacer *p, uint64_t now_us, struct held **ready)
{
	struct pacer_device *pd;
	unsigned stuck = 0;

	/* While all wait at the gate no verdict hears of what was completed. */
	DL_FOREACH (p->devices, pd)
		if (pd->nr_queued)
			observe(p, pd, now_us);
	while (p->nr_queued && stuck < p->nr_devices) {
		p->turn = p->turn && p->turn->next ? p->turn->next : p->devices;
		stuck = serve(p, p->turn, now_us, ready) ? 0 : stuck + 1;
	}
}

/* A writer that has just appeared takes over what earlier ones left unpaid when they ended, up to
 * its first look: a stream of short-lived writers (compilers) pays like one. */
static void adopt_exit_debt(struct pacer_device *pd, struct writer *w)
{
	double most = w->throttle.nr_dirtied_pause - w->throttle.nr_dirtied;
	double debt = fmin(pd->exit_debt, fmax(most, 0));

	w->throttle.nr_dirtied += debt;
	pd->exit_debt -= debt;
}

void pacer_submit(struct pacer *p, struct held *h, uint64_t now_us, struct held **ready)
{
	struct pacer_device *pd = h->pd;

	h->arrived_us = now_us;
	if (p->tick_us > now_us + THROTTLE_TICK_US)
		p->tick_us = now_us + THROTTLE_TICK_US;
	if (h->writer->bytes == 0 && h->writer->held == 0)
		adopt_exit_debt(pd, h->writer);
	h->writer->held++;
	if ((pd->nr_queued == 0 || (!pd->small_queue && is_small(h))) && admit(p, h, now_us))
		settle(p, h, now_us, ready);
	else
		enqueue(p, h, now_us);
}

void pacer_force(struct pacer *p, struct held *h, uint64_t now_us, struct held **ready)
{
	h->arrived_us = now_us;
	p->ops->take(h, HUGE_VAL, now_us);
	p->counters.forced_pages += h->new_pages;
	count_dirty(p, h->pd, true);
	p->ops->settled(h, now_us);
	DL_APPEND(*ready, h);
}

/* ---- the step ---- */

uint64_t pacer_next_us(const struct pacer *p)
{
	const struct pacer_device *pd;
	uint64_t next = p->tick_us;

	DL_FOREACH (p->devices, pd)
		if (pd->nr_queued && pd->look_us < next)
			next = pd->look_us;
	if (p->nr_heap && p->heap[0]->deadline_us < next)
		next = p->heap[0]->deadline_us;
	return next;
}

uint64_t pacer_step(struct pacer *p, uint64_t now_us, struct held **ready)
{
	while (p->nr_heap && p->heap[0]->deadline_us <= now_us) {
		struct held *h = held_pop(p);
		if (judge_again(p, h, now_us))
			continue;
		h->writer->held--;
		DL_APPEND(*ready, h);
	}
	if (now_us >= p->tick_us)
		tick(p, now_us);
	if (p->nr_queued) {
		look_at_queues(p, now_us, ready);
		admit_queued(p, now_us, ready);
	}
	return pacer_next_us(p);
}

void pacer_sleep(struct pacer *p, bool sleeping, uint64_t now_us)
{
	struct pacer_device *pd;

	p->sleeping = sleeping;
	p->sleep_us = now_us;
	DL_FOREACH (p->devices, pd)
		pd->look_us = now_us;
}

bool pacer_is_idle(const struct pacer *p)
{
	return p->nr_queued == 0 && p->nr_heap == 0;
}

void pacer_init(struct pacer *p, struct domain *dom, const struct pacer_ops *ops,
	const struct domain_settings *settings, uint64_t now_us)
{
	*p = (struct pacer){.dom = dom, .ops = ops, .settings = *settings, .tick_us = now_us};
	throttle_domain_init(&p->throttle, now_us);
	read_knobs(p);
}

void pacer_add_device(
	struct pacer *p, struct pacer_device *pd, struct device *dev, uint64_t now_us)
{
	pd->dev = dev;
	pd->summary.nr_active = 1;
	pd->verdict.pos_ratio = 1;
	throttle_device_init(&pd->throttle, pd->prior_bw, now_us);
	DL_APPEND(p->devices, pd);
	p->nr_devices++;
	pacer_settings_changed(p, now_us);
}

void pacer_finish(struct pacer *p)
{
	struct pacer_device *pd;

	DL_FOREACH (p->devices, pd)
		writers_finish(&pd->writers);
	free(p->heap);
	p->heap = NULL;
	p->nr_heap = p->heap_room = 0;
}
