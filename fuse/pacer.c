#include "fuse/pacefs.h"

#include "fuse/held.h"
#include "fuse/node.h"
#include "util/clock.h"
#include "util/log.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

enum {
	TICK_US = 200000, /* throttle.h: bandwidth and limits */
	LOOK_US = 100000, /* at an interrupted request in the queue */
};

/* One request of the largest kind in time must fit: below a megabyte of limit no disk streams,
 * and a stick of 0.5 MB/s still writes it within the default two seconds. */
static const double least_time_limit = 1048576.0 / PAGE_BYTES;

/* ---- sample and settings ---- */

/* The device's own limit, from its settings and the bandwidth now believed. */
static void set_cap(struct backing *b)
{
	double cap = THROTTLE_NO_CAP;

	b->reference_bw =
		throttle_reference_bandwidth(&b->throttle, b->prior_bytes_per_s / PAGE_BYTES);
	if (b->settings.max_bytes)
		cap = (double)b->settings.max_bytes / PAGE_BYTES;
	if (b->settings.dirty_centisecs)
		cap = fmin(cap,
			fmax(b->reference_bw * (double)b->settings.dirty_centisecs / 100,
				least_time_limit));
	b->cap_pages = floor(cap);
}

static struct throttle_sample make_sample(
	const struct pacefs *p, const struct backing *b, uint64_t now_us)
{
	const struct device *dev = &b->dev;

	return (struct throttle_sample){
		.now_us = now_us,
		.dirty = (double)(p->dom.nr_dirty + p->dom.nr_writeback),
		.reclaimable = (double)p->dom.nr_dirty,
		.thresh = p->pacer.thresh,
		.bg_thresh = p->pacer.bg_thresh,
		.wb_dirty = (double)(dev->nr_dirty + dev->nr_writeback),
		.wb_reclaimable = (double)dev->nr_dirty,
		.wb_written = dev->written,
		.wb_busy_us = busy_clock_read(&dev->busy, now_us),
		.wb_dirtied = dev->dirtied,
		.cap_thresh = b->cap_pages,
		.min_ratio = (double)b->settings.min_ratio / 100,
		.max_ratio = (double)b->settings.max_ratio / 100,
		.sum_min_ratio = (double)b->settings.min_ratio / 100,
		.nr_writers = p->pacer.nr_active,
		.strict_limit = b->settings.strict_limit,
	};
}

/* The law hears of what the device did since the last time. */
static void observe(struct pacefs *p, struct backing *b, uint64_t now_us)
{
	const struct device *dev = &b->dev;
	uint64_t done = dev->written - b->seen_written;

	if (done) {
		b->seen_written = dev->written;
		throttle_completed(&p->throttle, &b->throttle, (double)done,
			(double)b->settings.max_ratio / 100, now_us);
	}
}

double pacer_limit(const struct pacefs *p)
{
	const struct backing *b = &p->backing;

	/* Limits rise at once; the smoothed ones are updated at the next tick. */
	return fmin(fmax(p->throttle.dirty_limit, p->pacer.thresh),
		fmax(b->throttle.cap_limit, b->cap_pages));
}

static uint64_t to_pages(double pages)
{
	return pages < 0 ? 0 : pages >= 1e15 ? UINT64_MAX : (uint64_t)pages;
}

/* What the flusher goes by, from the same sample that writers are judged by. */
static void set_flush_targets(
	struct pacefs *p, struct backing *b, const struct throttle_sample *s)
{
	struct throttle_thresholds wb =
		throttle_device_thresholds(&p->throttle, &b->throttle, s);
	double bg = fmin(s->bg_thresh, fmin(wb.bg_thresh, s->cap_thresh / 2));
	double bw = b->reference_bw;
	struct device *dev = &b->dev;
	uint64_t cs = b->settings.dirty_background_centisecs;

