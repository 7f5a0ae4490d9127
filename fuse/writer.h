/* writer.h - the writers of one device, and what is remembered of each between requests.
 *
 * A table and nothing else: who a caller is, caller.c finds out. Lock: the domain's.
 */
#ifndef PACEFS_FUSE_WRITER_H
#define PACEFS_FUSE_WRITER_H

#include "throttle/throttle.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "util/hash.h"

struct held; /* fuse/pacer.h */

#define WRITER_IDLE_US 30000000ull /* an idle writer is forgotten after this */
#define WRITER_QUIET_US 200000ull  /* a writer quiet for this long may have ended: look */

enum writer_kind {
	WRITER_GROUP,  /* id: thread group of the caller */
	WRITER_SERVED, /* id: hash of uid and node; a kernel thread, an NFS server's thread, or
			* somebody outside our pid namespace: such a pool serves many clients */
};

/* Pages per second, as an exponential mean over one second. */
struct fading_rate {
	double rate; /* as of ... */
	uint64_t stamp_us;
};

struct writer_key {
	uint64_t id;
	uint64_t kind; /* enum writer_kind; no padding, the key is compared as bytes */
};

struct writer {
	struct writer_key key;
	UT_hash_handle hh;
	struct throttle_writer throttle;
	pid_t pid; /* for messages; 0 = not known */
	uid_t uid;
	char comm[16];
	uint64_t last_us;	 /* last write */
	uint64_t paused_us;	 /* last pause or queueing; 0 = never */
	struct fading_rate free; /* its part in writers.free */
	uint64_t bytes, pauses, pause_us;
	unsigned held;	      /* requests held now: it must not be forgotten */
	struct held *at_gate; /* of those queued, the one whose turn comes, ... */
	struct held *behind;  /* ... and the others, in the order of arrival */
};

struct writers {
	struct writer *table;
	struct fading_rate free; /* of all that are not throttled. Pages are counted, not
				  * estimates of writers added up: of short-lived ones each
				  * would be far too high */
};

/* What the water-filling and the gate want to know of all writers at once. */
struct writers_summary {
	unsigned nr_active;	 /* wrote within the last second, or are held; at least 1 */
	unsigned nr_throttled;	 /* held, or paused within the last second */
	double unthrottled_rate; /* pages/s of those that are not */
};

/* The writer, made if new; NULL without memory. It wrote now. */
struct writer *writers_get(struct writers *ws, const struct writer_key *key, uint64_t now_us);
/* The writer has dirtied pages; counted in ws->free unless it is throttled. */
void writers_dirtied(struct writers *ws, struct writer *w, double pages, uint64_t now_us);
/* The writer is paused or queued: it counts among the throttled, and what it wrote before, no
 * longer among the free. */
void writers_throttle(struct writers *ws, struct writer *w, uint64_t now_us);
struct writers_summary writers_sum_up(const struct writers *ws, uint64_t now_us);
/* Forget idle ones, and those quiet ones that has_ended() tells have ended. Returns what the
 * latter left unpaid, pages. */
double writers_expire(
	struct writers *ws, bool (*has_ended)(const struct writer *w), uint64_t now_us);
void writers_finish(struct writers *ws);

#endif
