/* properties_change.c - rows 14 to 19: devices and limits that change, bursts. */
#include "tests/sim/properties.h"

static double rate_and_avg; /* what avg is compared with, bytes per second */

static double avg_error(const struct run *r, const struct sim_sample *s)
{
	return s->device[0].avg_write_bandwidth * PAGE / rate_and_avg - 1;
}

/* Of the base rate from the true speed's Nth part. */
static double true_rate_error(const struct run *r, const struct sim_sample *s)
{
	double fair = rate_and_avg / PAGE / fmax(s->device[0].nr_writers, 1);

	return s->device[0].dirty_ratelimit / fair - 1;
}

/* ---- 14, 15: another speed ---- */

static const struct run *step(struct check *c, double from, double to)
{
	struct sim_config config = case_new(c, from * MIB, 400 * MIB);

	config.devices[0].nr_steps = 1;
	config.devices[0].steps[0] = (struct sim_step){.at_s = 30, .bytes_per_s = to * MIB};
	config.seconds = 75;
	case_writers(&config, SIM_GREEDY, 10, 64 * KIB);
	rate_and_avg = to * MIB;
	return case_run(c, &config);
}

/* How far the base rate is outside of what the average was within the last second. */
static double worst_lag(const struct run *r, double from_s, double to_s)
{
	double worst = 0;

	for (double s = from_s; s < to_s; s += 0.1) {
		const struct sim_sample *now = point_at(r, s);
		double rate = now->device[0].dirty_ratelimit * now->device[0].nr_writers;
		double low = trace_min(r, s - 1, s + 0.01, avg_bandwidth);
		double high = trace_max(r, s - 1, s + 0.01, avg_bandwidth);
		worst = fmax(worst, fmax(rate / high - 1, 1 - rate / low));
	}
	return worst;
}

static double longest_stand_s(const struct run *r)
{
	double longest = NAN;

	for (unsigned i = 0; i < r->result.nr_writers; i++)
		longest = fmax(longest, (double)r->result.writers[i].stand_max_us / 1e6);
	return longest;
}

static void slower(struct check *c)
{
	const struct run *r = step(c, 100, 20);
	struct sim_config config;

	found(c, 0, trace_settled(r, 30, 75, avg_error, 0.2), "N=10");
	found(c, 1, trace_settled(r, 30, 75, true_rate_error, 0.2), "N=10");
	found(c, 2, worst_lag(r, 30, 75), "N=10");
	/* Far less may be dirty now than is: nobody stands until that is written. */
	config = case_new(c, 100 * MIB, 400 * MIB);
	config.devices[0].nr_steps = 1;
	config.devices[0].steps[0] = (struct sim_step){.at_s = 30, .bytes_per_s = 5 * MIB};
	config.devices[0].settings.dirty_centisecs = 200;
	case_writers(&config, SIM_GREEDY, 10, 64 * KIB);
	found(c, 3, longest_stand_s(case_run(c, &config)), "to 5 MiB/s, limit of 2 s");
}

static void faster(struct check *c)
{
	const struct run *r = step(c, 20, 100);

	found(c, 0, 100 * r->result.idle, "N=10");
	found(c, 1, trace_settled(r, 30, 75, avg_error, 0.1), "N=10");
	found(c, 2, trace_settled(r, 30, 75, true_rate_error, 0.2), "N=10");
	found(c, 3, trace_written(r, 0, 30, 32) / (100 * MIB), "N=10");
}

/* ---- 16, 17: another limit ---- */

static const struct run *set_limit(struct check *c, double from, double to)
{
	struct sim_config config = case_new(c, 100 * MIB, from * MIB);

	config.seconds = 75;
	case_writers(&config, SIM_GREEDY, 10, 64 * KIB);
	case_action(&config, SIM_SET_LIMIT, 30)->value = (uint64_t)(to * MIB);
	return case_run(c, &config);
}

/* By how much the limit ever rises, of itself. */
static double largest_rise(const struct run *r, double from_s, double to_s)
{
	double worst = 0;

	for (double s = from_s; s + 0.1 < to_s; s += 0.1)
		worst = fmax(worst, point_at(r, s + 0.1)->limit / point_at(r, s)->limit - 1);
	return worst;
}

static double over_thresh(const struct run *r, const struct sim_sample *s)
{
	return fmax(s->dirty / s->thresh - 1, 0);
}

static void halved(struct check *c)
{
	const struct run *r = set_limit(c, 400, 200);
	struct sim_config config;

	found(c, 0, largest_rise(r, 30.2, 75), "N=10");
	found(c, 1, trace_settled(r, 30.2, 75, over_thresh, 0), "N=10");
	found(c, 2, (double)r->result.pause.max_us / 1e3, "N=10");
	found(c, 3, longest_stand_s(r), "N=10");
	found(c, 4, r->result.throughput, "N=10");
	/* All that may be dirty is in requests under way: no rate holds anybody, the gate alone
	 * paces, and keeps dirty at the limit that comes down with it. */
	config = case_new(c, 50 * MIB, 100 * MIB);
	config.warmup_s = 10;
	case_writers(&config, SIM_GREEDY, 100, 1024 * KIB);
	case_action(&config, SIM_SET_LIMIT, 20)->value = (uint64_t)(8 * MIB);
	r = case_run(c, &config);
	found(c, 5, trace_settled(r, 20.2, 70, over_thresh, 0), "100 to 8 MiB, N=100 1M");
}

