/* test_throttle_world.h - one device and one writer in a sample that a test sets up by hand, for
 * either law.
 */
#ifndef PACEFS_TEST_THROTTLE_WORLD_H
#define PACEFS_TEST_THROTTLE_WORLD_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "throttle/formulas.h"

#define S_US 1000000ull
#define MS_US 1000ull
#define START_US (100 * S_US)
#define assert_near(a, b, tolerance) assert_true(fabs((a) - (b)) <= (tolerance))

/* The law in force in the tests. */
static enum throttle_law world_law;

/* One device, one writer, 100 MiB/s, T = 400 MiB, B = 200 MiB, all of D on the device. */
struct world {
	struct throttle_domain dom;
	struct throttle_device dev;
	struct throttle_writer w;
	struct throttle_sample s;
};

static inline void set_dirty(struct world *x, double dirty)
{
	x->s.dirty = x->s.reclaimable = dirty;
	x->s.wb_dirty = x->s.wb_reclaimable = dirty;
}

static inline void world_init(struct world *x)
{
	*x = (struct world){.s = {
				    .now_us = START_US,
				    .thresh = 102400,
				    .bg_thresh = 51200,
				    .cap_thresh = THROTTLE_NO_CAP,
				    .max_ratio = 1,
			    }};
	throttle_domain_init(&x->dom, START_US);
	x->dom.law = world_law;
	throttle_device_init(&x->dev, THROTTLE_INIT_BW, START_US);
	throttle_writer_init(&x->w);
	throttle_limits_changed(&x->dom, &x->dev, &x->s);
	/* the device has a history, or its share would be the floor */
	throttle_completed(&x->dom, &x->dev, 1e6, 1, START_US);
}

static inline struct throttle_verdict balance(struct world *x, double pages)
{
	struct throttle_verdict v;

	throttle_balance(&x->dom, &x->dev, &x->w, &x->s, pages, pages, &v);
	return v;
}

/* Busy writing: pages per 200 ms, with more waiting. */
static inline void write_for(struct world *x, unsigned intervals, uint64_t pages)
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

static inline void check_verdict(const struct throttle_verdict *v)
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
	assert_true(v->dirty_ratelimit >= 0.01);
	assert_true(v->pause_us <= THROTTLE_MAX_PAUSE_US);
	assert_true(v->bg_thresh <= v->freerun && v->freerun <= v->dirty_limit);
	assert_true(v->setpoint <= v->dirty_limit);
}

/* Runs all tests once for each law. */
#define run_for_both_laws(tests)                                                               \
	({                                                                                     \
		int failed = 0;                                                                \
                                                                                               \
		for (unsigned law = 0; law < THROTTLE_NR_LAWS; law++) {                        \
			world_law = (enum throttle_law)law;                                    \
			failed += cmocka_run_group_tests_name(                                 \
				throttle_law_name(world_law), tests, NULL, NULL);              \
		}                                                                              \
		failed;                                                                        \
	})

#endif
