/* known.h - what is kept of the many files that the kernel knows and nobody uses: a small record in
 * place of the whole node, enough to make that again. And places: where a file of a source
 * without file handles is found when it is opened again.
 *
 * Lock: the domain's, except where a function says that it takes it.
 */
#ifndef PACEFS_FUSE_KNOWN_H
#define PACEFS_FUSE_KNOWN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pacefs;
struct fnode;

/* A name that led to a file. moves: p->moves before that was seen. */
struct place {
	uint64_t parent; /* nodeid of the directory */
	const char *name;
	uint64_t moves;
};

struct known {
	struct known *next; /* of the same bucket */
	uint64_t nodeid;
	uint64_t nlookup;
	uint64_t seen; /* hash of the time and size that the kernel's pages are of; 0: none */
	uint32_t children; /* files whose place is in it */
	uint16_t handle_bytes;
	uint16_t name_bytes; /* 0: no place; else with its end */
	int handle_type;
	unsigned char tail[]; /* the handle, or struct known_place with the name */
};

struct known_place {
	dev_t dev;
	ino_t ino;
	uint64_t parent;
	char name[];
};

/* A hash table that grows by one bucket at a time: the lock is not held for the whole of it. */
struct known_table {
	struct known **buckets;
	size_t nr_buckets, room; /* in use, allocated */
	size_t nr;
};

struct known *known_find(const struct known_table *t, uint64_t nodeid);
/* -ENOMEM: nothing changed. */
int known_add(struct known_table *t, struct known *k);
void known_remove(struct known_table *t, struct known *k);
void known_finish(struct known_table *t);

/* Of a record without a handle. Not aligned: copied. */
struct known_place known_place_of(const struct known *k);
const char *known_name(const struct known *k);

/* A directory is another one's place no more; records that nobody needs go with it. */
void place_leave(struct pacefs *p, uint64_t parent);
/* The file is found there; the directory is a node. Without memory it has no place. */
void place_set(struct pacefs *p, struct fnode *fn, const struct place *at);
/* About to be looked for there. Without the lock. */
struct place place_at(struct pacefs *p, uint64_t parent, const char *name);
/* Around what takes away or moves a name, and what is said of it here. Take the lock. */
void places_move_begin(struct pacefs *p);
void places_move_end(struct pacefs *p);
/* The name was taken away. */
void place_lost(struct pacefs *p, struct fnode *fn, uint64_t parent, const char *name);
/* An O_PATH descriptor of a file by its place, if it is that file still; or -errno (ESTALE). Takes
 * the lock. */
int place_open(struct pacefs *p, uint64_t nodeid, dev_t dev, ino_t ino);

#endif
