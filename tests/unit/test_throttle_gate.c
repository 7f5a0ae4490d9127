/* test_throttle_gate.c - the ways in which such a law is known to fail, one test each: the
 * gate, and a device's own limit.
 */
#include "test_throttle_world.h"

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
	assert_near(admissible(&x, 1e6, 0, true), world_law == THROTTLE_PACE ? 102 : 256, 0);
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

/* Where a double has no room for the last page any more, none is let in. */
static void test_6b_gate_is_exact(void **state)
{
	struct world x;

	(void)state;
	world_init(&x);
	x.s.thresh = 1099511627776.0; /* 2^40 */
	x.s.dirty = x.s.reclaimable = 1099511627776.0 - 3;
	assert_near(admissible(&x, 256, 0, false), 3, 0);
	x.s.thresh = 9007199254740994.0;
	x.s.dirty = x.s.reclaimable = 9007199254740991.0;
	assert_near(admissible(&x, 256, 0, false), 0, 0);
	set_dirty(&x, 0);
	assert_near(admissible(&x, 256, 0, false), 256, 0);
}

/* Half of what completes is not given out again while a limit lags. */
static void test_completions_lower_a_limit_that_lags(void **state)
{
	struct world x;

	(void)state;
	world_init(&x);
	x.dom.dirty_limit = x.s.thresh + 1000;
	set_dirty(&x, x.s.thresh + 980); /* 20 of the 1000 are free */
	throttle_lower_limits(&x.dom, &x.dev, &x.s, 30);
	assert_near(x.dom.dirty_limit, x.s.thresh + 985, 0);
	throttle_lower_limits(&x.dom, &x.dev, &x.s, 30); /* not below what is dirty */
	assert_near(x.dom.dirty_limit, x.s.thresh + 980, 0);
	throttle_lower_limits(&x.dom, &x.dev, &x.s, 30);
	assert_near(x.dom.dirty_limit, x.s.thresh + 980, 0);
	set_dirty(&x, 0);
	throttle_lower_limits(&x.dom, &x.dev, &x.s, -5);
	assert_near(x.dom.dirty_limit, x.s.thresh + 980, 0);
	throttle_lower_limits(&x.dom, &x.dev, &x.s, 1e6); /* nor below the threshold */
	assert_near(x.dom.dirty_limit, x.s.thresh, 0);
	x.dom.dirty_limit = x.s.thresh - 5; /* one that is to rise is not this one's */
	throttle_lower_limits(&x.dom, &x.dev, &x.s, 10);
	assert_near(x.dom.dirty_limit, x.s.thresh - 5, 0);

	assert_true(x.dev.cap_limit >= THROTTLE_NO_CAP);
	x.s.cap_thresh = 1000;
	throttle_lower_limits(&x.dom, &x.dev, &x.s, 10); /* no limit to lower yet */
	assert_true(x.dev.cap_limit >= THROTTLE_NO_CAP);
	x.dev.cap_limit = 1500;
	set_dirty(&x, 1400);
	throttle_lower_limits(&x.dom, &x.dev, &x.s, 10);
	assert_near(x.dev.cap_limit, 1495, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_6b_gate),
		cmocka_unit_test(test_6b_gate_of_cap_and_strict),
		cmocka_unit_test(test_6b_gate_keeps_room_for_others),
		cmocka_unit_test(test_cap_is_a_domain),
		cmocka_unit_test(test_6b_gate_is_exact),
		cmocka_unit_test(test_completions_lower_a_limit_that_lags),
	};

	return run_for_both_laws(tests);
}
