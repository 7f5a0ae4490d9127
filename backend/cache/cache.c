#include "backend/cache/cache.h"

#include "backend/state/state.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static unsigned page_end_bytes(const struct node *node, uint64_t index)
{
	uint64_t start = index << PAGE_SHIFT_BITS;

	if (node->size <= start)
		return 0;
	return node->size - start < PAGE_BYTES ? (unsigned)(node->size - start) : PAGE_BYTES;
}

/* ---- list of clean frames ---- */

static void clean_add(struct domain *dom, uint32_t frame)
{
	struct frame *f = &dom->arena.frames[frame];

	f->state = FRAME_CLEAN;
	f->next = FRAME_NONE;
	f->prev = dom->clean_tail;
	if (dom->clean_tail == FRAME_NONE)
		dom->clean_head = frame;
	else
		dom->arena.frames[dom->clean_tail].next = frame;
	dom->clean_tail = frame;
	dom->nr_clean++;
}

static void clean_remove(struct domain *dom, uint32_t frame)
{
	struct frame *f = &dom->arena.frames[frame];

	if (f->prev == FRAME_NONE)
		dom->clean_head = f->next;
	else
		dom->arena.frames[f->prev].next = f->next;
	if (f->next == FRAME_NONE)
		dom->clean_tail = f->prev;
	else
		dom->arena.frames[f->next].prev = f->prev;
	f->prev = f->next = FRAME_NONE;
	dom->nr_clean--;
}

/* ---- frames ---- */

static void evict_one(struct domain *dom)
{
	uint32_t frame = dom->clean_head;
	struct frame *f = &dom->arena.frames[frame];
	struct node *node = dom->owner[frame];

	if (f->state != FRAME_CLEAN) {
		dom->dirty_met_evicting++;
		clean_remove(dom, frame);
		return;
	}
	clean_remove(dom, frame);
	mapping_remove(&node->map, f->index);
	node->nr_pages--;
	arena_free(&dom->arena, frame);
}

/* Some frames become free: the oldest clean ones. A batch at once, so that what comes free lies
 * together. */
static bool evict_some(struct domain *dom)
{
	if (dom->clean_head == FRAME_NONE)
		return false;
	for (unsigned i = 0; i < 64 && dom->clean_head != FRAME_NONE; i++)
		evict_one(dom);
	return true;
}

/* ... or else new memory. */
static bool make_room(struct domain *dom)
{
	return evict_some(dom) || arena_grow(&dom->arena) == 0;
}

unsigned cache_alloc(struct domain *dom, unsigned n, uint32_t *ret_frames)
{
	struct arena *a = &dom->arena;
	unsigned got = 0;

	for (;;) {
		got += arena_alloc(a, n - got, ret_frames + got);
		if (got < n && evict_some(dom))
			continue;
		got += arena_borrow(a, n - got, ret_frames + got);
		if (got == n || arena_grow(a) < 0)
			break;
	}
	dom->nr_held += got;
	return got;
}

void cache_free_held(struct domain *dom, uint32_t frame)
{
	assert(dom->arena.frames[frame].state == FRAME_HELD);
	dom->nr_held--;
	arena_free(&dom->arena, frame);
}

static void untag(struct node *node, struct frame *f)
{
	if (!(f->flags & FRAME_TAGGED))
		return;
	assert(node->nr_tagged && node->dev->nr_tagged);
	node->nr_tagged--;
	node->dev->nr_tagged--;
	node->dev->nr_coloured[(f->flags & FRAME_COLOUR) != 0]--;
	f->flags &= (uint8_t) ~(FRAME_TAGGED | FRAME_COLOUR);
}

static void tag(struct node *node, struct frame *f)
{
	if (f->flags & FRAME_TAGGED)
		return;
	f->flags |= FRAME_TAGGED | (node->dev->colour ? FRAME_COLOUR : 0);
	node->nr_tagged++;
	node->dev->nr_tagged++;
	node->dev->nr_coloured[node->dev->colour]++;
}

/* frame_valid_add(), with room made for the bitmap if it needs one. The frame is not clean. */
static int valid_add(struct domain *dom, uint32_t frame, unsigned from, unsigned to)
{
	while (frame_valid_add(&dom->arena, frame, from, to) < 0)
		if (!make_room(dom))
			return -ENOMEM;
	return 0;
}

