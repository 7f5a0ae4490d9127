/* properties_devices.c - rows 20 to 26: several devices under one budget; many writers come and
 * go. */
#include "tests/sim/properties.h"

static void writers_on(
	struct sim_config *config, unsigned device, unsigned count, double request_bytes)
{
	case_writers(config, SIM_GREEDY, count, request_bytes)->device = device;
}

static double least_throughput(const struct run *r)
{
	double least = NAN;

	for (unsigned i = 0; i < r->result.nr_devices; i++)
		least = fmin(least, r->result.device[i].throughput);
	return least;
}

/* ---- 20 to 22: JBOD ---- */

static double proportion_error(const struct run *r, const struct sim_sample *s)
{
	return s->device[0].proportion - 0.8;
}

static void shares(struct check *c)
{
	struct sim_config config = case_new(c, 100 * MIB, 400 * MIB);

	case_device(&config, 25 * MIB);
	for (unsigned i = 0; i < 2; i++)
		writers_on(&config, i, 10, 64 * KIB);
	config.seconds = 50;
	config.warmup_s = 12;
	const struct run *r = case_run(c, &config);
	found(c, 0, trace_worst_second(r, 12, 50, proportion_error), "100 + 25 MiB/s, N=10+10");
	found(c, 1, least_throughput(r), "100 + 25 MiB/s, N=10+10");
}

static void ten_disks(struct check *c)
{
	struct sim_config config = case_new(c, 100 * MIB, 100 * MIB);

	for (unsigned i = 0; i < 10; i++) {
		if (i)
			case_device(&config, 100 * MIB);
		writers_on(&config, i, 10, 128 * KIB);
	}
	config.seconds = 30;
	config.warmup_s = 10;
	const struct run *r = case_run(c, &config);
	found(c, 0, least_throughput(r), "N=10 each");
}

static void small_jbod(struct check *c)
{
	for (unsigned i = 0; i < 2; i++) {
		double speed = i ? 100 : 50;
		struct sim_config config = case_new(c, speed * MIB, 10 * MIB);
		case_device(&config, speed * MIB);
		writers_on(&config, 0, 100, 64 * KIB);
		writers_on(&config, 1, 100, 64 * KIB);
		config.seconds = 40;
		config.warmup_s = 10;
		const struct run *r = case_run(c, &config);
		found(c, 0, least_throughput(r), "2 x %.0f MiB/s", speed);
		found(c, 1, r->result.jain, "2 x %.0f MiB/s", speed);
	}
}

/* ---- 23: a stick beside a fast disk ---- */

static struct sim_config stick_and_disk(const struct check *c)
{
	struct sim_config config = case_new(c, 5 * MIB, 400 * MIB);

	case_device(&config, 500 * MIB)->prior_bytes_per_s = 50 * MIB;
	config.devices[0].prior_bytes_per_s = 10 * MIB;
	writers_on(&config, 0, 2, 128 * KIB);
	writers_on(&config, 1, 2, 128 * KIB);
	config.seconds = 60;
	config.warmup_s = 5;
	return config;
}

static double stick_mib(const struct run *r, const struct sim_sample *s)
{
	return s->device[0].wb_dirty * PAGE / MIB;
}

static double stick_over_share(const struct run *r, const struct sim_sample *s)
{
	return s->device[0].wb_dirty / s->device[0].wb_thresh;
}

/* What five seconds of it are, counted with what is believed of it. */
static double stick_over_time(const struct run *r, const struct sim_sample *s)
{
	const struct sim_device_sample *d = &s->device[0];

	return d->wb_dirty / (d->reference_bandwidth * 5);
}

static void stick(struct check *c)
{
	struct sim_config config = stick_and_disk(c);

	for (unsigned i = 0; i < 2; i++)
		config.devices[i].settings.dirty_centisecs = 500;
	const struct run *r = case_run(c, &config);
	found(c, 0, r->result.device[1].throughput, "5 s each");
	found(c, 1, trace_max(r, 0, 60, stick_mib), "5 s each");
	found(c, 2, trace_max(r, 10, 60, stick_over_time), "5 s each");
	found(c, 3, r->result.device[0].throughput, "5 s each");
	found(c, 4, trace_settled(r, 0, 60, stick_over_share, 1.5), "5 s each");

	config = stick_and_disk(c);
	config.seconds = 120;
	r = case_run(c, &config);
	found(c, 0, r->result.device[1].throughput, "no limit in time");
	found(c, 5, trace_settled(r, 0, 120, stick_over_share, 1.5), "no limit in time");
}