	dev->bg_pages = to_pages(bg);
	dev->bg_time_pages = cs ? to_pages(bw * (double)cs / 100) : UINT64_MAX;
	dev->bg_age_us = cs * US_PER_CENTISEC;
	dev->limit_pages = to_pages(fmin(s->thresh, s->cap_thresh));
	dev->bytes_per_s = bw * PAGE_BYTES;
	dev->writeback_us = p->settings.dirty_writeback_centisecs * US_PER_CENTISEC;
	dev->expire_us = p->settings.dirty_expire_centisecs * US_PER_CENTISEC;
}

/* A larger limit asks for a larger arena, and may not have all of it: a quarter stays for the
 * payloads of readers and held requests. */
static void clamp_to_memory(struct pacefs *p)
{
	struct pacer *pacer = &p->pacer;
	double most = floor((double)p->dom.arena.max_frames * 3 / 4);

	if (pacer->thresh <= most)
		return;
	log_warn("a dirty limit of %.0f MB is more than memory allows: %.0f MB is in force",
		pacer->thresh * PAGE_BYTES / 1e6, most * PAGE_BYTES / 1e6);
	pacer->bg_thresh = fmin(pacer->bg_thresh, most / 2);
	pacer->thresh = most;
}

static void read_knobs(struct pacefs *p)
{
	struct throttle_knobs knobs = {
		.dirty_bytes = p->settings.dirty_bytes,
		.dirty_background_bytes = p->settings.dirty_background_bytes,
		.dirty_ratio = (double)p->settings.dirty_ratio,
		.dirty_background_ratio = (double)p->settings.dirty_background_ratio,
	};
	/* A clean reserve, so that receiving and reading never wait for writeback. */
	double dirtyable = (double)p->dom.cache_frames * 0.98;
	struct throttle_thresholds t = throttle_domain_thresholds(&knobs, dirtyable);

	p->pacer.thresh = t.thresh;
	p->pacer.bg_thresh = t.bg_thresh;
	clamp_to_memory(p);
}

void pacer_settings_changed(struct pacefs *p)
{
	uint64_t now = clock_now_us();

	read_knobs(p);
	set_cap(&p->backing);
	struct throttle_sample s = make_sample(p, &p->backing, now);
	throttle_limits_changed(&p->throttle, &p->backing.throttle, &s);
	set_flush_targets(p, &p->backing, &s);
	device_kick(&p->backing.dev);
	pthread_cond_broadcast(&p->dom.progress); /* queued writes may fit now */
}

static void tick(struct pacefs *p, uint64_t now_us)
{
	struct backing *b = &p->backing;

	p->pacer.tick_us = now_us + TICK_US;
	observe(p, b, now_us);
	struct throttle_sample s = make_sample(p, b, now_us);
	throttle_tick(&p->throttle, &b->throttle, &s);
	/* The limit in time follows the bandwidth just measured. */
	set_cap(b);
	s.cap_thresh = b->cap_pages;
	set_flush_targets(p, b, &s);
	p->pacer.nr_active = writers_active(&p->pacer.writers, now_us);
	p->pacer.exit_debt += writers_expire(&p->pacer.writers, now_us);
	if (b->dev.nr_dirty)
		device_kick(&b->dev);
}

/* ---- admission ---- */

struct throttle_thresholds pacer_device_thresholds(const struct pacefs *p)
{
	const struct backing *b = &p->backing;
	struct throttle_sample s = make_sample(p, b, clock_now_us());
	struct throttle_thresholds t =
		throttle_device_thresholds(&p->throttle, &b->throttle, &s);

	t.thresh = fmin(t.thresh, b->cap_pages);
	t.bg_thresh = fmin(t.bg_thresh, b->cap_pages / 2);
	return t;
}

static void count_dirty(struct pacefs *p, bool from_kernel)
{
	struct pacer_counters *c = &p->pacer.counters;
	uint64_t dirty = p->dom.nr_dirty + p->dom.nr_writeback;
	double over = (double)dirty - pacer_limit(p);

	if (dirty > c->max_dirty_pages)
		c->max_dirty_pages = dirty;
	if (!from_kernel && over > (double)c->over_limit_pages)
		c->over_limit_pages = (uint64_t)ceil(over);
}

