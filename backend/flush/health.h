/* health.h - what is to be expected of the device, and what follows from it.
 *
 * HEALTHY: writes are buffered. FAILING, after a write that failed for good: each write(2) goes
 * through to the source before it is answered (fuse/space.c), so that its error reaches the
 * writer; back to healthy by a write that succeeds some seconds after the last error. GONE:
 * after an error the device was asked, and it is not there (store_look_for_device()). Then all
 * that is dirty is dropped and named at once, and nobody waits for it any more; it is asked again
 * now and then, and if it answers it is failing, until it recovers.
 *
 * A device that is silent has no error: it is waited for.
 *
 * No room (ENOSPC, EDQUOT) although there was some when the write was accepted: fsync and close
 * say so at once, but the node's pages stay dirty and are tried again, every HEALTH_PARK_US, and
 * when somebody syncs, or room was made. At the end (device->drain) they are dropped.
 *
 * The device is asked, and changes are logged, by a thread of its own: neither may hold up the
 * flusher. Lock: the domain's, held, unless a function says otherwise.
 */
#ifndef PACEFS_BACKEND_FLUSH_HEALTH_H
#define PACEFS_BACKEND_FLUSH_HEALTH_H

#include "backend/cache/cache.h"

#include <errno.h>

#define HEALTH_PARK_US 5000000
#define HEALTH_PARK_LEAST_US 1000000 /* however much goes well meanwhile */
#define HEALTH_DRAIN_PARK_US 200000  /* at the end, and for ... */
#define HEALTH_DRAIN_US 1000000	     /* ... so long in all */
#define HEALTH_RECOVER_US 3000000
/* Longer than until the next try of what has no room, which would be an error again. */
#define HEALTH_RECOVER_FULL_US (HEALTH_PARK_US + 1000000)
#define HEALTH_MISSING_US 1500000   /* before it is taken for gone */
#define HEALTH_ASK_AGAIN_US 2000000 /* of a device that is gone */
#define HEALTH_ASK_LEAST_US 100000  /* between two questions, while errors rain */

struct flusher;

/* Something the source was told failed for good: err > 0. */
void health_failed(struct flusher *fl, int err, uint64_t now_us);
/* A write reached the source. */
void health_went_well(struct flusher *fl, uint64_t now_us);
static inline bool health_is_full(int err)
{
	return err == ENOSPC || err == EDQUOT;
}

/* The node's pages have no room below. */
void health_park(struct flusher *fl, struct node *node, int err, uint64_t now_us);
/* All are tried again now. */
void health_unpark(struct device *dev);
/* ... or soon: there may be room. */
void health_room_made(struct device *dev, uint64_t now_us);

/* The device is gone: everything dirty is lost. Drops the lock meanwhile. */
void health_drop_all(struct flusher *fl, uint64_t now_us);

/* What of a node was lost: [from, to), or with from == to something else. Says so now and then.
 * Drops the lock. */
void health_lost(struct flusher *fl, struct node *node, uint64_t from, uint64_t to,
	const char *what, int err, uint64_t now_us);

/* The thread; arg is the flusher. Without the lock. */
void *health_main(void *arg);

#endif
