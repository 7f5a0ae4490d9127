/* test_throttle_linux.c - the ways in which the kernel's base rate is known to fail (4), and what
 * a rate of 0 does. */
#include "test_throttle_world.h"

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_3f_separate_stamps),
		cmocka_unit_test(test_4a_bounds),
		cmocka_unit_test(test_4b_step_size),
		cmocka_unit_test(test_4c_foreign_position),
		cmocka_unit_test(test_4_stale_count),
		cmocka_unit_test(test_6_blocked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
