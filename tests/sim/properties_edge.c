/* properties_edge.c - rows 27 to 36: unusual writers and limits, invariants, the flusher's times. */
#include "tests/sim/properties.h"

/* ---- 27: short-lived writers ---- */

static void short_lived(struct check *c)
{
	struct sim_config config = case_new(c, 200 * MIB, 400 * MIB);
	double asked = 1000 * 31 * PAGE;

	struct sim_writer_spec *w = case_writers(&config, SIM_SHORT, 1, 31 * PAGE);
	w->per_s = 1000;
	w->total_bytes = (uint64_t)(31 * PAGE);
	case_writers(&config, SIM_GREEDY, 1, 64 * KIB);
	config.seconds = 50;
	config.warmup_s = 20;
	const struct run *r = case_run(c, &config);
	found(c, 0, r->result.max_dirty_over_thresh, "1000/s of 31 pages");
	found(c, 1, spec_rate(r, 1) / (r->result.device[0].bytes_per_s - asked),
		"1000/s of 31 pages");
	found(c, 2, spec_rate(r, 0) / asked, "1000/s of 31 pages");
	found(c, 3, fabs(r->result.mean_position), "1000/s of 31 pages");
}

/* ---- 28: large requests ---- */

static void large_requests(struct check *c)
{
	for (unsigned n = 100; n <= 1000; n *= 10)
		for (unsigned i = 0; i < 2; i++) {
			double request = i ? 1024 * KIB : 128 * KIB;
			double speed = i ? 500 : 100;
			struct sim_config config = case_new(c, speed * MIB, 399.3 * MIB);
			case_writers(&config, SIM_GREEDY, n, request);
			const struct run *r = case_run(c, &config);
			found(c, 0, r->result.max_dirty_over_limit, "N=%u %.0fK", n,
				request / KIB);
			found(c, 1, r->result.jain, "N=%u %.0fK", n, request / KIB);
			found(c, 2, r->result.throughput, "N=%u %.0fK", n, request / KIB);
		}
}

/* ---- 29, 30 ---- */

static void narrow_gap(struct check *c)
{
	static const double gaps[] = {100, 20, 5};

	for (unsigned i = 0; i < 3; i++) {
		struct sim_config config = case_new(c, 100 * MIB, 400 * MIB);
		config.background_bytes = (uint64_t)((400 - gaps[i]) * MIB);
		case_writers(&config, SIM_GREEDY, i == 1 ? 100 : 10, 64 * KIB);
		config.seconds = 50;
		config.warmup_s = 20;
		const struct run *r = case_run(c, &config);
		found(c, 0, r->result.throughput, "T-B=%.0fM", gaps[i]);
		found(c, 1, r->result.jain, "T-B=%.0fM", gaps[i]);
		found(c, 2, trace_worst_second(r, 30, 50, rate_error), "T-B=%.0fM", gaps[i]);
		found(c, 3, fabs(r->result.mean_position), "T-B=%.0fM", gaps[i]);
		found(c, 4, r->result.position_pp, "T-B=%.0fM", gaps[i]);
		found(c, 5, (double)r->result.queue_wait.total, "T-B=%.0fM", gaps[i]);
	}
}

static void noise(struct check *c)
{
	enum { SEEDS = 6 };
	uint64_t seed = c->seed;
	double cv = 0;

	for (unsigned i = 0; i < SEEDS; i++, c->seed++) {
		struct sim_config config = case_new(c, 100 * MIB, 400 * MIB);
		config.devices[0].noise = 0.3;
		config.devices[0].noise_ms = 100;
		config.devices[0].noise_rho = 0.8;
		case_writers(&config, SIM_GREEDY, 10, 64 * KIB);
		const struct run *r = case_run(c, &config);
		found(c, 0, r->result.throughput, "seed %u", (unsigned)c->seed);
		cv += r->result.device[0].ratelimit_cv / SEEDS;
	}
	c->seed = seed;
	found(c, 1, cv, "mean of %u seeds", SEEDS);
}

/* ---- 31: degenerate thresholds ---- */

static bool all_finite(const double *x, size_t nr)
{
	for (size_t i = 0; i < nr; i++)
		if (!isfinite(x[i]))
			return false;
	return true;
}

static double not_finite(const struct run *r, const struct sim_sample *s)
{
	const struct sim_device_sample *d = &s->device[0];
	double x[] = {s->dirty, s->thresh, s->bg_thresh, s->limit, s->freerun, s->setpoint,
		d->wb_thresh, d->wb_bg_thresh, d->limit, d->bg_target, d->write_bandwidth,
		d->avg_write_bandwidth, d->dirty_ratelimit, d->balanced_dirty_ratelimit,
		d->reference_bandwidth, d->proportion, d->pos_ratio};

	return !all_finite(x, sizeof(x) / sizeof(x[0]));
}

