/* test_throttle_device.c - the ways in which such a law is known to fail, one test each:
 * thresholds (1), shares (2), bandwidth (3) and limits in time (8).
 */
#include "test_throttle_world.h"
#include "util/busy_clock.h"

static void degenerate_case(
	double thresh, double bg_thresh, double avg, bool strict, double cap)
{
	for (double d = 0; d <= thresh + 2; d++) {
		struct world x;
		struct throttle_verdict v;
		double got;

		world_init(&x);
		throttle_device_init(&x.dev, avg, START_US);
		throttle_domain_init(&x.dom, START_US);
		x.s.thresh = thresh;
		x.s.bg_thresh = bg_thresh;
		x.s.strict_limit = strict;
		x.s.cap_thresh = cap;
		for (unsigned i = 0; i < 4; i++) {
			x.s.now_us += THROTTLE_INTERVAL_US;
			set_dirty(&x, d);
			v = balance(&x, 32);
			check_verdict(&v);
			throttle_tick(&x.dom, &x.dev, &x.s);
		}
		got = throttle_admissible(&x.dom, &x.dev, &x.s, 32, 0, 10, true);
		assert_true(
			got >= 0 && got == floor(got) && d + got <= fmax(fmax(thresh, d), 1));
		if (d == 0)
			assert_true(got >= 1);
	}
}

static void test_1a_tiny_thresholds(void **state)
{
	static const double pages[] = {0, 0.3, 1, 2, 3, 7};

	(void)state;
	for (unsigned i = 0; i < 6; i++) {
		for (unsigned j = 0; j < 6; j++) {
			degenerate_case(pages[i], pages[j], 1, false, THROTTLE_NO_CAP);
			degenerate_case(pages[i], pages[j], 1e7, false, THROTTLE_NO_CAP);
			degenerate_case(pages[i], pages[j], 1e7, true, THROTTLE_NO_CAP);
			degenerate_case(pages[i], pages[j], 1, false, pages[j]);
			degenerate_case(pages[i], pages[j], 1, true, pages[j]);
		}
	}
}

static void test_1b_narrow_gap(void **state)
{
	(void)state;
	assert_near(throttle_effective_background(102400, 101120, 25600), 92160, 1e-6);
	assert_near(throttle_effective_background(102400, 51200, 25600), 51200, 1e-6);
	assert_near(throttle_effective_background(102400, 101120, 1e6), 51200, 1e-6);
	assert_near(throttle_effective_background(102400, 200000, 1), 51200, 1e-6);
	assert_near(throttle_effective_background(0, 0, 25600), 0, 0);
}

/* the settings change between the samples of two decisions */
static void test_1c_one_reading(void **state)
{
	struct world x;
	struct throttle_verdict v;

	(void)state;
	world_init(&x);
	x.s.thresh = 1000;
	x.s.bg_thresh = 51200;
	set_dirty(&x, 90000);
	v = balance(&x, 32);
	check_verdict(&v);
	assert_near(v.dirty_limit, 102400, 1e-6);
	x.s.thresh = 204800;
	v = balance(&x, 32);
	check_verdict(&v);
	assert_near(v.dirty_limit, 204800, 1e-6);
}

static void test_2_proportions(void **state)
{
	struct world x;
	struct throttle_device other;
	uint64_t now = START_US;

	(void)state;
	world_init(&x);
	throttle_domain_init(&x.dom, now);
	throttle_device_init(&x.dev, 1, now);
	throttle_device_init(&other, 1, now);
	for (unsigned i = 0; i < 60; i++) {
		now += THROTTLE_INTERVAL_US;
		throttle_completed(&x.dom, &x.dev, 80, 1, now);
		throttle_completed(&x.dom, &other, 20, 1, now);
	}
	assert_near(throttle_proportion(&x.dom, &x.dev, now), 0.8, 0.01);
	assert_near(throttle_proportion(&x.dom, &other, now), 0.2, 0.01);
	/* a second later the other one alone: half of what counts is new after each
	 * period */
	for (unsigned i = 0; i < 15; i++) {
		now += THROTTLE_INTERVAL_US;
		throttle_completed(&x.dom, &other, 100, 1, now);
	}
	assert_in_range((uintmax_t)(throttle_proportion(&x.dom, &other, now) * 100), 55, 75);
}

