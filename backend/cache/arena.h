/* arena.h - the memory of the page cache: page-sized frames on one memfd.
 *
 * The frame table lies in the same memfd and describes itself (whose page a frame holds, its
 * state, its valid bytes, the order it was dirtied in), so that a successor process that is
 * given the memfd can find every dirty page.
 *
 * Layout of the memfd: one header page, the frame table for max_frames (sparse), the frames.
 * The arena grows in segments of ARENA_SEGMENT_FRAMES; memory never touched costs nothing.
 * Allocation scans a bitmap from where it last stopped, so frames taken together mostly lie
 * together and one write request covers one contiguous piece of memory.
 *
 * The first own_frames are the cache's and are kept. What lies behind is lent: to payloads of
 * requests that wait, and to a dirty limit larger than the cache. It is given back to the system
 * when it is free again.
 *
 * Lock: all functions are called with the domain's lock held.
 */
#ifndef PACEFS_BACKEND_CACHE_ARENA_H
#define PACEFS_BACKEND_CACHE_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAGE_BYTES 4096u
#define PAGE_SHIFT_BITS 12
#define FRAME_NONE UINT32_MAX
#define ARENA_SEGMENT_FRAMES                                                                   \
	1024u /* 4 MiB, the least cache: registering allocates and pins a whole one */
#define ARENA_MAGIC 0x3173666563617065ull

enum frame_state {
	FRAME_FREE,
	FRAME_HELD, /* payload of a request being received or waiting for admission */
	FRAME_CLEAN,
	FRAME_DIRTY,
	FRAME_WRITEBACK,
	FRAME_ORPHAN, /* its write is in flight but the page was replaced or dropped */
	FRAME_SIDE,   /* holds valid-byte bitmaps of other frames */
};

enum frame_flags {
	FRAME_TAGGED = 1,  /* a sync waits for it ... */
	FRAME_COLOUR = 16, /* ... of this colour (device->colour when it was tagged) */
	FRAME_FILLING = 2, /* its missing bytes are being read from the source */
	FRAME_BITMAP = 4,  /* valid bytes are a bitmap in side slot `side`, not one range */
	FRAME_ZOMBIE = 8,  /* free as soon as the last pin goes */
};

struct frame {
	uint64_t nodeid;
	uint64_t index;
	uint64_t seq; /* order of dirtying, domain-wide */
	uint8_t state;
	uint8_t flags;
	uint16_t pins;	     /* readers copying from it */
	uint16_t valid_from; /* bytes [valid_from, valid_to) are newer than or same as the */
	uint16_t valid_to;   /* source's; the others are the source's business */
	uint32_t side;	     /* bitmap slot, with FRAME_BITMAP */
	uint32_t prev, next; /* list of clean frames */
};

struct arena_header {
	uint64_t magic;
	uint64_t max_frames;
	uint64_t nr_frames;
	uint64_t table_offset, frames_offset;
};

struct arena {
	int memfd;
	void *base;
	size_t map_bytes;
	struct arena_header *header;
	struct frame *frames;
	unsigned char *memory; /* frame 0 */
	uint32_t nr_frames;    /* grown so far */
	uint32_t max_frames;
	uint32_t own_frames;   /* whole segments */
	uint32_t nr_free;      /* own ones ... */
	uint32_t nr_free_lent; /* ... and behind */
	bool lent;	       /* some were taken there since the last arena_trim() */
	uint32_t cursor;       /* where the next scan starts */
	uint64_t *used;	       /* bitmap, 1 = taken */
	uint32_t side_free;    /* first free side slot, FRAME_NONE = none */
};

/* Reserve address space for max_frames and grow the first segment. own_frames is rounded up to
 * segments. Returns 0 or -errno. */
int arena_create(struct arena *a, uint32_t own_frames, uint32_t max_frames);
void arena_destroy(struct arena *a);

/* One more segment. -ENOSPC at max_frames, or the errno of the memory. */
int arena_grow(struct arena *a);

/* Take up to n free own frames (state FRAME_HELD) in ascending order; returns how many. */
unsigned arena_alloc(struct arena *a, unsigned n, uint32_t *ret_frames);
/* The same of those behind. */
unsigned arena_borrow(struct arena *a, unsigned n, uint32_t *ret_frames);
static inline bool arena_is_lent(const struct arena *a, uint32_t frame)
{
	return frame >= a->own_frames;
}
/* Call it now and then: the last segments of lent frames go if they are free and no frame was
 * lent since the last call. */
void arena_trim(struct arena *a);

/* Give one back. A pinned frame becomes a zombie and is freed by its last unpin. */
void arena_free(struct arena *a, uint32_t frame);

void arena_pin(struct arena *a, uint32_t frame);
void arena_unpin(struct arena *a, uint32_t frame);

static inline unsigned char *arena_data(const struct arena *a, uint32_t frame)
{
	return a->memory + (size_t)frame * PAGE_BYTES;
}

/* ---- valid bytes of a frame ---- */

/* Nothing valid. Frees the bitmap. */
void frame_valid_clear(struct arena *a, uint32_t frame);
/* [from, to) is valid too. Returns 0, or -ENOMEM when a bitmap is needed and there is none. */
int frame_valid_add(struct arena *a, uint32_t frame, unsigned from, unsigned to);
/* Bytes at and after to are not valid any more. */
void frame_valid_cut(struct arena *a, uint32_t frame, unsigned to);
bool frame_valid_covers(const struct arena *a, uint32_t frame, unsigned from, unsigned to);
/* Nothing is valid at all. */
bool frame_valid_empty(const struct arena *a, uint32_t frame);
/* The next run of bytes at or after at whose validity is `valid`: [*ret_from, *ret_to).
 * Returns false when there is none. */
bool frame_valid_run(const struct arena *a, uint32_t frame, unsigned at, bool valid,
	unsigned *ret_from, unsigned *ret_to);

#endif
