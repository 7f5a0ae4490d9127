/* formulas.h - the single formulas of the law, one function each. Private to throttle/
 * and its unit test: everybody else calls throttle.h. Units as there; nothing here keeps
 * state.
 */
#ifndef PACEFS_THROTTLE_FORMULAS_H
#define PACEFS_THROTTLE_FORMULAS_H

#include "throttle/throttle.h"

#define SHARE_PERIOD_US 3000000ull /* half-life of the completion proportions */
/* Memory of the bandwidth filter: the kernel's 3 s, rounded up to a power of two of
 * ticks. */
#define BW_PERIOD_S 4.096
#define FAST_START_S 2.0	     /* busy time averaged plainly before the filter */
#define MIN_BUSY_S 0.05		     /* shorter samples are mostly granularity */
#define IDLE_CUT_US 1000000ull	     /* older stamps are restarted, not measured from */
#define TICK_US 1000.0		     /* the kernel's tick at 1000 Hz */
#define SCOPE 8.0		     /* the "one eighth" rules */
#define POLL_PAGES 32.0		     /* 128 KiB: first and smallest comfortable interval */
#define POLL_EXCEEDED_PAGES 8.0	     /* while the device is over its share */
#define POS_RATIO_MAX 16.0	     /* linux: cubic 2 x reserve 8 */
#define PACE_POS_MAX 4.0	     /* pace: no writer is let in faster than that */
#define PACE_POS_MIN 0.25	     /* pace: nobody is held to less, the gate is exact */
#define SLICE_PAGES 256.0	     /* largest slice while writers queue, 1 MiB */
#define EXEMPT_PAGES 16.0	     /* 64 KiB: largest request of a small writer */
#define PAUSES_MAX 32.0		     /* longest hold of one request */
#define PACE_PAUSES_MAX 1024.0	     /* pace: the same; the rate is never 0 there */
#define CREDIT_US 1000000.0	     /* unused time is forgotten after this much */
#define RATE_MIN_WINDOW_US 200000ull /* a rate is never judged over less */
#define RATE_TAU_S 1.0		     /* memory of a writer's own rate */
#define RATE_MIN_WEIGHT 0.18126924692201815 /* 1 - exp(-RATE_MIN_WINDOW / RATE_TAU) */

static inline double clamp(double x, double lo, double hi)
{
	return x < lo ? lo : x > hi ? hi : x;
}

/* Not fmax() and fmin(): those are calls. No number at all becomes the bound. */
static inline double at_least(double x, double lo)
{
	return x > lo ? x : lo;
}

static inline double at_most(double x, double hi)
{
	return x < hi ? x : hi;
}

static inline double us_to_s(double us)
{
	return us / 1e6;
}

/* now - then, 0 if then lies ahead. */
static inline uint64_t elapsed_us(uint64_t now_us, uint64_t then_us)
{
	return now_us > then_us ? now_us - then_us : 0;
}

/* One dirty budget as one device sees it: the domain, or the device's own cap. */
struct budget {
	enum throttle_law law;
	double thresh, bg_thresh, limit, dirty;
	double wb_thresh, wb_bg_thresh, wb_dirty;
	double proportion; /* what the device has earned of the domain, 0..1 */
	double avg_write_bandwidth;
	bool strict_limit;
	/* derived by throttle_budget_points() */
	double freerun, setpoint, wb_setpoint;
	bool below_freerun;
	/* derived by throttle_budget_position() */
	double pos_ratio;
	double task_ratio; /* what the base rate is multiplied with */
};

