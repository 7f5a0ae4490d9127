/* decision.c - what one decision of a law costs: throttle_admissible() and throttle_balance(),
 * with the samples a mount would have. See usage().
 *
 * Ten writers of 128 KiB requests on a disk of 50 MB/s, in virtual time: dirty pages, pauses,
 * completions and ticks act on each other as they do in a mount, so the branches taken are the
 * usual ones. Only decide() is what is asked about; what goes on around it is a dozen
 * operations, which the time contains and a count of its instructions does not.
 */
#include <err.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "throttle/throttle.h"

enum {
	WRITERS = 10,
	BATCH = 20000, /* decisions timed together: some milliseconds */
	BATCHES = 31,  /* the median of them is what is told */
};

#define REQUEST_PAGES 32.0
#define DISK_PAGES_PER_S 12800.0 /* 50 MiB/s */
#define LIMIT_PAGES 25600.0	 /* 100 MiB */
#define CAP_PAGES 25600.0	 /* 2 s of the disk, as by default */
#define COPY_US 100		 /* between a reply and the next request */

/* One kind of decision. Freerun: the writers themselves ask for no more than the disk can. */
struct kind {
	const char *name;
	double thresh, cap, start_dirty;
	uint64_t think_us;
	bool held; /* else freerun: nearly all of its verdicts must be so */
};

static const struct kind kinds[] = {
	{"freerun", LIMIT_PAGES, THROTTLE_NO_CAP, 0, 26000, false},
	{"held", LIMIT_PAGES, THROTTLE_NO_CAP, LIMIT_PAGES * 7 / 8, COPY_US, true},
	/* the device's own limit is the lower one: two budgets to look at */
	{"capped", LIMIT_PAGES * 4, CAP_PAGES, CAP_PAGES * 7 / 8, COPY_US, true},
};
enum { NR_KINDS = sizeof(kinds) / sizeof(kinds[0]) };

struct mount {
	const struct kind *kind;
	struct throttle_domain dom;
	struct throttle_device dev;
	struct throttle_writer writers[WRITERS];
	uint64_t next_us[WRITERS]; /* of each its next request */
	unsigned turn;
	struct throttle_sample s;
	double written, dirtied; /* pages so far */
	uint64_t tick_us;
	unsigned long held;
};

static void mount_init(struct mount *m, enum throttle_law law, const struct kind *kind)
{
	*m = (struct mount){
		.kind = kind,
		.s = {.now_us = 1000000,
			.dirty = kind->start_dirty,
			.thresh = kind->thresh,
			.bg_thresh = kind->thresh / 2,
			.cap_thresh = kind->cap,
			.max_ratio = 1,
			.nr_writers = WRITERS,
			.nr_throttled = kind->held ? WRITERS : 0},
	};
	throttle_domain_init(&m->dom, m->s.now_us);
	throttle_device_init(&m->dev, DISK_PAGES_PER_S, m->s.now_us);
	m->dom.law = law;
	m->dev.dirty_ratelimit = DISK_PAGES_PER_S / WRITERS;
	for (unsigned i = 0; i < WRITERS; i++) {
		throttle_writer_init(&m->writers[i]);
		m->next_us[i] = m->s.now_us + i * 1000;
	}
}

/* Time goes on to when the writer wants to write: the disk has written meanwhile. */
static void pass(struct mount *m, uint64_t to_us)
{
	struct throttle_sample *s = &m->s;
	uint64_t elapsed_us = to_us > s->now_us ? to_us - s->now_us : 0;
	double done = DISK_PAGES_PER_S * (double)elapsed_us / 1e6;

	if (done > s->dirty)
		done = s->dirty;
	m->written += done;
	s->now_us += elapsed_us;
	s->dirty -= done;
	s->reclaimable = s->dirty / 2;
	s->wb_dirty = s->dirty;
	s->wb_reclaimable = s->reclaimable;
	s->wb_written = (uint64_t)m->written;
	s->wb_dirtied = (uint64_t)m->dirtied;
	s->wb_busy_us += elapsed_us;
	if (s->now_us < m->tick_us)
		return;
	m->tick_us = s->now_us + THROTTLE_TICK_US;
	throttle_completed(&m->dom, &m->dev, DISK_PAGES_PER_S / 10, 1, s->now_us);
	throttle_tick(&m->dom, &m->dev, s);
}

/* A function of its own, by this name: it is what callgrind counts. */
double decide(struct mount *m, struct throttle_writer *w, struct throttle_verdict *ret_verdict);
__attribute__((noinline)) double decide(
	struct mount *m, struct throttle_writer *w, struct throttle_verdict *ret_verdict)
{
	double admitted =
		throttle_admissible(&m->dom, &m->dev, &m->s, REQUEST_PAGES, 0, WRITERS, false);

	throttle_balance(&m->dom, &m->dev, w, &m->s, admitted, REQUEST_PAGES, ret_verdict);
	return admitted;
}

static void run(struct mount *m, unsigned long count)
{
	struct throttle_verdict v;

	while (count-- != 0) {
		unsigned i = m->turn++ % WRITERS;
		double admitted;

		pass(m, m->next_us[i]);
		admitted = decide(m, &m->writers[i], &v);
		m->s.dirty += admitted;
		m->dirtied += admitted;
		m->next_us[i] = m->s.now_us + v.pause_us + m->kind->think_us;
		m->held += v.kind != THROTTLE_FREERUN;
	}
}

