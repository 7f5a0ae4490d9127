/* throttle.h - the IO-less dirty throttle: arithmetic and nothing else.
 *
 * No clock, thread, lock, allocation, I/O or logging in here: the caller takes one consistent
 * sample of its counters, calls one function, and gets a verdict that carries every
 * intermediate quantity. All states are plain structs in the caller's storage, guarded by
 * whatever guards the caller's counters.
 *
 * Units: pages (4096 bytes), pages per second, microseconds of a monotonic clock. Doubles.
 *
 * What a writer does with it, for a request of n pages:
 *   1. throttle_admissible() says how many pages may be taken now; the rest queues and is
 *      asked for again at every completion (dirty + writeback never exceeds the limit).
 *   2. once all pages are admitted: throttle_balance(), and the reply is held pause_us.
 *   3. while the verdict says again: throttle_balance_again() when the pause is over. (Rates
 *      below one request per pause need it; without it the gate of step 1 paces alone.)
 */
#ifndef PACEFS_THROTTLE_THROTTLE_H
#define PACEFS_THROTTLE_THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

#define THROTTLE_PAGE_SIZE 4096
#define THROTTLE_MAX_PAUSE_US 200000 /* longest single pause (kernel MAX_PAUSE) */
#define THROTTLE_INTERVAL_US 200000  /* spacing of limit and ratelimit updates */
#define THROTTLE_INIT_BW 25600.0     /* 100 MiB/s, the kernel's first guess */
#define THROTTLE_TICK_US 100000	     /* spacing of throttle_tick(): water-filling */
#define THROTTLE_NO_CAP 1e18	     /* cap_thresh of a device without own limit */

/* How the base rate and the position are computed; everything else is common to both.
 *   linux: today's kernel law. The base rate is found by feedback, pos_ratio is a cubic.
 *   pace:  the base rate is what the bandwidth leaves for each throttled writer, by
 *          water-filling over the list of writers; pos_ratio is linear plus cubic. */
enum throttle_law { THROTTLE_LINUX, THROTTLE_PACE };
#define THROTTLE_NR_LAWS 2

struct throttle_knobs { /* bytes win over ratio when not 0 */
	uint64_t dirty_bytes;
	uint64_t dirty_background_bytes;
	double dirty_ratio; /* percent of dirtyable pages */
	double dirty_background_ratio;
};

struct throttle_thresholds {
	double thresh;	  /* pages */
	double bg_thresh; /* pages, < thresh */
};

/* Everything under one dirty budget. */
struct throttle_domain {
	enum throttle_law law; /* may change between any two calls */
	double dirty_limit;    /* smoothed hard limit L >= thresh, pages */
	uint64_t limit_stamp_us;
	double completions;	  /* den of the floating proportions, starts at 1 */
	uint64_t period_start_us; /* start of the current 3 s period */
	uint64_t period;	  /* number of the current period */
};

/* One backing store, measured and paced by itself. */
struct throttle_device {
	double completions; /* num of the floating proportions */
	uint64_t period;    /* period this num was last aged in */

	double write_bandwidth;	    /* pages/s, filtered */
	double avg_write_bandwidth; /* filtered again */
	uint64_t bw_stamp_us;
	uint64_t written_stamp; /* pages */
	uint64_t busy_stamp;	/* of wb_busy_us */
	double busy_s;		/* seconds measured so far, for the running mean of the
					* first two seconds and for confidence */
	double busy_pages;

	double dirty_ratelimit;		 /* base rate r */
	double balanced_dirty_ratelimit; /* where it is going */
	uint64_t ratelimit_stamp_us;	 /* linux */
	uint64_t dirtied_stamp;		 /* linux; pages */
	uint64_t fill_stamp_us;		 /* pace */
	double stagger;			 /* pace: 0..1, of the last writer */

	double cap_limit; /* smoothed hard limit of the device's own cap, or
					* THROTTLE_NO_CAP */
	uint64_t cap_stamp_us;
};