static void test_2_max_ratio(void **state)
{
	struct world x;
	struct throttle_thresholds t;

	(void)state;
	world_init(&x);
	throttle_domain_init(&x.dom, START_US);
	throttle_device_init(&x.dev, 25600, START_US);
	for (unsigned i = 0; i < 300; i++) {
		x.s.now_us += THROTTLE_INTERVAL_US;
		throttle_completed(&x.dom, &x.dev, 5000, 0.05, x.s.now_us);
		assert_true(throttle_proportion(&x.dom, &x.dev, x.s.now_us) < 0.0501);
	}
	assert_near(throttle_proportion(&x.dom, &x.dev, x.s.now_us), 0.05, 0.001);
	x.s.max_ratio = 0.05;
	t = throttle_device_thresholds(&x.dom, &x.dev, &x.s);
	assert_near(t.thresh, 5120, 1);
	assert_near(t.bg_thresh, 2560, 1);
	x.s.min_ratio = x.s.sum_min_ratio = 0.04;
	x.s.max_ratio = 1;
	x.s.dirty = x.s.thresh;
	t = throttle_device_thresholds(&x.dom, &x.dev, &x.s);
	assert_near(t.thresh, 102400 * (0.96 * 0.05 + 0.04), 20);
	x.s.cap_thresh = 100;
	assert_near(throttle_device_thresholds(&x.dom, &x.dev, &x.s).thresh, 100, 0);
}

static void test_2a_first_write(void **state)
{
	struct world x;
	struct throttle_verdict v;

	(void)state;
	world_init(&x);
	throttle_domain_init(&x.dom, START_US);
	throttle_device_init(&x.dev, 25600, START_US);
	assert_near(throttle_device_thresholds(&x.dom, &x.dev, &x.s).thresh, 12800, 1e-6);
	x.s.strict_limit = true;
	assert_near(throttle_device_thresholds(&x.dom, &x.dev, &x.s).thresh, 1024, 1e-6);
	set_dirty(&x, 32);
	v = balance(&x, 32);
	assert_int_equal(v.kind, THROTTLE_FREERUN);
	assert_near(v.wb_setpoint, 767.76, 0.01);
}

static void test_2b_same_predicate(void **state)
{
	struct world x;

	(void)state;
	world_init(&x);
	for (double d = 0; d < 76000; d += 331) { /* in freerun nothing else starts it */
		set_dirty(&x, d);
		assert_int_equal(balance(&x, 1).start_background,
			throttle_over_background(&x.dom, &x.dev, &x.s));
		assert_int_equal(throttle_over_background(&x.dom, &x.dev, &x.s), d > 51200);
	}
	set_dirty(&x, 60000);
	x.s.wb_dirty = x.s.wb_reclaimable = 10; /* the domain is over, if not this device */
	assert_true(throttle_over_background(&x.dom, &x.dev, &x.s));
	set_dirty(&x, 90000);
	x.s.reclaimable = x.s.wb_reclaimable = 100; /* nobody is held with an idle flusher */
	assert_false(throttle_over_background(&x.dom, &x.dev, &x.s));
	assert_true(balance(&x, 64).start_background);
}

static void test_2c_strict_background(void **state)
{
	struct world x;

	(void)state;
	world_init(&x);
	x.s.strict_limit = true;
	x.s.max_ratio = 0.01; /* T_j = 1024, B_j = 512 */
	set_dirty(&x, 512);
	assert_false(throttle_over_background(&x.dom, &x.dev, &x.s));
	set_dirty(&x, 513);
	assert_true(throttle_over_background(&x.dom, &x.dev, &x.s));
	x.s.reclaimable = x.s.wb_reclaimable = 1; /* the rest is in flight: still over */
	assert_true(throttle_over_background(&x.dom, &x.dev, &x.s));
	x.s.reclaimable = x.s.wb_reclaimable = 0; /* nothing is left to submit */
	assert_false(throttle_over_background(&x.dom, &x.dev, &x.s));
}

