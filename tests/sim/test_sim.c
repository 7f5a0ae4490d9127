/* The simulator itself: one seed is one run, what is printed reads back, devices are as fast as
 * they say, bad input is refused by name, and each invariant is seen failing: the code below it is
 * broken on purpose, by --wrap. */
#include "backend/flush/plan.h"
#include "fuse/held.h"
#include "tests/sim/model.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- faults ---- */

static const char *fault = "";
static unsigned calls; /* of the broken function so far; early ones are left alone */

static bool is_broken(const char *name)
{
	return !strcmp(fault, name) && ++calls > 200;
}

double __real_throttle_admissible(const struct throttle_domain *dom,
	const struct throttle_device *dev, const struct throttle_sample *s, double want,
	double reserved, unsigned nr_writers, bool queued);
double __wrap_throttle_admissible(const struct throttle_domain *dom,
	const struct throttle_device *dev, const struct throttle_sample *s, double want,
	double reserved, unsigned nr_writers, bool queued);
double __wrap_throttle_admissible(const struct throttle_domain *dom,
	const struct throttle_device *dev, const struct throttle_sample *s, double want,
	double reserved, unsigned nr_writers, bool queued)
{
	struct throttle_sample other = *s;

	if (is_broken("gate"))
		return want;
	if (is_broken("closed gate"))
		return 0;
	if (is_broken("gate without cap"))
		other.cap_thresh = THROTTLE_NO_CAP;
	if (is_broken("gate without share"))
		other.strict_limit = false;
	return __real_throttle_admissible(dom, dev, &other, want, reserved, nr_writers, queued);
}

void __real_throttle_balance(struct throttle_domain *dom, struct throttle_device *dev,
	struct throttle_writer *w, const struct throttle_sample *s, double nr_pages,
	double request_pages, struct throttle_verdict *v);
void __wrap_throttle_balance(struct throttle_domain *dom, struct throttle_device *dev,
	struct throttle_writer *w, const struct throttle_sample *s, double nr_pages,
	double request_pages, struct throttle_verdict *v);
void __wrap_throttle_balance(struct throttle_domain *dom, struct throttle_device *dev,
	struct throttle_writer *w, const struct throttle_sample *s, double nr_pages,
	double request_pages, struct throttle_verdict *v)
{
	__real_throttle_balance(dom, dev, w, s, nr_pages, request_pages, v);
	if (is_broken("NaN"))
		v->pos_ratio = NAN;
	if (is_broken("long pause"))
		v->pause_us = 200001;
	if (is_broken("order"))
		v->bg_thresh = v->thresh + 1;
	if (is_broken("rates"))
		dev->write_bandwidth = INFINITY;
}

static const struct throttle_writer *starved; /* it is held for ever, pause by pause */

void __real_throttle_balance_again(struct throttle_domain *dom, struct throttle_device *dev,
	struct throttle_writer *w, const struct throttle_sample *s, struct throttle_verdict *v);
void __wrap_throttle_balance_again(struct throttle_domain *dom, struct throttle_device *dev,
	struct throttle_writer *w, const struct throttle_sample *s, struct throttle_verdict *v);
void __wrap_throttle_balance_again(struct throttle_domain *dom, struct throttle_device *dev,
	struct throttle_writer *w, const struct throttle_sample *s, struct throttle_verdict *v)
{
	__real_throttle_balance_again(dom, dev, w, s, v);
	if (w != starved)
		return;
	v->again = true;
	v->pause_us = THROTTLE_MAX_PAUSE_US;
}

struct flush_plan __real_flush_plan_make(const struct flush_view *v);
struct flush_plan __wrap_flush_plan_make(const struct flush_view *v);
struct flush_plan __wrap_flush_plan_make(const struct flush_view *v)
{
	struct flush_plan p = __real_flush_plan_make(v);

	if (is_broken("flusher")) /* and nobody waits for it */
		p.reason = FLUSH_NONE;
	return p;
}

struct node *__real_flush_pick(struct flush_pick *pick, struct device *dev,
	const struct flush_sizes *sizes, uint64_t cutoff_us);
struct node *__wrap_flush_pick(struct flush_pick *pick, struct device *dev,
	const struct flush_sizes *sizes, uint64_t cutoff_us);
