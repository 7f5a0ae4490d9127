/* held.h - the container of held replies: their storage, and the heap by deadline.
 * Lock: the domain's, except for held_create(), held_destroy() and held_is_killed(). */
#ifndef PACEFS_FUSE_HELD_H
#define PACEFS_FUSE_HELD_H

#include "fuse/pacer.h"

struct held *held_create(unsigned nr_frames);
void held_destroy(struct held *h);

/* By deadline. held_push() is false without memory: then the reply is simply not held. */
bool held_push(struct pacer *pacer, struct held *h);
/* The earliest one; there must be one. */
struct held *held_pop(struct pacer *pacer);

/* A small request of a writer well below its share: it does not stand behind greedy ones. */
bool held_is_small(const struct pacefs *p, const struct held *h);

/* Is a signal pending that will end the thread? The kernel sends one interrupt per request and
 * none for a signal after a handled one, so a queued request is looked at again and again. */
bool held_is_killed(pid_t tid);

#endif
