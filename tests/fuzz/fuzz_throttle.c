/* fuzz_throttle.c - any calls in any order, with any numbers: the law stays within its bounds.
 *
 * The bytes of an input are a program: each operation changes the sample, lets time pass or
 * calls one function of throttle.h. Nothing is asked of the samples; they contradict each
 * other, the limits and what was admitted. After each operation all that came back and all
 * states must be finite and within what throttle.h promises.
 */
#include "tests/fuzz/fuzz.h"

#include "throttle/throttle.h"

#include <float.h>

enum {
	DEVICES = 2,
	WRITERS = 3,
	OPERATIONS = 400,   /* of one input, so that it takes less than a millisecond or two */
	AGAIN_STEPS = 1000, /* the same */
};

#define CLOCK_US_MOST ((uint64_t)1 << 52) /* a monotonic clock starts at 0: 142 years */
#define PAGES_MOST 1e18 /* THROTTLE_NO_CAP: nothing that is counted comes near */

struct world {
	struct throttle_domain dom;
	struct throttle_device dev[DEVICES];
	struct throttle_sample s[DEVICES];
	struct throttle_writer w[WRITERS];
	unsigned device_of[WRITERS];
	bool again[WRITERS]; /* its last verdict said so */
	unsigned again_steps;
};

/* Pages, rates and ratios. */
static double input_number(struct input *in)
{
	static const double special[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 0.5, 1e-9, DBL_MIN,
		DBL_TRUE_MIN, 1 - DBL_EPSILON, 1 + DBL_EPSILON, 0x1p31, 0x1p32 - 1, 0x1p32,
		0x1p40, 0x1p53, PAGES_MOST, PAGES_MOST / 2, -0.0, -1, -1e-9, -0x1p40,
		-PAGES_MOST};
	enum { NR = sizeof(special) / sizeof(special[0]) };
	uint8_t tag = input_byte(in);

	if (tag < NR)
		return special[tag];
	if (tag < 128) /* whole numbers as a rule */
		return (double)input_bytes(in, 1 + tag % 5);
	return fmin(ldexp((double)input_bytes(in, 2), tag % 64 - 16), PAGES_MOST);
}

static uint64_t input_elapsed_us(struct input *in)
{
	static const uint64_t special[] = {0, 1, 999, 1000, 49999, 50000, 100000, 149999,
		150000, 199999, 200000, 999999, 1000000, 1000001, 2000000, 3000000, 4096000,
		192000000};
	enum { NR = sizeof(special) / sizeof(special[0]) };
	uint8_t tag = input_byte(in);

	return tag < NR ? special[tag] : tag < 192 ? tag * 1000u : input_integer(in);
}

/* ---- what must hold ---- */

static void check_range(const char *name, double x, double lo, double hi)
{
	CHECK(x >= lo && x <= hi, "%s is %g", name, x); /* a NaN is not */
}

#define RANGE(x, lo, hi) check_range(#x, x, lo, hi)
#define FINITE(x) RANGE(x, -DBL_MAX, DBL_MAX)
#define COUNT(x) RANGE(x, 0, DBL_MAX)

static void check_device(const struct throttle_device *dev)
{
	COUNT(dev->completions);
	COUNT(dev->write_bandwidth);
	RANGE(dev->avg_write_bandwidth, 1, DBL_MAX);
	COUNT(dev->busy_s);
	COUNT(dev->busy_pages);
	RANGE(dev->dirty_ratelimit, DBL_MIN, DBL_MAX);
	COUNT(dev->balanced_dirty_ratelimit);
	RANGE(dev->stagger, 0, 1);
	FINITE(dev->cap_limit);
}

static void check_writer(const struct throttle_writer *w, uint64_t now_us)
{
	COUNT(w->nr_dirtied);
	COUNT(w->nr_dirtied_pause);
	COUNT(w->nr_charged);
	COUNT(w->nr_held);
	COUNT(w->rate);
	COUNT(w->rate_pages);
	CHECK(w->paused_when_us <= now_us + THROTTLE_MAX_PAUSE_US, "it is held until %llu",
		(unsigned long long)w->paused_when_us);
}

static void check_states(const struct world *m)
{
	uint64_t now_us = m->s[0].now_us;

	FINITE(m->dom.dirty_limit);
	RANGE(m->dom.completions, 1, DBL_MAX);
	CHECK(m->dom.period_start_us <= now_us && m->dom.limit_stamp_us <= now_us, "stamps");
	for (unsigned i = 0; i < DEVICES; i++)
		check_device(&m->dev[i]);
	for (unsigned i = 0; i < WRITERS; i++)
		check_writer(&m->w[i], now_us);
}

static void check_thresholds(const struct throttle_thresholds *t)
{
	COUNT(t->thresh);
	COUNT(t->bg_thresh);
	CHECK(t->bg_thresh < t->thresh || (t->thresh == 0 && t->bg_thresh == 0),
		"background %g, threshold %g", t->bg_thresh, t->thresh);
}