/* One paced writer. */
struct throttle_writer {
	double nr_dirtied;	 /* n: pages since the last accounting */
	double nr_dirtied_pause; /* p: pages until the next check, starts at 32 */
	double nr_charged;	 /* pages of the request it is held for */
	double nr_held;		 /* unpaid when that began, debts of earlier ones too */
	bool staggered;		 /* since it last ran free (pace) */
	uint64_t paused_when_us; /* t0: virtual time, 0 = not set */
	double rate;		 /* pages/s, exponential mean over 1 s */
	uint64_t rate_stamp_us;
	double rate_pages;	/* pages since rate_stamp_us */
	uint64_t rate_last_us;	/* last request */
	uint64_t rate_since_us; /* first request, 0 = none yet */
};

/* One consistent snapshot, and the settings in force. */
struct throttle_sample {
	uint64_t now_us;
	/* domain */
	double dirty;		  /* D: dirty + writeback pages */
	double reclaimable;	  /* R: dirty only */
	double thresh, bg_thresh; /* T, B */
	/* device */
	double wb_dirty;	     /* D_j */
	double wb_reclaimable;	     /* R_j */
	uint64_t wb_written;	     /* pages completed, monotone */
	uint64_t wb_busy_us;	     /* time with writeback in flight, monotone; of a gap
					* without completions it counts one second at most */
	uint64_t wb_dirtied;	     /* pages dirtied and not dropped again, monotone enough:
					* may step back by pages truncated before writeback */
	double cap_thresh;	     /* the device's own hard limit (max_bytes, and
					* dirty_centisecs of its bandwidth), or THROTTLE_NO_CAP */
	double min_ratio, max_ratio; /* fractions of 1, kernel bdi meaning */
	double nr_writers;	     /* now writing to the device, 0 = not known; who is small
					* is measured by the fair share too: the base rate may be
					* far too high while many writers start */
	double nr_throttled;	     /* writers of the device held or queued within the last
					* second (pace) */
	double unthrottled_rate;     /* pages/s of all its other writers together (pace); no
					* page of those counted above */
	double sum_min_ratio;	     /* over all devices of the domain */
	bool strict_limit;
};

enum throttle_kind {
	THROTTLE_FREERUN,   /* below the freerun ceiling: never paused */
	THROTTLE_UNCHECKED, /* poll interval not used up yet */
	THROTTLE_EXEMPT,    /* small writer (well below its share): not paused */
	THROTTLE_BANKED,    /* pause shorter than min_pause: carried in t0 */
	THROTTLE_PAUSE,	    /* hold the reply for pause_us */
	THROTTLE_BLOCKED,   /* linux: task_ratelimit 0 (at the limit): pause_us = max_pause */
};

struct throttle_verdict {
	enum throttle_kind kind;
	uint64_t pause_us; /* 0 unless PAUSE or BLOCKED */
	/* what it was decided from, in the kernel's names */
	double thresh, bg_thresh, dirty_limit, freerun, setpoint;
	double wb_thresh, wb_bg_thresh, wb_setpoint;
	double pos_ratio, dirty_ratelimit, task_ratelimit, balanced_dirty_ratelimit;
	double period_us, think_us, min_pause_us, max_pause_us;
	double nr_dirtied, nr_dirtied_pause; /* as compared for this decision */
	bool capped;			     /* the device's own cap had the lower pos_ratio */
	bool again;	       /* the pause does not pay for all pages: when it is over
					* call throttle_balance_again() and hold on. Without it
					* the rest is counted to the writer's next request */
	bool start_background; /* the flusher must run */
};

void throttle_domain_init(struct throttle_domain *dom, uint64_t now_us);

/* first_bw: pages/s believed before anything is measured. */
void throttle_device_init(struct throttle_device *dev, double first_bw, uint64_t now_us);

void throttle_writer_init(struct throttle_writer *w);

/* Thresholds from the knobs. dirtyable: pages that may become dirty. */
struct throttle_thresholds throttle_domain_thresholds(
	const struct throttle_knobs *knobs, double dirtyable_pages);

/* Below freerun nobody is paused; dirty should sit at the setpoint. */
double throttle_freerun(double thresh, double bg_thresh);
double throttle_setpoint(double freerun, double dirty_limit);

/* Share of the device: wb_thresh and wb_bg_thresh (with its floors and max_ratio). */
struct throttle_thresholds throttle_device_thresholds(const struct throttle_domain *dom,
	const struct throttle_device *dev, const struct throttle_sample *s);

