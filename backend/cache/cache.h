/* cache.h - pages, nodes, devices and the counters that everything else reads.
 *
 * A page of a node is clean, dirty or in writeback (dirty = newer than the source, no
 * write in flight; writeback = its write is in flight). A page written again while in
 * writeback gets a new frame; the old one stays with its write as an orphan.
 * A page may hold only some valid bytes; the rest is the source's and is filled in by the
 * flusher, never when a write is accepted.
 *
 * Lock: domain->lock guards every field here unless it says otherwise. It is never held across
 * a system call on the source, a submission, a reply or a callback.
 */
#ifndef PACEFS_BACKEND_CACHE_CACHE_H
#define PACEFS_BACKEND_CACHE_CACHE_H

#include "backend/cache/arena.h"
#include "backend/cache/mapping.h"
#include "util/busy_clock.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

struct store_file; /* backend/store/store.h */
struct flush_io;   /* backend/flush/flusher.h */
struct state;	   /* backend/state/state.h */
struct state_record;
struct device;

/* Of the cache, for the mappings of all nodes: a tree full of pages takes a thousandth of them,
 * one of pages far apart a fifth. */
#define CACHE_MAP_PART 100

/* Everything under one dirty budget. */
struct domain {
	pthread_mutex_t lock;
	pthread_cond_t progress; /* signalled when pages left dirty or writeback and
				     * somebody said (wants_progress) that they wait for it */
	bool wants_progress;
	struct arena arena;
	uint32_t cache_frames; /* frames the cache proper may use; payloads come on top */
	uint64_t nr_dirty;     /* pages */
	uint64_t nr_writeback; /* pages, orphans included: their memory is not free yet */
	uint64_t nr_clean;
	uint64_t nr_held; /* payload frames of receive buffers and held requests */
	uint64_t dirty_seq;
	uint32_t clean_head, clean_tail; /* oldest first */
	uint64_t map_bytes;		 /* taken by all mappings ... */
	uint64_t map_most_bytes;	 /* ... and when clean pages are kept no more */
	uint64_t dirty_met_evicting;	 /* stays 0: eviction never sees a dirty page */
	struct node **owner; /* by frame: whose page it is, while it is in a mapping */
	struct node *dead;   /* nodes without references, for node_reap() */
	struct state *state; /* what is unclean, for the next start; or NULL */
};

enum node_place { NODE_CLEAN, NODE_ON_DIRTY, NODE_ON_IO, NODE_ON_MORE_IO };

/* One file object as the backend knows it. Embedded in fuse/'s own node. */
struct node {
	uint64_t nodeid;
	struct domain *dom;
	struct device *dev;
	struct mapping map;
	struct store_file *file; /* open while there is anything to write or it is open */
	uint64_t size;		 /* what stat shows */
	uint64_t nr_pages, nr_dirty, nr_writeback, nr_tagged; /* pages; tagged: sync waits */
	uint32_t refs; /* node_get(), node_put(); at 0 it goes to dom->dead */
	bool on_dead;
	struct node *dead_next;
	uint32_t file_users; /* open(2)s of it; the file closes when 0 and clean */

	/* order of flushing */
	uint64_t dirtied_when_us; /* first page of this round */
	enum node_place place;
	struct node *prev, *next;	    /* list named by place */
	struct node *aged_prev, *aged_next; /* dev->aged, while place is not NODE_CLEAN */
	uint64_t position; /* where on the device it is written: bytes; 0: not known yet */
	uint64_t ahead;	   /* of the head by this, when its round began (pick.c) */
	bool position_wanted;
	uint64_t position_due_us; /* looked for again not before */
	bool on_unclean;	  /* dev->unclean: anything at all left to bring below */
	struct node *unclean_prev, *unclean_next;
	struct state_record *record; /* of an unclean node in dom->state, if there was room */
	uint64_t flush_index;	     /* where the next slice starts */
	uint64_t slice_pages;	     /* left of the current slice */
	struct flush_io *inflight;   /* its requests in flight */
	uint64_t inflight_bytes;
	unsigned nr_fills; /* reads for partial pages in flight */

	/* what the source still has to be told; done by node work, in this order */
	bool cut_pending;     /* ftruncate to cut_size before any later write, */
	uint64_t cut_size;    /* the least of all cuts since the last one below, */
	uint64_t cut_end;     /* and up to what the last of them left */
	uint64_t extend_to;   /* lengthen the source to this ahead of the writes; 0: no */
	uint64_t cut_seq;     /* counts cuts, so that one made meanwhile is not lost */
	bool times_pending;   /* utimensat(mtime) once clean */
	uint64_t unclean_seq; /* how often it became unclean or was changed below by us: what
				     * was read of the source is right if this has not moved */
	uint64_t ended_seq;   /* writes ended: each moves the source's mtime */
	struct timespec mtime, ctime; /* with size: what stat shows while the node is unclean */
	int64_t below_ctime_ns; /* the source's, as our bringing it all below left it; 0: not known */
	uint32_t times_seq; /* how often mtime was set, be it to the same */
	bool times_shown;   /* ctime was given out: the next stamp must differ from it */