struct node *__wrap_flush_pick(struct flush_pick *pick, struct device *dev,
	const struct flush_sizes *sizes, uint64_t cutoff_us)
{
	const struct sim_device *d = (void *)((char *)dev - offsetof(struct sim_device, dev));

	if (d->number == 1 && is_broken("flusher of device 1"))
		return NULL;
	return __real_flush_pick(pick, dev, sizes, cutoff_us);
}

void __real_sim_file_end(struct sim_io *io);
void __wrap_sim_file_end(struct sim_io *io);
void __wrap_sim_file_end(struct sim_io *io)
{
	struct sim_file *f = io->file;

	__real_sim_file_end(io);
	if (is_broken("written"))
		f->device->dev.written++;
	if (is_broken("dirtied"))
		f->device->dev.dirtied--;
	if (is_broken("writeback"))
		f->device->inflight_bytes++;
	if (is_broken("domain"))
		f->node.dom->nr_dirty++;
	if (is_broken("unclean"))
		f->device->dev.nr_unclean++;
	if (is_broken("tags"))
		f->device->dev.nr_tagged++;
	if (is_broken("blocked"))
		f->device->dev.nr_blocked++;
	if (is_broken("queue"))
		f->device->sim->pacer.nr_queued++;
	if (is_broken("requests"))
		f->device->nr_inflight++;
	if (is_broken("writers"))
		f->device->sim->nr_alive++;
	if (is_broken("clock"))
		f->device->sim->now_us += 1000000;
}

bool __real_held_push(struct pacer *p, struct held *h);
bool __wrap_held_push(struct pacer *p, struct held *h);
bool __wrap_held_push(struct pacer *p, struct held *h)
{
	if (is_broken("deadline"))
		h->deadline_us += 300000;
	if (is_broken("lost reply"))
		return true; /* nobody will ever answer it */
	if (is_broken("early reply"))
		return false;
	if (!starved && !strcmp(fault, "starved writer"))
		starved = &h->writer->throttle;
	if (&h->writer->throttle == starved) {
		h->again = true;
		h->arrived_us = h->deadline_us; /* never long enough */
	}
	return __real_held_push(p, h);
}

void __real_sim_recount(struct sim *sim);
void __wrap_sim_recount(struct sim *sim);
void __wrap_sim_recount(struct sim *sim)
{
	struct node *io = sim->device[0].dev.io;
	struct sim_timer *last = sim->events.heap[sim->events.nr - 1];

	if (!strcmp(fault, "file") && sim->device[0].dev.unclean)
		sim->device[0].dev.unclean->place = NODE_CLEAN;
	if (!strcmp(fault, "list") && io)
		io->place = NODE_ON_MORE_IO;
	if (!strcmp(fault, "heap") && sim->pacer.nr_heap > 1)
		sim->pacer.heap[1]->heap_slot = 0;
	if (!strcmp(fault, "timer"))
		last->slot--;
	if (!strcmp(fault, "timers"))
		last->at_us = 0;
	__real_sim_recount(sim);
}

/* ---- helpers ---- */

static struct sim_config config; /* large ones, one test at a time */
static struct sim_result result;

static void parse(const char *line)
{
	char message[400] = "";

	if (sim_config_parse(&config, line, message, sizeof(message)) < 0 ||
		sim_config_check(&config, message, sizeof(message)) < 0)
		fail_msg("%s: %s", line, message);
}

static uint64_t run(const char *line)
{
	parse(line);
	int ret = sim_run(&config, &result);
	if (ret < 0)
		fail_msg("%s: %s", line, result.message);
	sim_result_free(&result);
	return result.hash;
}

static double written_mib(const char *line)
{
	run(line);
	return (double)result.device[0].written_pages * SIM_PAGE / 1048576;
}