/* Take the next piece of the payload, at most one page of the file. Returns newly dirty pages
 * or -errno. */
static int take_piece(struct pacefs *p, struct node *node, struct payload *pl, uint32_t *done,
	uint64_t now_us)
{
	uint64_t offset = pl->offset + *done;
	unsigned at = (unsigned)(offset & (PAGE_BYTES - 1));
	unsigned bytes =
		PAGE_BYTES - at < pl->bytes - *done ? PAGE_BYTES - at : pl->bytes - *done;
	unsigned from = *done % PAGE_BYTES, i = *done / PAGE_BYTES;
	int ret;

	if (at == 0 && from == 0) {
		bool adopted;
		ret = cache_adopt(node, offset >> PAGE_SHIFT_BITS, pl->frames[i], bytes, now_us,
			&adopted);
		if (adopted)
			pl->frames[i] = FRAME_NONE;
	} else {
		/* The page's bytes lie in up to two payload frames. */
		unsigned char whole[PAGE_BYTES];
		unsigned first = PAGE_BYTES - from < bytes ? PAGE_BYTES - from : bytes;
		memcpy(whole, arena_data(&p->dom.arena, pl->frames[i]) + from, first);
		if (first < bytes)
			memcpy(whole + first, arena_data(&p->dom.arena, pl->frames[i + 1]),
				bytes - first);
		ret = cache_write(node, offset, whole, bytes, now_us);
	}
	if (ret >= 0)
		*done += bytes;
	return ret;
}

/* Time stamps of an accepted write: they advance with each one, also within a clock tick. */
static void touch(struct node *node)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	double ahead = (double)(node->mtime.tv_sec - now.tv_sec) +
		(double)(node->mtime.tv_nsec - now.tv_nsec) / 1e9;
	/* Only over our own stamps of this moment, not over a future date a user has set. */
	if (ahead >= 0 && ahead < 1) {
		now = node->mtime;
		if (++now.tv_nsec == 1000000000) {
			now.tv_nsec = 0;
			now.tv_sec++;
		}
	}
	node->mtime = node->ctime = now;
	node->times_pending = true;
	node_update_unclean(node);
}

/* Admit as much of the request as fits now. Returns true when all of it is in (or it failed). */
static bool admit(struct pacefs *p, struct held *h, uint64_t now_us, bool everything)
{
	struct node *node = &h->fn->node;
	struct backing *b = backing_of(node->dev);
	bool queued = p->pacer.nr_queued > 0;
	double room = HUGE_VAL;
	uint32_t before = h->done;

	if (!everything) {
		uint64_t left = h->payload.bytes - h->done;
		double want = cache_count_new(node, h->payload.offset + h->done, left);
		struct throttle_sample s = make_sample(p, b, now_us);
		if (want > 0)
			room = throttle_admissible(&p->throttle, &b->throttle, &s, want, 0,
				p->pacer.nr_active, queued);
	}
	while (h->done < h->payload.bytes) {
		if (room < 1 && cache_count_new(node, h->payload.offset + h->done, 1))
			break;
		int ret = take_piece(p, node, &h->payload, &h->done, now_us);
		if (ret < 0) {
			h->error = -ret;
			break;
		}
		room -= ret;
		h->new_pages += (unsigned)ret;
	}
	if (h->done > before) {
		touch(node);
		count_dirty(p, everything);
	}
	return h->done == h->payload.bytes || h->error;
}

/* ---- verdict and reply ---- */

static void count_pause(struct pacer_counters *c, uint64_t pause_us)
{
	unsigned slot = 0;

	for (uint64_t ms = 1; ms <= 128 && pause_us >= ms * US_PER_MS; ms *= 2)
		slot++;
	c->pause_histogram[slot < 8 ? slot : 8]++;
	c->pauses++;
	c->pause_us += pause_us;
	if (pause_us > c->max_pause_us)
		c->max_pause_us = pause_us;
}

