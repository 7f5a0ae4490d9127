#include "backend/cache/arena.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	SIDE_BYTES = PAGE_BYTES / 8, /* one bit per byte of a page */
	SIDE_PER_FRAME = PAGE_BYTES / SIDE_BYTES,
};

static size_t page_round(size_t bytes)
{
	return (bytes + PAGE_BYTES - 1) & ~(size_t)(PAGE_BYTES - 1);
}

static uint32_t segment_round(uint32_t frames)
{
	return (frames + ARENA_SEGMENT_FRAMES - 1) / ARENA_SEGMENT_FRAMES *
		ARENA_SEGMENT_FRAMES;
}

int arena_create(struct arena *a, uint32_t own_frames, uint32_t max_frames)
{
	int ret;

	memset(a, 0, sizeof(*a));
	max_frames = segment_round(max_frames);
	own_frames = segment_round(own_frames ? own_frames : 1);
	size_t table = page_round(sizeof(struct frame) * (size_t)max_frames);
	a->map_bytes = PAGE_BYTES + table + (size_t)max_frames * PAGE_BYTES;
	a->max_frames = max_frames;
	a->own_frames = own_frames < max_frames ? own_frames : max_frames;
	a->side_free = FRAME_NONE;
	a->memfd = memfd_create("pacefs-cache", MFD_CLOEXEC);
	if (a->memfd < 0)
		return -errno;
	if (ftruncate(a->memfd, (off_t)a->map_bytes) < 0)
		goto fail;
	a->base = mmap(NULL, a->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
		a->memfd, 0);
	if (a->base == MAP_FAILED)
		goto fail;
	a->used = calloc(max_frames / 64, sizeof(*a->used));
	if (!a->used) {
		munmap(a->base, a->map_bytes);
		errno = ENOMEM;
		goto fail;
	}
	madvise(a->base, a->map_bytes, MADV_DONTFORK);
	a->header = a->base;
	a->frames = (struct frame *)((unsigned char *)a->base + PAGE_BYTES);
	a->memory = (unsigned char *)a->base + PAGE_BYTES + table;
	*a->header = (struct arena_header){
		.magic = ARENA_MAGIC,
		.max_frames = max_frames,
		.table_offset = PAGE_BYTES,
		.frames_offset = PAGE_BYTES + table,
	};
	return arena_grow(a);
fail:
	ret = -errno;
	close(a->memfd);
	return ret;
}

void arena_destroy(struct arena *a)
{
	munmap(a->base, a->map_bytes);
	close(a->memfd);
	free(a->used);
}

int arena_grow(struct arena *a)
{
	if (a->nr_frames + ARENA_SEGMENT_FRAMES > a->max_frames)
		return -ENOSPC;
	if (arena_is_lent(a, a->nr_frames))
		a->nr_free_lent += ARENA_SEGMENT_FRAMES;
	else
		a->nr_free += ARENA_SEGMENT_FRAMES;
	a->nr_frames += ARENA_SEGMENT_FRAMES;
	a->header->nr_frames = a->nr_frames;
	return 0;
}

static bool segment_is_free(const struct arena *a, uint32_t first)
{
	for (uint32_t word = first / 64; word < (first + ARENA_SEGMENT_FRAMES) / 64; word++)
		if (a->used[word])
			return false;
	return true;
}

static bool trim_one(struct arena *a)
{
	uint32_t last = a->nr_frames - ARENA_SEGMENT_FRAMES;

	if (!arena_is_lent(a, last) || !segment_is_free(a, last))
		return false;
	/* A hole in the memfd: of locked memory madvise() takes nothing away. */
	if (fallocate(a->memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		    (off_t)(arena_data(a, last) - (unsigned char *)a->base),
		    (off_t)ARENA_SEGMENT_FRAMES * PAGE_BYTES) < 0)
		return false;
	a->nr_frames = last;
	a->nr_free_lent -= ARENA_SEGMENT_FRAMES;
	a->header->nr_frames = last;
	return true;
}

void arena_trim(struct arena *a)
{
	enum { AT_ONCE = 8 }; /* some ms, with the lock */

	for (unsigned i = 0; !a->lent && i < AT_ONCE && trim_one(a); i++)
		;
	a->lent = false;
}

static void frame_reset(struct frame *f, enum frame_state state)
{
	*f = (struct frame){
		.state = (uint8_t)state,
		.side = FRAME_NONE,
		.prev = FRAME_NONE,
		.next = FRAME_NONE,
	};
}