#define assert_near(value, wanted, part)                                                       \
	do {                                                                                   \
		double value_ = (value), wanted_ = (wanted);                                   \
		if (!(fabs(value_ - wanted_) <= (part)*fabs(wanted_)))                         \
			fail_msg("%s is %g, not %g", #value, value_, wanted_);                 \
	} while (0)

/* ---- one seed is one run ---- */

#define BUSY                                                                                   \
	"sim --limit=8M --seconds=3s --warmup=1s --device=20M,noise=0.3,seek=1..9ms,rot=2ms "  \
	"--device=10M,burst=3,stall=300ms@1s,dirty_centisecs=100 "                             \
	"--writer=20xgreedy,8K,fsync=1s "                                                      \
	"--writer=3xpaced=1M,4K,dev=1 --writer=short=50/64K --writer=hot=256K/2M,64K,dev=1 "   \
	"--writer=5xbursty=0.2s/0.3s,128K --at='1.5s limit=4M' --at='2s law=linux' "           \
	"--at='2.2s sync' --at='2.5s truncate=100' --drain "

static void test_same_seed(void **state)
{
	uint64_t hash = run(BUSY "--seed=1");

	assert_true(hash == run(BUSY "--seed=1"));
	assert_true(hash != run(BUSY "--seed=2"));
}

static void test_trajectory_changes_nothing(void **state)
{
	char *text = NULL;
	size_t size = 0;
	uint64_t hash = run(BUSY);

	parse(BUSY);
	config.csv = open_memstream(&text, &size);
	assert_int_equal(sim_run(&config, &result), 0);
	fclose(config.csv);
	assert_true(result.hash == hash);
	sim_result_free(&result);
	/* Every row has the header's columns. */
	unsigned columns = 0, wanted = 0;
	for (const char *at = text; *at; at++) {
		columns += *at == ',';
		if (*at != '\n')
			continue;
		wanted = wanted ? wanted : columns;
		assert_int_equal(columns, wanted);
		columns = 0;
	}
	assert_int_equal(wanted, 34);
	free(text);
}

static void print(char *text, size_t size)
{
	FILE *f = fmemopen(text, size, "w");

	assert_non_null(f);
	sim_config_print(&config, f);
	fclose(f);
}

static void test_printed_reads_back(void **state)
{
	static char first[4096], second[4096];

	parse(BUSY "--at='2.7s device=1,max_bytes=1M,strict,min_ratio=3' "
		   "--seed=18446744073709551615 "
		   "--expire=77 --writeback=0 --copy=123456789 --background=1000001 "
		   "--device=33333333.25,smr=1M/2s,cache=5000,prior=7M,overhead=0,step=1M@2s");
	print(first, sizeof(first));
	parse(first);
	print(second, sizeof(second));
	assert_string_equal(first, second);
	uint64_t hash = run(first);
	assert_true(hash == run(second));
}

/* ---- devices are as fast as they say ---- */

#define ONE "sim --writers=4 --request=128K --limit=20M --seconds=20s --warmup=4s "

static void test_constant(void **state)
{
	assert_near(written_mib(ONE "--device=50M,overhead=0"), 16 * 50, 0.005);
	assert_near(result.throughput, 1, 0.002);
	/* Half of the time of a request goes away. */
	written_mib(ONE "--device=50M,overhead=5000");
	double request_s = (double)result.device[0].written_pages * SIM_PAGE / 52428800 /
		(double)result.device[0].requests;
	assert_near(
		result.device[0].bytes_per_s, 52428800 * request_s / (request_s + 0.005), 0.01);
	assert_near(result.throughput, 1, 0.01);
}

static void test_varying(void **state)
{
	assert_near(
		written_mib(ONE "--device=50M,overhead=0,step=5M@12s"), 8 * 50 + 8 * 5, 0.02);
	assert_near(written_mib(ONE "--device=20M,overhead=0,stall=5s@10s"), 11 * 20, 0.02);
	assert_near(written_mib(ONE "--device=20M,overhead=0,stall=1s@4s/4s"), 12 * 20, 0.02);
	assert_near(
		written_mib(ONE "--device=20M,overhead=0,noise=0.5,noise_ms=10ms,noise_rho=0"),
		16 * 20, 0.05);
	assert_near(written_mib(ONE "--device=100M,overhead=0,smr=100M/1s"), 16 * 50, 0.15);
	assert_near(written_mib(ONE "--device=20M,overhead=0,cache=4M"), 16 * 20, 0.01);
	assert_near(written_mib(ONE "--device=20M,overhead=0,burst=5"), 16 * 20, 0.02);
}

static void test_seeks(void **state)
{
	written_mib(ONE "--device=50M,overhead=0,seek=5..5ms,rot=3ms,near=0");
	double seek_s = (double)result.device[0].seeks * 0.008;
	double transfer_s = (double)result.device[0].written_pages * SIM_PAGE / 52428800;
	assert_true(result.device[0].seeks > 10);
	assert_near(seek_s + transfer_s, 16, 0.02);
}

/* ---- syncs, drains, writers that end ---- */

static void test_sync(void **state)
{
	run("sim --writers=10 --request=4K --limit=20M --seconds=10s --warmup=1s --device=20M "
	    "--at='5s sync' --at='5.1s sync'");
	assert_int_equal(result.nr_syncs, 2);
	const struct sim_sync_result *s = &result.syncs[0];
	assert_true(s->took_us < 2000000);
	assert_true(s->written >= s->dirty + s->in_flight);
	assert_true(result.syncs[1].took_us != UINT64_MAX);
}

static void test_finite(void **state)
{
	run("sim --writer=5xgreedy,64K,total=3M --limit=100M --seconds=2s --warmup=0s --drain "
	    "--device=5M");
	assert_int_equal(result.spec[0].bytes, 5 * 3 * 1048576);
	assert_int_equal(result.spec[0].ended, 5);
	/* Below the background but for a start: a device that has earned no share yet. */
	assert_near(result.drained_us / 1e6, 3, 0.1);
}

static void test_truncate(void **state)
{
	run("sim --writer=greedy,64K,total=10M --limit=100M --background=90M --seconds=2s "
	    "--warmup=0s --drain --device=5M --at='1s truncate=1000000'");
	assert_true(result.device[0].written_pages < 2560 / 10);
}

/* ---- input ---- */

static void test_refused(void **state)
{
	static const char *const lines[][2] = {
		{"sim", "writers: 0 is not within 1..10000"},
		{"sim --writers=1 --device=0", "speed: 0 is not within 1.."},
		{"sim --writers=1 --limit=5000T", "limit: 5000T is not within 0.."},
		{"sim --writers=1 --limit=8M --background=8M", "is not below the limit"},
		{"sim --writers=1 --request=2M",
			"request: 2M is not within 4096..1048576 bytes"},
		{"sim --writers=1 --request=5000", "is not a multiple of 4096 bytes"},
		{"sim --writers=10001", "writers: 10001 is not within"},
		{"sim --writer=greedy,dev=1", "dev: 1 is not within 0..0"},
		{"sim --writer=6000xgreedy --writer=6000xgreedy",
			"12000 is not within 1..10000"},
		{"sim --writers=1 --device=50M,seek=9..2", "seek: 9 is not within"},
		{"sim --writers=1 --device=50M,stall=5s@1s/2s", "stall every: 2 is not within"},
		{"sim --writers=1 --device=50M,min_ratio=60 --device=50M,min_ratio=60",
			"of 120"},
		{"sim --writers=1 --seconds=20s", "warmup: 20 s is not below"},
		{"sim --writers=1 --at='1s limit=0'", "limit: 0 is not within"},
		{"sim --writers=1 --at='1s law=fast'", "none of linux, pace"},
		{"sim --writers=1 --device=50M,speed=3", "there is no 'speed'"},
		{"sim --writers=1 --color=red", "there is no option --color"},
		{"sim --writers=1 --seed=-1", "seed: '-1' is not within"},
	};

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		char message[400] = "";
		int ret = sim_config_parse(&config, lines[i][0], message, sizeof(message));
		if (ret == 0)
			ret = sim_config_check(&config, message, sizeof(message));
		if (ret == 0 || !strstr(message, lines[i][1]))
			fail_msg("%s: %d, '%s'", lines[i][0], ret, message);
	}
}