static void check_pause(const struct throttle_verdict *v)
{
	bool held = v->kind == THROTTLE_PAUSE || v->kind == THROTTLE_BLOCKED;

	CHECK(v->kind >= THROTTLE_FREERUN && v->kind <= THROTTLE_BLOCKED, "%d", (int)v->kind);
	CHECK(v->pause_us <= THROTTLE_MAX_PAUSE_US, "%llu", (unsigned long long)v->pause_us);
	CHECK(held ? v->pause_us > 0 : v->pause_us == 0, "kind %d, pause %llu", (int)v->kind,
		(unsigned long long)v->pause_us);
	CHECK(held || !v->again, "kind %d", (int)v->kind);
	RANGE(v->max_pause_us, 0, THROTTLE_MAX_PAUSE_US);
	RANGE(v->min_pause_us, 0, v->max_pause_us);
	COUNT(v->period_us);
	FINITE(v->think_us);
	COUNT(v->nr_dirtied);
	COUNT(v->nr_dirtied_pause);
}

static void check_verdict(const struct throttle_verdict *v)
{
	check_pause(v);
	check_thresholds(
		&(struct throttle_thresholds){.thresh = v->thresh, .bg_thresh = v->bg_thresh});
	RANGE(v->dirty_limit, fmax(v->thresh, 1), DBL_MAX);
	RANGE(v->freerun, v->bg_thresh, v->thresh);
	RANGE(v->setpoint, v->freerun, v->dirty_limit);
	COUNT(v->wb_thresh);
	RANGE(v->wb_bg_thresh, 0, v->wb_thresh);
	COUNT(v->wb_setpoint);
	RANGE(v->pos_ratio, 0, 16);
	RANGE(v->dirty_ratelimit, DBL_MIN, DBL_MAX);
	COUNT(v->task_ratelimit);
	COUNT(v->balanced_dirty_ratelimit);
}

/* For whoever looks at a crash: PACEFS_FUZZ_VERBOSE=1 with the input. */
static void tell(const struct world *m, unsigned w, const struct throttle_verdict *v)
{
	const struct throttle_sample *s = &m->s[m->device_of[w]];
	const struct throttle_device *dev = &m->dev[m->device_of[w]];

	if (!getenv("PACEFS_FUZZ_VERBOSE"))
		return;
	fprintf(stderr,
		"%llu us: %s: dirty %g of %g (background %g, limit %g), device %g of %g, "
		"cap %g, strict %d, bandwidth %g\n"
		"\twriter %u: %g pages (next look at %g, request of %g), t0 %llu: kind %d, "
		"pause %llu, again %d, pos_ratio %g, ratelimit %g * %g, think %g, period %g, "
		"pause %g..%g\n",
		(unsigned long long)s->now_us, throttle_law_name(m->dom.law), s->dirty,
		v->thresh, v->bg_thresh, v->dirty_limit, s->wb_dirty, v->wb_thresh,
		s->cap_thresh, s->strict_limit, dev->avg_write_bandwidth, w, v->nr_dirtied,
		v->nr_dirtied_pause, m->w[w].nr_charged,
		(unsigned long long)m->w[w].paused_when_us, (int)v->kind,
		(unsigned long long)v->pause_us, v->again, v->pos_ratio, v->dirty_ratelimit,
		v->task_ratelimit / v->dirty_ratelimit, v->think_us, v->period_us,
		v->min_pause_us, v->max_pause_us);
}

/* ---- operations ---- */

static void pass_time(struct world *m, uint64_t elapsed_us)
{
	for (unsigned i = 0; i < DEVICES; i++)
		m->s[i].now_us += elapsed_us;
}

static void pass_some_time(struct world *m, struct input *in)
{
	uint64_t elapsed_us = input_elapsed_us(in);

	if (elapsed_us < CLOCK_US_MOST - m->s[0].now_us)
		pass_time(m, elapsed_us);
}

static void change_sample(struct throttle_sample *s, struct input *in)
{
	double *const numbers[] = {&s->dirty, &s->reclaimable, &s->thresh, &s->bg_thresh,
		&s->wb_dirty, &s->wb_reclaimable, &s->cap_thresh, &s->min_ratio, &s->max_ratio,
		&s->nr_writers, &s->nr_throttled, &s->unthrottled_rate, &s->sum_min_ratio};
	enum { NR = sizeof(numbers) / sizeof(numbers[0]) };
	unsigned field = input_below(in, NR + 5);

	if (field < NR) {
		*numbers[field] = input_number(in);
		return;
	}
	switch (field - NR) {
	case 0:
		s->wb_written += input_integer(in) / 2;
		break;
	case 1:
		s->wb_busy_us += input_elapsed_us(in);
		break;
	case 2: /* may step back */
		s->wb_dirtied = input_integer(in);
		break;
	case 3:
		s->strict_limit = !s->strict_limit;
		break;
	default:
		s->cap_thresh = THROTTLE_NO_CAP;
		break;
	}
}

