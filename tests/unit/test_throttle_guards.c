/* test_throttle_guards.c - the ways in which such a law is known to fail, one test each.
 *
 * The number in a test's name groups them: 1 thresholds, 2 shares, 3 bandwidth, 4 base
 * rate, 5 position, 6 the writer and the gate, 8 limits in time.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "throttle/formulas.h"
#include "util/busy_clock.h"

#define S_US 1000000ull
#define MS_US 1000ull
#define START_US (100 * S_US)
#define assert_near(a, b, tolerance) assert_true(fabs((a) - (b)) <= (tolerance))

/* One device, one writer, 100 MiB/s, T = 400 MiB, B = 200 MiB, all of D on the device. */
struct world {
	struct throttle_domain dom;
	struct throttle_device dev;
	struct throttle_writer w;
	struct throttle_sample s;
};

static void set_dirty(struct world *x, double dirty)
{
	x->s.dirty = x->s.reclaimable = dirty;
	x->s.wb_dirty = x->s.wb_reclaimable = dirty;
}

static void world_init(struct world *x)
{
	*x = (struct world){.s = {
				    .now_us = START_US,
				    .thresh = 102400,
				    .bg_thresh = 51200,
				    .cap_thresh = THROTTLE_NO_CAP,
				    .max_ratio = 1,
			    }};
	throttle_domain_init(&x->dom, START_US);
	throttle_device_init(&x->dev, THROTTLE_INIT_BW, START_US);
	throttle_writer_init(&x->w);
	throttle_limits_changed(&x->dom, &x->dev, &x->s);
	/* the device has a history, or its share would be the floor */
	throttle_completed(&x->dom, &x->dev, 1e6, 1, START_US);
}

static struct throttle_verdict balance(struct world *x, double pages)
{
	struct throttle_verdict v;

	throttle_balance(&x->dom, &x->dev, &x->w, &x->s, pages, pages, &v);
	return v;
}

/* Busy writing: pages per 200 ms, with more waiting. */
static void write_for(struct world *x, unsigned intervals, uint64_t pages)
{
	set_dirty(x, 95000);
	while (intervals-- != 0) {
		x->s.now_us += THROTTLE_INTERVAL_US;
		x->s.wb_busy_us += THROTTLE_INTERVAL_US;
		x->s.wb_written += pages;
		throttle_completed(&x->dom, &x->dev, (double)pages, 1, x->s.now_us);
		throttle_tick(&x->dom, &x->dev, &x->s);
	}
}

static void check_verdict(const struct throttle_verdict *v)
{
	const double finite[] = {
		v->thresh,
		v->bg_thresh,
		v->dirty_limit,
		v->freerun,
		v->setpoint,
		v->wb_thresh,
		v->wb_bg_thresh,
		v->wb_setpoint,
		v->pos_ratio,
		v->dirty_ratelimit,
		v->task_ratelimit,
		v->balanced_dirty_ratelimit,
		v->period_us,
		v->think_us,
		v->min_pause_us,
		v->max_pause_us,
		v->nr_dirtied,
		v->nr_dirtied_pause,
	};

	for (size_t i = 0; i < sizeof(finite) / sizeof(finite[0]); i++)
		assert_true(isfinite(finite[i]));
	assert_true(v->pos_ratio >= 0 && v->pos_ratio <= POS_RATIO_MAX);
	assert_true(v->dirty_ratelimit >= 1);
	assert_true(v->pause_us <= THROTTLE_MAX_PAUSE_US);
	assert_true(v->bg_thresh <= v->freerun && v->freerun <= v->dirty_limit);
	assert_true(v->setpoint <= v->dirty_limit);
}

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

/* a tick right before each decision must not keep the base rate from moving */
static void test_3f_separate_stamps(void **state)
{
	struct world x;

	(void)state;
	world_init(&x);
	for (unsigned i = 0; i < 50; i++) {
		write_for(&x, 1, 5120);
		set_dirty(&x, 100000);
		x.s.wb_dirtied += 8 * 5120;
		balance(&x, 300);
	}
	assert_true(x.dev.dirty_ratelimit < 25600 / 2.0);
}

static void test_4a_bounds(void **state)
{
	double r = 25600, before = r;

	(void)state;
	assert_near(throttle_balanced(51200, 25600, 100), 25600, 0);
	assert_near(throttle_balanced(51200, 25600, 0), 25600, 0);
	assert_near(throttle_balanced(0, 25600, 0), 0, 0);
	for (unsigned i = 0; i < 1000; i++)
		r = throttle_ratelimit_step(r, 0, 0, 0, false, true);
	assert_near(r, 1, 0);
	/* grows again from there: one page more than the position asks for */
	for (unsigned i = 0; i < 200; i++)
		r = throttle_ratelimit_step(r, before, before, 2 * r + 1, true, false);
	assert_true(r > 10000);
}

