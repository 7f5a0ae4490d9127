/* pacefs.h - the composition root: what a running mount consists of.
 *
 * Lock order: there is one lock that matters, domain->lock ("the lock" below). It is held for
 * short computations and copies of a page, never across a system call on the source, a
 * submission or a reply. session->spawn_lock is taken alone.
 */
#ifndef PACEFS_FUSE_PACEFS_H
#define PACEFS_FUSE_PACEFS_H

#include "backend/cache/cache.h"
#include "backend/flush/flusher.h"
#include "backend/state/state.h"
#include "backend/store/store.h"
#include "fuse/known.h"
#include "fuse/mount.h"
#include "fuse/open_table.h"
#include "fuse/options.h"
#include "fuse/pacer.h"
#include "fuse/quota.h"
#include "fuse/write.h"

#include <stdatomic.h>
#include <stddef.h>

struct fnode;

/* Room on the source, as of the last look (space.c); the lock guards it. What is written takes
 * room, so the mark is a reading of dev.written, and needs no change while that advances. */
struct space {
	pthread_mutex_t through_lock; /* one write goes through at a time; taken alone */
	uint64_t full_at;	      /* dev.written, in bytes, when the source is full */
	uint64_t promised;	 /* bytes of accepted writes that are not dirty pages yet */
	uint64_t promised_of[2]; /* by colour: who settles waits for one of them */
	unsigned colour;	 /* of promises made now */
	uint64_t claimed;	 /* by fallocate(2), while it has not got them */
	uint64_t fruitless;	 /* deletions pending when waiting for them did not help */
	uint64_t look_us;
	uint64_t cluster_slack; /* of a small file, bytes beside its page */
	/* Where the figures are those of the last commit (store.copies): */
	uint64_t committed; /* dev.written was at least this then; */
	uint64_t beside;    /* bytes taken since that dev.written does not count; */
	uint64_t seen; /* for df: as committed, guessed from free bytes that became less: */
	uint64_t last_avail; /* they were so many */
	uint64_t epoch_us, epoch_written;
};

/* One device with all that belongs to it in this room. */
struct backing {
	struct device dev; /* first: backing_of() */
	struct store store;
	struct flusher flusher;
	struct pacer_device pacing;
	struct space space;
	struct quotas quotas;
};

static inline struct backing *backing_of(struct device *dev)
{
	return (struct backing *)dev;
}

struct pacefs {
	struct options options;
	struct domain dom;
	struct backing backing; /* of the source; further ones come with cross_devices */
	struct pacer pacer;
	struct writes writes;
	struct mount mount;
	struct {
		uint64_t bytes; /* last told to the kernel; the pacer's thread alone */
	} bdi;
	struct fuse_session *session;
	struct open_table opens; /* struct open_file and open_dir, by handle */
	bool is_root;
	bool raw_at_root; /* raw: the mountpoint is a file, and that is the device */

	/* nodes (node.h), the lock guards them */
	struct fnode *nodes;	   /* hash by nodeid */
	struct fnode *whole_nodes; /* all but those that stay, least recently used first */
	unsigned nr_whole;
	struct known_table known; /* what else the kernel knows */
	atomic_ullong moves;	  /* names taken away or moved, begun and ended */
	unsigned moving;	  /* under way */
	struct fnode *root;
	struct stat
		root_stat; /* as last seen: status and umount of a source that is gone need it */
	struct fnode *fds_head, *fds_tail; /* open and unpinned, least recently used first */
	unsigned nr_fds, max_fds;
	unsigned
		max_file_fds; /* of files below, before those that are closed here but not written
				* are waited for */
	uint64_t nr_unlinked; /* deleted files whose room the source still counts */
	unsigned nr_dropping; /* threads that make the kernel let go of pages */
	bool handles;	      /* the source gives file handles */
	bool whole;	      /* the source is all of its filesystem */

	/* for the next start, should this one be killed (crash.c) */
	struct state state;
	char state_path[PATH_MAX]; /* "": there is none */
	struct state_loss loss;	   /* of the last one, if it was */

	/* flush (control.c), the lock guards them */
	uint64_t flush_started, flush_done;
	uint64_t errors_told;		  /* of dev.errors, by syncfs */
	bool flush_running, flush_failed; /* the last one */

	struct source_lock lock; /* the source is ours alone, until all is written */
	int ready_fd;		 /* a byte when the mount answers, or -1 */
	bool ended;		 /* pacefs_end() was here; the lock */
	unsigned nr_syncing;	 /* in pacefs_sync() now; the lock */
	int status;		 /* of the process: 0 when all that was accepted is written */
};

/* The end, once: write everything, say the verdict, and close whatever keeps the source busy
 * and locked, so that after umount it can be unmounted, pulled, or served again at once.
 * Without the lock. */
void pacefs_end(struct pacefs *p);

/* flusher_sync() for those who may come at any time, also when the flusher has ended (0: then
 * all was written or named). Without the lock; it blocks. */
int pacefs_sync(struct pacefs *p);

static inline struct pacefs *pacefs_of_node(struct node *node)
{
	return (struct pacefs *)(void *)((char *)node->dom - offsetof(struct pacefs, dom));
}

static inline struct pacefs *pacefs_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

#endif
