/* test_throttle.c - each formula against the kernel's integer results (1 ms
 * tick).
 *
 * Ours are real numbers, so "equal" needs a tolerance. Each table names where its own
 * comes from.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "throttle/formulas.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define FIXED 1024.0 /* the kernel's one in fixed point */

static void check_near(double got, double want, double tolerance, double input)
{
	if (fabs(got - want) <= tolerance)
		return;
	fail_msg("at %g: got %.4f, want %.4f +- %g", input, got, want, tolerance);
}

/* Truncation of three shifts, and a divisor that is made odd: up to 4/1024. */
static void test_cubic(void **state)
{
	static const double table[][2] = {
		{0, 2048},
		{76800, 2045},
		{80000, 1453},
		{83200, 1151},
		{86400, 1039},
		{89600, 1024},
		{92800, 1008},
		{96000, 896},
		{99200, 594},
		{102399, 2},
		{102400, 2},
		{110000, 0},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(table); i++)
		check_near(throttle_cubic(89600, table[i][0], 102400) * FIXED, table[i][1], 4,
			table[i][0]);
}

/* The position with bw 25600 unless said otherwise, limit given. */
static double position(double thresh, double bg_thresh, double limit, double dirty,
	double wb_thresh, double wb_dirty, double avg)
{
	struct budget b = {
		.thresh = thresh,
		.bg_thresh = bg_thresh,
		.limit = limit,
		.dirty = dirty,
		.wb_thresh = wb_thresh,
		.wb_bg_thresh = thresh > 0 ? wb_thresh * bg_thresh / thresh : 0,
		.wb_dirty = wb_dirty,
		.avg_write_bandwidth = avg,
	};

	throttle_budget_points(&b);
	throttle_budget_position(&b);
	return b.pos_ratio * FIXED;
}

/* As the cubic, and the line and the reserve truncate once more each: 4/1024 and 0.1 %.
 */
static void test_position_single_device(void **state)
{
	static const double table[][2] = {
		{60000, 2343},
		{76800, 2172},
		{83200, 1186},
		{89600, 1023},
		{94720, 934},
		{96000, 867},
		{99200, 566},
		{102399, 1},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(table); i++)
		check_near(position(102400, 51200, 102400, table[i][0], 102400, table[i][0],
				   25600),
			table[i][1], 4 + table[i][1] / 1000, table[i][0]);
}

static void test_position_jbod(void **state)
{
	static const double table[][2] = {
		{1000, 13824},
		{5000, 3198},
		{10000, 1385},
		{14000, 1187},
		{17919, 1024},
		{17920, 1023},
		{20000, 937},
		{30000, 520},
		{60000, 256},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(table); i++)
		check_near(position(102400, 51200, 102400, 89600, 20480, table[i][0], 5120),
			table[i][1], 4 + table[i][1] / 1000, table[i][0]);
	/* and more pages of one device than of all (guard 5c) */
	check_near(position(102400, 51200, 102400, 89600, 20480, 100000, 5120), 256, 4, 100000);
}

static void test_position_lagging_limit(void **state)
{
	(void)state;
	check_near(position(51200, 25600, 102400, 80000, 51200, 80000, 25600), 949, 4, 80000);
}

/* The half-span is 256 pages and its divisor 257: an error of 3/257 in the cube, 12/1024.
 */
static void test_position_strict(void **state)
{
	static const double table[][2] = {
		{0, 2048},
		{400, 2048},
		{512, 2036},
		{700, 1042},
		{768, 1024},
		{900, 886},
		{1000, 272},
		{1023, 23},
		{1024, 0},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(table); i++) {
		struct budget b = {
			.thresh = 102400,
			.bg_thresh = 51200,
			.limit = 102400,
			.dirty = 2000,
			.wb_thresh = 1024,
			.wb_bg_thresh = 512,
			.wb_dirty = table[i][0],
			.avg_write_bandwidth = 25600,
			.strict_limit = true,
		};

		throttle_budget_points(&b);
		throttle_budget_position(&b);
		check_near(b.pos_ratio * FIXED, table[i][1], 12, table[i][0]);
	}
}