/* Up to n of the free frames in this word. */
static unsigned take_free(
	struct arena *a, uint32_t word, uint64_t free_bits, unsigned n, uint32_t *ret_frames)
{
	unsigned got = 0;

	while (free_bits && got < n) {
		unsigned bit = (unsigned)__builtin_ctzll(free_bits);
		uint32_t frame = word * 64 + bit;
		free_bits &= free_bits - 1;
		a->used[word] |= 1ull << bit;
		frame_reset(&a->frames[frame], FRAME_HELD);
		ret_frames[got++] = frame;
	}
	return got;
}

unsigned arena_alloc(struct arena *a, unsigned n, uint32_t *ret_frames)
{
	uint32_t frames = a->nr_frames < a->own_frames ? a->nr_frames : a->own_frames;
	uint32_t words = frames / 64;
	uint32_t word = a->cursor / 64;
	unsigned got = 0;

	if (n > a->nr_free)
		n = a->nr_free;
	for (uint32_t seen = 0; got < n && seen <= words; seen++, word++) {
		if (word >= words)
			word = 0;
		uint64_t free_bits = ~a->used[word];
		if (seen == 0)
			free_bits &= ~0ull << (a->cursor % 64);
		got += take_free(a, word, free_bits, n - got, ret_frames + got);
	}
	if (got)
		a->cursor = (ret_frames[got - 1] + 1) % frames;
	a->nr_free -= got;
	return got;
}

unsigned arena_borrow(struct arena *a, unsigned n, uint32_t *ret_frames)
{
	unsigned got = 0;

	if (n > a->nr_free_lent)
		n = a->nr_free_lent;
	/* The lowest ones, so that the last segment comes free. */
	for (uint32_t word = a->own_frames / 64; got < n; word++)
		got += take_free(a, word, ~a->used[word], n - got, ret_frames + got);
	a->nr_free_lent -= got;
	a->lent |= got > 0;
	return got;
}

void arena_free(struct arena *a, uint32_t frame)
{
	struct frame *f = &a->frames[frame];

	assert(f->state != FRAME_FREE);
	if (f->pins) {
		/* Its readers still need to know which bytes are valid. */
		f->flags |= FRAME_ZOMBIE;
		return;
	}
	if (f->flags & FRAME_BITMAP)
		frame_valid_clear(a, frame);
	f->state = FRAME_FREE;
	f->flags = 0;
	a->used[frame / 64] &= ~(1ull << (frame % 64));
	if (arena_is_lent(a, frame))
		a->nr_free_lent++;
	else
		a->nr_free++;
}

void arena_pin(struct arena *a, uint32_t frame)
{
	assert(a->frames[frame].pins < UINT16_MAX);
	a->frames[frame].pins++;
}

void arena_unpin(struct arena *a, uint32_t frame)
{
	struct frame *f = &a->frames[frame];

	assert(f->pins);
	if (--f->pins == 0 && (f->flags & FRAME_ZOMBIE))
		arena_free(a, frame);
}

/* ---- valid bytes ---- */

static uint64_t *side_bits(const struct arena *a, uint32_t slot)
{
	return (uint64_t *)(void *)(arena_data(a, slot / SIDE_PER_FRAME) +
		(size_t)(slot % SIDE_PER_FRAME) * SIDE_BYTES);
}

static uint32_t side_alloc(struct arena *a)
{
	if (a->side_free == FRAME_NONE) {
		uint32_t frame;
		if (arena_alloc(a, 1, &frame) != 1 && arena_borrow(a, 1, &frame) != 1)
			return FRAME_NONE;
		a->frames[frame].state = FRAME_SIDE;
		for (unsigned i = 0; i < SIDE_PER_FRAME; i++) {
			uint32_t slot = frame * SIDE_PER_FRAME + i;
			side_bits(a, slot)[0] = a->side_free;
			a->side_free = slot;
		}
	}
	uint32_t slot = a->side_free;
	a->side_free = (uint32_t)side_bits(a, slot)[0];
	memset(side_bits(a, slot), 0, SIDE_BYTES);
	return slot;
}

static void bits_set(uint64_t *bits, unsigned from, unsigned to, bool value)
{
	while (from < to) {
		unsigned bit = from % 64;
		unsigned count = to - from < 64 - bit ? to - from : 64 - bit;
		uint64_t mask = (count == 64 ? ~0ull : (1ull << count) - 1) << bit;
		if (value)
			bits[from / 64] |= mask;
		else
			bits[from / 64] &= ~mask;
		from += count;
	}
}