static void test_2d_missed_periods(void **state)
{
	struct world x;
	struct throttle_device other;

	(void)state;
	world_init(&x);
	throttle_device_init(&other, 1, START_US);
	x.s.now_us += 1000 * 3 * S_US;
	throttle_completed(&x.dom, &other, 10, 1, x.s.now_us);
	assert_near(throttle_proportion(&x.dom, &x.dev, x.s.now_us), 0, 1e-3);
	throttle_completed(&x.dom, &x.dev, 10, 1, x.s.now_us);
	assert_near(throttle_proportion(&x.dom, &x.dev, x.s.now_us), 10 / 21.0, 1e-3);
	/* as many as a word has bits */
	assert_near(throttle_proportion(&x.dom, &x.dev, x.s.now_us + 64 * 3 * S_US), 0, 1e-3);
}

static void test_2e_removal(void **state)
{
	struct world x;
	struct throttle_device other;

	(void)state;
	world_init(&x);
	throttle_device_init(&other, 1, START_US);
	throttle_completed(&x.dom, &other, 1e6, 1, START_US);
	assert_near(throttle_proportion(&x.dom, &x.dev, START_US), 0.5, 1e-3);
	throttle_device_removed(&x.dom, &other, START_US);
	assert_near(throttle_proportion(&x.dom, &x.dev, START_US), 1, 1e-3);
}

static void test_3_idle_is_no_sample(void **state)
{
	struct world x;
	double before;

	(void)state;
	world_init(&x);
	write_for(&x, 20, 2000);
	assert_near(x.dev.avg_write_bandwidth, 10000, 1);
	before = x.dev.avg_write_bandwidth;
	set_dirty(&x, 0);
	for (unsigned i = 0; i < 1000; i++) {
		x.s.now_us += THROTTLE_INTERVAL_US;
		throttle_tick(&x.dom, &x.dev, &x.s);
	}
	assert_near(x.dev.avg_write_bandwidth, before, 1e-9);
	x.s.now_us += 77 * MS_US;
	write_for(&x, 20, 2000);
	assert_near(x.dev.avg_write_bandwidth, before, 1);
}

/* on for 60 ms at 10000 pages/s, off for 140 ms: only the 60 ms are time */
static void test_3b_busy_time(void **state)
{
	struct world x;

	(void)state;
	world_init(&x);
	set_dirty(&x, 90000);
	for (unsigned i = 0; i < 100; i++) {
		x.s.now_us += 200 * MS_US;
		x.s.wb_busy_us += 60 * MS_US;
		x.s.wb_written += 600;
		throttle_completed(&x.dom, &x.dev, 600, 1, x.s.now_us);
		throttle_tick(&x.dom, &x.dev, &x.s);
	}
	assert_near(x.dev.avg_write_bandwidth, 10000, 1);
	assert_near(x.dev.busy_s, 6, 0.1);
}