/* Of the limit in force from what was set. */
static double limit_error(const struct run *r, const struct sim_sample *s)
{
	return s->limit * PAGE / (double)r->config.actions[0].value - 1;
}

static void doubled(struct check *c)
{
	const struct run *r = set_limit(c, 200, 400);

	found(c, 0, trace_settled(r, 30.001, 75, limit_error, 1e-9), "N=10");
	found(c, 1, trace_written(r, 0, 30, 35) / (100 * MIB), "N=10");
	found(c, 2,
		fabs(point_at(r, 60)->dirty - point_at(r, 60)->setpoint) /
			(point_at(r, 60)->limit - point_at(r, 60)->setpoint),
		"N=10, 30 s later");
}

/* ---- 18: stall ---- */

static double first_dirtied_after(const struct run *r, double s)
{
	uint64_t before = point_at(r, s)->device[0].dirtied;

	for (double t = s; t < r->config.seconds; t += SIM_SAMPLE_US / 1e6)
		if (point_at(r, t)->device[0].dirtied > before)
			return round(1e3 * (t - s));
	return NAN;
}

static void stall(struct check *c)
{
	struct sim_config config = case_new(c, 100 * MIB, 400 * MIB);

	config.devices[0].stall_at_s = 30;
	config.devices[0].stall_s = 5;
	case_writers(&config, SIM_GREEDY, 10, 64 * KIB);
	const struct run *r = case_run(c, &config);
	found(c, 0, first_dirtied_after(r, 35), "N=10");
	found(c, 1, trace_written(r, 0, 35, 36) / (100 * MIB), "N=10");
	found(c, 2,
		100 *
			(1 -
				trace_min(r, 30, 50, avg_bandwidth) /
					avg_bandwidth(r, point_at(r, 29.9))),
		"N=10");
}

/* ---- 19: bursts ---- */

static void bursts(struct check *c)
{
	struct sim_config config = case_new(c, 100 * MIB, 400 * MIB);
	struct sim_writer_spec *w = case_writers(&config, SIM_BURSTY, 1, 64 * KIB);

	w->on_s = 1;
	w->off_s = 4;
	config.seconds = 25;
	config.warmup_s = 5;
	const struct run *r = case_run(c, &config);
	rate_and_avg = 100 * MIB;
	found(c, 0,
		100 *
			fmax(fabs(trace_max(r, 5, 25, avg_error)),
				fabs(trace_min(r, 5, 25, avg_error))),
		"1 s of 5, one writer");
	found(c, 1, (double)r->result.pause.max_us / 1e3, "1 s of 5, one writer");
}

const struct row rows_change[] = {
	{
		.name = "p14-slower",
		.what = "the device goes from 100 to 20 MiB/s, 10 writers",
		.run = slower,
		.bars = {{"until avg is within 20 %, s", AT_MOST(16, 16)},
			{"until the base rate is within 20 %, s", AT_MOST(30, 17)},
			{"base rate beside the last second's avg, part", AT_MOST(NAN, 0.05)},
			{"longest stand of a writer when a limit in time collapses, s",
				AT_MOST(2, 2)}},
	},
	{
		.name = "p15-faster",
		.what = "the device goes from 20 to 100 MiB/s, 10 writers",
		.run = faster,
		.bars = {{"idle while R > B, %", AT_MOST(1, 1)},
			{"until avg is within 10 %, s", AT_MOST(14, 14)},
			{"until the base rate is within 20 %, s", AT_MOST(16, 14)},
			{"first 2 s: written / possible", AT_LEAST(0.97, 0.97)}},
	},
	{
		.name = "p16-limit-halved",
		.what = "T from 400 to 200 MiB while 10 writers write, 100 MiB/s",
		.run = halved,
		.bars = {{"limit rises again by, part", AT_MOST(0, 0)},
			{"until dirty <= new T for good, s", AT_MOST(6, 6),
				"<= 35 of linux and <= 25 of pace",
				"the limit comes down with half of what completes, in place of "
				"by time"},
			{"longest pause, ms", AT_MOST(NAN, 150)},
			{"longest stand of a writer, s", AT_MOST(2, 2)},
			{"written / possible", AT_LEAST(0.97, 0.98)},
			{"the gate alone, to 8 MiB: until dirty <= new T for good, s",
				AT_MOST(6, 6)}},
	},
	{
		.name = "p17-limit-doubled",
		.what = "T from 200 to 400 MiB while 10 writers write, 100 MiB/s",
		.run = doubled,
		.bars = {{"until limit = T, s", AT_MOST(0.2, 0.2)},
			{"next 5 s: written / possible", AT_LEAST(0.97, 0.98)},
			{"distance from the new setpoint, part", AT_MOST(0.6, 0.15)}},
	},
	{
		.name = "p18-stall",
		.what = "the device stands still for 5 s, 10 writers",
		.run = stall,
		.bars = {{"first page after it, ms", AT_MOST(60, 20)},
			{"next 1 s: written / possible", AT_LEAST(0.9, 0.9)},
			{"avg falls by, %", AT_MOST(10, 10), "no bound of linux (it halves)",
				"a gap counts as one second at most, whatever the law"}},
	},
	{
		.name = "p19-bursts",
		.what = "one writer, greedy for 1 s and silent for 4 s",
		.run = bursts,
		.bars = {{"avg from the device's speed, +- %", AT_MOST(25, 10)},
			{"longest pause, ms", AT_MOST(50, 50)}},
	},
};
const size_t nr_rows_change = sizeof(rows_change) / sizeof(rows_change[0]);
