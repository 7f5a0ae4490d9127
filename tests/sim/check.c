#include "tests/sim/model.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <utlist.h>

void sim_broken(struct sim *sim, const char *format, ...)
{
	struct sim_result *r = sim->result;
	va_list args;

	if (r->broken)
		return;
	r->broken = sim->over = true;
	va_start(args, format);
	vsnprintf(r->message, sizeof(r->message), format, args);
	va_end(args);
}

/* Limits are doubles that are followed down in steps: a page's thousandth is none. */
static bool above(double value, double limit)
{
	return !(value <= limit + 1e-3);
}

static bool is_finite_rate(double v)
{
	return isfinite(v) && v >= 0;
}

/* ---- when pages are admitted ---- */

void sim_check_take(struct sim_writer *w, uint64_t nr_pages)
{
	struct sim *sim = w->sim;
	const struct sim_device *d = w->device;
	double dirty = (double)(sim->dom.nr_dirty + sim->dom.nr_writeback + nr_pages);
	double wb_dirty = (double)(d->dev.nr_dirty + d->dev.nr_writeback + nr_pages);
	double limit = fmax(pacer_domain_limit(&sim->pacer), 1);
	double cap = fmax(fmax(d->pd.throttle.cap_limit, d->pd.cap_pages), 1);

	if (nr_pages == 0)
		return;
	if (above(dirty, limit))
		sim_broken(sim,
			"%" PRIu64 " pages admitted: dirty %.0f above the limit of %.3f",
			nr_pages, dirty, limit);
	if (above(wb_dirty, cap))
		sim_broken(sim,
			"%" PRIu64
			" pages admitted: device %u dirty %.0f above its limit of %.3f",
			nr_pages, d->number, wb_dirty, cap);
	if (!d->pd.settings.strict_limit)
		return;
	double share =
		fmax(pacer_device_thresholds(&sim->pacer, &d->pd, sim->now_us).thresh, 1);
	if (above(wb_dirty, share))
		sim_broken(sim,
			"%" PRIu64
			" pages admitted: strict device %u dirty %.0f above its share "
			"of %.3f",
			nr_pages, d->number, wb_dirty, share);
}

/* ---- a verdict ---- */

void sim_check_verdict(struct sim *sim, const struct sim_device *d,
	const struct throttle_sample *s, const struct throttle_verdict *v)
{
	const double values[] = {v->thresh, v->bg_thresh, v->dirty_limit, v->freerun,
		v->setpoint, v->wb_thresh, v->wb_bg_thresh, v->wb_setpoint, v->pos_ratio,
		v->dirty_ratelimit, v->task_ratelimit, v->balanced_dirty_ratelimit,
		v->max_pause_us, v->min_pause_us, v->nr_dirtied_pause};

	for (unsigned i = 0; i < sizeof(values) / sizeof(values[0]); i++)
		if (!is_finite_rate(values[i]))
			sim_broken(sim, "value %u of a verdict on device %u is %g", i,
				d->number, values[i]);
	if (!isfinite(v->period_us) || !isfinite(v->think_us) || !isfinite(v->nr_dirtied))
		sim_broken(sim, "a verdict on device %u has period %g, think %g, dirtied %g",
			d->number, v->period_us, v->think_us, v->nr_dirtied);
	if (v->pause_us > THROTTLE_MAX_PAUSE_US)
		sim_broken(
			sim, "a pause of %" PRIu64 " us on device %u", v->pause_us, d->number);
	if (v->bg_thresh > v->thresh || v->dirty_limit < v->thresh)
		sim_broken(sim, "background %g, threshold %g, limit %g are out of order",
			v->bg_thresh, v->thresh, v->dirty_limit);
}

/* ---- after every event ---- */

static void check_device(struct sim *sim, const struct sim_device *d)
{
	const struct device *dev = &d->dev;
	uint64_t held = dev->nr_dirty + dev->nr_writeback;
	double cap = fmax(fmax(d->pd.throttle.cap_limit, d->pd.cap_pages), 1);

	if (d->taken != dev->written + held + d->dropped)
		sim_broken(sim,
			"device %u: dirtied %" PRIu64 " is not written %" PRIu64
			" + dirty %" PRIu64 " + writeback %" PRIu64 " + dropped %" PRIu64,
			d->number, d->taken, dev->written, dev->nr_dirty, dev->nr_writeback,
			d->dropped);
	if (dev->dirtied != d->taken - d->dropped)
		sim_broken(sim, "device %u: dirtied is %" PRIu64 " and not %" PRIu64, d->number,
			dev->dirtied, d->taken - d->dropped);
	if (dev->nr_writeback * SIM_PAGE != d->inflight_bytes)
		sim_broken(sim, "device %u: %" PRIu64 " pages in writeback, %" PRIu64 " bytes",
			d->number, dev->nr_writeback, d->inflight_bytes);
	if (above((double)held, cap))
		sim_broken(sim, "device %u: dirty %" PRIu64 " above its limit of %.3f",
			d->number, held, cap);
	if (dev->nr_blocked != d->pd.nr_queued)
		sim_broken(sim, "device %u: %" PRIu64 " blocked and %u queued", d->number,
			dev->nr_blocked, d->pd.nr_queued);
}