/* A frame of the cache now belongs to this page and is dirty. */
static void page_dirtied(struct node *node, uint64_t index, uint32_t frame, uint64_t now_us)
{
	struct domain *dom = node->dom;
	struct frame *f = &dom->arena.frames[frame];

	f->state = FRAME_DIRTY;
	f->seq = ++dom->dirty_seq;
	mapping_mark(&node->map, index, true);
	dom->nr_dirty++;
	node->dev->nr_dirty++;
	node->dev->dirtied++;
	if (node->nr_dirty++ == 0 && node->place == NODE_CLEAN) {
		node->dirtied_when_us = now_us;
		node_move(node, NODE_ON_DIRTY);
	}
	if (!node->on_unclean)
		node_update_unclean(node);
	else
		state_update(node);
}

static void page_undirtied(struct node *node, uint64_t index)
{
	mapping_mark(&node->map, index, false);
	node->dom->nr_dirty--;
	node->dev->nr_dirty--;
	if (--node->nr_dirty == 0 && node->place != NODE_CLEAN)
		node_move(node, NODE_CLEAN);
}

/* frame becomes the page at index. A dirty page there is superseded (its mark and tag go on),
 * a clean one freed, one in writeback orphaned: a sync waits for that write and not for the
 * newer page, or a writer that is quick enough would keep it waiting for ever. */
static int page_replace(struct node *node, uint64_t index, uint32_t frame, bool *ret_was_dirty)
{
	struct domain *dom = node->dom;
	struct frame *f = &dom->arena.frames[frame];
	uint32_t old;

	if (mapping_set(&node->map, index, frame, &old) < 0)
		return -ENOMEM;
	f->nodeid = node->nodeid;
	f->index = index;
	dom->owner[frame] = node;
	*ret_was_dirty = false;
	if (old == FRAME_NONE) {
		node->nr_pages++;
		return 0;
	}
	struct frame *o = &dom->arena.frames[old];
	if (o->state == FRAME_WRITEBACK) {
		o->state = FRAME_ORPHAN;
		return 0;
	}
	if (o->flags & FRAME_TAGGED) {
		f->flags |= o->flags & (FRAME_TAGGED | FRAME_COLOUR); /* the counts stay */
		o->flags &= (uint8_t) ~(FRAME_TAGGED | FRAME_COLOUR);
	}
	if (o->state == FRAME_CLEAN) {
		clean_remove(dom, old);
	} else {
		assert(o->state == FRAME_DIRTY);
		f->state = FRAME_DIRTY;
		f->seq = ++dom->dirty_seq;
		*ret_was_dirty = true;
	}
	arena_free(&dom->arena, old);
	return 0;
}

/* The frame at index, to be changed in place: a new one if there is none, a copy if its write
 * is in flight. Its state is DIRTY already, or HELD/CLEAN (unlinked) for page_dirtied(). */
static int page_for_write(struct node *node, uint64_t index, uint32_t *ret_frame)
{
	struct domain *dom = node->dom;
	uint32_t frame = mapping_get(&node->map, index);
	uint32_t copy;
	bool was_dirty;

	if (frame != FRAME_NONE && dom->arena.frames[frame].state == FRAME_DIRTY) {
		*ret_frame = frame;
		return 0;
	}
	if (frame != FRAME_NONE && dom->arena.frames[frame].state == FRAME_CLEAN) {
		clean_remove(dom, frame);
		dom->arena.frames[frame].state = FRAME_HELD;
		*ret_frame = frame;
		return 0;
	}
	/* Keep the page from being evicted while a frame is found: it is not clean. */
	if (cache_alloc(dom, 1, &copy) != 1)
		return -ENOMEM;
	dom->nr_held--;
	if (frame != FRAME_NONE) {
		unsigned from, to;
		memcpy(arena_data(&dom->arena, copy), arena_data(&dom->arena, frame),
			PAGE_BYTES);
		for (unsigned at = 0; frame_valid_run(&dom->arena, frame, at, true, &from, &to);
			at = to) {
			if (valid_add(dom, copy, from, to) < 0)
				goto fail;
		}
	}
	if (page_replace(node, index, copy, &was_dirty) < 0)
		goto fail;
	*ret_frame = copy;
	return 0;
fail:
	arena_free(&dom->arena, copy);
	return -ENOMEM;
}

unsigned cache_count_new(const struct node *node, uint64_t offset, uint64_t bytes)
{
	unsigned count = 0;

	if (bytes == 0)
		return 0;
	uint64_t last = (offset + bytes - 1) >> PAGE_SHIFT_BITS;
	for (uint64_t i = offset >> PAGE_SHIFT_BITS; i <= last; i++) {
		uint32_t frame = node->nr_pages ? mapping_get(&node->map, i) : FRAME_NONE;
		count += frame == FRAME_NONE ||
			node->dom->arena.frames[frame].state != FRAME_DIRTY;
	}
	return count;
}

