/* test_throttle_loop.c - properties of the law in a closed loop, see test_throttle_sim.h.
 */
#include "test_throttle_sim.h"

static struct sim sim;

static double fair(const struct sim *m, unsigned writers)
{
	return m->devs[0].bw / writers;
}

/* Few pages per writer and second need a longer time to be compared. */
static double seconds_for(const struct sim *m, unsigned writers, double request)
{
	double s = 30 * request / fair(m, writers);

	return s < 8 ? 8 : s > 40 ? 40 : s;
}

static void grid_case(
	double mib, unsigned writers, double mb_per_s, double request, bool capped)
{
	struct sim *m = &sim;
	double seconds, equal = sim_law == THROTTLE_PACE ? 0.995 : 0.99;

	if (sim_law == THROTTLE_LINUX && capped && mib <= 1)
		equal = 0.985; /* 64 pages for a hundred writers */
	sim_init(m, mib * MIB_PAGES);
	add_device(m, mb_per_s);
	add_writers(m, writers, 0, request);
	if (capped)
		m->cap = m->thresh / 4;
	seconds = seconds_for(m, writers, request);
	measure(m, seconds > 30 ? 30 : seconds, seconds);
	if (throughput(m, 0) < 0.95 || jain(m) < equal)
		fail_msg("%g MiB%s, %u writers, %g MB/s, %g pages: %.3f of the speed, "
			 "Jain %.4f",
			mib, capped ? " capped to a quarter" : "", writers, mb_per_s, request,
			throughput(m, 0), jain(m));
}

static void grid(double mib, bool capped)
{
	static const unsigned writers[] = {1, 10, 100};

	for (unsigned i = 0; i < 3; i++) {
		grid_case(mib, writers[i], 10, 1, capped);
		grid_case(mib, writers[i], 10, 32, capped);
		grid_case(mib, writers[i], 50, 1, capped);
		grid_case(mib, writers[i], 50, 32, capped);
	}
}

static void test_1_mib(void **state)
{
	(void)state;
	grid(1, false);
}

static void test_1_mib_capped(void **state)
{
	(void)state;
	grid(1, true);
}

static void test_8_mib(void **state)
{
	(void)state;
	grid(8, false);
}

static void test_8_mib_capped(void **state)
{
	(void)state;
	grid(8, true);
}

static void test_100_mib(void **state)
{
	(void)state;
	grid(100, false);
}

static void test_100_mib_capped(void **state)
{
	(void)state;
	grid(100, true);
}

/* The base rate is the fair share, and the dirty pages are near the setpoint, 7/8 of T.
 */
static void test_equilibrium(void **state)
{
	static const unsigned writers[] = {1, 10, 100, 1, 10, 100};
	struct sim *m = &sim;

	(void)state;
	for (unsigned i = 0; i < 6; i++) {
		sim_init(m, 100 * MIB_PAGES);
		add_device(m, 25);
		add_writers(m, writers[i], 0, i < 3 ? 1 : 32);
		measure(m, 30, 20);
		assert_true(m->devs[0].d.dirty_ratelimit < 1.2 * fair(m, writers[i]));
		assert_true(m->devs[0].d.dirty_ratelimit > 0.8 * fair(m, writers[i]));
		assert_true(m->dirty_sum / (double)m->events < 0.96 * m->thresh);
		assert_true(m->dirty_sum / (double)m->events > 0.80 * m->thresh);
	}
}

static double mean_position(const struct sim *m)
{
	double setpoint = m->thresh * 7 / 8;

	return (m->dirty_sum / (double)m->events - setpoint) / (m->thresh - setpoint);
}

/* What pace promises more: from five seconds on the base rate is within 5 % of the fair share, the
 * dirty pages within 0.15 of the way from setpoint to limit, and the shares equal. */
static void pace_case(unsigned writers, double request)
{
	struct sim *m = &sim;
	double seconds;

	sim_init(m, 100 * MIB_PAGES);
	add_device(m, 25);
	add_writers(m, writers, 0, request);
	run_for(m, 5);
	assert_true(fabs(m->devs[0].d.dirty_ratelimit / fair(m, writers) - 1) < 0.05);
	seconds = seconds_for(m, writers, request);
	measure(m, 20, seconds);
	if (fabs(mean_position(m)) > 0.15 || jain(m) < 0.995 || throughput(m, 0) < 0.98)
		fail_msg("%u writers, %g pages: position %.3f, Jain %.4f, %.3f of the speed",
			writers, request, mean_position(m), jain(m), throughput(m, 0));
	assert_true(fabs(m->devs[0].d.dirty_ratelimit / fair(m, writers) - 1) < 0.05);
}

