/* pacer.h - admission and held replies: what stands between a write and its answer.
 *
 * A write is admitted (its pages become dirty) only while dirty + writeback stay within the
 * smoothed limit; what does not fit queues per device and is admitted in slices as completions
 * make room: a slice for each device in turn, and of each for the writer that waits longest.
 * Small requests of writers far below their share have a queue of their own, which is served
 * first where they have waited longer, and otherwise every other time. Once all of it is admitted
 * the law gives its verdict, and the reply is held for the pause. No thread waits meanwhile.
 *
 * A state machine: no thread, clock, system call or FUSE in here. A mount drives it (write.c: one
 * thread around pacer_step()), and so does the simulator in tests/sim, with the same counters
 * (struct domain, struct device) and its own operations. Lock: the domain's, held by the caller
 * throughout.
 *
 * A function that lets requests go puts them on the caller's list *ready; the caller answers
 * them without the lock.
 */
#ifndef PACEFS_FUSE_PACER_H
#define PACEFS_FUSE_PACER_H

#include "backend/cache/cache.h"
#include "fuse/settings.h"
#include "fuse/writer.h"
#include "throttle/throttle.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PACER_SHARED_PAUSE_US 50000 /* longest hold of a file that others have open too */
#define PACER_LOOK_US 100000	    /* spacing of looks at an interrupted request */
#define PACER_MOST_TOGETHER 8	    /* with more writers pauses are spread a little */
#define PACER_SLEEP_WAIT_US                                                                    \
	500000 /* most that a request queues while the machine goes to
				     * sleep; the freezer of tasks tries for 20 s */

struct pacer_device;

/* A write that is not answered yet. The first member of what its owner knows about it. */
struct held {
	/* filled in by the owner before pacer_submit() */
	struct pacer_device *pd;
	struct writer *writer;
	uint64_t bytes; /* of the whole request */

	/* moved on by the owner's take() */
	bool shared;	    /* others have its file open for writing: while a reply is held
			     * the kernel keeps the file's lock, so hold it less and leave
			     * a debt */
	uint64_t done;	    /* bytes admitted */
	uint64_t new_pages; /* newly dirty so far */
	int error;	    /* of what came after done, positive errno */

	/* the pacer's own */
	uint64_t arrived_us;
	uint64_t queued_us;   /* 0: never queued */
	uint64_t deadline_us; /* paused until then */
	size_t heap_slot;
	bool again;		  /* one pause does not pay for it: judge once more then */
	bool small;		  /* which queue */
	bool watched;		  /* the owner was told to look for signals */
	bool interrupted;	  /* atomic, set by the owner: a signal came */
	struct held *prev, *next; /* queue, or list of those to answer */
};

/* What the pacer needs done. Called with the lock. */
struct pacer_ops {
	/* Pages that the rest of the request would newly dirty. */
	double (*count_new)(struct held *h);
	/* Take pieces of the request in order, as long as they need no new page or room (pages)
	 * has one left. True when all of it is in, or h->error says why not. */
	bool (*take)(struct held *h, double room, uint64_t now_us);
	/* The request is queued now; and it no longer is, its payload can go. */
	void (*queued)(struct held *h, uint64_t now_us);
	void (*settled)(struct held *h, uint64_t now_us);
	/* From now on a signal to its thread sets h->interrupted. */
	void (*watch)(struct held *h);
	/* Will a pending signal end the thread of this (interrupted) request? */
	bool (*is_killed)(struct held *h);
	bool (*has_ended)(const struct writer *w);
	/* The flusher looks at its lists again. */
	void (*kick)(struct device *dev);
	/* A verdict was given: for logs and traces. */
	void (*judged)(const struct held *h, const struct throttle_sample *s,
		const struct throttle_verdict *v);
};

struct pacer_counters {
	uint64_t pauses, pause_us, queued, queue_us;
	uint64_t pause_histogram[9]; /* < 1, 2, 4, ... 128, >= 128 ms */
	uint64_t freerun, exempt, blocked;
	uint64_t max_pause_us;	   /* longest single pause */
	uint64_t max_dirty_pages;  /* dirty + writeback, ever */
	uint64_t over_limit_pages; /* most by which a write was admitted above the limit: 0 */
	uint64_t forced_pages;	   /* admitted at once by pacer_force() */
};