static void test_3b_lower_bound(void **state)
{
	struct world x;

	(void)state;
	world_init(&x);
	write_for(&x, 20, 2000);
	for (unsigned i = 0; i < 20; i++) { /* all in flight, nobody waits */
		x.s.now_us += THROTTLE_INTERVAL_US;
		x.s.wb_busy_us += THROTTLE_INTERVAL_US;
		x.s.wb_written += 100;
		throttle_completed(&x.dom, &x.dev, 100, 1, x.s.now_us);
		set_dirty(&x, 64);
		x.s.reclaimable = x.s.wb_reclaimable = 0;
		throttle_tick(&x.dom, &x.dev, &x.s);
	}
	assert_near(x.dev.avg_write_bandwidth, 10000, 1);
	for (unsigned i = 0; i < 100; i++) { /* but a faster one counts */
		x.s.now_us += THROTTLE_INTERVAL_US;
		x.s.wb_busy_us += THROTTLE_INTERVAL_US;
		x.s.wb_written += 4000;
		throttle_completed(&x.dom, &x.dev, 4000, 1, x.s.now_us);
		throttle_tick(&x.dom, &x.dev, &x.s);
	}
	assert_near(x.dev.avg_write_bandwidth, 20000, 500);
	for (unsigned i = 0; i < 200; i++) { /* all in flight because all wait for the device */
		x.s.now_us += THROTTLE_INTERVAL_US;
		x.s.wb_busy_us += THROTTLE_INTERVAL_US;
		x.s.wb_written += 1000;
		throttle_completed(&x.dom, &x.dev, 1000, 1, x.s.now_us);
		set_dirty(&x, 102400);
		x.s.reclaimable = x.s.wb_reclaimable = 0;
		throttle_tick(&x.dom, &x.dev, &x.s);
	}
	assert_near(x.dev.avg_write_bandwidth, 5000, 100);
}

/* What somebody sets is in force at once, but never below what is dirty. */
static void test_limits_set(void **state)
{
	struct world x;

	(void)state;
	world_init(&x);
	set_dirty(&x, 60000);
	x.s.thresh = 51200;
	x.s.bg_thresh = 25600;
	x.s.cap_thresh = 8192;
	throttle_limits_changed(&x.dom, &x.dev, &x.s);
	assert_near(x.dom.dirty_limit, 60000, 0);
	assert_near(x.dev.cap_limit, 60000, 0);
	set_dirty(&x, 100);
	throttle_limits_changed(&x.dom, &x.dev, &x.s);
	assert_near(x.dom.dirty_limit, 51200, 0);
	assert_near(x.dev.cap_limit, 8192, 0);
}

/* The device as the busy clock sees it: in flight all the time, one completion per write_for(). */
static void test_3c_stall(void **state)
{
	struct world x;
	struct busy_clock clock = {0};

	(void)state;
	world_init(&x);
	write_for(&x, 50, 5120);
	busy_clock_update(&clock, true, true, x.s.now_us);
	uint64_t before = x.s.wb_busy_us;
	for (unsigned i = 0; i < 50; i++) { /* ten seconds in which nothing completes */
		x.s.now_us += THROTTLE_INTERVAL_US;
		x.s.wb_busy_us = before + busy_clock_read(&clock, x.s.now_us);
		throttle_tick(&x.dom, &x.dev, &x.s);
	}
	assert_int_equal(x.s.wb_busy_us - before, 1000000);
	assert_in_range((uintmax_t)x.dev.avg_write_bandwidth, 24000, 25600);
	assert_in_range((uintmax_t)x.dev.write_bandwidth, 19000, 21000);
	assert_int_equal(clock.nr_stalls, 0);
	busy_clock_update(&clock, true, true, x.s.now_us);
	assert_int_equal(clock.nr_stalls, 1);
	assert_int_equal(busy_clock_read(&clock, x.s.now_us + 7), 1000007);
	busy_clock_update(&clock, false, true, x.s.now_us + 7); /* idle from here on */
	assert_int_equal(busy_clock_read(&clock, x.s.now_us + 5000000), 1000007);
	busy_clock_update(&clock, true, false, x.s.now_us + 6000000);
	assert_int_equal(busy_clock_read(&clock, x.s.now_us + 6000003), 1000010);
	assert_int_equal(clock.nr_stalls, 1);
}

