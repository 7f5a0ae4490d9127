#include "tests/sim/model.h"

#include <math.h>
#include <string.h>

#define S_US 1e6

/* ---- histogram: 64 buckets for each power of two, so within 1 % ---- */

static unsigned bucket_of(uint64_t us)
{
	if (us < 64)
		return (unsigned)us;
	unsigned e = 63 - (unsigned)__builtin_clzll(us);
	unsigned bucket = (e - 5) * 64 + (unsigned)((us >> (e - 6)) & 63);
	return bucket < SIM_BUCKETS ? bucket : SIM_BUCKETS - 1;
}

static double middle_of(unsigned bucket)
{
	if (bucket < 64)
		return bucket;
	unsigned e = bucket / 64 + 5;
	return ldexp(64 + bucket % 64 + 0.5, (int)e - 6);
}

void sim_histogram_add(struct sim_histogram *h, uint64_t us)
{
	h->bucket[bucket_of(us)]++;
	h->total++;
	h->sum_us += us;
	if (us > h->max_us)
		h->max_us = us;
}

double sim_percentile_ms(const struct sim_histogram *h, double q)
{
	uint64_t seen = 0, wanted = (uint64_t)ceil(q * (double)h->total);

	if (!h->total)
		return 0;
	for (unsigned i = 0; i < SIM_BUCKETS; i++) {
		seen += h->bucket[i];
		if (seen >= wanted && seen)
			return fmin(middle_of(i), (double)h->max_us) / 1e3;
	}
	return (double)h->max_us / 1e3;
}

double sim_share_below(const struct sim_histogram *h, uint64_t us)
{
	uint64_t seen = 0;

	for (unsigned i = 0; i < bucket_of(us); i++)
		seen += h->bucket[i];
	return h->total ? (double)seen / (double)h->total : 0;
}

/* ---- integrals and extremes ---- */

static uint64_t dirty_of(const struct sim *sim)
{
	return sim->dom.nr_dirty + sim->dom.nr_writeback;
}

static uint64_t wb_dirty_of(const struct sim_device *d)
{
	return d->dev.nr_dirty + d->dev.nr_writeback;
}

/* Should the flusher be at work? As the law says now, not as the flusher was last told. */
static bool is_over_background(const struct sim *sim, const struct sim_device *d)
{
	struct throttle_sample s = pacer_sample(&sim->pacer, &d->pd, sim->now_us);

	return throttle_over_background(&sim->pacer.throttle, &d->pd.throttle, &s);
}

void sim_stats_advance(struct sim *sim, uint64_t to_us)
{
	double dt = (double)(to_us - sim->advanced_us);

	if (to_us == sim->advanced_us)
		return;
	sim->advanced_us = to_us;
	for (unsigned i = 0; i < sim->nr_devices; i++) {
		struct sim_device *d = &sim->device[i];
		double dirty = (double)wb_dirty_of(d);
		d->result->max_dirty = fmax(d->result->max_dirty, dirty);
		if (!sim->measuring)
			continue;
		d->dirty_us += dirty * dt;
		if (!d->in_service && d->dev.nr_dirty && d->nr_writing &&
			is_over_background(sim, d))
			d->idle_us += dt;
	}
	double dirty = (double)dirty_of(sim);
	sim->max_over_limit =
		fmax(sim->max_over_limit, dirty / fmax(pacer_domain_limit(&sim->pacer), 1));
	if (sim->measuring)
		sim->max_over_thresh =
			fmax(sim->max_over_thresh, dirty / fmax(sim->pacer.thresh, 1));
}

void sim_stats_begin(struct sim *sim)
{
	sim->measuring = true;
	sim->measured_from_us = (double)sim->now_us;
	sim->min_position = INFINITY;
	sim->max_position = -INFINITY;
	for (unsigned i = 0; i < sim->nr_devices; i++) {
		struct sim_device *d = &sim->device[i];
		sim_device_possible(d, sim->now_us);
		d->mark = (struct sim_device_mark){
			.requests = d->nr_requests,
			.seeks = d->nr_seeks,
			.written = d->dev.written,
			.stalls = d->nr_stalls,
			.possible = d->possible_bytes,
			.lost = d->lost_bytes,
		};
	}
}

