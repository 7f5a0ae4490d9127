/* test_throttle_pace.c - the formulas of the law pace, and what it does where the kernel's law
 * does something else.
 */
#include "test_throttle_world.h"

#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define TICK_S (THROTTLE_TICK_US / 1e6)

static void pace_init(struct world *x)
{
	world_init(x);
	x->w.staggered = true; /* no writer pays a part only, unless a test wants it */
}

/* One look after the other, until the request is paid. Returns the time it was held. */
static double hold(struct world *x, double pages)
{
	struct throttle_verdict v = balance(x, pages);
	double held_us = (double)v.pause_us;

	for (unsigned i = 0; v.again && i < 10000; i++) {
		assert_int_equal(v.kind, THROTTLE_PAUSE);
		x->s.now_us += v.pause_us;
		throttle_balance_again(&x->dom, &x->dev, &x->w, &x->s, &v);
		check_verdict(&v);
		held_us += (double)v.pause_us;
	}
	assert_false(v.again);
	return held_us;
}

static void test_names(void **state)
{
	enum throttle_law law = THROTTLE_PACE;

	(void)state;
	assert_string_equal(throttle_law_name(THROTTLE_LINUX), "linux");
	assert_string_equal(throttle_law_name(THROTTLE_PACE), "pace");
	assert_true(throttle_law_by_name("linux", &law));
	assert_int_equal(law, THROTTLE_LINUX);
	assert_true(throttle_law_by_name("pace", &law));
	assert_int_equal(law, THROTTLE_PACE);
	assert_false(throttle_law_by_name("Pace", &law));
	assert_false(throttle_law_by_name("", &law));
	assert_int_equal(law, THROTTLE_PACE);
}

/* ---- position ---- */

/* e in halves of the way from setpoint to limit: 1 - e / 4 - 3 e^3 / 4, 0..2 */
static void test_curve(void **state)
{
	static const double table[][2] = {
		{-3, 2},
		{-2, 2},
		{-1, 1.21875},
		{-0.2, 1.02575},
		{0, 1},
		{0.2, 0.97425},
		{1, 0.78125},
		{1.6, 0.416},
		{2, 0},
		{50, 0},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(table); i++)
		assert_near(throttle_linear_cubic(89600, 89600 + 6400 * table[i][0], 102400),
			table[i][1], 1e-9);
	for (double d = 0, before = 2; d < 110000; d += 13) {
		double pos = throttle_linear_cubic(89600, d, 102400);

		assert_true(pos <= before && pos >= 0);
		before = pos;
	}
	/* all points coincide */
	assert_near(throttle_linear_cubic(7, 7, 7), 1, 0);
	assert_near(throttle_linear_cubic(7, 8, 7), 0, 0);
}

static void test_position_bounds(void **state)
{
	struct world x;
	struct throttle_verdict v;

	(void)state;
	pace_init(&x);
	/* line and reserve would make 16 of it */
	x.s.dirty = 76801;
	x.s.wb_dirty = x.s.wb_reclaimable = 1;
	v = balance(&x, 64);
	assert_near(v.pos_ratio, 4, 1e-9);
	assert_near(v.task_ratelimit, 4 * 25600, 1e-6);
	/* at the limit the position is 0, and what a writer is held to is not */
	set_dirty(&x, 102400);
	v = balance(&x, 64);
	assert_near(v.pos_ratio, 0, 0);
	assert_near(v.task_ratelimit, 25600 / 4.0, 1e-9);
	/* a strict device has a curve of its own, and the lower one counts */
	pace_init(&x);
	x.s.strict_limit = true;
	x.s.max_ratio = 0.01; /* T_j 1024, B_j 512 */
	x.s.dirty = 2000;
	x.s.wb_dirty = x.s.wb_reclaimable = 896;
	v = balance(&x, 64);
	assert_near(v.pos_ratio, 0.78125, 1e-9);
	x.s.dirty = 102400 - 6400;
	x.s.wb_dirty = x.s.wb_reclaimable = 769;
	v = balance(&x, 64);
	assert_near(v.pos_ratio, 0.78125, 1e-9);
}

/* ---- base rate ---- */

