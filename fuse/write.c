#include "fuse/write.h"

#include "fuse/bdi.h"
#include "fuse/node.h"
#include "fuse/pacefs.h"
#include "fuse/sleep.h"
#include "fuse/space.h"
#include "util/clock.h"
#include "util/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

/* A WRITE that is not answered yet. */
struct write {
	struct held held; /* first: write_of() */
	fuse_req_t req;
	struct pacefs *p;
	struct fnode *fn; /* referenced */
	pid_t tid;
	struct payload payload;
	uint32_t frames[];
};

static struct write *write_of(struct held *h)
{
	return (struct write *)h;
}

/* ---- what the pacer needs done ---- */

static double count_new(struct held *h)
{
	const struct write *w = write_of(h);

	return cache_count_new(&w->fn->node, w->payload.offset + h->done, h->bytes - h->done);
}

/* Take the next piece of the payload, at most one page of the file. Returns newly dirty pages
 * or -errno. */
static int take_piece(struct write *w, uint64_t now_us)
{
	struct node *node = &w->fn->node;
	struct payload *pl = &w->payload;
	uint64_t done = w->held.done;
	uint64_t offset = pl->offset + done;
	unsigned at = (unsigned)(offset & (PAGE_BYTES - 1));
	unsigned left = pl->bytes - (unsigned)done;
	unsigned bytes = PAGE_BYTES - at < left ? PAGE_BYTES - at : left;
	unsigned from = (unsigned)(done % PAGE_BYTES), i = (unsigned)(done / PAGE_BYTES);
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
		memcpy(whole, arena_data(&w->p->dom.arena, pl->frames[i]) + from, first);
		if (first < bytes)
			memcpy(whole + first, arena_data(&w->p->dom.arena, pl->frames[i + 1]),
				bytes - first);
		ret = cache_write(node, offset, whole, bytes, now_us);
	}
	if (ret >= 0)
		w->held.done += bytes;
	return ret;
}

/* What waits in vain: for a device that is gone, or for room that has no place below. Mapped pages
 * are taken nevertheless: their loss is told by fsync, and named. */
static int refused(const struct write *w)
{
	const struct device *dev = w->fn->node.dev;

	if (!w->held.writer)
		return 0;
	return dev->health == DEVICE_GONE ? EIO : dev->parked ? ENOSPC : 0;
}

static bool take(struct held *h, double room, uint64_t now_us)
{
	struct write *w = write_of(h);
	uint64_t before = h->done;

	h->error = refused(w);
	if (h->error)
		return true;
	h->shared = w->fn->writers_open > 1;
	while (h->done < h->bytes) {
		if (room < 1 && cache_count_new(&w->fn->node, w->payload.offset + h->done, 1))
			break;
		int ret = take_piece(w, now_us);
		if (ret < 0) {
			h->error = -ret;
			break;
		}
		room -= ret;
		h->new_pages += (unsigned)ret;
	}
	if (h->done > before)
		node_touch(&w->fn->node);
	return h->done == h->bytes || h->error;
}

static void queued(struct held *h, uint64_t now_us)
{
	struct write *w = write_of(h);

	w->fn->queued++;
	w->p->writes.held_pages += w->payload.nr_frames;
	w->p->dom.wants_progress = true;
}

static void free_payload(struct write *w)
{
	struct payload *pl = &w->payload;

	for (unsigned i = 0; i < pl->nr_frames; i++)
		if (pl->frames[i] != FRAME_NONE)
			cache_free_held(&w->p->dom, pl->frames[i]);
	pl->nr_frames = 0;
	space_kept(w->p, pl);
}

static void settled(struct held *h, uint64_t now_us)
{
	struct write *w = write_of(h);

	if (h->queued_us) {
		w->fn->queued--;
		w->p->writes.held_pages -= w->payload.nr_frames;
		pthread_cond_broadcast(&w->p->dom.progress); /* a truncation may wait for it */
	}
	free_payload(w);
}

static void on_interrupt(fuse_req_t req, void *data)
{
	struct held *h = data;

	__atomic_store_n(&h->interrupted, true, __ATOMIC_RELEASE);
	__atomic_fetch_add(&pacefs_of(req)->writes.interrupts, 1, __ATOMIC_RELAXED);
	/* The pacer looks at the queue within PACER_LOOK_US anyway. */
}

/* Before the request can be answered by anybody else, that is with the lock: the call sets a
 * flag, no more. */