static void test_3d_elapsed(void **state)
{
	struct world x;
	double before;

	(void)state;
	world_init(&x);
	write_for(&x, 20, 2000);
	x.s.wb_written += 1000000;
	for (unsigned i = 0; i < 50; i++) { /* the same microsecond, and one that steps back */
		throttle_tick(&x.dom, &x.dev, &x.s);
		x.s.now_us--;
	}
	assert_near(x.dev.write_bandwidth, 10000, 1);
	x.s.wb_written = 10000; /* redirtied without being written */
	write_for(&x, 2, 0);
	assert_in_range((uintmax_t)x.dev.write_bandwidth, 8000, 10000);
	/* a millisecond of work is granularity, not a sample */
	before = x.dev.write_bandwidth;
	for (unsigned i = 0; i < 20; i++) {
		x.s.now_us += THROTTLE_INTERVAL_US;
		x.s.wb_busy_us += 1 * MS_US;
		x.s.wb_written += 1000;
		throttle_completed(&x.dom, &x.dev, 1000, 1, x.s.now_us);
		throttle_tick(&x.dom, &x.dev, &x.s);
	}
	assert_near(x.dev.write_bandwidth, before, 0);
	write_for(&x, 100, UINT64_C(1) << 40);
	assert_true(isfinite(x.dev.avg_write_bandwidth));
}

static void test_3e_first_guess_leaves(void **state)
{
	struct world x;

	(void)state;
	world_init(&x);
	write_for(&x, 1, 256); /* 5 MiB/s, the guess was 100 */
	assert_near(x.dev.avg_write_bandwidth, 1280, 1);
	assert_near(x.dev.dirty_ratelimit, 1280, 1);
	write_for(&x, 1, 512);
	assert_near(x.dev.avg_write_bandwidth, 1920, 1); /* the mean of both */
	write_for(&x, 9, 384);
	assert_near(x.dev.busy_s, 2.2, 1e-6);
	write_for(&x, 1, 3840); /* from here on it is filtered */
	assert_in_range((uintmax_t)x.dev.avg_write_bandwidth, 1900, 2000);
}

static void test_8_reference_bandwidth(void **state)
{
	struct world x;

	(void)state;
	world_init(&x);
	assert_near(throttle_confidence(&x.dev), 0, 0);
	assert_near(throttle_reference_bandwidth(&x.dev, 1024), 1024, 1e-6);
	write_for(&x, 5, 2048); /* one second, 40 MiB */
	assert_near(throttle_confidence(&x.dev), 0.5, 1e-6);
	assert_near(
		throttle_reference_bandwidth(&x.dev, 2560), 5120, 1); /* of 10240: the root */
	write_for(&x, 5, 2048);
	assert_near(throttle_confidence(&x.dev), 1, 1e-6);
	assert_near(throttle_reference_bandwidth(&x.dev, 1), 10240, 1);
	world_init(&x);
	write_for(&x, 20, 20); /* long enough, but only 1.6 MiB */
	assert_near(throttle_confidence(&x.dev), 400 / 8192.0, 1e-6);
	assert_near(throttle_reference_bandwidth(&x.dev, 0), exp(log(100) * 400 / 8192), 1e-3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_1a_tiny_thresholds),
		cmocka_unit_test(test_1b_narrow_gap),
		cmocka_unit_test(test_1c_one_reading),
		cmocka_unit_test(test_2_proportions),
		cmocka_unit_test(test_2_max_ratio),
		cmocka_unit_test(test_2a_first_write),
		cmocka_unit_test(test_2b_same_predicate),
		cmocka_unit_test(test_2c_strict_background),
		cmocka_unit_test(test_2d_missed_periods),
		cmocka_unit_test(test_2e_removal),
		cmocka_unit_test(test_3_idle_is_no_sample),
		cmocka_unit_test(test_3b_busy_time),
		cmocka_unit_test(test_3b_lower_bound),
		cmocka_unit_test(test_limits_set),
		cmocka_unit_test(test_3c_stall),
		cmocka_unit_test(test_3d_elapsed),
		cmocka_unit_test(test_3e_first_guess_leaves),
		cmocka_unit_test(test_8_reference_bandwidth),
	};

	return run_for_both_laws(tests);
}
