/* test_writer.c - the table of a device's writers: what the free ones write, who counts as
 * throttled, who is forgotten.
 */
#include "fuse/writer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#define S_US 1000000ull
#define MS_US 1000ull
#define START_US (100 * S_US)

static struct writers ws;
static uint64_t now_us;
static uint64_t ended_id; /* of writers, those up to this have ended */

static int setup(void **state)
{
	ws = (struct writers){0};
	now_us = START_US;
	ended_id = 0;
	return 0;
}

static int teardown(void **state)
{
	writers_finish(&ws);
	return 0;
}

static struct writer *get(uint64_t id)
{
	struct writer_key key = {.id = id, .kind = WRITER_GROUP};
	struct writer *w = writers_get(&ws, &key, now_us);

	assert_non_null(w);
	return w;
}

static bool has_ended(const struct writer *w)
{
	return w->key.id <= ended_id;
}

static struct writer *write_pages(uint64_t id, double pages)
{
	struct writer *w = get(id);

	writers_dirtied(&ws, w, pages, now_us);
	return w;
}

/* Pages per second of all free writers. */
static double free_rate(void)
{
	return writers_sum_up(&ws, now_us).unthrottled_rate;
}

static unsigned nr_throttled(void)
{
	return writers_sum_up(&ws, now_us).nr_throttled;
}

static void assert_near(double value, double wanted, double part)
{
	if (!(fabs(value - wanted) <= part * fabs(wanted)))
		fail_msg("%g is not %g within %g %%", value, wanted, 100 * part);
}

static unsigned nr_known(void)
{
	return HASH_COUNT(ws.table);
}

/* ---- the free rate ---- */

/* 10 pages each 10 ms are 1000 a second, from the first few seconds on. */
static void test_steady_writer(void **state)
{
	for (unsigned i = 0; i < 500; i++, now_us += 10 * MS_US)
		write_pages(1, 10);
	assert_near(free_rate(), 1000, 0.02);
	assert_int_equal(nr_throttled(), 0);
	/* And it is as good as gone when the writer has been silent for a while. */
	now_us += 10 * S_US;
	assert_true(free_rate() < 1);
}

/* Writers that live for one request each: their pages count, not an estimate of each. */
static void test_short_lived_writers(void **state)
{
	for (unsigned i = 0; i < 5000; i++, now_us += MS_US) {
		write_pages(1 + i, 31);
		if (i % 1000 == 999) {
			ended_id = i;
			writers_expire(&ws, has_ended, now_us);
		}
	}
	assert_near(free_rate(), 31000, 0.02);
	assert_true(nr_known() < 2000);
}

static void test_throttled_is_not_free(void **state)
{
	for (unsigned i = 0; i < 500; i++, now_us += 10 * MS_US) {
		write_pages(1, 10);
		write_pages(2, 30);
	}
	assert_near(free_rate(), 4000, 0.02);
	/* Held: what it wrote before counts no longer, and of the other nothing is lost. */
	writers_throttle(&ws, get(2), now_us);
	assert_near(free_rate(), 1000, 0.02);
	writers_throttle(&ws, get(2), now_us); /* not taken off twice */
	assert_near(free_rate(), 1000, 0.02);
	assert_int_equal(nr_throttled(), 1);
	for (unsigned i = 0; i < 90; i++, now_us += 10 * MS_US) {
		write_pages(1, 10);
		write_pages(2, 30);
	}
	assert_near(free_rate(), 1000, 0.02);
	/* A second after the pause it is free again. */
	for (unsigned i = 0; i < 500; i++, now_us += 10 * MS_US) {
		write_pages(1, 10);
		write_pages(2, 30);
	}
	assert_near(free_rate(), 4000, 0.02);
	assert_int_equal(nr_throttled(), 0);
}

/* Again and again held, for a second of each three: never below 0, never above what is written. */
static void test_taking_off_keeps_the_books(void **state)
{
	for (unsigned i = 0; i < 3000; i++, now_us += 10 * MS_US) {
		write_pages(1, 10);
		if (i % 300 == 0)
			writers_throttle(&ws, get(1), now_us);
		assert_true(free_rate() >= 0 && free_rate() < 1030);
		if (i % 300 == 0)
			assert_true(free_rate() < 1e-6);
	}
}