/* Counters and thresholds as a mount could have them, to get to where it matters quickly. */
static void make_plausible(struct world *m, struct input *in)
{
	struct throttle_sample *s = m->s;
	double limit = ldexp(1 + input_below(in, 16), (int)input_below(in, 24));
	double dirty = floor(limit * input_byte(in) / 240);

	for (unsigned i = 0; i < DEVICES; i++) {
		s[i].thresh = limit;
		s[i].bg_thresh = limit / 2;
		s[i].dirty = dirty;
		s[i].reclaimable = floor(dirty / 2);
		s[i].wb_dirty = floor(dirty * input_byte(in) / 255);
		s[i].wb_reclaimable = floor(s[i].wb_dirty / 2);
		s[i].cap_thresh = THROTTLE_NO_CAP;
		s[i].max_ratio = 1;
		s[i].min_ratio = 0;
		s[i].sum_min_ratio = 0;
		s[i].nr_writers = WRITERS;
		s[i].nr_throttled = input_below(in, WRITERS + 1);
		s[i].unthrottled_rate = 0;
	}
}

static void set_knobs(struct world *m, struct input *in)
{
	struct throttle_knobs knobs = {0};

	if (input_byte(in) & 1)
		knobs.dirty_bytes = input_bytes(in, 8);
	else
		knobs.dirty_ratio = input_number(in);
	if (input_byte(in) & 1)
		knobs.dirty_background_bytes = input_bytes(in, 8);
	else
		knobs.dirty_background_ratio = input_number(in);
	struct throttle_thresholds t = throttle_domain_thresholds(&knobs, input_number(in));
	check_thresholds(&t);
	for (unsigned i = 0; i < DEVICES; i++) {
		m->s[i].thresh = t.thresh;
		m->s[i].bg_thresh = t.bg_thresh;
	}
}

static double admit(struct world *m, unsigned d, struct input *in)
{
	const struct throttle_sample *s = &m->s[d];
	double want = input_number(in), reserved = input_byte(in) & 1 ? input_number(in) : 0;
	unsigned nr_writers = (unsigned)input_bytes(in, 2);
	double limit = fmax(fmax(m->dom.dirty_limit, s->thresh), 1);
	double cap = s->cap_thresh < THROTTLE_NO_CAP
		? fmax(fmax(m->dev[d].cap_limit, s->cap_thresh), 1)
		: THROTTLE_NO_CAP;
	bool queued = input_byte(in) & 1;
	double n = throttle_admissible(
		&m->dom, &m->dev[d], s, want, reserved, nr_writers ? nr_writers : 1, queued);

	RANGE(n, 0, fmax(want, 0));
	CHECK(floor(n) == n, "%g pages", n);
	if (n > 0) {
		CHECK(s->dirty + reserved + n <= limit, "%g of %g", n, limit - s->dirty);
		CHECK(s->wb_dirty + reserved + n <= cap, "%g of %g", n, cap - s->wb_dirty);
	} else if (want >= 1 && s->dirty <= 0 && s->wb_dirty <= 0 && reserved <= 0) {
		CHECK(n >= 1, "nothing is dirty, and %g of %g pages may not become so", want,
			limit);
	}
	return n;
}

static void judged(struct world *m, unsigned w, const struct throttle_verdict *v)
{
	tell(m, w, v);
	check_verdict(v);
	m->again[w] = v->again;
}

/* So many of the longest pauses a request is held for, whatever its rate. Said here once more: a
 * check must not follow what it checks. */
static double pauses_max(enum throttle_law law)
{
	return law == THROTTLE_PACE ? 1024 : 32;
}

/* Hold the writer for as long as it is told to. All it owes is paid at least at the pace at
 * which the last page is on time: nobody is held for ever. */
static void hold(struct world *m, unsigned w, struct throttle_verdict *v)
{
	unsigned d = m->device_of[w];
	double began_with = m->w[w].nr_dirtied;

	for (; v->again && m->again_steps < AGAIN_STEPS; m->again_steps++) {
		double owed = m->w[w].nr_dirtied;

		pass_time(m, v->pause_us);
		throttle_balance_again(&m->dom, &m->dev[d], &m->w[w], &m->s[d], v);
		judged(m, w, v);
		if (!v->again)
			break;
		double share =
			(double)v->pause_us / THROTTLE_MAX_PAUSE_US / pauses_max(m->dom.law);
		CHECK(owed - m->w[w].nr_dirtied >= 0.99 * began_with * share,
			"it is held for ever: %g pages of %g left, %g/s, a pause of %llu us "
			"pays %g",
			m->w[w].nr_dirtied, began_with, v->task_ratelimit,
			(unsigned long long)v->pause_us, owed - m->w[w].nr_dirtied);
	}
}

