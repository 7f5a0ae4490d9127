/* caller.h - who asks: the thread group of a caller locally; (uid, node) when the caller is a
 * kernel thread, an NFS server's thread or outside our pid namespace, since such a pool serves
 * many clients.
 *
 * /proc is looked at once a second per thread at most, not per write. Lock: the domain's, where
 * it says so.
 */
#ifndef PACEFS_FUSE_CALLER_H
#define PACEFS_FUSE_CALLER_H

#include "fuse/writer.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* What is known of a thread. */
struct caller {
	pid_t tgid; /* 0: kernel thread, server, or unknown */
	char comm[16];
};

struct callers {
	struct caller_task *tasks; /* by tid, as of the last look */
};

/* The answer of less than a second ago, if there is one. With the lock. */
bool callers_cached(struct callers *cs, pid_t tid, uint64_t now_us, struct caller *ret_caller);
/* Ask /proc. Without the lock. */
struct caller caller_resolve(pid_t tid);
/* Remember the answer. With the lock. */
void callers_remember(
	struct callers *cs, pid_t tid, const struct caller *caller, uint64_t now_us);
/* Forget old answers. With the lock. */
void callers_expire(struct callers *cs, uint64_t now_us);
void callers_finish(struct callers *cs);

struct writer_key caller_key(const struct caller *caller, uid_t uid, uint64_t nodeid);
/* Has the thread group ended? Only a look at a process table. */
bool caller_has_ended(const struct writer *w);

/* Is a signal pending that will end the thread? The kernel sends one interrupt per request and
 * none for a signal after a handled one, so an interrupted request is looked at again and again. */
bool caller_is_killed(pid_t tid);

#endif
