/* test_throttle_sim.h - the law in a closed loop: writers, flusher and devices in virtual
 * time.
 *
 * One call of step() is one event; order and outcome are fixed, there is no randomness but a
 * sequence of fixed numbers that spreads the pauses of many writers.
 * After every event the hard limits are compared with the counters. Devices serve one
 * write at a time at a constant speed; the flusher keeps up to IN_FLIGHT_MAX of them
 * queued. Writers hold a request as throttle.h tells them to. Results are counted after
 * the warm-up.
 */
#ifndef PACEFS_TEST_THROTTLE_SIM_H
#define PACEFS_TEST_THROTTLE_SIM_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "throttle/throttle.h"
#include "util/busy_clock.h"

#define MIB_PAGES 256.0
#ifndef WRITERS_MAX
#define WRITERS_MAX 128
#endif
#ifndef DEVICES_MAX
#define DEVICES_MAX 2
#endif
#define IO_PAGES 32.0 /* 128 KiB per write of the flusher */
#define IN_FLIGHT_MAX 16
#define COPY_US_PER_PAGE 4 /* 1 GB/s */
#define MOST_TOGETHER 8	   /* more writers than this: their pauses are spread */
#define NEVER UINT64_MAX

struct sim_writer {
	struct throttle_writer w;
	unsigned dev;
	uint64_t next_us; /* next request or end of a pause, NEVER while queued */
	double want;	  /* pages of the current request not admitted yet */
	double request;	  /* pages per request */
	double think_us;  /* own time between requests */
	bool again;	  /* held, and to be decided on again */
	bool queued;
	uint64_t throttled_us; /* held or queued until then, 0 = never */
	/* since the warm-up */
	double written;
	uint64_t held, exempt;
};

struct sim_device {
	struct throttle_device d;
	double bw; /* true speed, pages/s; 0 = dead */
	double reclaimable, writeback;
	uint64_t written, dirtied;
	double io[IN_FLIGHT_MAX];
	unsigned io_head, io_len;
	uint64_t io_done_us;
	bool kicked;
	double nr_throttled, unthrottled_rate; /* of its writers, as of the last tick */
	double completed;		       /* since the warm-up */
	double dirty_max;
	uint64_t idle_us;
	struct busy_clock busy;
};

struct sim {
	struct throttle_domain dom;
	struct sim_device devs[DEVICES_MAX];
	struct sim_writer writers[WRITERS_MAX];
	unsigned nr_devs, nr_writers;
	unsigned queue[WRITERS_MAX], queue_len;
	uint64_t now_us, tick_us, warm_us;
	uint64_t spread; /* state of a linear congruential generator */
	double thresh, bg_thresh, cap;
	double max_ratio;
	bool strict;
	bool ignore_again; /* a caller that replies after one pause */
	double dirty_max, dirty_sum;
	uint64_t events;
};

/* ---- set-up ---- */

/* Every test runs once for each law. */
static enum throttle_law sim_law;

static void sim_init(struct sim *m, double thresh)
{
	memset(m, 0, sizeof(*m));
	m->now_us = 1000000;
	m->warm_us = NEVER;
	m->thresh = thresh;
	m->bg_thresh = thresh / 2;
	m->cap = THROTTLE_NO_CAP;
	m->max_ratio = 1;
	m->tick_us = m->now_us + THROTTLE_TICK_US;
	throttle_domain_init(&m->dom, m->now_us);
	m->dom.law = sim_law;
}

static unsigned add_device(struct sim *m, double mb_per_s)
{
	struct sim_device *d = &m->devs[m->nr_devs];

	d->bw = mb_per_s * 1e6 / THROTTLE_PAGE_SIZE;
	d->io_done_us = NEVER;
	throttle_device_init(&d->d, THROTTLE_INIT_BW, m->now_us);
	return m->nr_devs++;
}

