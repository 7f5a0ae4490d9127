/* mapping.h - which frame holds which page of a node: a radix tree of 64-way levels with
 * marks on every level, so that the next dirty page in file order, or the next dirty one that a
 * sync waits for, is found without looking at others.
 *
 * Lock: the domain's, for everything.
 */
#ifndef PACEFS_BACKEND_CACHE_MAPPING_H
#define PACEFS_BACKEND_CACHE_MAPPING_H

#include <stdbool.h>
#include <stdint.h>

#define MAPPING_END UINT64_MAX /* no such index */

struct mapping_level;

struct mapping {
	struct mapping_level *root;
	unsigned height; /* levels; 0 = empty */
};

/* Frame at index, or FRAME_NONE. */
uint32_t mapping_get(const struct mapping *m, uint64_t index);

/* Put frame at index. The old frame (or FRAME_NONE) in *ret_old; its marks are kept.
 * Returns 0 or -ENOMEM (nothing changed). */
int mapping_set(struct mapping *m, uint64_t index, uint32_t frame, uint32_t *ret_old);

/* Take it out, with its marks. Returns the old frame or FRAME_NONE. */
uint32_t mapping_remove(struct mapping *m, uint64_t index);

/* Dirty or not; the index must be present. Not dirty, it is not tagged either. */
void mapping_mark(struct mapping *m, uint64_t index, bool dirty);
/* A dirty one is tagged. */
void mapping_tag(struct mapping *m, uint64_t index);

/* Least index >= from that is present (or, with dirty_only, dirty); MAPPING_END if none. */
uint64_t mapping_next(const struct mapping *m, uint64_t from, bool dirty_only);
/* ... that is dirty and tagged. */
uint64_t mapping_next_tagged(const struct mapping *m, uint64_t from);

#endif
