/* test_plan.c - backend/flush/plan.h: when the flusher writes, and how much at once. */
#include "backend/flush/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define SECOND 1000000ull

/* A device with some dirty pages and nothing to hurry for: 30 s expire, 5 s interval. */
static struct flush_view calm(void)
{
	return (struct flush_view){
		.now_us = 1000 * SECOND,
		.dirty_pages = 100,
		.bg_pages = 1000,
		.bg_time_pages = UINT64_MAX,
		.oldest_dirtied_us = 999 * SECOND,
		.writeback_us = 5 * SECOND,
		.expire_us = 30 * SECOND,
		.next_periodic_us = 1002 * SECOND,
	};
}

static void calm_waits_for_the_interval(void **state)
{
	struct flush_view v = calm();
	struct flush_plan p = flush_plan_make(&v);

	assert_int_equal(p.reason, FLUSH_NONE);
	assert_int_equal(p.wake_us, v.next_periodic_us);
}

static void nothing_dirty_never_wakes(void **state)
{
	struct flush_view v = calm();

	v.dirty_pages = 0;
	v.drain = v.blocked = true;
	struct flush_plan p = flush_plan_make(&v);
	assert_int_equal(p.reason, FLUSH_NONE);
	assert_true(p.wake_us == FLUSH_NEVER_US);
}

static void each_reason_in_its_order(void **state)
{
	struct flush_view v = calm();

	v.bg_time_pages = 50;
	assert_int_equal(flush_plan_make(&v).reason, FLUSH_TIME);
	v.bg_pages = 99;
	assert_int_equal(flush_plan_make(&v).reason, FLUSH_BACKGROUND);
	v.blocked = true;
	assert_int_equal(flush_plan_make(&v).reason, FLUSH_BLOCKED);
	v.drain = true;
	assert_int_equal(flush_plan_make(&v).reason, FLUSH_DRAIN);
	v.tagged_pages = 1;
	assert_int_equal(flush_plan_make(&v).reason, FLUSH_SYNC);
}

static void background_stops_at_the_threshold(void **state)
{
	struct flush_view v = calm();

	v.bg_pages = v.dirty_pages;
	assert_int_equal(flush_plan_make(&v).reason, FLUSH_NONE);
}

static void time_round_ends_at_three_quarters(void **state)
{
	struct flush_view v = calm();

	v.bg_time_pages = 100;
	assert_int_equal(flush_plan_make(&v).reason, FLUSH_NONE);
	v.dirty_pages = 101;
	struct flush_plan p = flush_plan_make(&v);
	assert_int_equal(p.reason, FLUSH_TIME);
	v.time_round = p.time_round;
	v.dirty_pages = 76;
	assert_int_equal(flush_plan_make(&v).reason, FLUSH_TIME);
	v.dirty_pages = 75;
	assert_int_equal(flush_plan_make(&v).reason, FLUSH_NONE);
	assert_false(flush_plan_make(&v).time_round);
}

static void a_small_file_goes_after_the_background_time(void **state)
{
	struct flush_view v = calm();

	v.bg_age_us = SECOND;
	struct flush_plan p = flush_plan_make(&v);
	assert_int_equal(p.reason, FLUSH_AGE);
	assert_int_equal(p.cutoff_us, v.now_us - SECOND);
	v.oldest_dirtied_us++;
	p = flush_plan_make(&v);
	assert_int_equal(p.reason, FLUSH_NONE);
	assert_int_equal(p.wake_us, v.oldest_dirtied_us + SECOND);
}

static void periodic_takes_only_what_has_expired(void **state)
{
	struct flush_view v = calm();

	v.next_periodic_us = v.now_us;
	struct flush_plan p = flush_plan_make(&v);
	assert_int_equal(p.reason, FLUSH_NONE); /* nothing is 30 s old */
	assert_int_equal(p.next_periodic_us, v.now_us + v.writeback_us);
	v.oldest_dirtied_us = v.now_us - v.expire_us;
	p = flush_plan_make(&v);
	assert_int_equal(p.reason, FLUSH_PERIODIC);
	assert_int_equal(p.cutoff_us, v.now_us - v.expire_us);
	assert_true(p.periodic_round);
	/* The round goes on until nothing old is left. */
	v.periodic_round = true;
	v.next_periodic_us = v.now_us + SECOND;
	assert_int_equal(flush_plan_make(&v).reason, FLUSH_PERIODIC);
	v.writeback_us = 0;
	assert_int_equal(flush_plan_make(&v).reason, FLUSH_NONE);
}