static struct sim_writer *add_writer(struct sim *m, unsigned dev, double request)
{
	struct sim_writer *w = &m->writers[m->nr_writers++];

	throttle_writer_init(&w->w);
	w->dev = dev;
	w->request = request;
	w->next_us = m->now_us + m->nr_writers;
	return w;
}

static void add_writers(struct sim *m, unsigned nr, unsigned dev, double request)
{
	while (nr-- != 0)
		add_writer(m, dev, request);
}

/* ---- what the law sees ---- */

static double dirty(const struct sim *m)
{
	double pages = 0;

	for (unsigned i = 0; i < m->nr_devs; i++)
		pages += m->devs[i].reclaimable + m->devs[i].writeback;
	return pages;
}

static struct throttle_sample sample(const struct sim *m, unsigned dev)
{
	const struct sim_device *d = &m->devs[dev];
	double reclaimable = 0;

	for (unsigned i = 0; i < m->nr_devs; i++)
		reclaimable += m->devs[i].reclaimable;
	return (struct throttle_sample){
		.now_us = m->now_us,
		.dirty = dirty(m),
		.reclaimable = reclaimable,
		.thresh = m->thresh,
		.bg_thresh = m->bg_thresh,
		.wb_dirty = d->reclaimable + d->writeback,
		.wb_reclaimable = d->reclaimable,
		.wb_written = d->written,
		.wb_busy_us = busy_clock_read(&d->busy, m->now_us),
		.wb_dirtied = d->dirtied,
		.cap_thresh = m->cap,
		.max_ratio = m->max_ratio,
		.nr_throttled = d->nr_throttled,
		.unthrottled_rate = d->unthrottled_rate,
		.strict_limit = m->strict,
	};
}

/* ---- flusher and device ---- */

static void start_io(struct sim *m, struct sim_device *d)
{
	d->io_done_us = NEVER;
	if (d->io_len != 0 && d->bw > 0)
		d->io_done_us = m->now_us + (uint64_t)(d->io[d->io_head] / d->bw * 1e6 + 0.5);
}

/* Place in the queue of the first one who waits for the device. */
static unsigned first_in_queue(const struct sim *m, unsigned dev)
{
	unsigned at = 0;

	while (at < m->queue_len && m->writers[m->queue[at]].dev != dev)
		at++;
	return at;
}

static bool is_awaited(const struct sim *m, unsigned dev)
{
	return first_in_queue(m, dev) < m->queue_len;
}

static void flush(struct sim *m, unsigned dev)
{
	struct sim_device *d = &m->devs[dev];
	bool wanted = d->kicked || is_awaited(m, dev);

	d->kicked = false;
	while (d->reclaimable >= 1 && d->io_len < IN_FLIGHT_MAX) {
		struct throttle_sample s = sample(m, dev);
		double pages = fmin(d->reclaimable, IO_PAGES);

		if (!wanted && !throttle_over_background(&m->dom, &d->d, &s))
			return;
		wanted = false;
		if (d->io_len == 0)
			busy_clock_update(&d->busy, true, false, m->now_us);
		d->io[(d->io_head + d->io_len++) % IN_FLIGHT_MAX] = pages;
		d->reclaimable -= pages;
		d->writeback += pages;
		if (d->io_len == 1)
			start_io(m, d);
	}
}

static void complete(struct sim *m, struct sim_device *d)
{
	double pages = d->io[d->io_head];

	d->io_head = (d->io_head + 1) % IN_FLIGHT_MAX;
	d->io_len--;
	d->writeback -= pages;
	d->written += (uint64_t)pages;
	if (m->now_us >= m->warm_us)
		d->completed += pages;
	busy_clock_update(&d->busy, d->io_len != 0, true, m->now_us);
	throttle_completed(&m->dom, &d->d, pages, m->max_ratio, m->now_us);
	start_io(m, d);
}

/* ---- writers ---- */

/* Each decides when its pause is over, and what the position was then holds for the next one:
 * writers who keep the same order for ever would always look at the same part of a ripple. */