static void grow_size(struct node *node, uint64_t end)
{
	if (end > node->size) {
		node->size = end;
		state_update(node);
	}
}

int cache_write(
	struct node *node, uint64_t offset, const void *data, unsigned bytes, uint64_t now_us)
{
	uint64_t index = offset >> PAGE_SHIFT_BITS;
	unsigned at = (unsigned)(offset & (PAGE_BYTES - 1));
	struct arena *a = &node->dom->arena;
	uint32_t frame;

	assert(bytes && at + bytes <= PAGE_BYTES);
	int ret = page_for_write(node, index, &frame);
	if (ret < 0)
		return ret;
	bool was_dirty = a->frames[frame].state == FRAME_DIRTY;
	if (valid_add(node->dom, frame, at, at + bytes) < 0) {
		/* No memory for a bitmap. What the page held before is still right. */
		if (!was_dirty)
			page_dirtied(node, index, frame, now_us);
		return -ENOMEM;
	}
	if (data)
		memcpy(arena_data(a, frame) + at, data, bytes);
	else
		memset(arena_data(a, frame) + at, 0, bytes);
	grow_size(node, offset + bytes);
	if (!was_dirty)
		page_dirtied(node, index, frame, now_us);
	return !was_dirty;
}

int cache_adopt(struct node *node, uint64_t index, uint32_t frame, unsigned bytes,
	uint64_t now_us, bool *ret_adopted)
{
	struct arena *a = &node->dom->arena;
	uint64_t offset = index << PAGE_SHIFT_BITS;
	uint32_t old = node->nr_pages ? mapping_get(&node->map, index) : FRAME_NONE;
	bool was_dirty;

	*ret_adopted = false;
	if (bytes < PAGE_BYTES && old != FRAME_NONE)
		return cache_write(node, offset, arena_data(a, frame), bytes, now_us);
	if (valid_add(node->dom, frame, 0, bytes) < 0 ||
		page_replace(node, index, frame, &was_dirty) < 0)
		return -ENOMEM;
	node->dom->nr_held--;
	grow_size(node, offset + bytes);
	if (!was_dirty)
		page_dirtied(node, index, frame, now_us);
	*ret_adopted = true;
	return !was_dirty;
}

/* Take the page out of the cache, whatever its state. */
static void page_drop(struct node *node, uint64_t index)
{
	struct domain *dom = node->dom;
	uint32_t frame = mapping_get(&node->map, index);
	struct frame *f = &dom->arena.frames[frame];

	if (f->state == FRAME_DIRTY) {
		page_undirtied(node, index);
		state_update(node);
		/* It was never written: the measured dirtying rate must not count it. */
		node->dev->dirtied--;
	}
	mapping_remove(&node->map, index);
	node->nr_pages--;
	untag(node, f);
	if (f->state == FRAME_WRITEBACK) {
		f->state = FRAME_ORPHAN;
		return;
	}
	if (f->state == FRAME_CLEAN)
		clean_remove(dom, frame);
	arena_free(&dom->arena, frame);
}

static void drop_from(struct node *node, uint64_t first, uint64_t end)
{
	for (uint64_t i = mapping_next(&node->map, first, false); i < end;
		i = mapping_next(&node->map, i + 1, false))
		page_drop(node, i);
}

int cache_truncate(struct node *node, uint64_t size, uint64_t now_us)
{
	uint64_t index = size >> PAGE_SHIFT_BITS;
	unsigned keep = (unsigned)(size & (PAGE_BYTES - 1));
	struct arena *a = &node->dom->arena;

	if (size < node->size && keep) {
		uint32_t frame = mapping_get(&node->map, index);
		if (frame != FRAME_NONE && a->frames[frame].state == FRAME_CLEAN)
			page_drop(node, index);
		else if (frame != FRAME_NONE) {
			/* In writeback: the write in flight brings the old tail, which the cut
			 * takes away again; a new copy keeps what stays. */
			int ret = page_for_write(node, index, &frame);
			if (ret < 0)
				return ret;
			frame_valid_cut(a, frame, keep);
			memset(arena_data(a, frame) + keep, 0, PAGE_BYTES - keep);
			struct frame *f = &a->frames[frame];
			if (f->state != FRAME_DIRTY)
				page_dirtied(node, index, frame, now_us);
			/* A fill in flight carries bytes from before the cut: not this page's. */
			f->flags &= (uint8_t)~FRAME_FILLING;
			f->seq = ++node->dom->dirty_seq;
			if (frame_valid_empty(a, frame))
				page_drop(node, index);
		}
	}
	if (size < node->size)
		drop_from(node, keep ? index + 1 : index, MAPPING_END);
	node->size = size;
	node_update_unclean(node);
	return 0;
}