static void degenerate(struct check *c)
{
	static const unsigned pages[] = {0, 1, 2, 3, 7};

	for (unsigned fast = 0; fast < 2; fast++)
		for (unsigned t = 0; t < 5; t++)
			for (unsigned b = 0; b < t || b == 0; b++) {
				double speed = fast ? 1e7 * PAGE : PAGE;
				struct sim_config config = case_new(c, speed, pages[t] * PAGE);
				config.background_bytes = pages[b] * (uint64_t)PAGE;
				config.devices[0].overhead_us = 0;
				case_writers(&config, SIM_GREEDY, 2, 4 * KIB);
				config.seconds = fast ? 0.5 : 20;
				config.warmup_s = config.seconds / 10;
				const struct run *r = case_run(c, &config);
				double written = (double)r->result.device[0].written_pages;
				found(c, fast, written, "T=%u B=%u", pages[t], pages[b]);
				found(c, 2, trace_max(r, 0, 20, not_finite), "T=%u B=%u %s",
					pages[t], pages[b], fast ? "fast" : "slow");
			}
}

/* ---- 32, 33: invariants, which the simulator checks after each event ---- */

static struct sim_config everything_at_once(const struct check *c)
{
	struct sim_config config = case_new(c, 80 * MIB, 64 * MIB);
	static const enum sim_action_kind kinds[] = {
		SIM_TRUNCATE, SIM_SYNC, SIM_SET_LIMIT, SIM_SET_LAW, SIM_SET_BACKGROUND};

	config.devices[0].noise = 0.5;
	config.devices[0].noise_ms = 50;
	config.devices[0].burst = 3;
	config.devices[0].cache_bytes = 16 * MIB;
	config.devices[0].cache_bytes_per_s = 400 * MIB;
	case_device(&config, 20 * MIB)->cache_bytes = 0;
	config.devices[1].settings.max_bytes = (uint64_t)(8 * MIB);
	config.devices[1].settings.strict_limit = true;
	config.expire_centisecs = 100;
	config.writeback_centisecs = 50;
	case_writers(&config, SIM_GREEDY, 20, 64 * KIB);
	case_writers(&config, SIM_GREEDY, 20, 1024 * KIB)->device = 1;
	case_writers(&config, SIM_HOT, 4, 16 * KIB)->total_bytes = (uint64_t)(1 * MIB);
	config.writers[2].bytes_per_s = 5 * MIB;
	case_writers(&config, SIM_GREEDY, 3, 4 * KIB)->fsync_s = 0.5;
	case_writers(&config, SIM_SHORT, 1, 12 * KIB)->total_bytes = (uint64_t)(12 * KIB);
	config.writers[4].per_s = 200;
	case_writers(&config, SIM_BURSTY, 5, 128 * KIB)->device = 1;
	config.writers[5].on_s = 0.3;
	config.writers[5].off_s = 0.7;
	for (unsigned i = 0; i < 20; i++) {
		struct sim_action *a = case_action(&config, kinds[i % 5], 1 + i);
		a->device = i / 5 % 2;
		a->law = c->law == THROTTLE_PACE ? THROTTLE_LINUX : THROTTLE_PACE;
		if (i / 5 % 2)
			a->law = c->law;
		a->value = a->kind == SIM_TRUNCATE ? 2000
			: a->kind == SIM_SET_LIMIT ? (uint64_t)((10 + 30 * (i % 3)) * MIB)
						   : (uint64_t)((1 + 7 * (i % 2)) * MIB);
	}
	config.seconds = 25;
	config.warmup_s = 1;
	config.drain = true;
	return config;
}

static void books(struct check *c)
{
	struct sim_config config = everything_at_once(c);
	const struct run *a = case_run(c, &config);
	const struct run *b = case_run(c, &config);

	found(c, 0, a->result.broken + b->result.broken, "everything at once");
	found(c, 1, a->result.hash == b->result.hash, "seed %u", (unsigned)c->seed);
	c->seed++;
	config.seed++;
	b = case_run(c, &config);
	c->seed--;
	found(c, 2, a->result.hash != b->result.hash, "seeds %u and %u", (unsigned)c->seed,
		(unsigned)c->seed + 1);
	const struct sim_sample *last = point_at(a, 1000);
	const struct sim_device_sample *d = &last->device[0];
	double left = (double)d->dirtied - (double)d->dropped - (double)d->written;
	found(c, 3, fabs(left - d->wb_dirty), "at the end");
	found(c, 4, (double)a->result.events / 1e3, "everything at once");
}