void sim_stats_verdict(struct sim_writer *w, const struct throttle_verdict *v)
{
	struct sim_device *d = w->device;
	struct sim_result *r = w->sim->result;
	uint64_t pause_us = v->pause_us;

	if (w->held.shared && pause_us > PACER_SHARED_PAUSE_US)
		pause_us = PACER_SHARED_PAUSE_US;
	d->last = *v;
	d->last.pause_us = pause_us;
	d->judged = true;
	if (!w->sim->measuring)
		return;
	r->blocked += v->kind == THROTTLE_BLOCKED;
	r->freerun += v->kind == THROTTLE_FREERUN;
	r->exempt += v->kind == THROTTLE_EXEMPT;
	if (!pause_us)
		return;
	r->pauses++;
	r->spec[w->spec_number].pauses++;
	if (w->result)
		w->result->pauses++;
	sim_histogram_add(&r->pause, pause_us);
	sim_histogram_add(&d->result->pause, pause_us);
}

void sim_stats_taken(struct sim_writer *w, uint64_t bytes)
{
	uint64_t stood_us = w->sim->now_us - w->since_us;

	w->since_us = w->sim->now_us;
	w->bytes += bytes;
	if (!w->sim->measuring)
		return;
	w->sim->result->spec[w->spec_number].bytes += bytes;
	if (!w->result)
		return;
	w->result->bytes += bytes;
	if (stood_us > w->result->stand_max_us)
		w->result->stand_max_us = stood_us;
}

/* ---- samples ---- */

static void sample_device(struct sim *sim, struct sim_device *d, struct sim_device_sample *s)
{
	const struct throttle_device *t = &d->pd.throttle;
	struct throttle_thresholds wb =
		pacer_device_thresholds(&sim->pacer, &d->pd, sim->now_us);

	*s = (struct sim_device_sample){
		.wb_dirty = (double)wb_dirty_of(d),
		.wb_reclaimable = (double)d->dev.nr_dirty,
		.wb_thresh = wb.thresh,
		.wb_bg_thresh = wb.bg_thresh,
		.limit = pacer_limit(&sim->pacer, &d->pd),
		.cap = fmax(t->cap_limit, d->pd.cap_pages),
		.bg_target = (double)d->dev.bg_pages,
		.write_bandwidth = t->write_bandwidth,
		.avg_write_bandwidth = t->avg_write_bandwidth,
		.dirty_ratelimit = t->dirty_ratelimit,
		.balanced_dirty_ratelimit = t->balanced_dirty_ratelimit,
		.reference_bandwidth = d->pd.reference_bw,
		.proportion = t->completions / fmax(sim->pacer.throttle.completions, 1),
		.pos_ratio = d->last.pos_ratio,
		.dirtied = d->taken,
		.written = d->dev.written,
		.dropped = d->dropped,
		.nr_writers = (unsigned)d->nr_writers,
		.nr_queued = d->pd.nr_queued,
		.in_service = d->in_service,
	};
}

static void sum_device(struct sim_device *d, const struct sim_device_sample *s)
{
	double r = s->dirty_ratelimit;

	d->nr_samples++;
	d->sum_rate += r;
	d->sum_rate2 += r * r;
	d->sum_avg += s->avg_write_bandwidth;
	d->sum_rate_error += r * fmax(s->nr_writers, 1) / fmax(s->avg_write_bandwidth, 1) - 1;
}

/* Where dirty stands in the scope of control, from the view of the law's last verdict: 0 at the
 * setpoint, 1 at the limit. */
static void sum_position(struct sim *sim)
{
	const struct sim_device *d = &sim->device[0];
	const struct throttle_verdict *v = &d->last;
	bool strict = d->pd.settings.strict_limit;
	double dirty = (double)(v->capped || strict ? wb_dirty_of(d) : dirty_of(sim));
	double setpoint = strict ? v->wb_setpoint : v->setpoint;
	double h = (strict ? v->wb_thresh : v->dirty_limit) - setpoint;

	if (!(h > 0))
		return;
	double at = (dirty - setpoint) / h;
	sim->sum_position += at;
	sim->nr_positions++;
	sim->min_position = fmin(sim->min_position, at);
	sim->max_position = fmax(sim->max_position, at);
}

void sim_stats_sample(struct sim *sim)
{
	const struct pacer *p = &sim->pacer;
	const struct throttle_verdict *v = &sim->device[0].last;
	struct sim_sample s = {
		.now_us = sim->now_us,
		.dirty = (double)dirty_of(sim),
		.reclaimable = (double)sim->dom.nr_dirty,
		.thresh = p->thresh,
		.bg_thresh = p->bg_thresh,
		.limit = pacer_domain_limit(p),
		.nr_devices = sim->nr_devices,
	};

	s.freerun = v->freerun > 0 ? v->freerun : throttle_freerun(p->thresh, p->bg_thresh);
	s.setpoint = v->setpoint > 0 ? v->setpoint : throttle_setpoint(s.freerun, s.limit);
	for (unsigned i = 0; i < sim->nr_devices; i++) {
		sample_device(sim, &sim->device[i], &s.device[i]);
		if (sim->measuring)
			sum_device(&sim->device[i], &s.device[i]);
	}
	if (sim->measuring)
		sum_position(sim);
	if (sim->config->on_sample)
		sim->config->on_sample(&s, sim->config->arg);
	if (sim->config->csv)
		sim_csv_sample(sim, &s);
	for (unsigned i = 0; i < sim->nr_devices; i++)
		sim->device[i].judged = false;
}