static void on_interrupt(fuse_req_t req, void *data)
{
	struct held *h = data;
	struct pacefs *p = pacefs_of(req);

	__atomic_store_n(&h->interrupted, true, __ATOMIC_RELEASE);
	__atomic_fetch_add(&p->pacer.counters.interrupts, 1, __ATOMIC_RELAXED);
	/* The pacer's thread looks at the queue within LOOK_US anyway. */
}

/* From now on a signal to the thread is noticed. Before the request can be answered by anybody
 * else, that is with the lock: the call sets a flag, no more. */
static void watch(struct held *h, uint64_t now_us)
{
	if (h->watched)
		return;
	h->watched = true;
	h->look_us = now_us + LOOK_US;
	fuse_req_interrupt_func(h->req, on_interrupt, h);
}

/* All is admitted: how long is the reply held? */
static uint64_t judge(struct pacefs *p, struct held *h, uint64_t now_us)
{
	struct node *node = &h->fn->node;
	struct backing *b = backing_of(node->dev);
	struct pacer *pacer = &p->pacer;
	struct throttle_verdict v;

	observe(p, b, now_us);
	struct throttle_sample s = make_sample(p, b, now_us);

	throttle_balance(&p->throttle, &b->throttle, &h->writer->throttle, &s,
		(double)h->new_pages, ceil((double)h->payload.bytes / PAGE_BYTES), &v);
	pacer->verdict = v;
	log_debug(
		"write by %s[%d]: %u bytes, %u new pages, dirty %.0f of %.0f, pos_ratio %.3f, "
		"ratelimit %.0f: kind %d, pause %.1f ms",
		h->writer->comm, h->writer->pid, h->payload.bytes, h->new_pages, s.dirty,
		v.dirty_limit, v.pos_ratio, v.task_ratelimit, (int)v.kind,
		(double)v.pause_us / 1e3);
	if (v.start_background)
		device_kick(&b->dev);
	pacer->counters.freerun += v.kind == THROTTLE_FREERUN;
	pacer->counters.exempt += v.kind == THROTTLE_EXEMPT;
	pacer->counters.blocked += v.kind == THROTTLE_BLOCKED;
	uint64_t pause = v.pause_us;
	h->again = v.again;
	/* The kernel keeps the file's lock for the whole of a held write: where others have it
	 * open, the rest of the pause is left as a debt in the writer's virtual time. */
	if (h->fn->writers_open > 1) {
		h->again = false;
		if (pause > PACER_SHARED_PAUSE_US)
			pause = PACER_SHARED_PAUSE_US;
	}
	if (pause) {
		count_pause(&pacer->counters, pause);
		h->writer->pauses++;
		h->writer->pause_us += pause;
		h->writer->paused_us = now_us;
	}
	h->writer->bytes += h->done;
	return pause;
}

static void free_payload(struct pacefs *p, struct payload *pl)
{
	for (unsigned i = 0; i < pl->nr_frames; i++)
		if (pl->frames[i] != FRAME_NONE)
			cache_free_held(&p->dom, pl->frames[i]);
	pl->nr_frames = 0;
	p->backing.promised -= pl->promised;
	pl->promised = 0;
}

/* Without the lock. */
static void reply(struct pacefs *p, struct held *h)
{
	struct fnode *fn = h->fn;
	uint64_t held_us = clock_now_us() - h->arrived_us;

	if (held_us > __atomic_load_n(&p->pacer.counters.max_held_us, __ATOMIC_RELAXED))
		__atomic_store_n(&p->pacer.counters.max_held_us, held_us, __ATOMIC_RELAXED);
	if (h->watched)
		fuse_req_interrupt_func(h->req, NULL, NULL);
	if (h->done == 0 && h->error)
		fuse_reply_err(h->req, h->error);
	else
		fuse_reply_write(h->req, h->done);
	fnode_put(p, fn);
	held_destroy(h);
}