/* The flusher writes while the device has more reclaimable pages than this: the background
 * threshold of the domain, of the device's share and of its cap, all told as a bound on
 * wb_reclaimable. One figure for the writer, who wants the flusher started, and for the flusher,
 * who wants to know when to stop. >= 0. */
double throttle_background_target(const struct throttle_domain *dom,
	const struct throttle_device *dev, const struct throttle_sample *s);
/* wb_reclaimable is above that. */
bool throttle_over_background(const struct throttle_domain *dom,
	const struct throttle_device *dev, const struct throttle_sample *s);

/* pages have completed on the device at now (honours max_ratio). */
void throttle_completed(struct throttle_domain *dom, struct throttle_device *dev, double pages,
	double max_ratio, uint64_t now_us);

/* The device leaves the domain: the others' shares grow at once. The caller takes its min_ratio
 * out of sum_min_ratio. */
void throttle_device_removed(
	struct throttle_domain *dom, struct throttle_device *dev, uint64_t now_us);

/* Every THROTTLE_TICK_US, also when nobody writes: bandwidth (only while writeback is in flight
 * or something completed), smoothed limits of the domain and of the device, and with pace the
 * base rate. */
void throttle_tick(struct throttle_domain *dom, struct throttle_device *dev,
	const struct throttle_sample *s);

/* pages have completed on the device, s is of after that: of a limit that lags above its
 * threshold half of them is not given out again. By time alone it would not come down where the
 * gate paces: it follows what is dirty, and dirty would be filled up to it. */
void throttle_lower_limits(struct throttle_domain *dom, struct throttle_device *dev,
	const struct throttle_sample *s, double pages);

/* The limits took a new value by a setting: in force at once, but never below what is dirty now;
 * from there followed down smoothly. */
void throttle_limits_changed(struct throttle_domain *dom, struct throttle_device *dev,
	const struct throttle_sample *s);

/* "linux", "pace"; and back: false for any other text. */
const char *throttle_law_name(enum throttle_law law);
bool throttle_law_by_name(const char *name, enum throttle_law *ret_law);

/* The rate of a writer as of now, pages/s, with what it has asked for since it was last judged; it
 * fades while the writer is silent. */
double throttle_writer_rate_now(const struct throttle_writer *w, uint64_t now_us);

/* Confidence 0..1 in the measured bandwidth, and the bandwidth that limits in time count with:
 * geometric blend of avg_write_bandwidth and prior. Pages/s, >= 1. */
double throttle_confidence(const struct throttle_device *dev);
double throttle_reference_bandwidth(const struct throttle_device *dev, double prior);

/* How many of want pages may be dirtied now: 0..want, whole pages. reserved: pages admitted and
 * not yet counted in s->dirty. nr_writers >= 1: those now writing to the device. queued: others
 * already wait, so a slice is at most half the room divided by the writers, and with pace what
 * one pause pays for. */
double throttle_admissible(const struct throttle_domain *dom, const struct throttle_device *dev,
	const struct throttle_sample *s, double want, double reserved, unsigned nr_writers,
	bool queued);

/* Is this a small request (64 KiB at most) of a writer far below its share? Then it is exempt from
 * pauses while the position allows it. nr_writers as in the sample, rate in pages/s. */
bool throttle_is_small(const struct throttle_device *dev, double nr_writers, double rate,
	double request_pages);

/* A writer has dirtied nr_pages (0 allowed: a rewrite of pages already dirty still counts its
 * request for the exemption rule, request_pages). Updates writer, and with linux at most every
 * interval the device's ratelimit, and gives the verdict. */
void throttle_balance(struct throttle_domain *dom, struct throttle_device *dev,
	struct throttle_writer *w, const struct throttle_sample *s, double nr_pages,
	double request_pages, struct throttle_verdict *ret_verdict);

/* The pause of a verdict with again set is over: decide on the same writer once more, at the
 * rates now in force. Its pause is a further one of at most THROTTLE_MAX_PAUSE_US. */
void throttle_balance_again(struct throttle_domain *dom, struct throttle_device *dev,
	struct throttle_writer *w, const struct throttle_sample *s,
	struct throttle_verdict *ret_verdict);

#endif