/* ---- the end ---- */

static double jain(const struct sim *sim, unsigned device)
{
	double sum = 0, sum2 = 0, n = 0;

	for (unsigned i = 0; i < sim->result->nr_writers; i++) {
		const struct sim_writer_result *w = &sim->result->writers[i];
		if (!w->whole || w->device != device || sim->spec[w->spec].kind != SIM_GREEDY)
			continue;
		double x = (double)w->bytes;
		sum += x;
		sum2 += x * x;
		n++;
	}
	return n == 0 ? 1 : sum2 > 0 ? sum * sum / (n * sum2) : 0;
}

static void end_device(struct sim *sim, struct sim_device *d)
{
	struct sim_device_result *r = d->result;
	double us = (double)sim->now_us - sim->measured_from_us;
	double n = (double)(d->nr_samples ? d->nr_samples : 1);

	sim_device_possible(d, sim->now_us);
	r->written_pages = d->dev.written - d->mark.written;
	r->requests = d->nr_requests - d->mark.requests;
	r->seeks = d->nr_seeks - d->mark.seeks;
	r->stalls = d->nr_stalls - d->mark.stalls;
	double written = (double)r->written_pages * SIM_PAGE;
	double possible = d->possible_bytes - d->mark.possible;
	r->possible_bytes = possible;
	double could = possible - (d->lost_bytes - d->mark.lost);
	r->throughput = could > 0 ? written / could : 0;
	r->jain = jain(sim, d->number);
	r->mean_ratelimit = d->sum_rate / n;
	double variance = d->sum_rate2 / n - r->mean_ratelimit * r->mean_ratelimit;
	r->ratelimit_cv = sqrt(fmax(variance, 0)) / fmax(r->mean_ratelimit, 1e-9);
	r->ratelimit_error = d->sum_rate_error / n;
	if (!(us > 0))
		return;
	r->bytes_per_s = written / us * S_US;
	r->idle = d->idle_us / us;
	r->mean_dirty = d->dirty_us / us;
	if (written > 0)
		r->avg_error = d->sum_avg / n / (r->bytes_per_s / SIM_PAGE) - 1;
}

/* Who still waits counts with the time so far. */
static void end_wait(struct sim *sim, struct sim_writer *w)
{
	uint64_t stood_us = sim->now_us - w->since_us;
	uint64_t wait_us = sim->now_us - w->held.arrived_us;

	sim_histogram_add(&sim->result->spec[w->spec_number].wait, wait_us);
	sim_histogram_add(&sim->result->wait, wait_us);
	if (!w->result)
		return;
	if (stood_us > w->result->stand_max_us)
		w->result->stand_max_us = stood_us;
	if (wait_us > w->result->wait_max_us)
		w->result->wait_max_us = wait_us;
}

static void end_writers(struct sim *sim)
{
	for (unsigned i = 0; i < sim->nr_slots; i++)
		if (sim->writers[i]->file && sim->writers[i]->writing)
			end_wait(sim, sim->writers[i]);
}

/* When the measurement is over, before anything is drained. */
void sim_stats_end(struct sim *sim)
{
	struct sim_result *r = sim->result;
	double written = 0, could = 0;

	end_writers(sim);
	r->jain = 1;
	for (unsigned i = 0; i < sim->nr_devices; i++) {
		struct sim_device *d = &sim->device[i];
		struct sim_device_result *dr = d->result;
		end_device(sim, d);
		written += (double)dr->written_pages * SIM_PAGE;
		could += d->possible_bytes - d->mark.possible - (d->lost_bytes - d->mark.lost);
		r->jain = fmin(r->jain, dr->jain);
		r->idle = fmax(r->idle, dr->idle);
		if (fabs(dr->ratelimit_error) > fabs(r->ratelimit_error))
			r->ratelimit_error = dr->ratelimit_error;
	}
	r->throughput = could > 0 ? written / could : 0;
	r->max_dirty_over_limit = sim->max_over_limit;
	r->max_dirty_over_thresh = sim->max_over_thresh;
	if (sim->nr_positions) {
		r->mean_position = sim->sum_position / (double)sim->nr_positions;
		r->position_pp = sim->max_position - sim->min_position;
	}
	r->over_limit_pages = sim->pacer.counters.over_limit_pages;
	sim->measuring = false;
}
