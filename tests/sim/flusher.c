/* The loop around the planner and the pick, as in backend/flush/flusher.c: flusher_step(),
 * collect(), make_plan(). Keep it so. */
#include "backend/flush/flusher.h"
#include "tests/sim/model.h"

#include <stdlib.h>

enum {
	IDLE_WAIT_US = 1000000,
	RETRY_WAIT_US = 5000,
};

void sim_flusher_init(struct sim_device *d)
{
	flush_window_init(&d->window);
	sim_timer_init(&d->flusher_timer, SIM_EV_FLUSHER, d->number, d);
	d->pool = calloc(FLUSH_DEPTH, sizeof(*d->pool));
	if (!d->pool) {
		sim_no_memory(d->sim);
		return;
	}
	for (unsigned i = 0; i < FLUSH_DEPTH; i++) {
		d->pool[i].next = d->free_ios;
		d->free_ios = &d->pool[i];
	}
}

static void make_plan(struct sim_device *d, uint64_t now_us)
{
	struct flush_view v = flush_pick_view(&d->dev, d->plan.time_round, now_us);

	d->plan = flush_plan_make(&v);
	d->dev.periodic_round = d->plan.periodic_round;
	d->dev.next_periodic_us = d->plan.next_periodic_us;
}

static struct node *pick(struct sim_device *d, bool *tagged, uint64_t now_us)
{
	if (!*tagged)
		return flush_pick(&d->pick, &d->dev, &d->sizes, d->plan.cutoff_us);
	struct node *node = flush_pick_tagged(&d->pick, &d->dev, &d->sizes);
	if (node)
		return node;
	/* While a sync waits only for what is in flight, others may use the device. */
	*tagged = false;
	return d->inflight_bytes ? NULL : flush_pick(&d->pick, &d->dev, &d->sizes, now_us);
}

static struct sim_io *begin_io(struct sim_device *d, struct sim_file *f, uint64_t nr_pages)
{
	struct sim_io *io = d->free_ios;

	d->free_ios = io->next;
	if (d->result->first_submit_us == SIM_NEVER) {
		d->result->first_submit_us = d->sim->now_us;
		d->result->first_submit_reclaimable = (double)d->dev.nr_dirty;
	}
	sim_file_begin(f, io, nr_pages);
	d->inflight_bytes += nr_pages * SIM_PAGE;
	io->submitted_us = d->sim->now_us;
	d->nr_inflight++;
	return io;
}

static void collect(struct sim_device *d, uint64_t now_us)
{
	d->sizes = flush_sizes_make(
		&d->window, d->dev.bytes_per_s, d->dev.limit_pages, STORE_MAX_IOV);
	for (;;) {
		make_plan(d, now_us);
		if (d->plan.reason == FLUSH_NONE || !d->free_ios ||
			d->inflight_bytes >= d->sizes.inflight_bytes)
			return;
		bool tagged = d->plan.reason == FLUSH_SYNC;
		struct node *node = pick(d, &tagged, now_us);
		if (!node)
			return;
		struct sim_file *f = (struct sim_file *)node;
		uint64_t run = sim_file_run(f, d->sizes.request_pages, tagged);
		if (!run && !tagged && flush_pick_pass(&d->pick, node))
			continue;
		if (!run)
			return;
		sim_device_submit(d, begin_io(d, f, run));
	}
}

static unsigned finish(struct sim_device *d, struct sim_io *done, uint64_t now_us)
{
	unsigned nr = 0;

	while (done) {
		struct sim_io *io = done;
		done = io->next;
		flush_window_completed(&d->window, io->submitted_us, now_us, d->inflight_bytes);
		d->inflight_bytes -= io->nr_pages * SIM_PAGE;
		d->nr_inflight--;
		sim_file_end(io);
		io->next = d->free_ios;
		d->free_ios = io;
		nr++;
	}
	return nr;
}

void sim_flusher_step(struct sim_device *d, struct sim_io *done)
{
	struct sim *sim = d->sim;
	uint64_t now_us = sim->now_us, wait_us = IDLE_WAIT_US;
	uint64_t stalls = d->dev.busy.nr_stalls;

	d->dev.asleep = false;
	unsigned nr_done = finish(d, done, now_us);
	collect(d, now_us);
	busy_clock_update(&d->dev.busy, d->nr_inflight > 0, nr_done > 0, now_us);
	d->nr_stalls += d->dev.busy.nr_stalls - stalls;
	if (!d->nr_inflight && d->plan.reason != FLUSH_NONE)
		wait_us = RETRY_WAIT_US;
	else if (d->plan.wake_us > now_us && d->plan.wake_us != FLUSH_NEVER_US)
		wait_us = d->plan.wake_us - now_us;
	if (wait_us > IDLE_WAIT_US)
		wait_us = IDLE_WAIT_US;
	d->dev.asleep = true;
	if (!sim_arm(&sim->events, &d->flusher_timer, now_us + wait_us))
		sim_no_memory(sim);
	if (d->sync_left == 0 && sim->sync_running)
		sim_sync_done(sim);
	sim_files_reap(sim);
	if (nr_done)
		sim_pacer_wake(sim);
}

void sim_flusher_kick(struct sim_device *d)
{
	if (!d->dev.asleep)
		return;
	d->dev.asleep = false;
	if (!sim_arm(&d->sim->events, &d->flusher_timer, d->sim->now_us))
		sim_no_memory(d->sim);
}