static void check_rates(struct sim *sim, const struct sim_device *d)
{
	const struct throttle_device *t = &d->pd.throttle;

	if (!is_finite_rate(t->write_bandwidth) || !is_finite_rate(t->avg_write_bandwidth) ||
		!is_finite_rate(t->dirty_ratelimit) || !is_finite_rate(t->completions) ||
		!is_finite_rate(t->balanced_dirty_ratelimit) || !is_finite_rate(t->cap_limit) ||
		!is_finite_rate(d->pd.reference_bw) || !is_finite_rate(d->pd.exit_debt))
		sim_broken(sim,
			"device %u: bandwidth %g, avg %g, ratelimit %g, balanced %g, cap %g, "
			"debt %g",
			d->number, t->write_bandwidth, t->avg_write_bandwidth,
			t->dirty_ratelimit, t->balanced_dirty_ratelimit, t->cap_limit,
			d->pd.exit_debt);
}

static bool flusher_runs(const struct sim_device *d)
{
	return d->nr_inflight || d->flusher_timer.at_us <= d->sim->now_us;
}

/* Who waits for admission waits for something that is under way: a request in flight, or a look
 * that is due at this very moment. Of the own device if anything is dirty there, whatever the
 * others do; who has nothing dirty waits for room that others take. */
static void check_blocked(struct sim *sim)
{
	bool any = false;

	if (!sim->pacer.nr_queued || sim->pacer_timer.at_us <= sim->now_us)
		return;
	for (unsigned i = 0; i < sim->nr_devices; i++) {
		const struct sim_device *d = &sim->device[i];
		bool runs = flusher_runs(d);
		any = any || runs;
		if (d->pd.nr_queued && d->dev.nr_dirty && !runs)
			sim_broken(sim,
				"%u writers of device %u wait for admission and none of its "
				"%" PRIu64 " dirty pages is in flight or about to be: limit "
				"%.3f, background %" PRIu64 ", plan %d",
				d->pd.nr_queued, i, d->dev.nr_dirty,
				pacer_limit(&sim->pacer, &d->pd), d->dev.bg_pages,
				(int)d->plan.reason);
	}
	if (!any)
		sim_broken(sim,
			"%u writers wait for admission and nothing is in flight or about to "
			"be: dirty %" PRIu64 ", limit %.3f",
			sim->pacer.nr_queued, sim->dom.nr_dirty,
			pacer_domain_limit(&sim->pacer));
}

void sim_check(struct sim *sim)
{
	uint64_t dirty = 0, writeback = 0;

	for (unsigned i = 0; i < sim->nr_devices; i++) {
		const struct sim_device *d = &sim->device[i];
		dirty += d->dev.nr_dirty;
		writeback += d->dev.nr_writeback;
		check_device(sim, d);
		check_rates(sim, d);
	}
	if (dirty != sim->dom.nr_dirty || writeback != sim->dom.nr_writeback)
		sim_broken(sim,
			"domain: %" PRIu64 " dirty, %" PRIu64
			" in writeback; its devices: %" PRIu64 ", %" PRIu64,
			sim->dom.nr_dirty, sim->dom.nr_writeback, dirty, writeback);
	double limit = fmax(pacer_domain_limit(&sim->pacer), 1);
	if (above((double)(dirty + writeback), limit))
		sim_broken(sim,
			"dirty %" PRIu64 " + writeback %" PRIu64 " above the limit of %.3f",
			dirty, writeback, limit);
	check_blocked(sim);
}

/* ---- everything, now and then ---- */

static void recount_list(struct sim *sim, const struct node *list, enum node_place place,
	uint64_t *nr, uint64_t *sum)
{
	const struct node *n;

	DL_FOREACH (list, n) {
		if (n->place != place)
			sim_broken(sim, "a file on list %d says it is on %d", (int)place,
				(int)n->place);
		if (!n->nr_dirty)
			sim_broken(sim, "a file on list %d has nothing dirty", (int)place);
		(*nr)++;
		*sum += n->nr_dirty;
	}
}