void cache_drop_page(struct node *node, uint64_t index)
{
	if (mapping_get(&node->map, index) != FRAME_NONE)
		page_drop(node, index);
	node_update_unclean(node);
}

void cache_drop(struct node *node)
{
	drop_from(node, 0, MAPPING_END);
	node_update_unclean(node);
}

void cache_invalidate(struct node *node)
{
	const struct arena *a = &node->dom->arena;

	for (uint64_t i = mapping_next(&node->map, 0, false); i != MAPPING_END;
		i = mapping_next(&node->map, i + 1, false))
		if (a->frames[mapping_get(&node->map, i)].state == FRAME_CLEAN)
			page_drop(node, i);
}

/* ---- sync ---- */

void cache_tag_node(struct node *node)
{
	struct arena *a = &node->dom->arena;

	if (node->nr_dirty + node->nr_writeback == 0)
		return;
	for (uint64_t i = mapping_next(&node->map, 0, false); i != MAPPING_END;
		i = mapping_next(&node->map, i + 1, false)) {
		struct frame *f = &a->frames[mapping_get(&node->map, i)];
		if (f->state == FRAME_DIRTY || f->state == FRAME_WRITEBACK)
			tag(node, f);
	}
}

void cache_tag_device(struct device *dev)
{
	for (struct node *n = dev->unclean; n; n = n->unclean_next)
		cache_tag_node(n);
}

void cache_untag_node(struct node *node)
{
	struct arena *a = &node->dom->arena;

	if (node->nr_tagged == 0)
		return;
	for (uint64_t i = mapping_next(&node->map, 0, false); i != MAPPING_END;
		i = mapping_next(&node->map, i + 1, false)) {
		struct frame *f = &a->frames[mapping_get(&node->map, i)];
		/* Requests in flight end by themselves. */
		if (f->state == FRAME_DIRTY)
			untag(node, f);
	}
}

/* ---- writeback ---- */

uint32_t cache_begin_writeback(struct node *node, uint64_t index)
{
	uint32_t frame = mapping_get(&node->map, index);
	struct frame *f = &node->dom->arena.frames[frame];

	assert(f->state == FRAME_DIRTY);
	f->state = FRAME_WRITEBACK;
	page_undirtied(node, index);
	node->nr_writeback++;
	node->dom->nr_writeback++;
	node->dev->nr_writeback++;
	return frame;
}

static void writeback_leaves(struct node *node)
{
	node->nr_writeback--;
	node->dom->nr_writeback--;
	node->dev->nr_writeback--;
}

void cache_end_writeback(
	struct node *node, uint64_t index, uint32_t frame, int err, uint64_t now_us)
{
	struct frame *f = &node->dom->arena.frames[frame];

	writeback_leaves(node);
	state_update(node);
	if (!err)
		node->dev->written++;
	node->ended_seq++;
	if (f->state == FRAME_ORPHAN) {
		untag(node, f);
		arena_free(&node->dom->arena, frame);
		return;
	}
	assert(f->state == FRAME_WRITEBACK && mapping_get(&node->map, index) == frame);
	untag(node, f);
	clean_add(node->dom, frame);
	/* What is lent goes back. And pages that lie far apart, each alone in its part of the
	 * tree, are not worth what the tree takes. */
	if (err || arena_is_lent(&node->dom->arena, frame) ||
		node->dom->map_bytes > node->dom->map_most_bytes)
		page_drop(node, index);
}

void cache_redirty(struct node *node, uint64_t index, uint32_t frame, uint64_t now_us)
{
	struct frame *f = &node->dom->arena.frames[frame];

	writeback_leaves(node);
	if (f->state == FRAME_ORPHAN) {
		/* Its bytes are in the newer page, which a sync must wait for then. */
		uint32_t newer = mapping_get(&node->map, index);
		if (f->flags & FRAME_TAGGED && newer != FRAME_NONE)
			tag(node, &node->dom->arena.frames[newer]);
		untag(node, f);
		arena_free(&node->dom->arena, frame);
		return;
	}
	node->dev->dirtied--; /* page_dirtied() counts it again */
	page_dirtied(node, index, frame, now_us);
}