static void watch(struct held *h)
{
	fuse_req_interrupt_func(write_of(h)->req, on_interrupt, h);
}

static bool is_killed(struct held *h)
{
	return caller_is_killed(write_of(h)->tid);
}

static void judged(
	const struct held *h, const struct throttle_sample *s, const struct throttle_verdict *v)
{
	log_debug("write by %s[%d]: %llu bytes, %llu new pages, dirty %.0f of %.0f, "
		  "pos_ratio %.3f, ratelimit %.0f: kind %d, pause %.1f ms",
		h->writer->comm, h->writer->pid, (unsigned long long)h->bytes,
		(unsigned long long)h->new_pages, s->dirty, v->dirty_limit, v->pos_ratio,
		v->task_ratelimit, (int)v->kind, (double)v->pause_us / 1e3);
}

static const struct pacer_ops ops = {
	.count_new = count_new,
	.take = take,
	.queued = queued,
	.settled = settled,
	.watch = watch,
	.is_killed = is_killed,
	.has_ended = caller_has_ended,
	.kick = device_kick,
	.judged = judged,
};

/* ---- one write ---- */

/* Without the lock. */
static void reply(struct write *w)
{
	struct pacefs *p = w->p;
	uint64_t *most = &p->writes.max_held_us;
	uint64_t held_us = clock_now_us() - w->held.arrived_us;

	if (held_us > __atomic_load_n(most, __ATOMIC_RELAXED))
		__atomic_store_n(most, held_us, __ATOMIC_RELAXED);
	if (w->held.watched)
		fuse_req_interrupt_func(w->req, NULL, NULL);
	/* A device that is gone takes what was accepted of it along. */
	if (w->held.error == EIO || (w->held.done == 0 && w->held.error))
		fuse_reply_err(w->req, w->held.error);
	else
		fuse_reply_write(w->req, w->held.done);
	fnode_put(p, w->fn);
	free(w);
}

static void send_all(struct held *ready)
{
	struct held *h, *next;

	DL_FOREACH_SAFE (ready, h, next)
		reply(write_of(h));
}

/* The frames go over to the write. */
static struct write *write_create(
	struct pacefs *p, fuse_req_t req, struct fnode *fn, struct payload *payload)
{
	struct write *w = calloc(1, sizeof(*w) + payload->nr_frames * sizeof(w->frames[0]));

	if (!w)
		return NULL;
	w->req = req;
	w->p = p;
	w->fn = fn;
	w->tid = fuse_req_ctx(req)->pid;
	w->held.bytes = payload->bytes;
	w->held.pd = &backing_of(fn->node.dev)->pacing;
	w->payload = *payload;
	w->payload.frames = w->frames;
	memcpy(w->frames, payload->frames, payload->nr_frames * sizeof(w->frames[0]));
	for (unsigned i = 0; i < payload->nr_frames; i++)
		payload->frames[i] = FRAME_NONE;
	return w;
}

/* The lock may be dropped meanwhile: a system call may be needed. */
static struct writer *find_writer(struct pacefs *p, struct write *w)
{
	uint64_t now_us = clock_now_us();
	struct callers *cs = &p->writes.callers;
	uid_t uid = fuse_req_ctx(w->req)->uid;
	struct caller caller = {0};

	if (!callers_cached(cs, w->tid, now_us, &caller)) {
		domain_unlock(&p->dom);
		caller = caller_resolve(w->tid);
		domain_lock(&p->dom);
		callers_remember(cs, w->tid, &caller, now_us);
	}
	struct writer_key key = caller_key(&caller, uid, w->fn->node.nodeid);
	struct writer *writer = writers_get(&w->held.pd->writers, &key, now_us);
	if (writer) {
		writer->pid = caller.tgid ? caller.tgid : w->tid;
		writer->uid = uid;
		memcpy(writer->comm, caller.comm, sizeof(writer->comm));
	}
	return writer;
}

