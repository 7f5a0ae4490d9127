/* test_throttle_writer.c - the ways in which such a law is known to fail, one test each:
 * position (5) and the writer (6).
 */
#include "test_throttle_world.h"

static void test_5_position_is_sane(void **state)
{
	static const double pages[] = {0, 1, 100, 51200, 76800, 89600, 102399, 102400, 1e9};
	const unsigned nr = 9;

	(void)state;
	for (unsigned i = 0; i < nr * nr * nr * nr; i++) {
		for (unsigned strict = 0; strict < 2; strict++) {
			struct budget b = {
				.thresh = pages[i % nr],
				.bg_thresh = pages[i % nr] / 2,
				.limit = pages[i % nr],
				.dirty = pages[i / nr % nr],
				.wb_thresh = pages[i / nr / nr % nr],
				.wb_dirty = pages[i / nr / nr / nr],
				.avg_write_bandwidth = i % 2 ? 1 : 1e9,
				.strict_limit = strict != 0,
			};

			throttle_budget_points(&b);
			throttle_budget_position(&b);
			assert_true(b.pos_ratio >= 0 && b.pos_ratio <= POS_RATIO_MAX);
			if (b.dirty >= b.limit || (strict != 0 && b.wb_dirty >= b.wb_thresh))
				assert_near(b.pos_ratio, 0, 0);
		}
	}
	/* falls with D, 2 to 0 */
	for (double d = 76800, before = 2.1; d < 102400; d += 100) {
		double pos = throttle_cubic(89600, d, 102400);

		assert_true(pos < before || pos == 1);
		before = pos;
	}
}

/* Held for its pages at the base rate: 250 pages at 25600/s, just at the setpoint. */
static void test_6_pause_and_think_time(void **state)
{
	struct world x;
	struct throttle_verdict v;

	(void)state;
	world_init(&x);
	set_dirty(&x, 89600);
	v = balance(&x, 256);
	assert_int_equal(v.kind, THROTTLE_PAUSE);
	assert_near((double)v.pause_us, 10000, 20);
	assert_near(v.task_ratelimit, 25600, 30);
	/* what the writer did by itself is credited */
	x.s.now_us += v.pause_us + 3000;
	v = balance(&x, 256);
	assert_int_equal(v.kind, THROTTLE_PAUSE);
	assert_near((double)v.pause_us, 7000, 20);
	assert_near(v.think_us, 3000, 1);
}

static void test_6_short_pauses_are_banked(void **state)
{
	struct world x;
	struct throttle_verdict v;
	uint64_t paused = 0;

	(void)state;
	world_init(&x);
	set_dirty(&x, 89600);
	for (unsigned i = 0; i < 100; i++) {
		v = balance(&x, 40); /* 1.6 ms each */
		assert_true(v.kind == THROTTLE_BANKED || v.kind == THROTTLE_PAUSE ||
			v.kind == THROTTLE_UNCHECKED);
		assert_true(v.pause_us == 0 || v.pause_us >= 4000);
		paused += v.pause_us;
		x.s.now_us += v.pause_us;
	}
	assert_in_range(paused, 140000, 160000); /* 4000 pages: 156 ms */
}

/* below a tick the count goes on, or a fast device would need a look per page */
static void test_6_tiny_periods_are_counted_on(void **state)
{
	struct world x;
	double before;

	(void)state;
	world_init(&x);
	throttle_device_init(&x.dev, 1e7, START_US);
	set_dirty(&x, 90000);
	before = x.w.nr_dirtied_pause;
	balance(&x, 40);
	assert_true(x.w.nr_dirtied_pause > before);
	assert_near(x.w.nr_dirtied, 40, 0);
}

static void test_6_credit_is_forgotten(void **state)
{
	struct world x;
	struct throttle_verdict v;

	(void)state;
	world_init(&x);
	set_dirty(&x, 89600);
	balance(&x, 256);
	x.s.now_us += 10 * S_US;
	v = balance(&x, 256);
	assert_int_equal(v.pause_us, 0);
	v = balance(&x, 512); /* the ten seconds are gone */
	assert_int_equal(v.kind, THROTTLE_PAUSE);
	assert_in_range(v.pause_us, 15000, 25000);
}

static void test_6_rate_limited_writer_is_never_held(void **state)
{
	struct world x;

	(void)state;
	world_init(&x);
	set_dirty(&x, 89600);
	balance(&x, 256); /* nothing is known about its own time yet */
	for (unsigned i = 0; i < 1000; i++) {
		x.s.now_us += 20 * MS_US; /* 12800 pages/s of 25600 */
		assert_int_equal(balance(&x, 256).pause_us, 0);
	}
}