	/* Was the source changed by others? Compared with what it has only while it is known
	 * and nothing of ours is changing it. */
	struct timespec below_mtime; /* of the source, as last seen or as we left it */
	bool below_known;	     /* no write of ours has moved it since */
	uint32_t
		below_changing; /* calls under way that change its time or size, beside writes of
				  * pages */
	bool work_queued, work_running;
	struct node *work_next;

	/* errors of writeback: each open file keeps the err_seq it has reported (errseq) */
	uint32_t err_seq;
	bool err_seen; /* somebody has been told the last one */
	int err;       /* the last one: EIO, ENOSPC or EDQUOT */

	/* the source has no room for its pages: they stay dirty and are tried again */
	uint64_t park_seq; /* not now, while it is that of the device and not 0 */
	uint64_t put_off;  /* how often: a sync that sees it move has not written everything */
	bool full;	   /* that was told; until a write of it succeeds */
};

/* What is to be expected of the device (backend/flush/health.h). */
enum device_health { DEVICE_HEALTHY, DEVICE_FAILING, DEVICE_GONE };

/* One backing store, measured and paced by itself. */
struct device {
	struct domain *dom;
	dev_t dev;	/* st_dev of its files, or st_rdev of the raw device */
	char name[256]; /* for messages: /dev/sdb1, or the path */
	bool seeks;	/* files are written in disk order; set before anything is written */
	uint32_t time_step_ns; /* of the times of its files; 0: not known yet */
	uint64_t nr_dirty, nr_writeback, nr_tagged; /* pages */
	unsigned colour;			    /* of tags given now: 0 or 1 */
	uint64_t nr_coloured[2];		    /* tagged pages by colour */
	uint64_t nr_dirty_nodes;
	uint64_t written, dirtied; /* pages, monotone (dirtied steps back by dropped ones) */
	struct node *dirty;	   /* by dirtied_when_us */
	struct node *io, *more_io; /* this round; slice used up */
	struct node *aged;	   /* those of all three lists, by dirtied_when_us */
	struct node *unclean;
	uint64_t nr_unclean;

	/* set by the pacer, read by the flusher: plain numbers, no law in here */
	uint64_t bg_pages;	/* start above this many dirty pages ... */
	uint64_t bg_time_pages; /* ... or this many (background time); UINT64_MAX = off */
	uint64_t bg_age_us;	/* ... or when a node is dirty for longer; 0 = off */
	uint64_t limit_pages;	/* of the device, for slice and request sizes */
	double bytes_per_s;	/* believed write bandwidth */
	uint64_t writeback_us, expire_us; /* periodic: every, older than; 0 = off */
	uint64_t nr_blocked;		  /* requests waiting for admission */
	bool drain;			  /* write everything (umount) */
	uint64_t drain_until_us; /* at the end: wait so long for room; 0: it is not yet */

	/* kept by the flusher */
	struct busy_clock busy; /* time with requests in flight */
	uint64_t next_periodic_us;
	bool periodic_round;
	int kick_fd; /* eventfd */
	bool asleep; /* flusher waits: a kick must write kick_fd */

	enum device_health health;
	uint64_t error_us;	      /* of the last write that failed for good */
	int error;		      /* its errno */
	bool parked;		      /* some nodes are, since the last try ... */
	uint64_t park_seq;	      /* ... with this number; the next try makes it another */
	uint64_t parked_us, retry_us; /* since then, and the next try is then */
	uint64_t put_off;	      /* of all its nodes */
	bool retrying;		      /* it is now */

	uint64_t errors; /* sticky */
	uint64_t lost_bytes;
	uint64_t direct_bytes, buffered_bytes, fill_reads, retries;
	/* Files that others changed below: seen while they were clean here, and while not */
	uint64_t foreign_changes, foreign_collisions;
};

int domain_init(struct domain *dom, uint32_t cache_frames, uint32_t max_frames);
void domain_finish(struct domain *dom);
static inline void domain_lock(struct domain *dom)
{
	pthread_mutex_lock(&dom->lock);
}
static inline void domain_unlock(struct domain *dom)
{
	pthread_mutex_unlock(&dom->lock);
}
/* Pages left dirty or writeback, or node work got done: wake who waits. */
void domain_progress(struct domain *dom);

int device_init(struct device *dev, struct domain *dom, dev_t id, const char *name);
void device_finish(struct device *dev);
/* The flusher looks at its lists again. */
void device_kick(struct device *dev);

void node_get(struct node *node);
void node_put(struct node *node);
/* One node without references, taken off the list, or NULL. The caller frees it. */
struct node *node_reap(struct domain *dom);
/* The node is used again: it leaves the list of the dead if it was there. */
void node_revive(struct node *node);