/* All the pacer knows about one device. */
struct pacer_device {
	struct device *dev; /* its counters; its flush targets are set here */
	struct throttle_device throttle;
	struct device_settings settings;
	double prior_bw;     /* pages/s believed before anything is measured */
	double reference_bw; /* pages/s that limits in time count with, and ... */
	double cap_pages;    /* ... the device's own limit, as of the last tick */
	struct writers writers;
	struct writers_summary summary; /* as of the last tick */
	uint64_t expire_us;		/* next look for writers that have ended */
	double exit_debt;	  /* pages dirtied by writers that ended before they paid */
	struct held *queue;	  /* waiting for admission, fair order */
	struct held *small_queue; /* ... small requests of writers far below their share */
	bool served_small;	  /* which of the two was served last */
	unsigned nr_queued;
	uint64_t look_us;		 /* next look at interrupted ones in the queues */
	uint64_t seen_written;		 /* of dev, as the law last heard of it */
	struct throttle_verdict verdict; /* the last one, for stats */
	struct pacer_device *prev, *next;
};

struct pacer {
	const struct pacer_ops *ops;
	struct domain *dom; /* counters */
	struct domain_settings settings;
	struct throttle_domain throttle;
	double thresh, bg_thresh;     /* pages, from the settings, ... */
	double thresh_asked;	      /* ... which asked for more if this is larger */
	double sum_min_ratio;	      /* over the devices, fraction of 1 */
	struct pacer_device *devices; /* list */
	unsigned nr_devices;
	struct pacer_device *turn; /* whose queue is served first */
	unsigned nr_queued;	   /* over all devices */
	struct held **heap;	   /* paused, by deadline */
	size_t nr_heap, heap_room;
	uint64_t tick_us;  /* next tick */
	uint64_t spread;   /* state of a linear congruential generator */
	bool stopping;	   /* nobody is held on */
	bool sleeping;	   /* the machine goes to sleep, ... */
	uint64_t sleep_us; /* ... since then */
	struct pacer_counters counters;
};

/* settings: copied. Add devices before anything else is called. */
void pacer_init(struct pacer *p, struct domain *dom, const struct pacer_ops *ops,
	const struct domain_settings *settings, uint64_t now_us);
/* pd: zeroed but for settings and prior_bw; the caller's, and stays where it is. */
void pacer_add_device(
	struct pacer *p, struct pacer_device *pd, struct device *dev, uint64_t now_us);
/* Nothing may be held any more. */
void pacer_finish(struct pacer *p);

/* The whole way of one write. It ends on *ready now, or later by pacer_step(). */
void pacer_submit(struct pacer *p, struct held *h, uint64_t now_us, struct held **ready);
/* Admitted at once and never paused: write-back of mapped pages, which the kernel paced. */
void pacer_force(struct pacer *p, struct held *h, uint64_t now_us, struct held **ready);

/* What is due is done: pauses that are over, a tick, queued writes that fit. Returns when to be
 * called again at the latest; and call it after completions while anybody is queued. */
uint64_t pacer_step(struct pacer *p, uint64_t now_us, struct held **ready);
/* The same without doing anything. */
uint64_t pacer_next_us(const struct pacer *p);
/* Nothing is held or queued. */
bool pacer_is_idle(const struct pacer *p);

/* The machine goes to sleep, or has woken up. A task that waits for an answer cannot be frozen:
 * while it sleeps, what is queued is answered with the short count or EINTR, at once or after
 * PACER_SLEEP_WAIT_US, and no reply is held for more than one pause. Step after it. */
void pacer_sleep(struct pacer *p, bool sleeping, uint64_t now_us);

/* A setting changed: it is in force when this returns. Queued writes may fit now: step. */
void pacer_settings_changed(struct pacer *p, uint64_t now_us);

/* What the law is asked about the device now. */
struct throttle_sample pacer_sample(
	const struct pacer *p, const struct pacer_device *pd, uint64_t now_us);
/* Share of the device as of now, within its own limit. */
struct throttle_thresholds pacer_device_thresholds(
	const struct pacer *p, const struct pacer_device *pd, uint64_t now_us);
/* Limits now in force, pages: of the domain, and of the device (within the domain's). */
double pacer_domain_limit(const struct pacer *p);
double pacer_limit(const struct pacer *p, const struct pacer_device *pd);

#endif