static void test_fill(void **state)
{
	static const double table[][4] = {
		/* avg, U, A -> target */
		{25600, 0, 0, 25600}, /* nobody is held */
		{25600, 9000, 0, 25600},
		{25600, 0, 1, 25600},
		{25600, 0, 10, 2560},
		{25600, 5600, 2, 10000},
		{25600, 25000, 2, 1600}, /* an eighth at least */
		{25600, 1e12, 100, 32},
		{25600, -5, 10, 2560},
		{25600, 9000, -1, 25600},
		{25600, 0, 0.5, 25600},
		{1, 0, 1e4, 1e-4},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(table); i++)
		assert_near(throttle_fill(table[i][0], table[i][1], table[i][2]), table[i][3],
			1e-9);
	assert_near(throttle_fill(25600, NAN, 10), 2560, 1e-9);
	assert_near(throttle_fill(25600, 0, NAN), 25600, 1e-9);
}

static void test_fill_step(void **state)
{
	double gain = 1 - exp(-TICK_S / 0.5), r = 1000;
	unsigned ticks = 0;

	(void)state;
	assert_near(throttle_fill_step(1000, 2000, TICK_S), 1000 + gain * 1000, 1e-9);
	assert_near(throttle_fill_step(2000, 1000, TICK_S), 2000 - 4 * gain * 1000, 1e-9);
	assert_near(throttle_fill_step(1000, 2000, 0), 1000, 0);
	assert_near(throttle_fill_step(2000, 1000, 0), 2000, 0);
	/* a late tick makes up for what it has missed, and does not pass the target */
	assert_near(throttle_fill_step(1000, 2000, 2 * TICK_S),
		throttle_fill_step(throttle_fill_step(1000, 2000, TICK_S), 2000, TICK_S), 1e-6);
	assert_near(throttle_fill_step(2000, 1000, 1), 1000, 1e-9);
	assert_near(throttle_fill_step(2000, 1000, 1e9), 1000, 1e-9);
	assert_near(throttle_fill_step(1, 0, 1e9), 0.01, 0); /* never 0 */
	/* N times a thousand: within a tenth of the target within a second */
	while (r > 1.1 && ticks < 100) {
		r = throttle_fill_step(r, 1, TICK_S);
		ticks++;
	}
	assert_in_range(ticks, 5, 10);
}

/* At ticks and only there, by the time since the last one; the target is told. */
static void test_rate_moves_at_ticks(void **state)
{
	struct world x;
	struct throttle_verdict v;

	(void)state;
	pace_init(&x);
	throttle_tick(&x.dom, &x.dev, &x.s);
	x.s.nr_throttled = 10;
	x.s.unthrottled_rate = 5600;
	set_dirty(&x, 95000);
	for (unsigned i = 0; i < 20; i++) {
		x.s.now_us += THROTTLE_INTERVAL_US;
		x.s.wb_dirtied += 8 * 5120;
		balance(&x, 300);
	}
	assert_near(x.dev.dirty_ratelimit, 25600, 0);
	x.dev.fill_stamp_us = x.s.now_us - THROTTLE_TICK_US;
	throttle_tick(&x.dom, &x.dev, &x.s);
	assert_near(x.dev.balanced_dirty_ratelimit, 2000, 1e-9);
	assert_near(x.dev.dirty_ratelimit, 25600 - 4 * (1 - exp(-TICK_S / 0.5)) * 23600, 1e-6);
	throttle_tick(&x.dom, &x.dev, &x.s); /* the same microsecond */
	v = balance(&x, 300);
	assert_near(v.dirty_ratelimit, 25600 - 4 * (1 - exp(-TICK_S / 0.5)) * 23600, 1e-6);
	for (unsigned i = 0; i < 50; i++) {
		x.s.now_us += THROTTLE_TICK_US;
		throttle_tick(&x.dom, &x.dev, &x.s);
	}
	assert_near(x.dev.dirty_ratelimit, 2000, 1e-3);
}