/* Many writers released together would come back together. The law's virtual time is not
 * touched, so what is given here is taken back at the writer's next pause. */
static uint64_t spread(struct pacer *pacer, uint64_t pause_us)
{
	enum { FEW = 8 };

	if (pacer->nr_active <= FEW)
		return pause_us;
	pacer->spread = pacer->spread * 6364136223846793005ull + 1442695040888963407ull;
	return pause_us - pause_us / 4 * (pacer->spread >> 48) / 65536;
}

/* The request leaves the queue or never entered it: held until its deadline, or put on the list
 * of replies to send now. */
static void settle(struct pacefs *p, struct held *h, uint64_t now_us, struct held **ready)
{
	struct pacer *pacer = &p->pacer;
	uint64_t pause = judge(p, h, now_us);

	if (h->error == EINTR) { /* being killed: it has waited enough */
		pause = 0;
		h->again = false;
	}
	pacer->counters.held_pages -= h->queued_us ? h->payload.nr_frames : 0;
	free_payload(p, &h->payload);
	h->deadline_us = now_us + spread(pacer, pause);
	if (h->again)
		watch(h, now_us);
	if (pause && held_push(pacer, h)) {
		if (h->deadline_us < pacer->wake_us)
			pthread_cond_broadcast(&p->dom.progress);
		return;
	}
	h->writer->held--;
	DL_APPEND(*ready, h);
}

/* An interrupted request whose thread is being killed ends with what was admitted so far. */
static bool killed_now(struct held *h, uint64_t now_us)
{
	if (!__atomic_load_n(&h->interrupted, __ATOMIC_ACQUIRE) || now_us < h->look_us)
		return false;
	h->look_us = now_us + LOOK_US;
	if (!held_is_killed(h->tid))
		return false;
	if (h->done < h->payload.bytes)
		h->error = EINTR;
	return true;
}

/* How long a request of this size may be held on: its fair share of the device's time. At the
 * limit the law's rate is near 0, and what is unpaid then is better left to the next request. */
static bool held_long_enough(const struct pacefs *p, const struct held *h, uint64_t now_us)
{
	const struct backing *b = backing_of(h->fn->node.dev);
	double pages = ceil((double)h->payload.bytes / PAGE_BYTES) * p->pacer.nr_active;
	double fair_us = pages / b->throttle.avg_write_bandwidth * US_PER_S;

	return (double)(now_us - h->arrived_us) >= fair_us;
}

/* The pause of a request is over that one pause does not pay for. True when it is held on. */
static bool judge_again(struct pacefs *p, struct held *h, uint64_t now_us)
{
	struct backing *b = backing_of(h->fn->node.dev);
	struct throttle_verdict v;

	if (!h->again || p->pacer.stopping || held_long_enough(p, h, now_us) ||
		killed_now(h, now_us))
		return false;
	observe(p, b, now_us);
	struct throttle_sample s = make_sample(p, b, now_us);
	throttle_balance_again(&p->throttle, &b->throttle, &h->writer->throttle, &s, &v);
	p->pacer.verdict = v;
	if (v.start_background)
		device_kick(&b->dev);
	h->again = v.again;
	if (v.pause_us == 0)
		return false;
	count_pause(&p->pacer.counters, v.pause_us);
	h->writer->pauses++;
	h->writer->pause_us += v.pause_us;
	h->writer->paused_us = now_us;
	h->deadline_us = now_us + spread(&p->pacer, v.pause_us);
	return held_push(&p->pacer, h);
}

static void send_all(struct pacefs *p, struct held *ready)
{
	struct held *h, *next;

	DL_FOREACH_SAFE (ready, h, next)
		reply(p, h);
}

/* ---- the queue ---- */

static struct held **queue_of(struct pacer *pacer, const struct held *h)
{
	return h->small ? &pacer->small_queue : &pacer->queue;
}

