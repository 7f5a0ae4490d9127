#include "backend/cache/mapping.h"

#include "backend/cache/arena.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

enum { BITS = 6, WAYS = 1 << BITS, MAX_HEIGHT = (64 + BITS - 1) / BITS };

struct mapping_level {
	uint64_t present, dirty;
	union {
		struct mapping_level *child[WAYS];
		uint32_t frame[WAYS];
	};
};

/* A leaf holds frames, which are half as large as pointers. */
static size_t level_bytes(unsigned level)
{
	return level ? sizeof(struct mapping_level)
		     : offsetof(struct mapping_level, frame) +
			WAYS * sizeof(((struct mapping_level *)NULL)->frame[0]);
}

static struct mapping_level *level_create(struct mapping *m, unsigned level)
{
	struct mapping_level *l = calloc(1, level_bytes(level));

	if (l && m->bytes)
		*m->bytes += level_bytes(level);
	return l;
}

static void level_free(struct mapping *m, struct mapping_level *l, unsigned level)
{
	if (m->bytes)
		*m->bytes -= level_bytes(level);
	free(l);
}

static unsigned way_of(uint64_t index, unsigned level)
{
	return (unsigned)(index >> (level * BITS)) & (WAYS - 1);
}

static bool beyond(const struct mapping *m, uint64_t index)
{
	return m->height * BITS < 64 && index >> (m->height * BITS) != 0;
}

/* The levels from the root down to the leaf of index; false if it is not there. */
static bool walk(const struct mapping *m, uint64_t index, struct mapping_level **path)
{
	struct mapping_level *l = m->root;

	if (!l || beyond(m, index))
		return false;
	for (unsigned level = m->height; level-- > 0;) {
		path[level] = l;
		if (!(l->present >> way_of(index, level) & 1))
			return false;
		if (level)
			l = l->child[way_of(index, level)];
	}
	return true;
}

uint32_t mapping_get(const struct mapping *m, uint64_t index)
{
	struct mapping_level *path[MAX_HEIGHT];

	return walk(m, index, path) ? path[0]->frame[way_of(index, 0)] : FRAME_NONE;
}

static unsigned height_for(uint64_t index)
{
	unsigned height = 1;

	while (height * BITS < 64 && index >> (height * BITS))
		height++;
	return height;
}

static int raise_height(struct mapping *m, uint64_t index)
{
	if (!m->root) {
		unsigned height = height_for(index);
		m->root = level_create(m, height - 1);
		m->height = m->root ? height : 0;
		return m->root ? 0 : -ENOMEM;
	}
	while (beyond(m, index)) {
		struct mapping_level *l = level_create(m, m->height);
		if (!l)
			return -ENOMEM;
		l->present = 1;
		l->dirty = m->root->dirty != 0;
		l->child[0] = m->root;
		m->root = l;
		m->height++;
	}
	return 0;
}

/* Levels left without entries go, from this one upwards. */
static void prune(
	struct mapping *m, uint64_t index, struct mapping_level **path, unsigned level)
{
	for (; level < m->height; level++) {
		if (path[level]->present)
			return;
		level_free(m, path[level], level);
		if (level + 1 == m->height) {
			m->root = NULL;
			m->height = 0;
			return;
		}
		path[level + 1]->present &= ~(1ull << way_of(index, level + 1));
		path[level + 1]->dirty &= ~(1ull << way_of(index, level + 1));
	}
}

int mapping_set(struct mapping *m, uint64_t index, uint32_t frame, uint32_t *ret_old)
{
	struct mapping_level *path[MAX_HEIGHT];

	if (raise_height(m, index) < 0)
		return -ENOMEM;
	struct mapping_level *l = m->root;
	for (unsigned level = m->height - 1;; level--) {
		unsigned way = way_of(index, level);
		path[level] = l;
		if (level == 0)
			break;
		if (!(l->present >> way & 1)) {
			struct mapping_level *child = level_create(m, level - 1);
			if (!child) {
				prune(m, index, path, level);
				return -ENOMEM;
			}
			l->child[way] = child;
			l->present |= 1ull << way;
		}
		l = l->child[way];
	}
	unsigned way = way_of(index, 0);
	*ret_old = path[0]->present >> way & 1 ? path[0]->frame[way] : FRAME_NONE;
	path[0]->frame[way] = frame;
	path[0]->present |= 1ull << way;
	return 0;
}

static void clear_dirty(struct mapping *m, uint64_t index, struct mapping_level **path)
{
	for (unsigned level = 0; level < m->height; level++) {
		path[level]->dirty &= ~(1ull << way_of(index, level));
		if (path[level]->dirty)
			return;
	}
}

void mapping_mark(struct mapping *m, uint64_t index, bool dirty)
{
	struct mapping_level *path[MAX_HEIGHT];
	bool there = walk(m, index, path);

	assert(there);
	if (!dirty) {
		clear_dirty(m, index, path);
		return;
	}
	for (unsigned level = 0; level < m->height; level++)
		path[level]->dirty |= 1ull << way_of(index, level);
}

uint32_t mapping_remove(struct mapping *m, uint64_t index)
{
	struct mapping_level *path[MAX_HEIGHT];

	if (!walk(m, index, path))
		return FRAME_NONE;
	unsigned way = way_of(index, 0);
	uint32_t frame = path[0]->frame[way];
	clear_dirty(m, index, path);
	path[0]->present &= ~(1ull << way);
	prune(m, index, path, 0);
	return frame;
}

uint64_t mapping_next(const struct mapping *m, uint64_t from, bool dirty_only)
{
	while (m->root && !beyond(m, from)) {
		const struct mapping_level *l = m->root;
		unsigned level = m->height - 1;
		for (;;) {
			uint64_t bits = dirty_only ? l->dirty : l->present;
			bits &= ~0ull << way_of(from, level);
			if (!bits)
				break;
			unsigned way = (unsigned)__builtin_ctzll(bits);
			if (way != way_of(from, level)) {
				/* A later subtree: its first index. */
				from = from >> (level * BITS) >> BITS << BITS << (level * BITS);
				from |= (uint64_t)way << (level * BITS);
			}
			if (level == 0)
				return from;
			l = l->child[way];
			level--;
		}
		/* Nothing in this subtree: go on behind it. */
		unsigned shift = (level + 1) * BITS;
		if (shift >= 64 || (from >> shift) + 1 == 0)
			return MAPPING_END;
		uint64_t next = ((from >> shift) + 1) << shift;
		if (next <= from)
			return MAPPING_END;
		from = next;
	}
	return MAPPING_END;
}