void node_init(struct node *node, struct device *dev, uint64_t nodeid, uint64_t size);
/* dev->unclean follows what is left to do for the node. Call after changing any of it. */
void node_update_unclean(struct node *node);
/* Anything newer than the source: pages, cut, times. */
bool node_is_unclean(const struct node *node);
/* Its content was changed now: both times move, and forward if the last ones were seen. */
void node_touch(struct node *node);
/* It is this, and the source's is to be. */
void node_set_mtime(struct node *node, struct timespec mtime);
/* Something else of it was: only the change time. */
void node_touch_ctime(struct node *node);
/* t as the source will have it, if it has such dates at all. */
struct timespec node_round_time(const struct node *node, struct timespec t);
/* Around a call of ours that changes the time or size of the source's file. */
void node_change_begin(struct node *node);
void node_change_end(struct node *node);
/* What is read of the source without the lock, between begin and holds, is what others see too: the
 * node was clean all the time, and nothing of ours was changing it. */
struct node_look {
	bool clean;
	uint64_t seq;
};
struct node_look node_look_begin(const struct node *node);
bool node_look_holds(const struct node *node, const struct node_look *look);
/* The source has this time, and the size is node->size. */
void node_below_is(struct node *node, struct timespec mtime);
/* The node goes on another list (or NODE_CLEAN: on none). */
void node_move(struct node *node, enum node_place place);
/* A writeback error, positive errno: every open file hears of it once. */
void node_tell_error(struct node *node, int err);
/* The same, and it counts in the verdict: what was accepted is not below. */
void node_set_error(struct node *node, int err);
/* Its pages are not to be tried now. */
static inline bool node_is_parked(const struct node *node)
{
	return node->park_seq && node->park_seq == node->dev->park_seq;
}

/* A frame for the cache or a payload: free, else the oldest clean one, else grown. FRAME_HELD.
 * Returns how many of n there were. */
unsigned cache_alloc(struct domain *dom, unsigned n, uint32_t *ret_frames);
/* Give back a payload frame. */
void cache_free_held(struct domain *dom, uint32_t frame);

/* Pages of [offset, offset + bytes) that a write would make newly dirty. */
unsigned cache_count_new(const struct node *node, uint64_t offset, uint64_t bytes);

/* Accept bytes into one page (they do not cross a page end). Returns newly dirty pages, 0 or 1,
 * or -ENOMEM with nothing changed. node->size grows as needed. */
int cache_write(
	struct node *node, uint64_t offset, const void *data, unsigned bytes, uint64_t now_us);
/* The same with a payload frame that holds bytes [0, bytes) of page index: the frame becomes
 * the page when that loses nothing of an older one, and *ret_adopted says so. */
int cache_adopt(struct node *node, uint64_t index, uint32_t frame, unsigned bytes,
	uint64_t now_us, bool *ret_adopted);

/* Size becomes size: pages beyond are dropped at once, the last one is cut. Does not touch the
 * source: the caller sets cut_pending. Returns 0 or -ENOMEM. */
int cache_truncate(struct node *node, uint64_t size, uint64_t now_us);
/* The page at index goes, if there is one (it cannot be written). */
void cache_drop_page(struct node *node, uint64_t index);
/* All pages go, dirty ones too (the file is gone). */
void cache_drop(struct node *node);
/* Clean pages go (the source changed behind us). */
void cache_invalidate(struct node *node);

/* Everything of the node dirty or in writeback now is tagged: nr_tagged reaches 0 when it
 * is written. A page rewritten meanwhile is not waited for again. */
void cache_tag_node(struct node *node);
/* The same for all nodes of the device. */
void cache_tag_device(struct device *dev);
/* Nobody waits for its dirty pages any more: they could not be written, and that was told. Those in
 * writeback are waited for still. */
void cache_untag_node(struct node *node);

/* Writeback of the page at index begins: it must be dirty. Returns its frame. */
uint32_t cache_begin_writeback(struct node *node, uint64_t index);
/* ... and ends: clean, or (err != 0) lost, or an orphan that is freed. */
void cache_end_writeback(
	struct node *node, uint64_t index, uint32_t frame, int err, uint64_t now_us);
/* ... or goes back to dirty, to be tried again. */
void cache_redirty(struct node *node, uint64_t index, uint32_t frame, uint64_t now_us);

/* Is every byte of the page up to the end of the file valid? Then it may be written whole:
 * the rest is zeroed here. */
bool cache_make_whole(struct node *node, uint64_t index, uint32_t frame);
/* Bytes of the page just read from the source (source_bytes of them, then zeroes) go where
 * nothing valid is. */
void cache_fill(struct node *node, uint64_t index, uint32_t frame, const void *data,
	unsigned source_bytes);

struct cache_pin {
	uint64_t index;
	uint32_t frame;
};
/* Pin all pages in [offset, offset+bytes); returns how many. *ret_whole: they cover every
 * byte up to the end of the file, so that the source need not be read. */
unsigned cache_read_begin(struct node *node, uint64_t offset, uint64_t bytes,
	struct cache_pin *pins, unsigned max_pins, bool *ret_whole);
/* Lay the valid bytes of the pinned pages over buf (which starts at offset), and unpin. */
void cache_read_end(struct node *node, uint64_t offset, uint64_t bytes, void *buf,
	const struct cache_pin *pins, unsigned nr_pins);

#endif
