/* pacer.h - admission and held replies: what stands between a WRITE and its answer.
 *
 * A write is admitted (its pages become dirty) only while dirty + writeback stay within the
 * smoothed limit; what does not fit queues per device in the order of arrival and is admitted
 * in slices as completions make room. Once all of it is admitted the law gives its verdict,
 * and the reply is held for the pause. No thread waits meanwhile.
 *
 * One thread (a loop around a step) admits, releases and ticks. Lock: the domain's, taken
 * inside unless a function says otherwise; replies are sent without it.
 */
#ifndef PACEFS_FUSE_PACER_H
#define PACEFS_FUSE_PACER_H

#include "fuse/writer.h"
#include "throttle/throttle.h"

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct pacefs;
struct fnode;

#define PACER_MAX_FRAMES 257 /* payload of one request: 1 MiB, and one for a ragged start */
#define PACER_SHARED_PAUSE_US 50000 /* longest hold of a file that others have open too */

/* Payload of a WRITE: frames of the arena, bytes from the start of the first one. */
struct payload {
	uint64_t offset; /* in the file */
	uint32_t bytes;
	uint64_t promised; /* of it, counted in backing.promised until it is dirty */
	unsigned nr_frames;
	uint32_t *frames; /* those taken into the cache become FRAME_NONE */
};

/* A write that is not answered yet. */
struct held {
	fuse_req_t req;
	struct fnode *fn; /* referenced */
	struct writer *writer;
	struct payload payload;
	uint32_t done;	    /* bytes admitted */
	uint32_t new_pages; /* newly dirty so far */
	int error;	    /* of what came after done */
	uint64_t arrived_us;
	uint64_t queued_us;   /* 0: never queued */
	uint64_t deadline_us; /* paused until then */
	size_t heap_slot;
	bool again;	  /* one pause does not pay for it: judge once more then */
	bool small;	  /* which queue */
	bool watched;	  /* on_interrupt() may be called */
	bool interrupted; /* atomic: a signal came; looked at every 100 ms */
	uint64_t look_us;
	pid_t tid;
	struct held *prev, *next; /* queue, or list of replies to send */
	uint32_t frames[];
};

struct pacer_counters {
	uint64_t pauses, pause_us, queued, queue_us;
	uint64_t pause_histogram[9]; /* < 1, 2, 4, ... 128, >= 128 ms */
	uint64_t freerun, exempt, blocked, interrupts;
	uint64_t max_pause_us;	  /* longest single pause */
	uint64_t max_held_us;	  /* longest time from a request to its answer; atomic */
	uint64_t max_dirty_pages; /* dirty + writeback, ever */
	uint64_t
		over_limit_pages; /* most by which a write(2) was admitted above the limit: 0 */
	uint64_t mmap_pages;	  /* written back by the kernel, admitted at once */
	uint64_t held_pages;	  /* of queued payloads, now */
};

struct pacer {
	struct pacefs *p;
	pthread_t thread;
	bool running, stopping;
	struct writers writers;
	struct held *queue;	  /* waiting for admission, fair order */
	struct held *small_queue; /* ... small requests of writers far below their share */
	unsigned nr_queued;
	struct held **heap; /* paused, by deadline */
	size_t nr_heap, heap_room;
	uint64_t wake_us;   /* when the thread will look again */
	uint64_t tick_us;   /* next tick */
	double exit_debt;   /* pages dirtied by writers that ended before they paid */
	unsigned nr_active; /* writers within the last second */
	uint64_t spread;    /* state of a linear congruential generator */
	struct throttle_verdict verdict; /* the last one, for stats */
	struct pacer_counters counters;
	double thresh, bg_thresh; /* pages, from the settings */
};

int pacer_start(struct pacefs *p);
/* Everything held is answered first. */
void pacer_stop(struct pacefs *p);

/* The whole way of one WRITE: takes what it needs of payload->frames (marking them
 * FRAME_NONE), and answers req now or later. from_kernel: write-back of mapped pages, admitted
 * at once. Without the lock. */
void pacer_write(struct pacefs *p, fuse_req_t req, struct fnode *fn, struct payload *payload,
	bool from_kernel);

/* A setting changed: it is in force when this returns. With the lock. */
void pacer_settings_changed(struct pacefs *p);
/* Share of the device as of now, within its own limit; with the lock. */
struct throttle_thresholds pacer_device_thresholds(const struct pacefs *p);
/* Limit now in force, pages; with the lock. */
double pacer_limit(const struct pacefs *p);

#endif