static void test_switch_of_laws(void **state)
{
	struct world x;
	struct throttle_verdict v;

	(void)state;
	pace_init(&x);
	x.s.nr_throttled = 10;
	set_dirty(&x, 95000);
	for (unsigned i = 0; i < 50; i++) {
		x.s.now_us += THROTTLE_TICK_US;
		throttle_tick(&x.dom, &x.dev, &x.s);
		balance(&x, 300);
	}
	assert_near(x.dev.dirty_ratelimit, 2560, 1);
	/* what was dirtied under the other law is no measure of anything */
	x.dom.law = THROTTLE_LINUX;
	x.s.wb_dirtied = 100000000;
	balance(&x, 300);
	assert_near(x.dev.dirty_ratelimit, 2560, 1);
	set_dirty(&x, 100000);
	for (unsigned i = 0; i < 50; i++) { /* from there it goes on as ever */
		x.s.now_us += THROTTLE_INTERVAL_US;
		x.s.wb_dirtied += 10240;
		throttle_tick(&x.dom, &x.dev, &x.s);
		v = balance(&x, 300);
		check_verdict(&v);
	}
	assert_true(x.dev.dirty_ratelimit < 2450);
	/* and back: the list of writers is right at once */
	x.dom.law = THROTTLE_PACE;
	x.s.now_us += THROTTLE_TICK_US;
	throttle_tick(&x.dom, &x.dev, &x.s);
	assert_near(x.dev.dirty_ratelimit, 2560, 1);
}

/* ---- the writer ---- */

static void test_max_pause(void **state)
{
	struct world x;

	(void)state;
	pace_init(&x);
	x.dev.dirty_ratelimit = 100;
	x.s.thresh = x.dom.dirty_limit = 8192; /* h 1024 pages, 40 ms; half of it and 4 ms */
	x.s.bg_thresh = 4096;
	set_dirty(&x, 7168);
	assert_near((double)balance(&x, 256).pause_us, 24000, 1);
	/* an eighth of the queued work is less */
	pace_init(&x);
	x.dev.dirty_ratelimit = 100;
	set_dirty(&x, 89600);
	x.s.wb_dirty = x.s.wb_reclaimable = 4096;
	assert_near((double)balance(&x, 256).pause_us, 21000, 1);
}

/* Not even at the limit: there is a rate, and the gate is closed anyway. */
static void test_nobody_is_blocked(void **state)
{
	struct world x;

	(void)state;
	pace_init(&x);
	set_dirty(&x, 102400);
	x.dev.dirty_ratelimit = 256;
	x.s.nr_throttled = 100;
	assert_near(hold(&x, 256), 3.9e6, 1.01e5); /* the last pause may be banked */
}

/* To its last page, over as many pauses as it takes. */
static void test_request_is_paid(void **state)
{
	struct world x;

	(void)state;
	pace_init(&x);
	set_dirty(&x, 89600);
	x.dev.dirty_ratelimit = 25.6;
	x.s.nr_throttled = 1000;
	assert_near(hold(&x, 256), 10e6, 1e4);
	/* but not for ever: the gate is there */
	x.dev.dirty_ratelimit = 0.01;
	assert_true(hold(&x, 256) <= 1025.0 * THROTTLE_MAX_PAUSE_US);
}

/* A caller that does not ask again is owed up to a second, besides the request. */
static void test_debt(void **state)
{
	struct world x;

	(void)state;
	pace_init(&x);
	set_dirty(&x, 89600);
	x.dev.dirty_ratelimit = 1000;
	x.s.nr_throttled = 10;
	for (unsigned i = 0; i < 100; i++) {
		struct throttle_verdict v = balance(&x, 256);

		x.s.now_us += v.pause_us;
	}
	assert_near(x.w.nr_dirtied, 1000, 1);
}

/* The time at the gate is the writer's own. */
static void test_queue_time_counts(void **state)
{
	struct world x;
	struct throttle_verdict v;

	(void)state;
	pace_init(&x);
	set_dirty(&x, 89600);
	x.dev.dirty_ratelimit = 512;
	x.s.nr_throttled = 50;
	assert_near(hold(&x, 256), 500000, 100);
	x.s.now_us = x.w.paused_when_us + 400000; /* queued for so long */
	v = balance(&x, 256);
	assert_near(v.think_us, 400000, 1);
	assert_near((double)v.pause_us, 100000, 100);
	x.s.now_us = x.w.paused_when_us + 600000; /* longer than it had to pay for */
	assert_int_equal(balance(&x, 256).pause_us, 0);
}

