/* writer.h - who is paused: the thread group of the caller locally; (uid, node) when the caller
 * is a kernel thread, an NFS server's thread or outside our pid namespace, since such a pool
 * serves many clients.
 *
 * /proc is looked at once a second per thread at most, not per write.
 * Lock: the domain's, except for writer_resolve().
 */
#ifndef PACEFS_FUSE_WRITER_H
#define PACEFS_FUSE_WRITER_H

#include "throttle/throttle.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uthash.h>

#define WRITER_IDLE_US 30000000ull /* an idle writer is forgotten after this */
#define WRITER_QUIET_US 200000ull  /* a writer quiet for this long may have ended: look */

struct writer_key {
	uint64_t id;   /* tgid, or hash of uid and node */
	uint64_t kind; /* 0 = thread group, 1 = (uid, node) */
};

struct writer {
	struct writer_key key;
	UT_hash_handle hh;
	struct throttle_writer throttle;
	pid_t pid;
	uid_t uid;
	char comm[16];
	uint64_t last_us;   /* last write */
	uint64_t paused_us; /* last pause or queueing */
	uint64_t bytes, pauses, pause_us;
	unsigned held; /* requests held now: it must not be forgotten */
};

struct writers {
	struct writer *table;
	struct task *tasks; /* tid -> tgid, as of the last look */
};

/* What is known of thread tid. Called without the lock; the result is by value. */
struct writer_caller {
	pid_t tgid; /* 0: kernel thread, server, or unknown */
	char comm[16];
};
/* Cached answer, true when it is younger than a second. With the lock. */
bool writers_cached(
	struct writers *ws, pid_t tid, uint64_t now_us, struct writer_caller *ret_caller);
/* The text of /proc/TID/status: its length, or -errno. */
ssize_t writer_read_status(pid_t tid, char *text, size_t size);
/* Ask /proc. Without the lock. */
struct writer_caller writer_resolve(pid_t tid);
/* Remember the answer. With the lock. */
void writers_remember(
	struct writers *ws, pid_t tid, const struct writer_caller *caller, uint64_t now_us);

/* The writer, made if new; NULL without memory. */
struct writer *writers_get(struct writers *ws, const struct writer_caller *caller, pid_t tid,
	uid_t uid, uint64_t nodeid, uint64_t now_us);
/* Forget idle ones, and those that have ended. Returns what the latter left unpaid, pages. */
double writers_expire(struct writers *ws, uint64_t now_us);
/* How many wrote within the last second; at least 1. */
unsigned writers_active(const struct writers *ws, uint64_t now_us);
void writers_finish(struct writers *ws);

#endif