bool cache_make_whole(struct node *node, uint64_t index, uint32_t frame)
{
	struct arena *a = &node->dom->arena;
	unsigned need = page_end_bytes(node, index);

	if (a->frames[frame].flags & FRAME_FILLING || !frame_valid_covers(a, frame, 0, need))
		return false;
	if (need < PAGE_BYTES)
		memset(arena_data(a, frame) + need, 0, PAGE_BYTES - need);
	return true;
}

void cache_fill(struct node *node, uint64_t index, uint32_t frame, const void *data,
	unsigned source_bytes)
{
	struct arena *a = &node->dom->arena;
	unsigned from, to;

	for (unsigned at = 0; frame_valid_run(a, frame, at, false, &from, &to); at = to) {
		unsigned copy_to = to < source_bytes ? to : source_bytes;
		if (from < copy_to)
			memcpy(arena_data(a, frame) + from, (const unsigned char *)data + from,
				copy_to - from);
		unsigned zero_from = from > source_bytes ? from : source_bytes;
		if (zero_from < to)
			memset(arena_data(a, frame) + zero_from, 0, to - zero_from);
	}
	frame_valid_clear(a, frame);
	frame_valid_add(a, frame, 0, PAGE_BYTES);
	a->frames[frame].flags &= (uint8_t)~FRAME_FILLING;
}

/* ---- reading ---- */

unsigned cache_read_begin(struct node *node, uint64_t offset, uint64_t bytes,
	struct cache_pin *pins, unsigned max_pins, bool *ret_whole)
{
	struct arena *a = &node->dom->arena;
	uint64_t end = offset + bytes < node->size ? offset + bytes : node->size;
	uint64_t covered = offset;
	unsigned nr = 0;

	if (node->nr_pages) {
		uint64_t last = (offset + bytes - 1) >> PAGE_SHIFT_BITS;
		for (uint64_t i = mapping_next(&node->map, offset >> PAGE_SHIFT_BITS, false);
			i <= last && nr < max_pins;
			i = mapping_next(&node->map, i + 1, false)) {
			uint32_t frame = mapping_get(&node->map, i);
			arena_pin(a, frame);
			pins[nr++] = (struct cache_pin){.index = i, .frame = frame};
			uint64_t start = i << PAGE_SHIFT_BITS;
			unsigned from = covered > start ? (unsigned)(covered - start) : 0;
			if (start <= covered &&
				frame_valid_covers(a, frame, from, page_end_bytes(node, i)))
				covered = start + PAGE_BYTES;
		}
	}
	*ret_whole = covered >= end;
	return nr;
}

void cache_read_end(struct node *node, uint64_t offset, uint64_t bytes, void *buf,
	const struct cache_pin *pins, unsigned nr_pins)
{
	struct arena *a = &node->dom->arena;

	for (unsigned i = 0; i < nr_pins; i++) {
		uint64_t start = pins[i].index << PAGE_SHIFT_BITS;
		unsigned from, to;
		for (unsigned at = 0; frame_valid_run(a, pins[i].frame, at, true, &from, &to);
			at = to) {
			uint64_t lo = start + from > offset ? start + from : offset;
			uint64_t hi = start + to < offset + bytes ? start + to : offset + bytes;
			if (lo < hi)
				memcpy((unsigned char *)buf + (lo - offset),
					arena_data(a, pins[i].frame) + (lo - start), hi - lo);
		}
		arena_unpin(a, pins[i].frame);
	}
}

/* ---- lifetimes ---- */

int domain_init(struct domain *dom, uint32_t cache_frames, uint32_t max_frames)
{
	pthread_condattr_t attr;

	memset(dom, 0, sizeof(*dom));
	int ret = arena_create(&dom->arena, cache_frames, max_frames);
	if (ret < 0)
		return ret;
	dom->owner = calloc(dom->arena.max_frames, sizeof(*dom->owner));
	if (!dom->owner) {
		arena_destroy(&dom->arena);
		return -ENOMEM;
	}
	dom->cache_frames = cache_frames;
	dom->map_most_bytes = (uint64_t)cache_frames * PAGE_BYTES / CACHE_MAP_PART;
	dom->clean_head = dom->clean_tail = FRAME_NONE;
	pthread_mutex_init(&dom->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&dom->progress, &attr);
	pthread_condattr_destroy(&attr);
	return 0;
}

void domain_finish(struct domain *dom)
{
	pthread_cond_destroy(&dom->progress);
	pthread_mutex_destroy(&dom->lock);
	free(dom->owner);
	arena_destroy(&dom->arena);
}
