/* plan.h - when the flusher writes, and how much at once. Pure: counters in, decision out.
 *
 * The same predicate tells writers that the flusher is (or must be made) active, so that
 * nobody waits for a flusher that believes it has nothing to do.
 */
#ifndef PACEFS_BACKEND_FLUSH_PLAN_H
#define PACEFS_BACKEND_FLUSH_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#define FLUSH_NEVER_US UINT64_MAX

enum flush_reason {
	FLUSH_NONE,
	FLUSH_SYNC,	  /* somebody waits for tagged pages */
	FLUSH_DRAIN,	  /* umount, flush: everything */
	FLUSH_BLOCKED,	  /* writers wait for admission */
	FLUSH_BACKGROUND, /* above the background threshold */
	FLUSH_TIME,	  /* more dirty than the background time writes */
	FLUSH_AGE,	  /* a node dirty for longer than the background time */
	FLUSH_PERIODIC,	  /* a node dirty for longer than dirty_expire */
};

struct flush_view {
	uint64_t now_us;
	uint64_t dirty_pages; /* not yet in writeback: R */
	uint64_t tagged_pages;
	uint64_t bg_pages, bg_time_pages; /* UINT64_MAX = off */
	uint64_t bg_age_us;		  /* 0 = off */
	uint64_t oldest_dirtied_us;	  /* of the first dirty node; FLUSH_NEVER_US if none */
	uint64_t writeback_us, expire_us; /* periodic; writeback_us 0 = off */
	uint64_t next_periodic_us;
	bool periodic_round; /* a periodic round is under way */
	bool time_round;     /* FLUSH_TIME began: it ends at 3/4 of bg_time_pages, so
				       * that a slow writer does not cause 4 KiB writes */
	bool blocked, drain;
};

struct flush_plan {
	enum flush_reason reason;
	uint64_t cutoff_us; /* nodes dirtied after this are left alone */
	uint64_t wake_us;   /* look again then; FLUSH_NEVER_US */
	bool periodic_round, time_round;
	uint64_t next_periodic_us;
};

struct flush_plan flush_plan_make(const struct flush_view *v);

/* How much may be in flight, found from how long requests take: enough to keep the device busy,
 * not so much that a later write of the same range, a truncation below, a waiting fsync or a
 * read stand long behind it. It does not depend on the measured bandwidth, which would be low
 * for ever with too little in flight. */
struct flush_window {
	uint64_t bytes;	    /* no further request at or above this */
	uint64_t judged_us; /* requests submitted before this do not count any more */
};

#define FLUSH_WINDOW_LEAST (16u << 10)
#define FLUSH_WINDOW_MOST (8u << 20)

void flush_window_init(struct flush_window *w);
/* A request has completed. inflight_bytes: in flight until now, itself included. */
void flush_window_completed(struct flush_window *w, uint64_t submitted_us, uint64_t now_us,
	uint64_t inflight_bytes);

struct flush_sizes {
	unsigned request_pages;	 /* one write request at most */
	uint64_t slice_pages;	 /* one node's turn */
	uint64_t inflight_bytes; /* no further request at or above this */
};

/* limit_pages: dirty limit of the device; internal batches stay below a share of it. */
struct flush_sizes flush_sizes_make(const struct flush_window *w, double bytes_per_s,
	uint64_t limit_pages, unsigned max_request_pages);

#endif