/* The measure of a compiler's work: arithmetic of the same sort, which does not change. */
double reference(const double *x, unsigned n);
__attribute__((noinline)) double reference(const double *x, unsigned n)
{
	double sum = 0, low = 1, high = 1e9;

	for (unsigned i = 0; i < n; i++) {
		double limit = x[i] > low ? x[i] : low;
		double e = (limit - sum) / (limit + 1);

		if (e > 1)
			e = 1;
		if (e < -1)
			e = -1;
		sum += limit * (1 + e * e * e) / 8;
		if (sum > high)
			sum = high;
		low += 0.5;
	}
	return sum;
}

static void run_reference(unsigned long count)
{
	enum { TERMS = 100 };
	double x[TERMS];
	static volatile double sink;

	for (unsigned i = 0; i < TERMS; i++)
		x[i] = (i * 37 + 11) % 101;
	while (count-- != 0)
		sink = reference(x, TERMS);
	(void)sink;
}

/* ---- the two ways to measure ---- */

/* The case is what it is called, or the figure is none of it. */
static void expect_kind(const struct mount *m)
{
	double share = (double)m->held / m->turn;

	if (m->kind->held ? share < 0.95 : share > 0.05)
		errx(1, "%s, %s: %.0f %% of the verdicts are not freerun",
			throttle_law_name(m->dom.law), m->kind->name, share * 100);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void measure(enum throttle_law law, const struct kind *kind)
{
	double ns[BATCHES];
	struct mount m;

	mount_init(&m, law, kind);
	run(&m, BATCH);
	for (unsigned i = 0; i < BATCHES; i++) {
		double start = cpu_ns();

		run(&m, BATCH);
		ns[i] = (cpu_ns() - start) / BATCH;
	}
	expect_kind(&m);
	qsort(ns, BATCHES, sizeof(ns[0]), by_value);
	printf("law=%s case=%s ns=%.1f least_ns=%.1f dirty=%.0f\n", throttle_law_name(law),
		kind->name, ns[BATCHES / 2], ns[0], m.s.dirty);
}

static void count_only(enum throttle_law law, const struct kind *kind, unsigned long count)
{
	struct mount m;

	mount_init(&m, law, kind);
	run(&m, count);
	expect_kind(&m);
	printf("law=%s case=%s decisions=%lu\n", throttle_law_name(law), kind->name, count);
}

static void usage(FILE *out)
{
	fputs("usage: decision [--count N] [--law NAME] [--case NAME]\n"
	      "\n"
	      "Times one decision of each law (linux, pace) in each case (freerun, held,\n"
	      "capped): ns= is the median of batches, in processor time of one thread.\n"
	      "\n"
	      "  --count N      no time: N decisions, for a tool that counts instructions\n"
	      "  --law NAME     this law only\n"
	      "  --case NAME    this case only; or reference, with --count: N times a loop of\n"
	      "                 100 steps of the same sort of arithmetic\n"
	      "  --about        how this program was built\n",
		out);
}

static void about(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__COVERAGE__)
	const char *checked = "yes";
#else
	const char *checked = "no";
#endif
#ifdef __OPTIMIZE__
	const char *optimized = "yes";
#else
	const char *optimized = "no";
#endif
	printf("optimized=%s checked=%s compiler=%s\n", optimized, checked, __VERSION__);
}

static void each_case(const char *law_name, const char *kind_name, unsigned long count)
{
	unsigned nr = 0;

	for (unsigned l = 0; l < THROTTLE_NR_LAWS; l++) {
		enum throttle_law law = (enum throttle_law)l;

		if (law_name && strcmp(law_name, throttle_law_name(law)) != 0)
			continue;
		for (unsigned k = 0; k < NR_KINDS; k++) {
			if (kind_name && strcmp(kind_name, kinds[k].name) != 0)
				continue;
			nr++;
			if (count)
				count_only(law, &kinds[k], count);
			else
				measure(law, &kinds[k]);
		}
	}
	if (!nr)
		errx(2, "there is no such law or case; --help shows them");
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"count", required_argument, NULL, 'n'},
		{"law", required_argument, NULL, 'l'},
		{"case", required_argument, NULL, 'c'},
		{"about", no_argument, NULL, 'a'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	const char *law_name = NULL, *kind_name = NULL;
	unsigned long count = 0;
	char *end;

	for (int opt; (opt = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
		switch (opt) {
		case 'n':
			count = strtoul(optarg, &end, 10);
			if (*end || count == 0 || count > 1000000000)
				errx(2, "--count=%s rejected: need 1..1000000000", optarg);
			break;
		case 'l':
			law_name = optarg;
			break;
		case 'c':
			kind_name = optarg;
			break;
		case 'a':
			about();
			return 0;
		default:
			usage(opt == 'h' ? stdout : stderr);
			return opt == 'h' ? 0 : 2;
		}
	}
	if (optind < argc) {
		usage(stderr);
		return 2;
	}
	if (count && kind_name && strcmp(kind_name, "reference") == 0)
		run_reference(count);
	else
		each_case(law_name, kind_name, count);
	return 0;
}