static void flusher_runs(struct check *c)
{
	for (unsigned i = 0; i < 4; i++) {
		static const double limits[] = {4, 1, 0.05, 1.0 / 256};
		struct sim_config config = case_new(c, 20 * MIB, limits[i] * MIB);
		case_device(&config, 5 * MIB);
		config.devices[0].stall_at_s = 3;
		config.devices[0].stall_s = 2;
		config.devices[0].stall_every_s = 5;
		case_writers(&config, SIM_GREEDY, 20, 256 * KIB);
		case_writers(&config, SIM_GREEDY, 20, 16 * KIB)->device = 1;
		config.seconds = 20;
		config.warmup_s = 1;
		const struct run *r = case_run(c, &config);
		found(c, 0, r->result.broken, "T=%.2fM", limits[i]);
		found(c, 1, (double)r->result.queue_wait.total, "T=%.2fM", limits[i]);
		if (i < 3)
			found(c, 2, r->result.device[1].throughput, "T=%.2fM", limits[i]);
	}
}

/* ---- 34: background time ---- */

static void background_time(struct check *c)
{
	for (unsigned i = 0; i < 2; i++) {
		struct sim_config config = case_new(c, 25 * MIB, 400 * MIB);
		config.devices[0].settings.dirty_background_centisecs = 100;
		config.devices[0].prior_bytes_per_s = i ? 4 * MIB : 25 * MIB;
		struct sim_writer_spec *w = case_writers(&config, SIM_PACED, 1, 64 * KIB);
		w->bytes_per_s = 10 * MIB;
		w->total_bytes = (uint64_t)(200 * MIB);
		config.seconds = 20;
		config.warmup_s = 1;
		config.drain = true;
		const struct run *r = case_run(c, &config);
		double prior_pages = config.devices[0].prior_bytes_per_s / PAGE;
		const char *prior = i ? "4 MiB/s believed" : "25 MiB/s believed";
		found(c, 0, r->result.device[0].first_submit_reclaimable / prior_pages, "%s",
			prior);
		found(c, 1, (double)r->result.device[0].first_submit_us / 1e6, "%s", prior);
		found(c, 2, (20 + r->result.drained_us / 1e6) / 20, "%s", prior);
	}
}

/* ---- 35: periodic ---- */

/* Whatever was dirty 36 s ago is written: it was dirtied before all that is dirty now. */
static double oldest_s(const struct run *r)
{
	double worst = 0;
	size_t j = 0;

	for (size_t i = 0; i < r->nr_points; i++) {
		const struct sim_sample *now = point(r, i);
		while (j < i && point(r, j)->device[0].dirtied <= now->device[0].written)
			j++;
		double age = ((double)now->now_us - (double)point(r, j)->now_us) / 1e6;
		worst = fmax(worst, age);
	}
	return worst;
}

static void periodic(struct check *c)
{
	struct sim_config config = case_new(c, 100 * MIB, 400 * MIB);

	config.expire_centisecs = 3000;
	config.writeback_centisecs = 500;
	struct sim_writer_spec *w = case_writers(&config, SIM_PACED, 1, 64 * KIB);
	w->bytes_per_s = 0.5 * MIB;
	w->total_bytes = (uint64_t)(20 * MIB);
	config.seconds = 100;
	const struct run *r = case_run(c, &config);
	found(c, 0, oldest_s(r), "0.5 MiB/s for 40 s");
	found(c, 1, point_at(r, 99)->dirty, "99 s");
	found(c, 2, (double)r->result.device[0].first_submit_us / 1e6, "0.5 MiB/s for 40 s");
}

/* ---- 36: sync ---- */

static void syncing(struct check *c)
{
	struct sim_config config = case_new(c, 50 * MIB, 100 * MIB);

	case_writers(&config, SIM_GREEDY, 10, 64 * KIB);
	case_action(&config, SIM_SYNC, 30);
	case_action(&config, SIM_SYNC, 40);
	config.seconds = 50;
	config.warmup_s = 10;
	const struct run *r = case_run(c, &config);
	found(c, 0, r->result.nr_syncs, "10 greedy");
	for (unsigned i = 0; i < r->result.nr_syncs; i++) {
		const struct sim_sync_result *s = &r->result.syncs[i];
		double waited_for = (double)(s->dirty + s->in_flight);
		found(c, 1, s->took_us == UINT64_MAX ? NAN : (double)s->took_us / 1e6,
			"10 greedy");
		found(c, 2, (double)s->written / waited_for, "10 greedy");
	}
}

