/* mapping.h - which frame holds which page of a node: a radix tree of 64-way levels with
 * "dirty" marks on every level, so that the next dirty page in file order is found without
 * looking at clean ones.
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
	uint64_t *bytes; /* counts what all mappings of a cache take; NULL: nobody does */
};

/* Frame at index, or FRAME_NONE. */
uint32_t mapping_get(const struct mapping *m, uint64_t index);

/* Put frame at index. The old frame (or FRAME_NONE) in *ret_old; the dirty mark is kept.
 * Returns 0 or -ENOMEM (nothing changed). */
int mapping_set(struct mapping *m, uint64_t index, uint32_t frame, uint32_t *ret_old);

/* Take it out, with its mark. Returns the old frame or FRAME_NONE. */
uint32_t mapping_remove(struct mapping *m, uint64_t index);

/* Set or clear the mark; the index must be present. */
void mapping_mark(struct mapping *m, uint64_t index, bool dirty);

/* Least index >= from that is present (or, with dirty_only, marked); MAPPING_END if none. */
uint64_t mapping_next(const struct mapping *m, uint64_t from, bool dirty_only);

#endif