/* ---- how much ---- */

/* A disk that serves bytes_per_s and needs overhead_us for each request, one after another.
 * Returns the window after many requests kept in flight by it. */
static struct flush_window settle(double bytes_per_s, uint64_t overhead_us)
{
	struct flush_window w;
	uint64_t submitted[1024], bytes[1024], now = SECOND;
	unsigned head = 0, tail = 0;
	uint64_t inflight = 0;

	flush_window_init(&w);
	for (int i = 0; i < 2000; i++) {
		struct flush_sizes s =
			flush_sizes_make(&w, bytes_per_s, UINT64_MAX / 8192, 256);
		while (inflight < s.inflight_bytes && head - tail < 1024) {
			submitted[head % 1024] = now;
			bytes[head % 1024] = (uint64_t)s.request_pages * 4096;
			inflight += bytes[head++ % 1024];
		}
		unsigned first = tail++ % 1024;
		now += overhead_us + (uint64_t)((double)bytes[first] / bytes_per_s * 1e6);
		flush_window_completed(&w, submitted[first], now, inflight);
		inflight -= bytes[first];
	}
	return w;
}

static void window_is_some_tens_of_milliseconds(void **state)
{
	static const double rates[] = {5e6, 10e6, 50e6, 100e6};

	for (unsigned i = 0; i < 4; i++) {
		double ms = (double)settle(rates[i], 300).bytes / rates[i] * 1e3;
		assert_true(ms > 15);
		assert_true(ms < 90);
	}
}

static void window_keeps_a_fast_device_busy(void **state)
{
	assert_int_equal(settle(2e9, 50).bytes, FLUSH_WINDOW_MOST);
}

static void window_shrinks_where_requests_are_slow(void **state)
{
	/* 30 ms for each request, whatever its size: one at a time is enough. */
	struct flush_window w = settle(1e9, 30000);
	struct flush_sizes s = flush_sizes_make(&w, 1e9, 1u << 20, 256);

	assert_true(s.inflight_bytes <= 3ull * s.request_pages * 4096);
	assert_true(w.bytes >= FLUSH_WINDOW_LEAST);
}

static void one_judgement_for_each_round_trip(void **state)
{
	struct flush_window w;

	flush_window_init(&w);
	uint64_t before = w.bytes;
	flush_window_completed(&w, 100, 200, w.bytes);
	assert_int_equal(w.bytes, 2 * before);
	/* Submitted before that judgement: it says nothing about the new window. */
	flush_window_completed(&w, 150, 210, w.bytes);
	assert_int_equal(w.bytes, 2 * before);
	flush_window_completed(&w, 200, 300, w.bytes);
	assert_int_equal(w.bytes, 4 * before);
	/* Not full: there was nothing more to write, so it need not be larger. */
	flush_window_completed(&w, 300, 400, w.bytes / 2);
	assert_int_equal(w.bytes, 4 * before);
}

static void batches_stay_below_a_small_limit(void **state)
{
	struct flush_window w = {.bytes = FLUSH_WINDOW_MOST};

	for (uint64_t limit = 1; limit < 4096; limit *= 2) {
		struct flush_sizes s = flush_sizes_make(&w, 50e6, limit, 256);
		uint64_t eighth = limit / 8 ? limit / 8 : 1;
		assert_int_equal(s.request_pages, eighth < 256 ? eighth : 256);
		assert_true(s.slice_pages <= eighth && s.slice_pages >= 1);
		assert_true(s.inflight_bytes <= 2 * eighth * 4096);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(calm_waits_for_the_interval),
		cmocka_unit_test(nothing_dirty_never_wakes),
		cmocka_unit_test(each_reason_in_its_order),
		cmocka_unit_test(background_stops_at_the_threshold),
		cmocka_unit_test(time_round_ends_at_three_quarters),
		cmocka_unit_test(a_small_file_goes_after_the_background_time),
		cmocka_unit_test(periodic_takes_only_what_has_expired),
		cmocka_unit_test(window_is_some_tens_of_milliseconds),
		cmocka_unit_test(window_keeps_a_fast_device_busy),
		cmocka_unit_test(window_shrinks_where_requests_are_slow),
		cmocka_unit_test(one_judgement_for_each_round_trip),
		cmocka_unit_test(batches_stay_below_a_small_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