/* Where so many requests scatter the position by more than its span the gate paces. */
static void test_scatter(void **state)
{
	struct world x;
	struct throttle_verdict v;

	(void)state;
	pace_init(&x);
	x.dev.dirty_ratelimit = 100;
	x.s.thresh = x.dom.dirty_limit = 8192; /* h = 1024 */
	x.s.bg_thresh = 4096;
	set_dirty(&x, 7168);
	x.s.nr_throttled = 128; /* 128 * 256^2 = 8 h^2 */
	v = balance(&x, 256);
	assert_true(v.again);
	assert_near(x.w.nr_dirtied, 256 - (double)v.pause_us * 1e-6 * v.task_ratelimit, 1e-3);
	pace_init(&x);
	x.dev.dirty_ratelimit = 100;
	x.s.thresh = x.dom.dirty_limit = 8192;
	x.s.bg_thresh = 4096;
	set_dirty(&x, 7168);
	x.s.nr_throttled = 129;
	v = balance(&x, 256);
	assert_near(x.w.nr_dirtied, (double)v.pause_us * 1e-6 * v.task_ratelimit, 1e-3);
	/* and a device that has run dry waits for nobody */
	pace_init(&x);
	x.dev.dirty_ratelimit = 1;
	set_dirty(&x, 80000);
	x.s.wb_dirty = x.s.wb_reclaimable = 6300; /* of T_j / 16 = 6400 */
	assert_true(hold(&x, 256) <= 2.0 * THROTTLE_MAX_PAUSE_US);
	x.s.wb_dirty = x.s.wb_reclaimable = 6500;
	assert_true(hold(&x, 256) > 50.0 * THROTTLE_MAX_PAUSE_US);
}

/* Ten writers that come at the same time do not come back at the same time. */
static void test_stagger(void **state)
{
	struct world x;
	struct throttle_writer ws[10];
	bool tenth[10] = {false};
	struct throttle_verdict v;

	(void)state;
	pace_init(&x);
	set_dirty(&x, 89600);
	x.dev.dirty_ratelimit = 100;
	for (unsigned i = 0; i < 10; i++) {
		throttle_writer_init(&ws[i]);
		throttle_balance(&x.dom, &x.dev, &ws[i], &x.s, 120, 120, &v);
		assert_true(v.again);
		assert_in_range((uintmax_t)ws[i].nr_dirtied, 0, 99);
		tenth[(unsigned)(ws[i].nr_dirtied / 10)] = true;
	}
	for (unsigned i = 0, full = 0; i < 10; i++) {
		full += tenth[i];
		assert_true(i < 9 || full >= 8);
	}
	/* once, until a writer has run free again */
	x.w = ws[0];
	x.s.now_us += S_US;
	v = balance(&x, 400);
	assert_true(x.w.nr_dirtied > 300);
	set_dirty(&x, 1000);
	balance(&x, 400);
	assert_false(x.w.staggered);
}

static void test_slice(void **state)
{
	struct world x;
	double got;

	(void)state;
	pace_init(&x);
	x.dev.dirty_ratelimit = 100; /* x 2 below freerun x 200 ms x line 1.06 */
	set_dirty(&x, 76000);
	got = throttle_admissible(&x.dom, &x.dev, &x.s, 256, 0, 10, true);
	assert_near(got, 42, 0);
	x.dev.dirty_ratelimit = 1;
	got = throttle_admissible(&x.dom, &x.dev, &x.s, 256, 0, 10, true);
	assert_near(got, 1, 0);
	x.dev.dirty_ratelimit = 25600;
	set_dirty(&x, 102000);
	got = throttle_admissible(&x.dom, &x.dev, &x.s, 256, 0, 10, true);
	assert_near(got, 20, 0); /* half the room, by ten */
	/* the lower position counts, here of the device's own limit */
	pace_init(&x);
	x.dev.dirty_ratelimit = 100;
	x.s.cap_thresh = x.dev.cap_limit = 102400 / 2;
	set_dirty(&x, 51000);
	got = throttle_admissible(&x.dom, &x.dev, &x.s, 256, 0, 1, true);
	assert_near(got, floor(25 * (6400 / 51200.0 + 0.004)), 0);
	/* and who does not queue gets all of it */
	got = throttle_admissible(&x.dom, &x.dev, &x.s, 256, 0, 10, false);
	assert_near(got, 200, 0);
}