static void test_odd_limits(void **state)
{
	static const char *const limits[] = {
		"0", "1", "4096", "8192", "12288", "28672", "4096T"};
	static const char *const speeds[] = {"1", "4096", "40000M"};
	char line[200];

	for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
		for (size_t k = 0; k < sizeof(speeds) / sizeof(speeds[0]); k++)
			for (int law = 0; law < THROTTLE_NR_LAWS; law++) {
				snprintf(line, sizeof(line),
					"sim --law=%s --limit=%s --device=%s --writers=3 "
					"--seconds=3s --warmup=0s",
					throttle_law_name((enum throttle_law)law), limits[i],
					speeds[k]);
				run(line);
				assert_true(isfinite(result.throughput));
				assert_true(isfinite(result.mean_position));
				assert_true(isfinite(result.ratelimit_error));
				assert_true(result.spec[0].bytes > 0);
			}
}

/* ---- each invariant is seen failing ---- */

#define TIGHT                                                                                  \
	"sim --limit=1M --seconds=3s --warmup=1s --device=10M,max_bytes=900K --writers=20 "    \
	"--request=64K --seed=3"
#define STRICT                                                                                 \
	"sim --limit=8M --seconds=3s --warmup=1s --device=10M,max_ratio=5,strict "             \
	"--writers=20 "                                                                        \
	"--request=64K"