static void test_pace_equilibrium(void **state)
{
	static const double requests[] = {1, 32, 256};

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		pace_case(1, requests[i]);
		pace_case(10, requests[i]);
		pace_case(100, requests[i]);
	}
}

/* All wait at the limit, which is no state to stay in: the time at the gate does not pay for
 * what the position asks for. */
static void test_pace_leaves_the_limit(void **state)
{
	struct sim *m = &sim;

	(void)state;
	sim_init(m, 100 * MIB_PAGES);
	add_device(m, 25);
	m->devs[0].reclaimable = m->thresh;
	add_writers(m, 100, 0, 32);
	run_for(m, 10);
	measure(m, 0, 10);
	assert_true(fabs(mean_position(m)) < 0.15);
}

/* Writers come and go; the base rate is within a tenth of its new value after a second. */
static void test_pace_number_of_writers(void **state)
{
	struct sim *m = &sim;

	(void)state;
	sim_init(m, 100 * MIB_PAGES);
	add_device(m, 25);
	add_writer(m, 0, 32);
	run_for(m, 10);
	add_writers(m, 99, 0, 32);
	run_for(m, 1);
	assert_true(fabs(m->devs[0].d.dirty_ratelimit / fair(m, 100) - 1) < 0.1);
	for (unsigned i = 1; i < 100; i++)
		m->writers[i].think_us = 1e9;
	run_for(m, 10);
	assert_true(fabs(m->devs[0].d.dirty_ratelimit / fair(m, 1) - 1) < 0.1);
}

/* A caller that replies after one pause has the gate instead: full speed, and nearly
 * fair. */
static void test_again_ignored(void **state)
{
	struct sim *m = &sim;

	(void)state;
	sim_init(m, 8 * MIB_PAGES);
	m->ignore_again = true;
	add_device(m, 50);
	add_writers(m, 100, 0, 32);
	measure(m, 8, 20);
	assert_true(throughput(m, 0) > 0.95);
	assert_true(jain(m) > 0.98);
}

/* T - B = 5 MiB at 100 MB/s: without the effective background a third of the speed */
static void test_narrow_gap(void **state)
{
	struct sim *m = &sim;

	(void)state;
	sim_init(m, 400 * MIB_PAGES);
	m->bg_thresh = 395 * MIB_PAGES;
	add_device(m, 100);
	add_writers(m, 10, 0, 32);
	measure(m, 20, 20);
	assert_true(throughput(m, 0) > 0.98);
	assert_true(jain(m) > 0.99);
}

static void test_strict(void **state)
{
	struct sim *m = &sim;

	(void)state;
	for (unsigned percent = 1; percent <= 5; percent += 4) {
		sim_init(m, 400 * MIB_PAGES);
		m->strict = true;
		m->max_ratio = percent / 100.0;
		add_device(m, 100);
		add_writers(m, 10, 0, 32);
		measure(m, 5, 20);
		assert_true(throughput(m, 0) > 0.97);
		assert_true(jain(m) > 0.99);
		assert_true(m->devs[0].dirty_max <= m->thresh * m->max_ratio);
	}
}

/* One device dies with its share of the domain; the other one does not notice. */
static void test_dead_device(void **state)
{
	struct sim *m = &sim;

	(void)state;
	for (unsigned mb_per_s = 0; mb_per_s < 2; mb_per_s++) {
		sim_init(m, 100 * MIB_PAGES);
		add_device(m, 50);
		add_device(m, mb_per_s);
		add_writers(m, 2, 0, 32);
		add_writers(m, 2, 1, 32);
		measure(m, 20, 30);
		assert_true(throughput(m, 0) > 0.95);
	}
}

/* A device that comes to a domain which a dead one has filled still finds room. */
static void test_dead_device_was_first(void **state)
{
	struct sim *m = &sim;

	(void)state;
	sim_init(m, 100 * MIB_PAGES);
	add_device(m, 50);
	add_device(m, 0);
	add_writers(m, 4, 1, 32);
	run_for(m, 20);
	add_writers(m, 2, 0, 32);
	measure(m, 5, 10);
	assert_true(throughput(m, 0) > 0.9);
}