/* First bit at or after at that has this value; PAGE_BYTES when none. */
static unsigned bits_next(const uint64_t *bits, unsigned at, bool value)
{
	while (at < PAGE_BYTES) {
		uint64_t word = value ? bits[at / 64] : ~bits[at / 64];
		word &= ~0ull << (at % 64);
		if (word)
			return at / 64 * 64 + (unsigned)__builtin_ctzll(word);
		at = at / 64 * 64 + 64;
	}
	return PAGE_BYTES;
}

void frame_valid_clear(struct arena *a, uint32_t frame)
{
	struct frame *f = &a->frames[frame];

	if (f->flags & FRAME_BITMAP) {
		side_bits(a, f->side)[0] = a->side_free;
		a->side_free = f->side;
		f->flags &= (uint8_t)~FRAME_BITMAP;
		f->side = FRAME_NONE;
	}
	f->valid_from = f->valid_to = 0;
}

/* A bitmap whose ones have become one run goes back to a plain range. */
static void bitmap_collapse(struct arena *a, uint32_t frame)
{
	struct frame *f = &a->frames[frame];
	const uint64_t *bits = side_bits(a, f->side);
	unsigned from = bits_next(bits, 0, true);
	unsigned to = bits_next(bits, from, false);

	if (bits_next(bits, to, true) != PAGE_BYTES)
		return;
	frame_valid_clear(a, frame);
	if (from < to) {
		f->valid_from = (uint16_t)from;
		f->valid_to = (uint16_t)to;
	}
}

int frame_valid_add(struct arena *a, uint32_t frame, unsigned from, unsigned to)
{
	struct frame *f = &a->frames[frame];

	assert(from < to && to <= PAGE_BYTES);
	if (!(f->flags & FRAME_BITMAP)) {
		bool empty = f->valid_from == f->valid_to;
		if (empty || (from <= f->valid_to && to >= f->valid_from)) {
			if (empty || from < f->valid_from)
				f->valid_from = (uint16_t)from;
			if (empty || to > f->valid_to)
				f->valid_to = (uint16_t)to;
			return 0;
		}
		uint32_t slot = side_alloc(a);
		if (slot == FRAME_NONE)
			return -ENOMEM;
		bits_set(side_bits(a, slot), f->valid_from, f->valid_to, true);
		f->side = slot;
		f->flags |= FRAME_BITMAP;
	}
	bits_set(side_bits(a, f->side), from, to, true);
	bitmap_collapse(a, frame);
	return 0;
}

void frame_valid_cut(struct arena *a, uint32_t frame, unsigned to)
{
	struct frame *f = &a->frames[frame];

	if (f->flags & FRAME_BITMAP) {
		bits_set(side_bits(a, f->side), to, PAGE_BYTES, false);
		bitmap_collapse(a, frame);
		return;
	}
	if (f->valid_to > to)
		f->valid_to = (uint16_t)to;
	if (f->valid_from >= f->valid_to)
		f->valid_from = f->valid_to = 0;
}

bool frame_valid_run(const struct arena *a, uint32_t frame, unsigned at, bool valid,
	unsigned *ret_from, unsigned *ret_to)
{
	const struct frame *f = &a->frames[frame];
	unsigned from, to;

	if (f->flags & FRAME_BITMAP) {
		const uint64_t *bits = side_bits(a, f->side);
		from = bits_next(bits, at, valid);
		to = bits_next(bits, from, !valid);
	} else if (valid) {
		from = at > f->valid_from ? at : f->valid_from;
		to = f->valid_to;
	} else {
		from = at;
		if (from >= f->valid_from && from < f->valid_to)
			from = f->valid_to;
		to = from < f->valid_from ? f->valid_from : PAGE_BYTES;
	}
	if (from >= to)
		return false;
	*ret_from = from;
	*ret_to = to;
	return true;
}

bool frame_valid_covers(const struct arena *a, uint32_t frame, unsigned from, unsigned to)
{
	unsigned gap_from, gap_to;

	if (from >= to)
		return true;
	return !frame_valid_run(a, frame, from, false, &gap_from, &gap_to) || gap_from >= to;
}

bool frame_valid_empty(const struct arena *a, uint32_t frame)
{
	unsigned from, to;

	return !frame_valid_run(a, frame, 0, true, &from, &to);
}