static void test_6_freerun(void **state)
{
	struct world x;
	struct throttle_verdict v;

	(void)state;
	world_init(&x);
	set_dirty(&x, 76800);
	for (unsigned i = 0; i < 100; i++) {
		v = balance(&x, 256);
		assert_int_equal(v.kind, THROTTLE_FREERUN);
		assert_int_equal(v.pause_us, 0);
	}
	assert_near(x.w.nr_dirtied_pause, 128, 0);
	set_dirty(&x, 76801);
	v = balance(&x, 256);
	assert_int_not_equal(v.kind, THROTTLE_FREERUN);
	/* not due yet */
	x.w.nr_dirtied = 0;
	x.w.nr_dirtied_pause = 32;
	assert_int_equal(balance(&x, 31).kind, THROTTLE_UNCHECKED);
	/* a strict device has a freerun of its own, whatever the domain does */
	set_dirty(&x, 102300);
	x.s.strict_limit = true;
	x.s.wb_dirty = x.s.wb_reclaimable = 700;
	x.s.max_ratio = 0.01;
	assert_int_equal(balance(&x, 256).kind, THROTTLE_FREERUN);
	x.s.wb_dirty = 769;
	assert_int_not_equal(balance(&x, 256).kind, THROTTLE_FREERUN);
}

static void test_6_exceeded_is_looked_at_more_often(void **state)
{
	struct world x;

	(void)state;
	world_init(&x);
	x.w.nr_dirtied_pause = 32;
	set_dirty(&x, 102000);
	assert_int_equal(balance(&x, 10).kind, THROTTLE_UNCHECKED);
	x.dom.dirty_limit = 110000; /* lags behind a fallen threshold */
	set_dirty(&x, 102500);
	assert_int_not_equal(balance(&x, 1).kind, THROTTLE_UNCHECKED);
}

/* What earlier requests left unpaid may be many times the one that is held. */
static void test_6_blocked_with_a_debt(void **state)
{
	struct world x;
	struct throttle_verdict v;
	uint64_t began_us;

	(void)state;
	world_init(&x);
	x.dev.dirty_ratelimit = 1000;
	x.w.nr_dirtied_pause = 512;
	set_dirty(&x, 89600);
	for (unsigned i = 0; i < 512; i++) {
		x.s.now_us += 10;
		v = balance(&x, 1);
	}
	assert_int_equal(v.kind, THROTTLE_PAUSE);
	assert_true(v.again);
	began_us = x.s.now_us;
	set_dirty(&x, 102400);
	for (unsigned i = 0; v.again && i < 100; i++) {
		x.s.now_us += v.pause_us;
		throttle_balance_again(&x.dom, &x.dev, &x.w, &x.s, &v);
	}
	assert_false(v.again);
	assert_true(x.s.now_us - began_us <= 32ull * THROTTLE_MAX_PAUSE_US);
}

/* 2560 pages/s each and a request of 1024: two pauses, and together they are the period
 */
static void test_6_again_pays_for_the_rest(void **state)
{
	struct world x;
	struct throttle_verdict v;
	double paused;

	(void)state;
	world_init(&x);
	x.w.staggered = true;
	x.dev.dirty_ratelimit = 2560;
	set_dirty(&x, 89600);
	v = balance(&x, 1024);
	assert_int_equal(v.kind, THROTTLE_PAUSE);
	assert_int_equal(v.pause_us, THROTTLE_MAX_PAUSE_US);
	assert_true(v.again);
	paused = (double)v.pause_us;
	while (v.again && paused < 1e6) {
		x.s.now_us += v.pause_us;
		throttle_balance_again(&x.dom, &x.dev, &x.w, &x.s, &v);
		paused += (double)v.pause_us;
	}
	assert_near(paused, 400000, 2000);
	/* a caller that does not ask again is charged with the next request */
	world_init(&x);
	x.w.staggered = true;
	x.dev.dirty_ratelimit = 2560;
	set_dirty(&x, 89600);
	v = balance(&x, 600);
	assert_near((double)v.pause_us, 200000, 1);
	x.s.now_us += v.pause_us;
	v = balance(&x, 256);
	assert_near(v.nr_dirtied, 344, 1);
	/* and let go at once when the pressure is gone */
	world_init(&x);
	x.dev.dirty_ratelimit = 100;
	set_dirty(&x, 89600);
	v = balance(&x, 1024);
	assert_true(v.again);
	set_dirty(&x, 1000);
	throttle_balance_again(&x.dom, &x.dev, &x.w, &x.s, &v);
	assert_int_equal(v.kind, THROTTLE_FREERUN);
	assert_false(v.again);
}

static void test_6_no_pages_no_harm(void **state)
{
	struct world x;
	struct throttle_verdict v;

	(void)state;
	world_init(&x);
	set_dirty(&x, 102400);
	for (unsigned i = 0; i < 100; i++) {
		throttle_balance(&x.dom, &x.dev, &x.w, &x.s, 0, 256, &v);
		assert_int_equal(v.pause_us, 0);
		check_verdict(&v);
	}
	throttle_balance_again(&x.dom, &x.dev, &x.w, &x.s, &v); /* nothing unpaid */
	check_verdict(&v);
	assert_false(v.again);
}