static uint64_t spread(struct sim *m, uint64_t pause_us)
{
	if (m->nr_writers <= MOST_TOGETHER)
		return pause_us;
	m->spread = m->spread * 6364136223846793005u + 1442695040888963407u;
	return pause_us - pause_us / 4 * (m->spread >> 48) / 65536;
}

static void decide(struct sim *m, struct sim_writer *w, bool again)
{
	struct sim_device *d = &m->devs[w->dev];
	struct throttle_sample s = sample(m, w->dev);
	struct throttle_verdict v;

	if (again)
		throttle_balance_again(&m->dom, &d->d, &w->w, &s, &v);
	else
		throttle_balance(&m->dom, &d->d, &w->w, &s, w->request, w->request, &v);
	assert_true(v.pause_us <= THROTTLE_MAX_PAUSE_US);
	assert_true(isfinite(v.pos_ratio) && isfinite(v.task_ratelimit));
	if (m->now_us >= m->warm_us) {
		w->written += again ? 0 : w->request;
		w->held += v.pause_us != 0;
		w->exempt += v.kind == THROTTLE_EXEMPT;
	}
	d->kicked |= v.start_background;
	w->again = v.again && !m->ignore_again;
	w->next_us = m->now_us + spread(m, v.pause_us);
	if (v.pause_us != 0)
		w->throttled_us = w->next_us;
	if (!w->again)
		w->next_us += (uint64_t)(w->request * COPY_US_PER_PAGE + w->think_us);
}

/* Takes what the gate allows; true when the whole request is in. */
static bool admit(struct sim *m, struct sim_writer *w, bool queued)
{
	struct sim_device *d = &m->devs[w->dev];
	struct throttle_sample s = sample(m, w->dev);
	double pages =
		throttle_admissible(&m->dom, &d->d, &s, w->want, 0, m->nr_writers, queued);

	assert_true(pages >= 0 && pages <= w->want && pages == floor(pages));
	w->want -= pages;
	if (m->strict && pages > 0)
		assert_true(s.wb_dirty + pages <=
			fmax(1, throttle_device_thresholds(&m->dom, &d->d, &s).thresh));
	d->reclaimable += pages;
	d->dirtied += (uint64_t)pages;
	if (w->want > 0)
		return false;
	decide(m, w, false);
	return true;
}

static void wake(struct sim *m, unsigned i)
{
	struct sim_writer *w = &m->writers[i];

	if (w->again) {
		decide(m, w, true);
		return;
	}
	w->want = w->request;
	w->next_us = NEVER;
	if (is_awaited(m, w->dev) || !admit(m, w, false)) {
		w->queued = true;
		m->queue[m->queue_len++] = i;
	}
}

/* One slice for who waits longest; he goes to the end if that was not all. */
static bool serve(struct sim *m, unsigned dev)
{
	unsigned at = first_in_queue(m, dev), i;
	struct sim_writer *w;
	double before;
	bool done;

	if (at == m->queue_len)
		return false;
	i = m->queue[at];
	w = &m->writers[i];
	before = w->want;
	w->throttled_us = m->now_us;
	done = admit(m, w, m->queue_len > 1);
	if (w->want == before)
		return false;
	memmove(m->queue + at, m->queue + at + 1, (--m->queue_len - at) * sizeof(m->queue[0]));
	w->queued = !done;
	if (!done)
		m->queue[m->queue_len++] = i;
	return true;
}

/* The devices in turn, until nothing fits. */
static void serve_queue(struct sim *m)
{
	unsigned stuck = 0;

	for (unsigned dev = 0; m->queue_len != 0 && stuck < m->nr_devs; dev++)
		stuck = serve(m, dev % m->nr_devs) ? 0 : stuck + 1;
}

/* ---- the loop ---- */

