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
	FLUSH_SYNC,        /* somebody waits for tagged pages */
	FLUSH_DRAIN,       /* umount, flush: everything */
	FLUSH_BLOCKED,     /* writers wait for admission */
	FLUSH_BACKGROUND,  /* above the background threshold */
	FLUSH_TIME,        /* more dirty than the background time writes */
	FLUSH_AGE,         /* a node dirty for longer than the background time */
	FLUSH_PERIODIC,    /* a node dirty for longer than dirty_expire */
};

struct flush_view {
	uint64_t now_us;
	uint64_t dirty_pages;         /* not yet in writeback: R */
	uint64_t tagged_pages;
	uint64_t bg_pages, bg_time_pages; /* UINT64_MAX = off */
	uint64_t bg_age_us;           /* 0 = off */
	uint64_t oldest_dirtied_us;   /* of the first dirty node; FLUSH_NEVER_US if none */
	uint64_t writeback_us, expire_us; /* periodic; writeback_us 0 = off */
	uint64_t next_periodic_us;
	bool periodic_round;          /* a periodic round is under way */
	bool time_round;              /* FLUSH_TIME began: it ends at 3/4 of bg_time_pages, so
				       * that a slow writer does not cause 4 KiB writes */
	bool blocked, drain;
};

struct flush_plan {
	enum flush_reason reason;
	uint64_t cutoff_us;           /* nodes dirtied after this are left alone */
	uint64_t wake_us;             /* look again then; FLUSH_NEVER_US */
	bool periodic_round, time_round;
	uint64_t next_periodic_us;
};

struct flush_plan flush_plan_make(const struct flush_view *v);

struct flush_sizes {
	unsigned request_pages;       /* one write request */
	uint64_t slice_pages;         /* one node's turn */
	uint64_t inflight_bytes;      /* no further request above this */
};

/* limit_pages: dirty limit of the device; internal batches stay below 1/8 of it. */
struct flush_sizes flush_sizes_make(double bytes_per_s, uint64_t limit_pages,
	unsigned max_request_pages);

#endif