static void recount_files(struct sim *sim, const struct sim_device *d)
{
	const struct device *dev = &d->dev;
	uint64_t dirty = 0, writeback = 0, tagged = 0, nr_unclean = 0, listed = 0, on_lists = 0;

	for (const struct node *n = dev->unclean; n; n = n->unclean_next) {
		const struct sim_file *f = (const struct sim_file *)(const void *)n;
		dirty += n->nr_dirty;
		writeback += n->nr_writeback;
		tagged += n->nr_tagged;
		nr_unclean++;
		if ((n->nr_dirty > 0) != (n->place != NODE_CLEAN))
			sim_broken(sim, "a file with %" PRIu64 " dirty pages is on list %d",
				n->nr_dirty, (int)n->place);
		if (n->nr_tagged > n->nr_dirty + n->nr_writeback)
			sim_broken(sim, "a file has %" PRIu64 " tagged pages of %" PRIu64,
				n->nr_tagged, n->nr_dirty + n->nr_writeback);
		if (f->loop_pages && n->nr_dirty > f->loop_pages)
			sim_broken(sim, "a file of %" PRIu64 " pages has %" PRIu64 " dirty",
				f->loop_pages, n->nr_dirty);
	}
	recount_list(sim, dev->dirty, NODE_ON_DIRTY, &listed, &on_lists);
	recount_list(sim, dev->io, NODE_ON_IO, &listed, &on_lists);
	recount_list(sim, dev->more_io, NODE_ON_MORE_IO, &listed, &on_lists);
	if (dirty != dev->nr_dirty || writeback != dev->nr_writeback ||
		tagged != dev->nr_tagged || on_lists != dirty ||
		listed != dev->nr_dirty_nodes || nr_unclean != dev->nr_unclean)
		sim_broken(sim,
			"device %u: counted %" PRIu64 " dirty, %" PRIu64 " on lists, %" PRIu64
			" in writeback, %" PRIu64 " tagged; it says %" PRIu64 ", %" PRIu64
			", %" PRIu64,
			d->number, dirty, on_lists, writeback, tagged, dev->nr_dirty,
			dev->nr_writeback, dev->nr_tagged);
}

static uint64_t recount_ios(const struct sim_io *list, uint64_t *pages, uint64_t *sync)
{
	uint64_t nr = 0;

	for (; list; list = list->next, nr++) {
		*pages += list->nr_pages;
		*sync += list->nr_sync;
	}
	return nr;
}

static void recount_requests(struct sim *sim, const struct sim_device *d)
{
	uint64_t pages = 0, sync = 0;
	uint64_t nr =
		recount_ios(d->queue, &pages, &sync) + recount_ios(d->served, &pages, &sync);

	if (nr != d->nr_inflight || pages != d->dev.nr_writeback)
		sim_broken(sim,
			"device %u: %" PRIu64 " requests of %" PRIu64
			" pages in flight, it says %u "
			"and %" PRIu64,
			d->number, nr, pages, d->nr_inflight, d->dev.nr_writeback);
	if ((d->queue != NULL) != d->in_service)
		sim_broken(sim, "device %u does not serve what it has", d->number);
}

static void recount_queues(struct sim *sim, const struct sim_device *d, unsigned *total)
{
	const struct held *h;
	unsigned nr = 0;

	DL_FOREACH (d->pd.queue, h)
		nr++;
	DL_FOREACH (d->pd.small_queue, h)
		nr++;
	if (nr != d->pd.nr_queued)
		sim_broken(sim, "device %u: %u requests queued, it says %u", d->number, nr,
			d->pd.nr_queued);
	*total += nr;
}

static void recount_held(struct sim *sim)
{
	const struct pacer *p = &sim->pacer;

	for (size_t i = 0; i < p->nr_heap; i++) {
		const struct held *h = p->heap[i];
		if (h->heap_slot != i ||
			(i && p->heap[(i - 1) / 2]->deadline_us > h->deadline_us))
			sim_broken(sim, "the heap of held replies is out of order at %zu", i);
		if (h->deadline_us < sim->now_us ||
			h->deadline_us > sim->now_us + THROTTLE_MAX_PAUSE_US)
			sim_broken(sim, "a reply is held until %" PRIu64 " us, it is %" PRIu64,
				h->deadline_us, sim->now_us);
	}
}

static void recount_writers(struct sim *sim, unsigned nr_queued)
{
	uint64_t alive = 0, writing = 0;

	for (unsigned i = 0; i < sim->nr_slots; i++) {
		const struct sim_writer *w = sim->writers[i];
		if (!w->file)
			continue;
		alive++;
		writing += w->writing;
		if (!w->writing && !w->syncing && !w->timer.slot)
			sim_broken(sim, "writer %u is forgotten", i);
	}
	if (alive != sim->nr_alive || writing != nr_queued + sim->pacer.nr_heap)
		sim_broken(sim,
			"%" PRIu64 " writers, %" PRIu64
			" of them write; %u there, %u queued, %zu held",
			alive, writing, sim->nr_alive, nr_queued, sim->pacer.nr_heap);
}

static void recount_timers(struct sim *sim)
{
	struct sim_timer *const *heap = sim->events.heap;

	for (size_t i = 0; i < sim->events.nr; i++)
		if (heap[i]->slot != i + 1 || heap[i]->at_us < heap[i ? (i - 1) / 2 : 0]->at_us)
			sim_broken(sim, "the heap of timers is out of order at %zu", i);
}

void sim_recount(struct sim *sim)
{
	unsigned nr_queued = 0;

	for (unsigned i = 0; i < sim->nr_devices; i++) {
		recount_files(sim, &sim->device[i]);
		recount_requests(sim, &sim->device[i]);
		recount_queues(sim, &sim->device[i], &nr_queued);
	}
	if (nr_queued != sim->pacer.nr_queued)
		sim_broken(sim, "%u requests queued, the pacer says %u", nr_queued,
			sim->pacer.nr_queued);
	recount_held(sim);
	recount_writers(sim, nr_queued);
	recount_timers(sim);
}