static double share(const struct sim *m, unsigned dev)
{
	struct throttle_sample s = sample(m, dev);

	return throttle_device_thresholds(&m->dom, &m->devs[dev].d, &s).thresh / m->thresh;
}

static void test_shares(void **state)
{
	struct sim *m = &sim;

	(void)state;
	sim_init(m, 100 * MIB_PAGES);
	add_device(m, 100);
	add_device(m, 25);
	add_writers(m, 5, 0, 32);
	add_writers(m, 5, 1, 32);
	measure(m, 12, 10);
	assert_true(fabs(share(m, 0) - 0.8) < 0.05);
	assert_true(fabs(share(m, 1) - 0.2) < 0.05);
	assert_true(throughput(m, 0) > 0.97 && throughput(m, 1) > 0.97);
}

static void test_two_small_shares(void **state)
{
	struct sim *m = &sim;

	(void)state;
	sim_init(m, 10 * MIB_PAGES);
	add_device(m, 50);
	add_device(m, 50);
	add_writers(m, 60, 0, 32);
	add_writers(m, 60, 1, 32);
	measure(m, 10, 15);
	assert_true(throughput(m, 0) > 0.95 && throughput(m, 1) > 0.95);
}

/* 45/45/10: who asks for less than its share gets all of it, unheld; the rest is split */
static void test_modest_writer(void **state)
{
	struct sim *m = &sim;
	struct sim_writer *modest;

	(void)state;
	sim_init(m, 400 * MIB_PAGES);
	add_device(m, 100);
	add_writers(m, 2, 0, 32);
	modest = add_writer(m, 0, 32);
	modest->think_us = 13107 - 32 * COPY_US_PER_PAGE; /* 10 MB/s */
	measure(m, 20, 20);
	assert_int_equal(modest->held, 0);
	assert_true(modest->written > 0.99 * 20e7 / THROTTLE_PAGE_SIZE);
	assert_true(fabs(m->writers[0].written / m->writers[1].written - 1) < 0.02);
	assert_true(m->writers[0].written > 4.4 * modest->written);
}

static void test_small_writer(void **state)
{
	struct sim *m = &sim;
	struct sim_writer *log;

	(void)state;
	sim_init(m, 100 * MIB_PAGES);
	add_device(m, 50);
	add_writers(m, 4, 0, 32);
	log = add_writer(m, 0, 1);
	log->think_us = 20000;
	measure(m, 20, 20);
	assert_int_equal(log->held, 0);
	assert_true(log->written > 990);
}

static void test_stall(void **state)
{
	struct sim *m = &sim;
	double before;

	(void)state;
	sim_init(m, 400 * MIB_PAGES);
	add_device(m, 100);
	add_writers(m, 10, 0, 32);
	run_for(m, 20);
	before = m->devs[0].d.avg_write_bandwidth;
	m->devs[0].io_done_us += 5000000;
	run_for(m, 4.9);
	measure(m, 0.2, 1);
	assert_true(m->devs[0].d.avg_write_bandwidth > 0.9 * before);
	assert_true(throughput(m, 0) > 0.9);
	assert_int_equal(m->devs[0].busy.nr_stalls, 1);
}

static void test_bandwidth_steps(void **state)
{
	struct sim *m = &sim;
	struct throttle_device *d = &m->devs[0].d;

	(void)state;
	sim_init(m, 400 * MIB_PAGES);
	add_device(m, 100);
	add_writers(m, 10, 0, 32);
	run_for(m, 20);
	m->devs[0].bw /= 5;
	run_for(m, 16);
	assert_true(d->avg_write_bandwidth < 1.2 * m->devs[0].bw);
	run_for(m, 14);
	assert_true(d->dirty_ratelimit < 1.25 * fair(m, 10));
	m->devs[0].bw *= 5;
	measure(m, 0, 16);
	assert_true(throughput(m, 0) > 0.99);
	assert_true(d->avg_write_bandwidth > 0.9 * m->devs[0].bw);
	assert_true(d->dirty_ratelimit > 0.8 * fair(m, 10));
}