static void enqueue(struct pacefs *p, struct held *h, uint64_t now_us)
{
	struct pacer *pacer = &p->pacer;
	struct device *dev = h->fn->node.dev;

	h->queued_us = now_us;
	h->fn->queued++;
	h->writer->paused_us = now_us;
	h->small = held_is_small(p, h);
	DL_APPEND(*queue_of(pacer, h), h);
	pacer->nr_queued++;
	pacer->counters.queued++;
	pacer->counters.held_pages += h->payload.nr_frames;
	dev->nr_blocked++;
	device_kick(dev);
	p->dom.wants_progress = true;
	watch(h, now_us);
	if (pacer->wake_us > h->look_us)
		pthread_cond_broadcast(&p->dom.progress);
}

static void dequeue(struct pacefs *p, struct held *h, uint64_t now_us, struct held **ready)
{
	struct pacer *pacer = &p->pacer;

	DL_DELETE(*queue_of(pacer, h), h);
	pacer->nr_queued--;
	h->fn->node.dev->nr_blocked--;
	h->fn->queued--;
	pthread_cond_broadcast(&p->dom.progress);
	pacer->counters.queue_us += now_us - h->queued_us;
	settle(p, h, now_us, ready);
}

static void answer_killed(
	struct pacefs *p, struct held *queue, uint64_t now_us, struct held **ready)
{
	struct held *h, *next;

	DL_FOREACH_SAFE (queue, h, next)
		if (killed_now(h, now_us))
			dequeue(p, h, now_us, ready);
}

/* Completions made room: one slice for each in turn, until nothing fits. */
static void admit_queued(struct pacefs *p, uint64_t now_us, struct held **ready)
{
	struct pacer *pacer = &p->pacer;
	struct held *h;

	answer_killed(p, pacer->small_queue, now_us, ready);
	answer_killed(p, pacer->queue, now_us, ready);
	while ((h = pacer->small_queue ? pacer->small_queue : pacer->queue)) {
		uint32_t before = h->done;
		if (admit(p, h, now_us, false)) {
			dequeue(p, h, now_us, ready);
			continue;
		}
		if (h->done == before)
			break;
		DL_DELETE(*queue_of(pacer, h), h);
		DL_APPEND(*queue_of(pacer, h), h);
	}
}

/* A writer that has just appeared takes over what earlier ones left unpaid when they ended, up to
 * its first look: a stream of short-lived writers (compilers) pays like one. */
static void adopt_exit_debt(struct pacer *pacer, struct writer *w)
{
	double most = w->throttle.nr_dirtied_pause - w->throttle.nr_dirtied;
	double debt = fmin(pacer->exit_debt, fmax(most, 0));

	w->throttle.nr_dirtied += debt;
	pacer->exit_debt -= debt;
}

void pacer_write(struct pacefs *p, fuse_req_t req, struct fnode *fn, struct payload *payload,
	bool from_kernel)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	struct pacer *pacer = &p->pacer;
	struct writer_caller caller = {0};
	struct held *ready = NULL;
	uint64_t now = clock_now_us();

	struct held *h = held_create(payload->nr_frames);
	if (!h) {
		domain_lock(&p->dom);
		p->backing.promised -= payload->promised;
		domain_unlock(&p->dom);
		fuse_reply_err(req, ENOMEM);
		fnode_put(p, fn);
		return;
	}
	domain_lock(&p->dom);
	if (!from_kernel && !writers_cached(&pacer->writers, ctx->pid, now, &caller)) {
		domain_unlock(&p->dom);
		caller = writer_resolve(ctx->pid);
		domain_lock(&p->dom);
		writers_remember(&pacer->writers, ctx->pid, &caller, now);
	}
	h->req = req;
	h->arrived_us = now;
	h->fn = fn;
	h->tid = ctx->pid;
	h->payload = *payload;
	h->payload.frames = h->frames;
	memcpy(h->frames, payload->frames, payload->nr_frames * sizeof(*h->frames));
	for (unsigned i = 0; i < payload->nr_frames; i++)
		payload->frames[i] = FRAME_NONE;
	h->writer =
		writers_get(&pacer->writers, &caller, ctx->pid, ctx->uid, fn->node.nodeid, now);
	if (h->writer && h->writer->bytes == 0 && h->writer->held == 0)
		adopt_exit_debt(pacer, h->writer);
	if (!h->writer) {
		h->error = ENOMEM;
		free_payload(p, &h->payload);
		DL_APPEND(ready, h);
	} else if (from_kernel) {
		h->writer->held++;
		admit(p, h, now, true);
		pacer->counters.mmap_pages += h->new_pages;
		h->writer->held--;
		free_payload(p, &h->payload);
		DL_APPEND(ready, h);
	} else {
		h->writer->held++;
		if ((pacer->nr_queued == 0 || (!pacer->small_queue && held_is_small(p, h))) &&
			admit(p, h, now, false))
			settle(p, h, now, &ready);
		else
			enqueue(p, h, now);
	}
	domain_unlock(&p->dom);
	send_all(p, ready);
}