static void test_writer_rate_now(void **state)
{
	struct throttle_writer w;
	uint64_t now = START_US;
	double rate, sum = 0;

	(void)state;
	throttle_writer_init(&w);
	assert_near(throttle_writer_rate_now(&w, now), 0, 0);
	for (unsigned i = 0; i < 500; i++, now += 10 * MS_US)
		throttle_writer_rate(&w, 10, now);
	rate = throttle_writer_rate_now(&w, now);
	assert_near(rate, 1000, 30);
	assert_near(throttle_writer_rate_now(&w, now + S_US), rate / exp(1), 30);
	assert_true(throttle_writer_rate_now(&w, now + 10 * S_US) < 1);
	/* a lot once a second: looked at every tick it is that on the average, or a bit more */
	throttle_writer_init(&w);
	for (unsigned i = 0; i < 200; i++, now += THROTTLE_TICK_US) {
		if (i % 10 == 0)
			throttle_writer_rate(&w, 1000, now);
		if (i >= 100)
			sum += throttle_writer_rate_now(&w, now + THROTTLE_TICK_US / 2);
	}
	assert_in_range((uintmax_t)(sum / 100), 1000, 1300);
}

/* ---- both laws: any input ---- */

static double pick(uint64_t *seed)
{
	static const double values[] = {
		-1e18, -1, 0, 0.3, 1, 2, 3, 7, 31, 256, 4096, 25600, 1e6, 1e9, 1099511627776.0};

	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return values[(*seed >> 33) % COUNT(values)];
}

static uint64_t pick_count(uint64_t *seed)
{
	return (uint64_t)fmax(pick(seed), 0);
}

static void fuzz_sample(struct world *x, uint64_t *seed)
{
	x->dom.law = pick(seed) > 100 ? THROTTLE_PACE : THROTTLE_LINUX;
	x->s.now_us += pick_count(seed) % (7 * S_US);
	x->s.dirty = pick(seed);
	x->s.reclaimable = pick(seed);
	x->s.thresh = pick(seed);
	x->s.bg_thresh = pick(seed);
	x->s.wb_dirty = pick(seed);
	x->s.wb_reclaimable = pick(seed);
	x->s.wb_written = pick_count(seed);
	x->s.wb_busy_us += pick_count(seed) % S_US;
	x->s.wb_dirtied = pick_count(seed);
	x->s.cap_thresh = pick(seed) > 100 ? THROTTLE_NO_CAP : pick(seed);
	x->s.max_ratio = pick(seed) > 100 ? 1 : 0.01;
	x->s.min_ratio = x->s.sum_min_ratio = pick(seed) > 100 ? 0.3 : 0;
	x->s.nr_writers = pick(seed);
	x->s.nr_throttled = pick(seed);
	x->s.unthrottled_rate = pick(seed);
	x->s.strict_limit = pick(seed) > 100;
}

static void test_any_input(void **state)
{
	uint64_t seed = 1;

	(void)state;
	for (unsigned run = 0; run < 300; run++) {
		struct world x;
		struct throttle_verdict v;

		world_init(&x);
		throttle_device_init(&x.dev, fmin(pick(&seed), 1e9), START_US);
		for (unsigned i = 0; i < 100; i++) {
			double want, got;

			fuzz_sample(&x, &seed);
			throttle_completed(&x.dom, &x.dev, 32, x.s.max_ratio, x.s.now_us);
			throttle_tick(&x.dom, &x.dev, &x.s);
			v = balance(&x, pick(&seed));
			check_verdict(&v);
			throttle_balance_again(&x.dom, &x.dev, &x.w, &x.s, &v);
			check_verdict(&v);
			want = pick(&seed);
			got = throttle_admissible(&x.dom, &x.dev, &x.s, want, pick(&seed),
				(unsigned)pick_count(&seed), i % 2 != 0);
			assert_true(got >= 0 && got <= fmax(want, 0) && got == floor(got));
			got = throttle_background_target(&x.dom, &x.dev, &x.s);
			assert_true(got >= 0 && isfinite(got));
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_curve),
		cmocka_unit_test(test_position_bounds),
		cmocka_unit_test(test_fill),
		cmocka_unit_test(test_fill_step),
		cmocka_unit_test(test_rate_moves_at_ticks),
		cmocka_unit_test(test_switch_of_laws),
		cmocka_unit_test(test_max_pause),
		cmocka_unit_test(test_nobody_is_blocked),
		cmocka_unit_test(test_request_is_paid),
		cmocka_unit_test(test_debt),
		cmocka_unit_test(test_queue_time_counts),
		cmocka_unit_test(test_scatter),
		cmocka_unit_test(test_stagger),
		cmocka_unit_test(test_slice),
		cmocka_unit_test(test_writer_rate_now),
		cmocka_unit_test(test_any_input),
	};

	world_law = THROTTLE_PACE;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