static void test_limit_halved_and_doubled(void **state)
{
	struct sim *m = &sim;
	double before;

	(void)state;
	sim_init(m, 400 * MIB_PAGES);
	add_device(m, 100);
	add_writers(m, 10, 0, 32);
	run_for(m, 20);
	m->thresh /= 2;
	m->bg_thresh /= 2;
	before = m->dom.dirty_limit;
	for (unsigned i = 0; i < 35; i++) {
		measure(m, 0, 1);
		assert_true(m->dom.dirty_limit < before);
		before = m->dom.dirty_limit;
		assert_true(throughput(m, 0) > 0.95);
		for (unsigned j = 0; j < m->nr_writers; j++)
			m->writers[j].written = 0;
		m->devs[0].completed = 0;
	}
	assert_true(dirty(m) <= m->thresh);
	run_for(m, 60);
	assert_true(m->dom.dirty_limit == m->thresh);
	m->thresh *= 2;
	m->bg_thresh *= 2;
	run_for(m, 0.5);
	assert_true(m->dom.dirty_limit == m->thresh);
}

static void test_cap_appears_and_goes(void **state)
{
	struct sim *m = &sim;

	(void)state;
	sim_init(m, 100 * MIB_PAGES);
	add_device(m, 50);
	add_writers(m, 10, 0, 32);
	run_for(m, 10);
	m->cap = 10 * MIB_PAGES;
	measure(m, 0, 120);
	assert_true(throughput(m, 0) > 0.98);
	assert_true(dirty(m) <= m->cap);
	assert_true(m->devs[0].d.cap_limit == m->cap);
	m->cap = THROTTLE_NO_CAP;
	run_for(m, 20);
	assert_true(dirty(m) > 80 * MIB_PAGES);
}

static void degenerate_case(double thresh, double bg_thresh, double bw, bool strict)
{
	struct sim *m = &sim;

	sim_init(m, thresh);
	m->bg_thresh = bg_thresh;
	m->strict = strict;
	add_device(m, 10);
	throttle_device_init(&m->devs[0].d, bw, m->now_us);
	add_writers(m, 3, 0, 32);
	measure(m, 0, 3);
	for (unsigned i = 0; i < m->nr_writers; i++)
		assert_true(m->writers[i].written > 0);
}

static void test_degenerate(void **state)
{
	static const double pages[] = {0, 1, 2, 3, 7};

	(void)state;
	for (unsigned i = 0; i < 25; i++) {
		degenerate_case(pages[i / 5], pages[i % 5], 1, false);
		degenerate_case(pages[i / 5], pages[i % 5], 1e7, false);
		degenerate_case(pages[i / 5], pages[i % 5], 1, true);
		degenerate_case(pages[i / 5], pages[i % 5], 1e7, true);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_1_mib),
		cmocka_unit_test(test_1_mib_capped),
		cmocka_unit_test(test_8_mib),
		cmocka_unit_test(test_8_mib_capped),
		cmocka_unit_test(test_100_mib),
		cmocka_unit_test(test_100_mib_capped),
		cmocka_unit_test(test_equilibrium),
		cmocka_unit_test(test_again_ignored),
		cmocka_unit_test(test_narrow_gap),
		cmocka_unit_test(test_strict),
		cmocka_unit_test(test_dead_device),
		cmocka_unit_test(test_dead_device_was_first),
		cmocka_unit_test(test_shares),
		cmocka_unit_test(test_two_small_shares),
		cmocka_unit_test(test_modest_writer),
		cmocka_unit_test(test_small_writer),
		cmocka_unit_test(test_stall),
		cmocka_unit_test(test_bandwidth_steps),
		cmocka_unit_test(test_limit_halved_and_doubled),
		cmocka_unit_test(test_cap_appears_and_goes),
		cmocka_unit_test(test_degenerate),
	};
	const struct CMUnitTest pace_tests[] = {
		cmocka_unit_test(test_pace_equilibrium),
		cmocka_unit_test(test_pace_leaves_the_limit),
		cmocka_unit_test(test_pace_number_of_writers),
	};
	int failed = 0;

	for (unsigned law = 0; law < THROTTLE_NR_LAWS; law++) {
		sim_law = (enum throttle_law)law;
		failed += cmocka_run_group_tests_name(
			throttle_law_name(sim_law), tests, NULL, NULL);
	}
	sim_law = THROTTLE_PACE;
	failed += cmocka_run_group_tests_name("pace only", pace_tests, NULL, NULL);
	return failed;
}
