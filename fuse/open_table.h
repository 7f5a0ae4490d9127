/* open_table.h - what a file handle of FUSE means: never a pointer, but a number of a table that
 * knows which of them are in use, so that a stale or invented one is refused.
 *
 * Looking one up takes no lock, only two loads. It must not be removed meanwhile, and the kernel
 * promises that: RELEASE comes when nothing else is under way with the handle.
 */
#ifndef PACEFS_FUSE_OPEN_TABLE_H
#define PACEFS_FUSE_OPEN_TABLE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum open_kind { OPEN_FILE, OPEN_DIR };

/* So many may be open at once: more than descriptors a process may have. */
#define OPEN_CHUNKS 4096u
#define OPEN_CHUNK_SLOTS 256u

struct open_slot {
	_Atomic uint64_t fh; /* 0: free */
	void *object;	     /* published by fh */
	uint32_t generation; /* the lock */
	uint32_t next_free;  /* the lock; number of a slot + 1 */
};

/* Zeroes are an empty one. The lock is its own, taken alone. */
struct open_table {
	pthread_mutex_t lock;
	_Atomic(struct open_slot *) chunks[OPEN_CHUNKS]; /* never moved or freed while open */
	uint32_t nr_slots;				 /* made so far; the lock */
	uint32_t free;					 /* first free one + 1; the lock */
};

void open_table_init(struct open_table *t);
/* Nobody uses it any more. What is still in it is given to release, one by one. */
void open_table_finish(
	struct open_table *t, void (*release)(void *object, enum open_kind kind));

/* A handle for object, or 0: no memory, or too many. */
uint64_t open_table_add(struct open_table *t, void *object, enum open_kind kind);
/* NULL: no such handle of this kind. */
void *open_table_get(struct open_table *t, uint64_t fh, enum open_kind kind);
/* The same, and it is none any more. */
void *open_table_remove(struct open_table *t, uint64_t fh, enum open_kind kind);

#endif
