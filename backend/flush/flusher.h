/* flusher.h - one thread per device that brings dirty pages to the source.
 *
 * The thread loops around flusher_step(); what to do is decided in plan.h, what must be told
 * the source besides pages (truncation, times) is node work, done by a helper thread.
 */
#ifndef PACEFS_BACKEND_FLUSH_FLUSHER_H
#define PACEFS_BACKEND_FLUSH_FLUSHER_H

#include "backend/cache/cache.h"
#include "backend/flush/health.h"
#include "backend/flush/lost.h"
#include "backend/flush/pick.h"
#include "backend/flush/plan.h"
#include "backend/store/store.h"

#include <pthread.h>

#define FLUSH_DEPTH 64 /* requests in flight at most; time bounds them long before */

struct flush_io {
	struct store_io io;
	struct node *node;
	uint64_t index; /* first page */
	unsigned nr_pages;
	unsigned bytes; /* to be written (tail: less than nr_pages pages) */
	unsigned done;
	unsigned attempts, again;
	bool fill;  /* a read for a partial page */
	bool first; /* until now the source should have had node->below_mtime, and this size, */
	uint64_t size_below;
	uint64_t unclean_seq; /* if this did not move */
	bool buffered;
	bool ranged; /* buffered: written, now waiting for the range */
	bool shared; /* buffered: others of the file were in flight beside it */
	uint64_t fill_seq;
	unsigned char *bounce; /* a page of its own for fills: they must go when all memory is
				* dirty */
	uint64_t submitted_us;
	uint32_t frames[STORE_MAX_IOV];
	struct flush_io *node_next; /* node->inflight */
	struct flush_io *next;	    /* free list, or list to submit */
};

struct flusher {
	struct device *dev;
	struct store *store;
	struct store_engine *engine;
	pthread_t thread, worker;
	bool started, stopping;

	struct flush_io *pool;
	void *bounces;
	struct flush_io *free_ios;
	unsigned nr_inflight;
	uint64_t inflight_bytes;
	struct flush_window window;
	struct flush_sizes sizes;
	struct flush_plan plan;
	struct flush_pick pick;
	uint32_t memory_frames; /* frames made known to the engine */
	unsigned max_request_pages;
	struct lost lost;

	/* health.c */
	pthread_t health;
	pthread_cond_t health_cond;
	bool ask;		   /* the device is to be looked for */
	uint64_t missing_since_us; /* it was not there then, nor since; 0: it was */

	/* node work (work.c) */
	pthread_cond_t work_cond;
	struct node *work_head, *work_tail;
};

/* Starts the threads. engine is the flusher's from now on. */
int flusher_start(struct flusher *fl, struct device *dev, struct store *store,
	struct store_engine *engine);
/* Ends the threads; nothing may be dirty that is still wanted. */
void flusher_stop(struct flusher *fl);

/* One round: what completed is taken back, what should be written is submitted. Returns when
 * it wants to be called again at the latest. Without the lock. */
uint64_t flusher_step(
	struct flusher *fl, struct store_io **done, unsigned nr_done, uint64_t now_us);

/* ---- waiting for the source to be right; without the lock; they block ---- */

/* Every page of the node that is dirty or in writeback now is written, its truncation and
 * times are applied, or it failed: that is in node->err_seq. -ENOSPC or -EDQUOT if pages found no
 * room below and are dirty still, else 0. */
int flusher_sync_node(struct flusher *fl, struct node *node);
/* The same for all nodes, then syncfs(2). 0 or -errno: its own, which is counted, or -ENOSPC
 * while there are pages that have no room below. Not those of pages: device->errors. */
int flusher_sync(struct flusher *fl);
/* Until nothing at all is left below to do: what cannot be written now is lost. */
void flusher_drain(struct flusher *fl);
/* The source was written, truncated, synced without us, and that failed (err > 0) or did not (0).
 * node, what: what it cost, named and told to all who have it open; NULL: nothing was lost. */
void flusher_heard(struct flusher *fl, struct node *node, const char *what, int err);
/* The node's truncation has reached the source (before reading or extending it). With lock. */
void flusher_settle_cut(struct flusher *fl, struct node *node);

/* ---- node work, with the lock ---- */

/* The helper looks at the node: truncation, times, closing its file. */
void flusher_work(struct flusher *fl, struct node *node);
/* Does it now in this thread, waiting for the helper if it is at it. The lock is dropped
 * meanwhile. */
void flusher_do_work(struct flusher *fl, struct node *node);
/* Others have changed the node's file in the source while it was not clean here: said and counted.
 * The lock is dropped meanwhile; the file stays open. */
void flusher_collided(struct flusher *fl, struct node *node);
void *flusher_worker(void *arg);

#endif