/* a thousand times as many writers: not in one step, and within half a minute */
static void test_4b_step_size(void **state)
{
	double r = 25600;
	unsigned steps = 0;

	(void)state;
	while (r > 25.6 * 1.2 && steps++ < 1000) {
		double next = throttle_ratelimit_step(r, 25.6, 25.6, 25.6, false, true);

		assert_true(next < r && next >= r * 7 / 8 - 1);
		r = next;
	}
	assert_in_range(steps, 50, 150);
}

static void test_4c_foreign_position(void **state)
{
	struct world x;
	double before;

	(void)state;
	world_init(&x);
	set_dirty(&x, 100000);
	x.s.wb_dirty = x.s.wb_reclaimable = 51000; /* the rest belongs to another device */
	before = x.dev.dirty_ratelimit;
	for (unsigned i = 0; i < 50; i++) {
		x.s.now_us += THROTTLE_INTERVAL_US;
		x.s.wb_dirtied += 20000;
		balance(&x, 300);
	}
	assert_true(x.dev.dirty_ratelimit >= before);
}

/* counted while nobody was held for a while: no measure of held writers */
static void test_4_stale_count(void **state)
{
	struct world x;

	(void)state;
	world_init(&x);
	set_dirty(&x, 100000);
	x.s.now_us += 5 * S_US;
	x.s.wb_dirtied = 10000000;
	x.dev.balanced_dirty_ratelimit = 1;
	balance(&x, 300);
	assert_near(x.dev.dirty_ratelimit, 25600, 0);
}

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

/* ---- the writer ---- */

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

