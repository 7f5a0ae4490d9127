/* write.h - the way of a WRITE from the kernel to its answer: who writes, what was sent, and the
 * thread that drives the pacer. Lock: the domain's, taken inside unless a function says
 * otherwise; replies are sent without it.
 */
#ifndef PACEFS_FUSE_WRITE_H
#define PACEFS_FUSE_WRITE_H

#include "fuse/caller.h"
#include "fuse/pacer.h"

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct pacefs;
struct fnode;

#define WRITE_MAX_FRAMES 257 /* payload of one request: 1 MiB, and one for a ragged start */

/* Payload of a WRITE: frames of the arena, bytes from the start of the first one. */
struct payload {
	uint64_t offset; /* in the file */
	uint32_t bytes;
	uint64_t promised; /* of it, counted in space.promised until it is dirty */
	unsigned colour;   /* of the promise */
	unsigned nr_frames;
	uint32_t *frames; /* those taken into the cache become FRAME_NONE */
};

/* Beside the pacer, what writes need. Part of struct pacefs. */
struct writes {
	struct callers callers;
	pthread_t thread;
	bool running;
	uint64_t wake_us;     /* when the thread will look again */
	uint64_t held_pages;  /* of queued payloads, now */
	uint64_t interrupts;  /* atomic */
	uint64_t max_held_us; /* longest time from a request to its answer; atomic */
};

/* pacefs->backing and its settings are complete. */
int writes_start(struct pacefs *p);
/* Everything held is answered first. */
void writes_stop(struct pacefs *p);

/* Takes what it needs of payload->frames (marking them FRAME_NONE), and answers req now or
 * later. from_kernel: write-back of mapped pages, admitted at once. Without the lock. */
void writes_submit(struct pacefs *p, fuse_req_t req, struct fnode *fn, struct payload *payload,
	bool from_kernel);

/* The machine goes to sleep, or has woken up: whoever waits for room is answered when this
 * returns. */
void writes_sleep(struct pacefs *p, bool sleeping);

/* A setting changed: it is in force when this returns. With the lock. */
void writes_settings_changed(struct pacefs *p);
/* Says in the log if more was asked for than memory allows. Without the lock. */
void writes_warn_of_clamp(struct pacefs *p);

#endif