void writes_submit(struct pacefs *p, fuse_req_t req, struct fnode *fn, struct payload *payload,
	bool from_kernel)
{
	struct writes *ws = &p->writes;
	struct held *ready = NULL;

	struct write *w = write_create(p, req, fn, payload);
	if (!w) {
		domain_lock(&p->dom);
		space_kept(p, payload);
		domain_unlock(&p->dom);
		fuse_reply_err(req, ENOMEM);
		fnode_put(p, fn);
		return;
	}
	domain_lock(&p->dom);
	if (!from_kernel)
		w->held.writer = find_writer(p, w);
	uint64_t now = clock_now_us(); /* with the lock: it does not step back */
	if (from_kernel) {
		pacer_force(&p->pacer, &w->held, now, &ready);
	} else if (w->held.writer) {
		pacer_submit(&p->pacer, &w->held, now, &ready);
	} else {
		w->held.error = ENOMEM;
		w->held.arrived_us = now;
		free_payload(w);
		DL_APPEND(ready, &w->held);
	}
	if (pacer_next_us(&p->pacer) < ws->wake_us)
		pthread_cond_broadcast(&p->dom.progress);
	domain_unlock(&p->dom);
	send_all(ready);
}

/* ---- the thread ---- */

/* With every tick: what is not needed any more goes. */
static void forget_old(struct pacefs *p)
{
	callers_expire(&p->writes.callers, p->pacer.tick_us);
	arena_trim(&p->dom.arena);
}

static void *writes_main(void *arg)
{
	struct pacefs *p = arg;
	struct pacer *pacer = &p->pacer;

	domain_lock(&p->dom);
	while (!pacer->stopping || !pacer_is_idle(pacer)) {
		struct held *ready = NULL;
		uint64_t tick_us = pacer->tick_us;
		uint64_t next = pacer_step(pacer, clock_now_us(), &ready);
		bool ticked = pacer->tick_us != tick_us, stopping = pacer->stopping;
		if (ticked)
			forget_old(p);
		if (ready || ticked) {
			domain_unlock(&p->dom);
			send_all(ready);
			if (ticked && !stopping) /* the number may be another mount's by then */
				bdi_follow(p);
			domain_lock(&p->dom);
			/* Room may have come meanwhile, with nobody listening. */
			if (pacer->nr_queued)
				continue;
			next = pacer_next_us(pacer);
		}
		if (next <= clock_now_us())
			continue;
		struct timespec until = {
			.tv_sec = (time_t)(next / US_PER_S),
			.tv_nsec = (long)(next % US_PER_S * 1000),
		};
		p->writes.wake_us = next;
		if (pacer->nr_queued)
			p->dom.wants_progress = true;
		pthread_cond_timedwait(&p->dom.progress, &p->dom.lock, &until);
		p->writes.wake_us = 0;
	}
	domain_unlock(&p->dom);
	return NULL;
}

void writes_warn_of_clamp(struct pacefs *p)
{
	domain_lock(&p->dom);
	double asked = p->pacer.thresh_asked, thresh = p->pacer.thresh;
	domain_unlock(&p->dom);
	if (thresh < asked)
		log_warn("a dirty limit of %.0f MB is more than memory allows: %.0f MB is in "
			 "force",
			asked * PAGE_BYTES / 1e6, thresh * PAGE_BYTES / 1e6);
}

void writes_sleep(struct pacefs *p, bool sleeping)
{
	struct held *ready = NULL;
	uint64_t now = clock_now_us();

	domain_lock(&p->dom);
	pacer_sleep(&p->pacer, sleeping, now);
	pacer_step(&p->pacer, now, &ready);
	domain_unlock(&p->dom);
	send_all(ready);
}

void writes_settings_changed(struct pacefs *p)
{
	pacer_settings_changed(&p->pacer, clock_now_us());
	pthread_cond_broadcast(&p->dom.progress); /* queued writes may fit now */
}

int writes_start(struct pacefs *p)
{
	uint64_t now = clock_now_us();

	domain_lock(&p->dom);
	pacer_init(&p->pacer, &p->dom, &ops, &p->options.settings.domain, now);
	pacer_add_device(&p->pacer, &p->backing.pacing, &p->backing.dev, now);
	domain_unlock(&p->dom);
	writes_warn_of_clamp(p);
	int ret = pthread_create(&p->writes.thread, NULL, writes_main, p);
	p->writes.running = ret == 0;
	if (ret == 0)
		sleep_watch_start(p);
	return -ret;
}

void writes_stop(struct pacefs *p)
{
	if (!p->writes.running)
		return;
	sleep_watch_stop();
	domain_lock(&p->dom);
	p->pacer.stopping = true;
	pthread_cond_broadcast(&p->dom.progress);
	domain_unlock(&p->dom);
	pthread_join(p->writes.thread, NULL);
	p->writes.running = false;
	pacer_finish(&p->pacer);
	callers_finish(&p->writes.callers);
}