/* Device 1 gives up while device 0 goes on. */
#define BESIDE                                                                                 \
	"sim --limit=1M --seconds=3s --warmup=1s --device=10M --device=5M --writers=20 "       \
	"--request=64K"

static const struct {
	const char *fault, *line, *message;
} faults[] = {
	{"gate", "sim --limit=1M --seconds=3s --warmup=1s --writers=20 --request=64K",
		"above the limit of 256"},
	{"gate without cap", TIGHT, "device 0 dirty 226 above its limit of 225"},
	{"gate without share", STRICT, "strict device 0 dirty"},
	{"NaN", TIGHT, "of a verdict on device 0 is"},
	{"rates", TIGHT, "bandwidth inf"},
	{"long pause", TIGHT, "a pause of 200001 us"},
	{"order", TIGHT, "are out of order"},
	{"flusher", TIGHT, "writers of device 0 wait for admission and none of its"},
	{"flusher of device 1", BESIDE, "writers of device 1 wait for admission and none of"},
	{"closed gate", TIGHT, "wait for admission and nothing is in flight"},
	{"written", TIGHT, "is not written"},
	{"dirtied", TIGHT, "dirtied is"},
	{"writeback", TIGHT, "pages in writeback"},
	{"domain", TIGHT, "its devices:"},
	{"file", TIGHT, "a file with "},
	{"unclean", TIGHT, "counted"},
	{"tags", TIGHT, "tagged"},
	{"blocked", TIGHT, "blocked and"},
	{"queue", TIGHT, "requests queued, the pacer says"},
	{"requests", TIGHT, "in flight, it says"},
	{"list", TIGHT, "a file on list"},
	{"writers", TIGHT, "writers, "},
	{"clock", TIGHT, "time goes back"},
	{"timer", TIGHT, "the heap of timers is out of order"},
	{"timers", TIGHT, "the heap of timers is out of order"},
	{"deadline", TIGHT, "a reply is held until"},
	{"early reply", TIGHT, "before its deadline"},
	{"lost reply", TIGHT, "of them write"},
	{"heap", TIGHT, "the heap of held replies is out of order"},
};

static void test_faults(void **state)
{
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		parse(faults[i].line);
		fault = faults[i].fault;
		calls = 0;
		int ret = sim_run(&config, &result);
		sim_result_free(&result);
		if (ret != -EILSEQ || !strstr(result.message, faults[i].message))
			fail_msg("%s: %d '%s'", fault, ret, result.message);
		fault = "";
		run(faults[i].line);
	}
}

/* ---- what a swarm draws is judged ---- */

enum { DRAWN = 100, NOTICED_LEAST = 15 };

static unsigned nr_starved; /* cases in which a writer was */

/* No message: all is well. */
static bool judged_well(struct sim_random random, const char *broken)
{
	fault = broken;
	calls = 0;
	starved = NULL;
	sim_swarm_draw(&random, &config);
	config.drain = config.drain && !*broken; /* it would never end */
	if (sim_run(&config, &result) == 0)
		sim_judge(&config, &result);
	bool well = !result.message[0];
	if (!well && !*broken)
		fail_msg("%s", result.message);
	if (!well && !strstr(result.message, "stood for"))
		fail_msg("%s: %s", broken, result.message);
	sim_result_free(&result);
	fault = "";
	nr_starved += starved != NULL;
	starved = NULL;
	return well;
}

/* A writer that is never let go again is noticed, if it is there for long enough. */
static void test_judge_starved(void **state)
{
	struct sim_random random = sim_random_make(1, 7);
	unsigned noticed = 0;

	for (unsigned i = 0; i < DRAWN; i++) {
		assert_true(judged_well(random, ""));
		noticed += !judged_well(random, "starved writer");
		sim_swarm_draw(&random, &config);
	}
	print_message("%u starved writers, %u noticed\n", nr_starved, noticed);
	assert_true(noticed >= NOTICED_LEAST);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_seed),
		cmocka_unit_test(test_trajectory_changes_nothing),
		cmocka_unit_test(test_printed_reads_back),
		cmocka_unit_test(test_constant),
		cmocka_unit_test(test_varying),
		cmocka_unit_test(test_seeks),
		cmocka_unit_test(test_sync),
		cmocka_unit_test(test_finite),
		cmocka_unit_test(test_truncate),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_odd_limits),
		cmocka_unit_test(test_faults),
		cmocka_unit_test(test_judge_starved),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