/* ---- time ---- */

/* A reader may have taken the time a little before the one that came first. */
static void test_time_steps_back(void **state)
{
	for (unsigned i = 0; i < 500; i++, now_us += 10 * MS_US) {
		now_us += 5 * MS_US;
		write_pages(1, 5);
		now_us -= 5 * MS_US;
		write_pages(1, 5);
	}
	assert_near(free_rate(), 1000, 0.03);
	double before = free_rate();
	now_us -= 50 * MS_US;
	write_pages(2, 100);
	assert_near(free_rate(), before + 100, 0.02);
	now_us -= 50 * MS_US;
	writers_throttle(&ws, get(1), now_us);
	assert_near(free_rate(), 100, 0.1);
}

static void test_counts_when_time_steps_back(void **state)
{
	struct writer *w = write_pages(1, 10);

	writers_throttle(&ws, w, now_us);
	now_us -= 5 * MS_US;
	assert_int_equal(nr_throttled(), 1);
	assert_int_equal(writers_sum_up(&ws, now_us).nr_active, 1);
	write_pages(2, 10);
	assert_int_equal(writers_sum_up(&ws, now_us).nr_active, 2);
	/* Not taken for one that has been silent for ever. */
	ended_id = 2;
	writers_expire(&ws, has_ended, now_us - 5 * MS_US);
	assert_int_equal(nr_known(), 2);
}

/* ---- who is there ---- */

static void test_active(void **state)
{
	assert_int_equal(writers_sum_up(&ws, now_us).nr_active, 1); /* at least */
	write_pages(1, 1);
	write_pages(2, 1);
	struct writer *held = write_pages(3, 1);
	held->held = 1;
	assert_int_equal(writers_sum_up(&ws, now_us).nr_active, 3);
	assert_int_equal(nr_throttled(), 1);
	now_us += S_US + 1;
	assert_int_equal(writers_sum_up(&ws, now_us).nr_active, 1);
	assert_int_equal(nr_throttled(), 1);
}

static void test_expiry(void **state)
{
	write_pages(1, 1)->throttle.nr_dirtied = 7;
	write_pages(2, 1)->throttle.nr_dirtied = 5; /* lives on */
	struct writer *held = write_pages(0, 1);
	held->held = 1;
	held->throttle.nr_dirtied = 3;
	ended_id = 1;

	/* It may have ended only if it has been quiet. */
	now_us += WRITER_QUIET_US;
	assert_true(writers_expire(&ws, has_ended, now_us) == 0);
	assert_int_equal(nr_known(), 3);
	/* What it left unpaid comes back; a held one stays, whatever it is said of it. */
	now_us++;
	assert_true(writers_expire(&ws, has_ended, now_us) == 7);
	assert_int_equal(nr_known(), 2);
	/* Idle for long: forgotten, and its debt with it. */
	now_us = START_US + WRITER_IDLE_US;
	assert_true(writers_expire(&ws, has_ended, now_us) == 0);
	assert_int_equal(nr_known(), 2);
	now_us++;
	assert_true(writers_expire(&ws, has_ended, now_us) == 0);
	assert_int_equal(nr_known(), 1);
	held->held = 0;
	assert_true(writers_expire(&ws, has_ended, now_us) == 3);
	assert_int_equal(nr_known(), 0);
	/* Whoever comes back is a new one. */
	assert_true(get(1)->throttle.nr_dirtied == 0);
}

static void test_same_key_same_writer(void **state)
{
	struct writer_key served = {.id = 1, .kind = WRITER_SERVED};
	struct writer *w = get(1);

	assert_ptr_equal(get(1), w);
	assert_ptr_not_equal(get(2), w);
	assert_ptr_not_equal(writers_get(&ws, &served, now_us), w);
	assert_int_equal(nr_known(), 3);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_steady_writer),
		TEST(test_short_lived_writers),
		TEST(test_throttled_is_not_free),
		TEST(test_taking_off_keeps_the_books),
		TEST(test_time_steps_back),
		TEST(test_counts_when_time_steps_back),
		TEST(test_active),
		TEST(test_expiry),
		TEST(test_same_key_same_writer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