static void test_6_small_writer(void **state)
{
	struct world x;
	struct throttle_verdict v;

	(void)state;
	world_init(&x);
	set_dirty(&x, 92000);
	x.w.nr_dirtied_pause = 1;
	for (unsigned i = 0; i < 200; i++) { /* 4 pages per 10 ms: 400 of 25600 */
		x.s.now_us += 10 * MS_US;
		v = balance(&x, 4);
		assert_int_equal(v.kind, THROTTLE_EXEMPT);
		assert_int_equal(v.pause_us, 0);
	}
	/* its pages are accounted: no more than a pause of debt, no second of credit */
	assert_true(x.w.paused_when_us <= x.s.now_us + THROTTLE_MAX_PAUSE_US);
	assert_true(x.w.paused_when_us + S_US + 10 * MS_US >= x.s.now_us);
	assert_near(x.w.nr_dirtied, 0, 0);
	/* not above the middle between setpoint and limit */
	set_dirty(&x, 96001);
	assert_int_not_equal(balance(&x, 4).kind, THROTTLE_EXEMPT);
	/* nor in the scope of its device's cap */
	set_dirty(&x, 92000);
	x.s.cap_thresh = 93000;
	assert_int_not_equal(balance(&x, 4).kind, THROTTLE_EXEMPT);
}

static void test_6_greedy_is_not_small(void **state)
{
	struct world x;
	struct throttle_verdict v;
	uint64_t begin;

	(void)state;
	world_init(&x);
	set_dirty(&x, 92000);
	begin = x.s.now_us;
	do { /* a new writer, 16 pages at a time, a thousand times a second */
		x.s.now_us += 1 * MS_US;
		v = balance(&x, 16);
	} while (v.pause_us == 0 && v.kind != THROTTLE_BANKED && x.s.now_us - begin < S_US);
	assert_true(x.s.now_us - begin <= 100 * MS_US);

	/* one that was quiet for a while */
	throttle_writer_init(&x.w);
	for (unsigned i = 0; i < 100; i++) {
		x.s.now_us += 100 * MS_US;
		balance(&x, 1);
	}
	begin = x.s.now_us;
	do {
		x.s.now_us += 1 * MS_US;
		v = balance(&x, 16);
	} while (v.pause_us == 0 && v.kind != THROTTLE_BANKED && x.s.now_us - begin < S_US);
	assert_true(x.s.now_us - begin <= 400 * MS_US);
	/* rewrites of what is dirty already count as requests */
	throttle_writer_init(&x.w);
	for (unsigned i = 0; i < 300; i++) {
		x.s.now_us += 1 * MS_US;
		throttle_balance(&x.dom, &x.dev, &x.w, &x.s, 0, 16, &v);
	}
	x.w.nr_dirtied_pause = 1;
	assert_int_not_equal(balance(&x, 1).kind, THROTTLE_EXEMPT);
}

static void test_6_writer_rate(void **state)
{
	struct throttle_writer w;
	uint64_t now = START_US;
	double rate = 0;

	(void)state;
	throttle_writer_init(&w);
	for (unsigned i = 0; i < 500; i++, now += 10 * MS_US)
		rate = throttle_writer_rate(&w, 10, now);
	assert_near(rate, 1000, 20);
	for (unsigned i = 0; i < 100; i++, now += 10 * MS_US) /* one time constant */
		rate = throttle_writer_rate(&w, 2, now);
	assert_in_range((uintmax_t)rate, 400, 600);
	rate = throttle_writer_rate(&w, 1, now + 60 * S_US);
	assert_true(rate < 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_5_position_is_sane),
		cmocka_unit_test(test_6_pause_and_think_time),
		cmocka_unit_test(test_6_short_pauses_are_banked),
		cmocka_unit_test(test_6_tiny_periods_are_counted_on),
		cmocka_unit_test(test_6_credit_is_forgotten),
		cmocka_unit_test(test_6_rate_limited_writer_is_never_held),
		cmocka_unit_test(test_6_freerun),
		cmocka_unit_test(test_6_exceeded_is_looked_at_more_often),
		cmocka_unit_test(test_6_blocked_with_a_debt),
		cmocka_unit_test(test_6_again_pays_for_the_rest),
		cmocka_unit_test(test_6_no_pages_no_harm),
		cmocka_unit_test(test_6_small_writer),
		cmocka_unit_test(test_6_greedy_is_not_small),
		cmocka_unit_test(test_6_writer_rate),
	};

	return run_for_both_laws(tests);
}