/* ---- the thread ---- */

static uint64_t step(struct pacefs *p, uint64_t now_us)
{
	struct pacer *pacer = &p->pacer;
	struct held *ready = NULL, *h;

	while (pacer->nr_heap && pacer->heap[0]->deadline_us <= now_us) {
		h = held_pop(pacer);
		if (judge_again(p, h, now_us))
			continue;
		h->writer->held--;
		DL_APPEND(ready, h);
	}
	if (now_us >= pacer->tick_us)
		tick(p, now_us);
	if (pacer->nr_queued)
		admit_queued(p, now_us, &ready);
	if (ready) {
		domain_unlock(&p->dom);
		send_all(p, ready);
		domain_lock(&p->dom);
		/* Room may have come meanwhile, with nobody listening. */
		if (pacer->nr_queued)
			return now_us;
	}
	uint64_t next = pacer->tick_us;
	if (pacer->nr_queued && now_us + LOOK_US < next)
		next = now_us + LOOK_US;
	if (pacer->nr_heap && pacer->heap[0]->deadline_us < next)
		next = pacer->heap[0]->deadline_us;
	return next;
}

static void *pacer_main(void *arg)
{
	struct pacefs *p = arg;
	struct pacer *pacer = &p->pacer;

	domain_lock(&p->dom);
	while (!pacer->stopping || pacer->nr_queued || pacer->nr_heap) {
		uint64_t next = step(p, clock_now_us());
		uint64_t now = clock_now_us();
		if (next <= now)
			continue;
		struct timespec until = {
			.tv_sec = (time_t)(next / US_PER_S),
			.tv_nsec = (long)(next % US_PER_S * 1000),
		};
		pacer->wake_us = next;
		if (pacer->nr_queued)
			p->dom.wants_progress = true;
		pthread_cond_timedwait(&p->dom.progress, &p->dom.lock, &until);
		pacer->wake_us = 0;
	}
	domain_unlock(&p->dom);
	return NULL;
}

int pacer_start(struct pacefs *p)
{
	struct pacer *pacer = &p->pacer;
	uint64_t now = clock_now_us();

	pacer->nr_active = 1;
	pacer->verdict.pos_ratio = 1;
	throttle_domain_init(&p->throttle, now);
	throttle_device_init(
		&p->backing.throttle, p->backing.prior_bytes_per_s / PAGE_BYTES, now);
	domain_lock(&p->dom);
	pacer_settings_changed(p);
	domain_unlock(&p->dom);
	int ret = pthread_create(&pacer->thread, NULL, pacer_main, p);
	pacer->running = ret == 0;
	return -ret;
}

void pacer_stop(struct pacefs *p)
{
	struct pacer *pacer = &p->pacer;

	if (!pacer->running)
		return;
	domain_lock(&p->dom);
	pacer->stopping = true;
	pthread_cond_broadcast(&p->dom.progress);
	domain_unlock(&p->dom);
	pthread_join(pacer->thread, NULL);
	pacer->running = false;
	writers_finish(&pacer->writers);
	free(pacer->heap);
}