/* ---- 24: strict ---- */

static double over_share(const struct run *r, const struct sim_sample *s)
{
	double ratio = (double)r->config.devices[0].settings.max_ratio / 100;

	return s->device[0].wb_dirty / (s->thresh * ratio);
}

static double own_share(const struct run *r, const struct sim_sample *s)
{
	double ratio = (double)r->config.devices[0].settings.max_ratio / 100;

	return s->device[0].wb_thresh / (s->thresh * ratio);
}

static double first_pages_ms(const struct run *r, double pages)
{
	for (size_t i = 0; i < r->nr_points; i++)
		if ((double)point(r, i)->device[0].dirtied >= pages)
			return (double)point(r, i)->now_us / 1e3;
	return NAN;
}

static void strict(struct check *c)
{
	static const uint64_t percent[] = {5, 1};

	for (unsigned i = 0; i < 2; i++) {
		struct sim_config config = case_new(c, 100 * MIB, 400 * MIB);
		config.devices[0].settings.strict_limit = true;
		config.devices[0].settings.max_ratio = percent[i];
		writers_on(&config, 0, 10, 64 * KIB);
		config.seconds = 30;
		config.warmup_s = 10;
		const struct run *r = case_run(c, &config);
		found(c, 0, r->result.throughput, "max_ratio=%d", (int)percent[i]);
		found(c, 1, trace_max(r, 10, 30, over_share), "max_ratio=%d", (int)percent[i]);
		found(c, 2, trace_max(r, 0, 10, over_share), "max_ratio=%d", (int)percent[i]);
		found(c, 4, trace_min(r, 10, 30, own_share), "max_ratio=%d", (int)percent[i]);
		found(c, 3, first_pages_ms(r, 10 * 64 * KIB / PAGE), "max_ratio=%d",
			(int)percent[i]);
	}
}

/* ---- 25: a dead device beside a good one ---- */

static void beside_dead(struct check *c, const struct sim_config *config, const char *how)
{
	const struct run *r = case_run(c, config);

	found(c, 0, r->result.device[1].throughput, "%s", how);
	found(c, 1, (double)r->result.device[1].pause.max_us / 1e3, "%s", how);
	for (unsigned i = 0; i < r->result.nr_writers; i++)
		if (r->result.writers[i].device == 1)
			found(c, 2, (double)r->result.writers[i].wait_max_us / 1e3, "%s", how);
}

static void dead_device(struct check *c)
{
	struct sim_config config = case_new(c, 10 * KIB, 400 * MIB);

	case_device(&config, 100 * MIB);
	writers_on(&config, 0, 2, 64 * KIB);
	writers_on(&config, 1, 2, 64 * KIB);
	beside_dead(c, &config, "10 KiB/s");

	/* So small that what crawls in has filled it before the end. */
	config.limit_bytes = (uint64_t)(40 * MIB);
	config.devices[0].bytes_per_s = 50 * MIB;
	config.devices[0].stall_at_s = 5;
	config.devices[0].stall_s = 1000;
	beside_dead(c, &config, "stands still, T=40M");

	config.writers[0].count = config.writers[1].count = 20;
	config.writers[0].request_bytes = config.writers[1].request_bytes = 262144;
	const struct run *r = case_run(c, &config);
	found(c, 0, r->result.device[1].throughput, "stands still, T=40M, N=20+20 256K");
	found(c, 3, (double)r->result.device[1].pause.max_us / 1e3, "N=20+20 256K");
	found(c, 4, sim_percentile_ms(&r->result.spec[1].wait, 0.99), "N=20+20 256K");
}

/* ---- 26: 1 -> 1000 -> 1 ---- */