/* exact */
static void test_poll_interval(void **state)
{
	static const double table[][2] = {
		{0, 256},
		{51200, 128},
		{76800, 128},
		{102000, 16},
		{102399, 1},
		{102400, 1},
		{120000, 1},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(table); i++)
		check_near(throttle_poll_interval(102400, table[i][0]), table[i][1], 0,
			table[i][0]);
}

/* One tick, and 128/125: the kernel rounds an eighth of its tick rate up to a power of
 * two. */
static void test_max_pause(void **state)
{
	static const double table[][2] = {
		{0, 1},
		{100, 1},
		{1000, 5},
		{5120, 26},
		{20000, 100},
		{40201, 200},
		{89600, 200},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(table); i++)
		check_near(throttle_max_pause(25600, table[i][0]) / TICK_US, table[i][1],
			1 + table[i][1] * 3 / 125, table[i][0]);
}

static void check_bounds(double ratelimit, double task_ratelimit, double pages, double ms)
{
	struct pause_bounds b =
		throttle_pause_bounds(25600, ratelimit, task_ratelimit, 200 * TICK_US);

	check_near(b.nr_dirtied_pause, pages, 1 + pages * 0.08, ratelimit);
	check_near(b.min_pause_us / TICK_US, ms, 1 + ms * 0.06, ratelimit);
}

/* The kernel divides by 1024 where it means the tick rate, twice: 10 ms per doubling
 * become 9 to 9.8. Up to 8 % of the pages and 6 % of the time, and one of each for
 * truncation. */
static void test_pause_bounds(void **state)
{
	static const double same[][3] = {
		/* task_ratelimit = ratelimit */
		{25600, 250, 6},
		{12800, 237, 10},
		{2560, 97, 20},
		{256, 32, 63},
		{25, 4, 200},
		{1, 0, 200},
	};
	static const double at_2560[][3] = {
		/* ratelimit 2560, by task_ratelimit */
		{100, 19, 200},
		{300, 58, 101},
		{640, 97, 20},
		{1280, 97, 20},
		{5120, 97, 20},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(same); i++)
		check_bounds(same[i][0], same[i][0], same[i][1], same[i][2]);
	for (size_t i = 0; i < COUNT(at_2560); i++)
		check_bounds(2560, at_2560[i][0], at_2560[i][1], at_2560[i][2]);
}

/* Truncation: one page per second. */
static void test_bandwidth(void **state)
{
	static const double table[][6] = {
		/* bw, avg, written, ms -> bw, avg */
		{25600, 25600, 5120, 200, 25600, 25600},
		{25600, 25600, 1024, 200, 24600, 25600},
		{25600, 25600, 0, 200, 24350, 25600},
		{25600, 25600, 0, 4096, 0, 25600},
		{25600, 25600, 0, 5000, 0, 1},
		{25600, 25600, 51200, 5000, 10240, 10240},
		{20000, 25600, 1024, 200, 19273, 24900},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(table); i++) {
		double bw = table[i][0], avg = table[i][1];

		throttle_bandwidth_step(&bw, &avg, table[i][2], table[i][3] / 1000);
		check_near(bw, table[i][4], 1, table[i][2]);
		check_near(avg, table[i][5], 1, table[i][2]);
	}
}

struct ratelimit_row {
	double ratelimit, dirty, pos, dirtied, balanced_before; /* pos in 1/1024 */
	double want_ratelimit, want_balanced;
};

/* Through the whole update, avg 25600, 200 ms, setpoint 89600. One page per second for
 * the rounded-up step; two for the truncated estimate, 0.05 % where it is large. */
