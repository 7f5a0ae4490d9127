/* held.h - the heap of held replies, by deadline. Lock: the domain's. */
#ifndef PACEFS_FUSE_HELD_H
#define PACEFS_FUSE_HELD_H

#include "fuse/pacer.h"

/* False without memory: then the reply is simply not held. */
bool held_push(struct pacer *p, struct held *h);
/* The earliest one; there must be one. */
struct held *held_pop(struct pacer *p);

#endif