static void crowd(struct check *c)
{
	struct sim_config config = case_new(c, 100 * MIB, 400 * MIB);

	case_writers(&config, SIM_GREEDY, 1, 64 * KIB);
	struct sim_writer_spec *crowd = case_writers(&config, SIM_GREEDY, 999, 64 * KIB);
	crowd->from_s = 20;
	crowd->to_s = 50;
	config.seconds = 80;
	config.warmup_s = 10;
	const struct run *r = case_run(c, &config);
	found(c, 0, trace_settled(r, 20.001, 49, rate_error, 0.1), "1 -> 1000");
	found(c, 1, fabs(rate_error(r, point_at(r, 45))), "25 s after");
	found(c, 2, trace_settled(r, 55, 80, rate_error, 0.15), "1000 -> 1");
	found(c, 3, r->result.throughput, "from 1 to 1000 at 20 s, back at 50 s");
}

const struct row rows_devices[] = {
	{
		.name = "p20-jbod-shares",
		.what = "100 and 25 MiB/s under one budget of 400 MiB, from 12 s on",
		.run = shares,
		.bars = {{"proportion from 0.8, worst second", AT_MOST(0.05, 0.03)},
			{"written / possible, the lesser", AT_LEAST(0.97, 0.97)}},
	},
	{
		.name = "p21-jbod-ten",
		.what = "ten disks of 100 MiB/s, T = 100 MiB",
		.run = ten_disks,
		.bars = {{"written / possible, the least", AT_LEAST(0.95, 0.98)}},
	},
	{
		.name = "p22-jbod-small",
		.what = "two disks, T = 10 MiB, 100 writers each",
		.run = small_jbod,
		.bars = {{"written / possible, the lesser", AT_LEAST(0.80, 0.97)},
			{"Jain, the lesser", AT_LEAST(0.97, 0.995)}},
	},
	{
		.name = "p23-stick-and-disk",
		.what = "5 MiB/s beside 500 MiB/s, T = 400 MiB, started together",
		.run = stick,
		.bars = {{"disk: written / possible", AT_LEAST(0.95, 0.95)},
			{"stick, limit 5 s: most dirty, MiB", AT_MOST(50, 50),
				"no bound of linux (346)",
				"the limit in time is the device's, not the law's"},
			{"stick, limit 5 s: dirty / limit", AT_MOST(1.05, 1)},
			{"stick: written / possible", AT_LEAST(0.95, 0.95)},
			{"stick, limit 5 s: until <= 1.5 of its share, s", AT_MOST(25, 25)},
			{"stick, no limit: until <= 1.5 of its share, s", AT_MOST(115, 50),
				"<= 1.3 of its share of linux, nothing of pace",
				"a base rate cannot fall while the domain is below its "
				"setpoint, and the "
				"device's own line alone ends at 1.4"}},
	},
	{
		.name = "p24-strict",
		.what = "strict_limit with max_ratio 5 and 1, T = 400 MiB, 10 writers",
		.run = strict,
		.bars = {{"written / possible", AT_LEAST(0.95, 0.97)},
			{"dirty / max_ratio of T, from 10 s on", AT_MOST(1, 1)},
			{"dirty / max_ratio of T, first 10 s", AT_MOST(1, 1),
				"<= T_j + N * 128 KiB of linux",
				"pages are admitted before they are dirtied, whatever the law"},
			{"first request of everybody, ms", AT_MOST(50, 50)},
			{"least share / max_ratio, from 10 s on", AT_LEAST(0.9, 0.9)}},
	},
	{
		.name = "p25-dead-device",
		.what = "a device that is as good as dead beside a good one, 2 writers each",
		.run = dead_device,
		.bars = {{"good one: written / possible", AT_LEAST(0.9, 0.9)},
			{"good one: longest pause, ms", AT_MOST(60, 60)},
			{"good one: longest wait of a write, ms", AT_MOST(100, 100)},
			{"20 each: longest pause, ms", AT_MOST(60, 60)},
			{"20 each: wait of a write, 99 %, ms", AT_MOST(200, 200)}},
	},
	{
		.name = "p26-crowd",
		.what = "one writer, a thousand, and one again",
		.run = crowd,
		.bars = {{"until the base rate is within 10 %, s", AT_MOST(NAN, 1)},
			{"error of the base rate 25 s after", AT_MOST(4, 0.1)},
			{"back: until within 15 %, s after 5 s", AT_MOST(20, 0)},
			{"written / possible", AT_LEAST(0.97, 0.98)}},
	},
};
const size_t nr_rows_devices = sizeof(rows_devices) / sizeof(rows_devices[0]);