static void test_ratelimit(void **state)
{
	static const struct ratelimit_row table[] = {
		{2560, 80000, 1600, 5120, 2560, 2560, 4000},
		{2560, 80000, 1600, 5120, 4200, 2740, 4000},
		{2560, 80000, 1600, 5120, 2700, 2560, 4000},
		{2560, 77000, 2048, 2000, 20000, 2881, 13108},
		{2560, 89600, 1024, 5120, 2560, 2560, 2560},
		{2560, 96000, 750, 5120, 1900, 2518, 1875},
		{2560, 96000, 750, 5120, 2500, 2560, 1875},
		{2560, 99200, 400, 5120, 1000, 2365, 1000},
		{2560, 102400, 0, 0, 2000, 2560, 25600}, /* blind at the limit */
		{25600, 96000, 600, 30000, 2560, 24937, 2560},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(table); i++) {
		const struct ratelimit_row *row = &table[i];
		struct throttle_device dev = {
			.dirty_ratelimit = row->ratelimit,
			.balanced_dirty_ratelimit = row->balanced_before,
		};
		struct throttle_sample s = {
			.now_us = THROTTLE_INTERVAL_US,
			.wb_dirtied = (uint64_t)row->dirtied,
		};
		struct budget b = {
			.dirty = row->dirty,
			.wb_dirty = row->dirty,
			.wb_thresh = 102400,
			.setpoint = 89600,
			.avg_write_bandwidth = 25600,
			.pos_ratio = row->pos / FIXED,
		};

		throttle_update_ratelimit(&dev, &b, &s);
		check_near(dev.dirty_ratelimit, row->want_ratelimit, 1.1, (double)i);
		check_near(dev.balanced_dirty_ratelimit, row->want_balanced,
			2 + row->want_balanced / 2000, (double)i);
	}
}

/* One step of 200 ms. Truncation: one page. The third row is where we differ: the
 * kernel's gap of 31 pages stays 31 for ever. */
static void test_limit(void **state)
{
	(void)state;
	check_near(throttle_follow(100, 200, 50, 0.2), 200, 0, 0);
	check_near(throttle_follow(102400, 51200, 90000, 0.2), 102013, 1, 1);
	check_near(throttle_follow(102400, 51200, 10000, 0.2), 100800, 1, 2);
	check_near(throttle_follow(51231, 51200, 0, 0.2), 51231, 1, 3);
}

static void test_limit_converges(void **state)
{
	double limit = 102400;
	unsigned steps = 0;

	(void)state;
	while (limit > 51200) {
		double before = limit;

		limit = throttle_follow(limit, 51200, 0, 0.2);
		assert_true(limit < before && limit >= 51200);
		steps++;
	}
	assert_true(steps > 300 && steps < 400); /* 32 ln 51200 */
	/* two intervals at once are two steps */
	check_near(throttle_follow(102400, 51200, 0, 0.4),
		throttle_follow(throttle_follow(102400, 51200, 0, 0.2), 51200, 0, 0.2), 1e-6,
		0);
	/* never below what is dirty, and not up to it either */
	check_near(throttle_follow(1000, 500, 999.5, 10), 999.5, 0, 0);
	check_near(throttle_follow(1000, 500, 2000, 10), 1000, 0, 0);
}

static void test_points(void **state)
{
	struct throttle_knobs knobs = {.dirty_ratio = 20, .dirty_background_ratio = 10};
	struct throttle_thresholds t = throttle_domain_thresholds(&knobs, 512000);

	(void)state;
	check_near(t.thresh, 102400, 1e-6, 0);
	check_near(t.bg_thresh, 51200, 1e-6, 0);
	check_near(throttle_freerun(t.thresh, t.bg_thresh), 76800, 1e-6, 0);
	check_near(throttle_setpoint(76800, 102400), 89600, 1e-6, 0);

	/* bytes win and are rounded up; a background that is not below is halved */
	knobs.dirty_bytes = 4096 * 10 + 1;
	t = throttle_domain_thresholds(&knobs, 512000);
	check_near(t.thresh, 11, 0, 1);
	check_near(t.bg_thresh, 5.5, 0, 1);
	knobs.dirty_background_bytes = 4097;
	t = throttle_domain_thresholds(&knobs, 512000);
	check_near(t.bg_thresh, 2, 0, 2);
	knobs.dirty_bytes = UINT64_MAX;
	t = throttle_domain_thresholds(&knobs, 0);
	check_near(t.thresh, 4294967295.0, 0, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cubic),
		cmocka_unit_test(test_position_single_device),
		cmocka_unit_test(test_position_jbod),
		cmocka_unit_test(test_position_lagging_limit),
		cmocka_unit_test(test_position_strict),
		cmocka_unit_test(test_poll_interval),
		cmocka_unit_test(test_max_pause),
		cmocka_unit_test(test_pause_bounds),
		cmocka_unit_test(test_bandwidth),
		cmocka_unit_test(test_ratelimit),
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_limit_converges),
		cmocka_unit_test(test_points),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