const struct row rows_edge[] = {
	{
		.name = "p27-short-lived",
		.what = "1000 writers a second that write 31 pages and end, beside a greedy "
			"one, on 200 "
			"MiB/s",
		.run = short_lived,
		.bars = {{"most dirty / T", AT_MOST(0.97, 0.92), "<= 1.03 of linux",
				 "above 1 an invariant stops the run"},
			{"greedy: got / what they leave", AT_LEAST(0.3, 0.9)},
			{"short-lived: got / asked", AT_LEAST(0.99, 0.99)},
			{"dirty from the setpoint", AT_MOST(0.8, 0.15)}},
	},
	{
		.name = "p28-large-requests",
		.what = "128 KiB and 1 MiB requests of 100 and 1000 writers; the limit is an "
			"invariant, checked after every event",
		.run = large_requests,
		.bars = {{"most dirty / limit", AT_MOST(1, 1), "no bound of linux (3.45)",
				 "requests are admitted in slices, whatever the law"},
			{"Jain", AT_LEAST(0.98, 0.99)},
			{"written / possible", AT_LEAST(0.97, 0.98)}},
	},
	{
		.name = "p29-narrow-gap",
		.what = "T - B of 100, 20 and 5 MiB at T = 400 MiB, 10 writers",
		.run = narrow_gap,
		.bars = {{"written / possible", AT_LEAST(0.97, 0.98),
				 "no bound of linux at 5 MiB (0.32)",
				 "the background threshold in force leaves two pauses' worth "
				 "to flush"},
			{"Jain", AT_LEAST(0.99, 0.995)},
			{"error of the base rate", AT_MOST(1.2, 0.05)},
			{"dirty from the setpoint", AT_MOST(0.8, 0.15)},
			{"peak to peak", AT_MOST(1.2, 0.4)},
			{"writes that waited at the gate", AT_MOST(NAN, 0)}},
	},
	{
		.name = "p30-noise",
		.what = "log-normal speed, sigma 0.3, 100 ms, correlation 0.8; six seeds",
		.run = noise,
		.bars = {{"written / possible", AT_LEAST(0.97, 0.97)},
			{"base rate: deviation / mean", AT_MOST(0.05, 0.10)}},
	},
	{
		.name = "p31-degenerate",
		.what = "T of 0, 1, 2, 3 and 7 pages and all B below it at 1 and 10^7 pages/s",
		.run = degenerate,
		.bars = {{"written in 18 s at 1 page/s", AT_LEAST(16, 16)},
			{"written in 0.45 s at 10^7 pages/s", AT_LEAST(500, 500)},
			{"samples with a figure that is no number", AT_MOST(0, 0)}},
	},
	{
		.name = "p32-books",
		.what = "no page is lost or counted twice: truncates, syncs, other limits and "
			"laws, all "
			"at once; one seed, one run",
		.run = books,
		.bars = {{"invariants broken", AT_MOST(0, 0)},
			{"same seed, same hash", AT_LEAST(1, 1)},
			{"other seed, other hash", AT_LEAST(1, 1)},
			{"|dirtied - dropped - written - dirty| at the end, pages",
				AT_MOST(0, 0)},
			{"events checked, thousands", AT_LEAST(50, 50)}},
	},
	{
		.name = "p33-flusher-runs",
		.what = "who waits at the gate waits for a write in flight or a flusher that "
			"runs",
		.run = flusher_runs,
		.bars = {{"invariants broken", AT_MOST(0, 0)},
			{"writes that waited", AT_LEAST(300, 300)},
			{"undisturbed device: written / possible", AT_LEAST(0.95, 0.95)}},
	},
	{
		.name = "p34-background-time",
		.what = "dirty_background_centisecs=100, one writer of 10 MiB/s on 25 MiB/s",
		.run = background_time,
		.bars = {{"first flush: dirty / 1 s as believed", AT_MOST(1.1, 1.1)},
			{"first flush, s", AT_MOST(1.1, 1.1)},
			{"total / the slower of network and disk", AT_MOST(1.1, 1.1)}},
	},
	{
		.name = "p35-periodic",
		.what = "below the background threshold all is written 36 s after it was "
			"dirtied",
		.run = periodic,
		.bars = {{"oldest dirty page, s", AT_MOST(36, 36)},
			{"dirty at the end, pages", AT_MOST(0, 0)},
			{"first flush, s", AT_LEAST(30, 30)}},
	},
	{
		.name = "p36-sync",
		.what = "sync while 10 writers write for ever",
		.run = syncing,
		.bars = {{"syncs that began", AT_LEAST(2, 2)}, {"took, s", AT_MOST(3, 3)},
			{"written meanwhile / dirty and in flight at the call",
				AT_MOST(1.1, 1.1)}},
	},
};
const size_t nr_rows_edge = sizeof(rows_edge) / sizeof(rows_edge[0]);