/* What differs between the laws. All the rest is common to both. */
struct law {
	const char *name;
	double (*curve)(double setpoint, double dirty, double limit);
	double pos_max;	   /* of the product of all factors */
	double pos_min;	   /* the base rate is multiplied with this at least */
	double pauses_max; /* that one request is held for */
	double debt_s;	   /* what a writer may owe besides its request, at its rate */
	/* Every THROTTLE_TICK_US, also when nobody writes; and at a decision about a writer
	 * who is held. Both may be NULL. */
	void (*tick)(struct throttle_device *dev, const struct throttle_sample *s);
	void (*held)(struct throttle_device *dev, const struct budget *b,
		const struct throttle_sample *s);
	double (*max_pause)(const struct budget *b); /* us */
	/* Is a request of pages held until all of it is paid, or for one pause? */
	bool (*charges)(const struct budget *b, const struct throttle_sample *s, double pages);
	/* What part of its first long hold a writer pays for. May be NULL. */
	double (*stagger)(struct throttle_device *dev);
	/* Largest slice that is admitted while writers queue, pages. May be NULL. */
	double (*slice)(const struct budget *b, const struct throttle_device *dev);
};

struct pause_bounds {
	double min_pause_us, max_pause_us;
	double nr_dirtied_pause; /* next poll interval, may be below 1 */
};

/* thresholds.c */
double throttle_effective_background(double thresh, double bg_thresh, double avg);
double throttle_hard_limit(const struct throttle_domain *dom, const struct throttle_sample *s);
double throttle_hard_cap(const struct throttle_device *dev, const struct throttle_sample *s);
double throttle_follow(double limit, double thresh, double dirty, double elapsed_s);
void throttle_follow_limits(struct throttle_domain *dom, struct throttle_device *dev,
	const struct throttle_sample *s);
/* Everything but the position. */
void throttle_budget_domain(struct budget *b, const struct throttle_domain *dom,
	const struct throttle_device *dev, const struct throttle_sample *s);
/* The same for the device's own limit. False: it has none. */
bool throttle_budget_cap(struct budget *b, const struct throttle_domain *dom,
	const struct throttle_device *dev, const struct throttle_sample *s);

/* share.c */
void throttle_age_domain(struct throttle_domain *dom, uint64_t now_us);
double throttle_proportion(
	const struct throttle_domain *dom, const struct throttle_device *dev, uint64_t now_us);
/* Of a threshold, given the device's proportion. dirty: what is compared with it. */
double throttle_device_share(
	const struct throttle_sample *s, double proportion, double thresh, double dirty);
/* throttle_background_target(), for a budget of the domain. */
double throttle_budget_background(const struct budget *b, const struct throttle_sample *s);

/* bandwidth.c */
void throttle_bandwidth_step(double *bw, double *avg, double pages, double busy_s);

/* position.c */
double throttle_cubic(double setpoint, double dirty, double limit);
double throttle_linear_cubic(double setpoint, double dirty, double limit);
double throttle_device_line(const struct budget *b);
double throttle_reserve(double wb_thresh, double wb_dirty);
double throttle_half_span(const struct budget *b);
bool throttle_in_reserve(const struct budget *b);
double throttle_pos_ratio(const struct budget *b);
void throttle_budget_points(struct budget *b);
void throttle_budget_position(struct budget *b);

/* law.c */
const struct law *throttle_law(enum throttle_law law);

/* law_linux.c */
extern const struct law throttle_linux;
double throttle_balanced(double task_ratelimit, double avg, double dirty_rate);
double throttle_ratelimit_step(double ratelimit, double balanced_before, double balanced,
	double task_ratelimit, bool may_rise, bool may_fall);
void throttle_update_ratelimit(
	struct throttle_device *dev, const struct budget *b, const struct throttle_sample *s);

/* law_pace.c */
extern const struct law throttle_pace;
double throttle_fill(double avg, double unthrottled_rate, double nr_throttled);
double throttle_fill_step(double ratelimit, double target, double elapsed_s);

/* pause.c */
double throttle_poll_interval(double thresh, double dirty);
double throttle_max_pause(double avg, double wb_dirty);
struct pause_bounds throttle_pause_bounds(
	double avg, double ratelimit, double task_ratelimit, double max_pause_us);
void throttle_decide(struct throttle_writer *w, uint64_t now_us, struct throttle_verdict *v,
	double charge_max, double pay_min, double next_interval);
void throttle_exempt(struct throttle_writer *w, uint64_t now_us, struct throttle_verdict *v);

/* writer.c */
double throttle_writer_rate(struct throttle_writer *w, double pages, uint64_t now_us);

#endif