static void write_pages(struct world *m, struct input *in)
{
	struct throttle_verdict v;
	unsigned w = input_below(in, WRITERS), d = m->device_of[w];
	uint8_t how = input_byte(in);
	double pages = how & 1 ? admit(m, d, in) : floor(input_number(in)); /* whole ones */
	double request = how & 2 ? input_number(in) : pages;

	throttle_balance(&m->dom, &m->dev[d], &m->w[w], &m->s[d], pages, request, &v);
	judged(m, w, &v);
	if (how & 4)
		m->s[d].dirty += pages;
	if (how & 8)
		hold(m, w, &v);
}

static void write_again(struct world *m, struct input *in)
{
	struct throttle_verdict v;
	unsigned w = input_below(in, WRITERS), d = m->device_of[w];

	if (!m->again[w])
		return;
	throttle_balance_again(&m->dom, &m->dev[d], &m->w[w], &m->s[d], &v);
	judged(m, w, &v);
}

static void complete(struct world *m, unsigned d, struct input *in)
{
	struct throttle_sample *s = &m->s[d];
	double pages = fmax(input_number(in), 0);

	if (pages < 0x1p40)
		s->wb_written += (uint64_t)pages;
	throttle_completed(&m->dom, &m->dev[d], pages, s->max_ratio, s->now_us);
}

static void limits_changed(struct world *m, unsigned d)
{
	const struct throttle_sample *s = &m->s[d];

	throttle_limits_changed(&m->dom, &m->dev[d], s);
	RANGE(m->dom.dirty_limit, s->thresh, fmax(s->thresh, s->dirty));
}

/* Functions that change nothing. */
static void look(struct world *m, unsigned d, struct input *in)
{
	const struct throttle_sample *s = &m->s[d];
	const struct throttle_device *dev = &m->dev[d];
	const struct throttle_writer *w = &m->w[input_below(in, WRITERS)];
	struct throttle_thresholds wb = throttle_device_thresholds(&m->dom, dev, s);
	double target = throttle_background_target(&m->dom, dev, s);

	COUNT(wb.thresh);
	RANGE(wb.bg_thresh, 0, wb.thresh);
	COUNT(target);
	CHECK(throttle_over_background(&m->dom, dev, s) == (s->wb_reclaimable > target),
		"%g pages, target %g", s->wb_reclaimable, target);
	RANGE(throttle_confidence(dev), 0, 1);
	RANGE(throttle_reference_bandwidth(dev, input_number(in)), 1, DBL_MAX);
	COUNT(throttle_writer_rate_now(w, s->now_us));
	throttle_is_small(dev, s->nr_writers, w->rate, input_number(in));
}

static void operate(struct world *m, struct input *in)
{
	uint8_t op = input_byte(in);
	unsigned d = op >> 4 & 1;

	switch (op & 15) {
	case 0:
		pass_some_time(m, in);
		break;
	case 1:
	case 2:
		change_sample(&m->s[d], in);
		break;
	case 3:
		make_plausible(m, in);
		break;
	case 4:
		set_knobs(m, in);
		break;
	case 5:
		m->dom.law = (enum throttle_law)input_below(in, THROTTLE_NR_LAWS);
		break;
	case 6:
		throttle_device_init(&m->dev[d], input_number(in), m->s[d].now_us);
		break;
	case 7:
		throttle_writer_init(&m->w[input_below(in, WRITERS)]);
		break;
	case 8:
		complete(m, d, in);
		break;
	case 9:
		throttle_tick(&m->dom, &m->dev[d], &m->s[d]);
		break;
	case 10:
		limits_changed(m, d);
		break;
	case 11:
		throttle_device_removed(&m->dom, &m->dev[d], m->s[d].now_us);
		break;
	case 12:
		look(m, d, in);
		break;
	case 13:
		write_again(m, in);
		break;
	default:
		write_pages(m, in);
		break;
	}
	check_states(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, data + size};
	struct world m = {0};

	pass_some_time(&m, &in);
	throttle_domain_init(&m.dom, m.s[0].now_us);
	m.dom.law = (enum throttle_law)input_below(&in, THROTTLE_NR_LAWS);
	for (unsigned i = 0; i < DEVICES; i++)
		throttle_device_init(&m.dev[i], input_number(&in), m.s[0].now_us);
	for (unsigned i = 0; i < WRITERS; i++) {
		throttle_writer_init(&m.w[i]);
		m.device_of[i] = i % DEVICES;
	}
	make_plausible(&m, &in);
	for (unsigned i = 0; i < OPERATIONS && in.at < in.end; i++)
		operate(&m, &in);
	return 0;
}