static void check_limits(struct sim *m)
{
	double limit = fmax(fmax(m->dom.dirty_limit, m->thresh), 1);
	double pages = dirty(m);

	assert_true(pages <= limit);
	for (unsigned i = 0; i < m->nr_devs; i++) {
		struct sim_device *d = &m->devs[i];
		double wb_dirty = d->reclaimable + d->writeback;

		if (m->cap < THROTTLE_NO_CAP)
			assert_true(wb_dirty <= fmax(fmax(d->d.cap_limit, m->cap), 1));
		if (is_awaited(m, i) && d->reclaimable >= 1)
			assert_int_not_equal(d->io_len, 0);
		d->dirty_max = fmax(d->dirty_max, m->now_us >= m->warm_us ? wb_dirty : 0);
	}
	if (m->now_us < m->warm_us)
		return;
	m->dirty_max = fmax(m->dirty_max, pages);
	m->dirty_sum += pages;
	m->events++;
}

static void sum_up_writers(struct sim *m)
{
	for (unsigned i = 0; i < m->nr_devs; i++)
		m->devs[i].nr_throttled = m->devs[i].unthrottled_rate = 0;
	for (unsigned i = 0; i < m->nr_writers; i++) {
		const struct sim_writer *w = &m->writers[i];
		struct sim_device *d = &m->devs[w->dev];

		if (w->queued ||
			(w->throttled_us != 0 && m->now_us < w->throttled_us + 1000000))
			d->nr_throttled++;
		else
			d->unthrottled_rate += throttle_writer_rate_now(&w->w, m->now_us);
	}
}

static void tick(struct sim *m)
{
	sum_up_writers(m);
	for (unsigned i = 0; i < m->nr_devs; i++) {
		struct throttle_sample s = sample(m, i);

		throttle_tick(&m->dom, &m->devs[i].d, &s);
	}
	m->tick_us += THROTTLE_TICK_US;
}

static void advance(struct sim *m, uint64_t to_us)
{
	for (unsigned i = 0; i < m->nr_devs; i++)
		if (m->devs[i].io_len == 0 && m->now_us >= m->warm_us)
			m->devs[i].idle_us += to_us - m->now_us;
	m->now_us = to_us;
}

static void step(struct sim *m)
{
	struct sim_device *done = NULL;
	uint64_t next = m->tick_us;
	unsigned who = m->nr_writers;

	for (unsigned i = 0; i < m->nr_devs; i++) {
		if (m->devs[i].io_done_us < next) {
			done = &m->devs[i];
			next = done->io_done_us;
		}
	}
	for (unsigned i = 0; i < m->nr_writers; i++) {
		if (m->writers[i].next_us < next) {
			who = i;
			next = m->writers[i].next_us;
		}
	}
	advance(m, next);
	if (who < m->nr_writers)
		wake(m, who);
	else if (done)
		complete(m, done);
	else
		tick(m);
	serve_queue(m);
	for (unsigned i = 0; i < m->nr_devs; i++)
		flush(m, i);
	check_limits(m);
}

static void run_for(struct sim *m, double seconds)
{
	uint64_t end = m->now_us + (uint64_t)(seconds * 1e6);

	while (m->now_us < end)
		step(m);
}

/* Runs the warm-up and then the time that counts. */
static void measure(struct sim *m, double warm_s, double seconds)
{
	m->warm_us = m->now_us + (uint64_t)(warm_s * 1e6);
	run_for(m, warm_s);
	run_for(m, seconds);
}

static double throughput(const struct sim *m, unsigned dev)
{
	double seconds = (double)(m->now_us - m->warm_us) / 1e6;

	return m->devs[dev].completed / (m->devs[dev].bw * seconds);
}

static double jain(const struct sim *m)
{
	double sum = 0, squares = 0;

	for (unsigned i = 0; i < m->nr_writers; i++) {
		sum += m->writers[i].written;
		squares += m->writers[i].written * m->writers[i].written;
	}
	return sum * sum / (squares * m->nr_writers);
}

#endif