static void test_6_blocked(void **state)
{
	struct world x;
	struct throttle_verdict v;
	unsigned pauses = 1;

	(void)state;
	world_init(&x);
	set_dirty(&x, 102400);
	v = balance(&x, 128);
	assert_int_equal(v.kind, THROTTLE_BLOCKED);
	assert_int_equal(v.pause_us, THROTTLE_MAX_PAUSE_US);
	assert_true(v.start_background);
	/* ends even if the limit is never left: another device may hold it there for ever
	 */
	while (v.again && pauses < 100) {
		x.s.now_us += v.pause_us;
		throttle_balance_again(&x.dom, &x.dev, &x.w, &x.s, &v);
		pauses += v.pause_us != 0;
	}
	assert_int_equal(pauses, 32);
	/* once, where others have piled up the pages; and where a request spans the scope
	 */
	x.s.wb_dirty = x.s.wb_reclaimable = 1000;
	v = balance(&x, 128);
	assert_int_equal(v.kind, THROTTLE_BLOCKED);
	assert_false(v.again);
	world_init(&x);
	x.s.thresh = x.dom.dirty_limit = 256;
	x.s.bg_thresh = 128;
	set_dirty(&x, 256);
	v = balance(&x, 32);
	assert_int_equal(v.kind, THROTTLE_BLOCKED);
	assert_false(v.again);
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

/* ---- the gate ---- */

static double admissible(struct world *x, double want, double reserved, bool queued)
{
	return throttle_admissible(&x->dom, &x->dev, &x->s, want, reserved, 10, queued);
}

static void test_6b_gate(void **state)
{
	struct world x;

	(void)state;
	world_init(&x);
	set_dirty(&x, 102000);
	assert_near(admissible(&x, 256, 0, false), 256, 0);
	assert_near(admissible(&x, 1000, 0, false), 400, 0);
	assert_near(admissible(&x, 256, 300, false), 100, 0);
	assert_near(admissible(&x, 256, 400, false), 0, 0);
	assert_near(admissible(&x, 256, 0, true), 20, 0); /* half the room, by ten writers */
	assert_near(admissible(&x, 256, 390, true), 1, 0);
	assert_near(admissible(&x, 0, 0, false), 0, 0);
	set_dirty(&x, 102399.5);
	assert_near(admissible(&x, 256, 0, false), 0, 0);
	set_dirty(&x, 102398.5);
	assert_near(admissible(&x, 256, 0, false), 1, 0);
	set_dirty(&x, 0);
	assert_near(admissible(&x, 1e6, 0, true), 256, 0);
	assert_near(admissible(&x, 1e6, 0, false), 102400, 0);
	set_dirty(&x, 1e7);
	assert_near(admissible(&x, 256, 0, false), 0, 0);
	/* all of a limit that lags behind a lowered threshold: it is the rate that lowers dirty */
	x.s.thresh = 51200;
	set_dirty(&x, 80000);
	assert_near(admissible(&x, 1e6, 0, false), 102400 - 80000, 0);
	/* the first tick has not come yet */
	throttle_domain_init(&x.dom, START_US);
	set_dirty(&x, 0);
	assert_near(admissible(&x, 1e6, 0, false), 51200, 0);
}

static void test_6b_gate_of_cap_and_strict(void **state)
{
	struct world x;

	(void)state;
	world_init(&x);
	x.s.cap_thresh = 1000;
	set_dirty(&x, 900);
	throttle_tick(&x.dom, &x.dev, &x.s);
	assert_near(admissible(&x, 256, 0, false), 100, 0);
	assert_near(admissible(&x, 256, 60, false), 40, 0);
	/* one that appears below what is dirty already */
	world_init(&x);
	x.s.cap_thresh = 1000;
	set_dirty(&x, 5000);
	assert_near(admissible(&x, 256, 0, false), 0, 0);
	throttle_tick(&x.dom, &x.dev, &x.s);
	assert_near(x.dev.cap_limit, 5000, 0);
	set_dirty(&x, 500);
	for (unsigned i = 0; i < 400; i++) {
		x.s.now_us += THROTTLE_INTERVAL_US;
		throttle_tick(&x.dom, &x.dev, &x.s);
	}
	assert_near(x.dev.cap_limit, 1000, 0);
	x.s.cap_thresh = THROTTLE_NO_CAP;
	throttle_tick(&x.dom, &x.dev, &x.s);
	assert_near(x.dev.cap_limit, THROTTLE_NO_CAP, 0);

	world_init(&x);
	x.s.strict_limit = true;
	x.s.max_ratio = 0.01;
	set_dirty(&x, 1000);
	assert_near(admissible(&x, 256, 0, false), 24, 0);
	x.s.max_ratio = 1e-9; /* less than a page */
	set_dirty(&x, 0);
	assert_near(admissible(&x, 256, 0, false), 1, 0);
	set_dirty(&x, 1);
	assert_near(admissible(&x, 256, 0, false), 0, 0);
}

/* the last quarter of the upper half of the scope is for devices below their share */
static void test_6b_gate_keeps_room_for_others(void **state)
{
	struct world x;
	struct throttle_device dead;

	(void)state;
	world_init(&x);
	throttle_device_init(&dead, 25600, START_US);
	set_dirty(&x, 99100);
	assert_near(throttle_admissible(&x.dom, &dead, &x.s, 256, 0, 1, false), 100, 0);
	set_dirty(&x, 99200);
	assert_near(throttle_admissible(&x.dom, &dead, &x.s, 256, 0, 1, false), 0, 0);
	assert_near(admissible(&x, 256, 0, false), 256, 0);
}

static void test_cap_is_a_domain(void **state)
{
	struct world x;
	struct throttle_verdict v;

	(void)state;
	world_init(&x);
	x.s.cap_thresh = 1024;
	set_dirty(&x, 896); /* at the setpoint of the cap, in freerun of the domain */
	throttle_tick(&x.dom, &x.dev, &x.s);
	v = balance(&x, 256);
	assert_true(v.capped);
	assert_int_equal(v.kind, THROTTLE_PAUSE);
	assert_near(v.pos_ratio, 1, 0.01);
	assert_near(v.thresh, 1024, 0);
	assert_near(v.bg_thresh, 512, 0);
	assert_near(v.setpoint, 896, 0);
	set_dirty(&x, 768); /* in freerun of both */
	assert_int_equal(balance(&x, 256).kind, THROTTLE_FREERUN);
	assert_true(throttle_over_background(&x.dom, &x.dev, &x.s));
	/* guard 8b: the domain's own points do not know of it */
	x.s.dirty = 100000;
	v = balance(&x, 256);
	assert_false(v.capped);
	assert_near(v.setpoint, 89600, 1e-6);
	assert_near(v.freerun, 76800, 1e-6);
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
		cmocka_unit_test(test_3f_separate_stamps),
		cmocka_unit_test(test_4a_bounds),
		cmocka_unit_test(test_4b_step_size),
		cmocka_unit_test(test_4c_foreign_position),
		cmocka_unit_test(test_4_stale_count),
		cmocka_unit_test(test_5_position_is_sane),
		cmocka_unit_test(test_6_pause_and_think_time),
		cmocka_unit_test(test_6_short_pauses_are_banked),
		cmocka_unit_test(test_6_tiny_periods_are_counted_on),
		cmocka_unit_test(test_6_credit_is_forgotten),
		cmocka_unit_test(test_6_rate_limited_writer_is_never_held),
		cmocka_unit_test(test_6_freerun),
		cmocka_unit_test(test_6_exceeded_is_looked_at_more_often),
		cmocka_unit_test(test_6_blocked),
		cmocka_unit_test(test_6_blocked_with_a_debt),
		cmocka_unit_test(test_6_again_pays_for_the_rest),
		cmocka_unit_test(test_6_no_pages_no_harm),
		cmocka_unit_test(test_6_small_writer),
		cmocka_unit_test(test_6_greedy_is_not_small),
		cmocka_unit_test(test_6_writer_rate),
		cmocka_unit_test(test_6b_gate),
		cmocka_unit_test(test_6b_gate_of_cap_and_strict),
		cmocka_unit_test(test_6b_gate_keeps_room_for_others),
		cmocka_unit_test(test_cap_is_a_domain),
		cmocka_unit_test(test_8_reference_bandwidth),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
