#include "fuse/open_table.h"

#include <stddef.h>
#include <stdlib.h>

/* A handle: generation, number of the slot + 1, kind; from the top. Comparing all of it at once
 * finds stale ones, other kinds and nonsense alike. */
enum { KIND_BITS = 1, NUMBER_BITS = 31 };

static uint64_t make_handle(uint32_t generation, uint32_t number, enum open_kind kind)
{
	return (uint64_t)generation << (NUMBER_BITS + KIND_BITS) |
		(uint64_t)(number + 1) << KIND_BITS | (uint64_t)kind;
}

static enum open_kind kind_of(uint64_t fh)
{
	return fh & 1 ? OPEN_DIR : OPEN_FILE;
}

static uint32_t number_of(uint64_t fh)
{
	return (uint32_t)(fh >> KIND_BITS & ((1ull << NUMBER_BITS) - 1)) - 1;
}

void open_table_init(struct open_table *t)
{
	pthread_mutex_init(&t->lock, NULL);
}

/* NULL: there never was one. */
static struct open_slot *slot_of(struct open_table *t, uint32_t number)
{
	if (number >= OPEN_CHUNKS * OPEN_CHUNK_SLOTS)
		return NULL;
	/* Partner: the release in make_chunk(). */
	struct open_slot *chunk = atomic_load_explicit(
		&t->chunks[number / OPEN_CHUNK_SLOTS], memory_order_acquire);
	return chunk ? &chunk[number % OPEN_CHUNK_SLOTS] : NULL;
}

void open_table_finish(struct open_table *t, void (*release)(void *object, enum open_kind kind))
{
	for (unsigned i = 0; i < OPEN_CHUNKS; i++) {
		struct open_slot *chunk = atomic_load(&t->chunks[i]);
		for (unsigned j = 0; chunk && j < OPEN_CHUNK_SLOTS; j++) {
			uint64_t fh = atomic_load(&chunk[j].fh);
			if (fh)
				release(chunk[j].object, kind_of(fh));
		}
		free(chunk);
		atomic_store(&t->chunks[i], NULL);
	}
	t->nr_slots = t->free = 0;
}

/* With the lock. All slots of a new chunk are free. */
static int make_chunk(struct open_table *t)
{
	unsigned i = t->nr_slots / OPEN_CHUNK_SLOTS;
	struct open_slot *chunk =
		i < OPEN_CHUNKS ? calloc(OPEN_CHUNK_SLOTS, sizeof(*chunk)) : NULL;

	if (!chunk)
		return -1;
	for (unsigned j = OPEN_CHUNK_SLOTS; j-- > 0;) {
		chunk[j].next_free = t->free;
		t->free = t->nr_slots + j + 1;
	}
	t->nr_slots += OPEN_CHUNK_SLOTS;
	atomic_store_explicit(&t->chunks[i], chunk, memory_order_release);
	return 0;
}

uint64_t open_table_add(struct open_table *t, void *object, enum open_kind kind)
{
	uint64_t fh = 0;

	pthread_mutex_lock(&t->lock);
	if (t->free || make_chunk(t) == 0) {
		uint32_t number = t->free - 1;
		struct open_slot *slot = slot_of(t, number);
		t->free = slot->next_free;
		fh = make_handle(++slot->generation, number, kind);
		slot->object = object;
		/* Partner: the acquire in open_table_get(). */
		atomic_store_explicit(&slot->fh, fh, memory_order_release);
	}
	pthread_mutex_unlock(&t->lock);
	return fh;
}

void *open_table_get(struct open_table *t, uint64_t fh, enum open_kind kind)
{
	struct open_slot *slot = slot_of(t, number_of(fh));

	if (fh == 0 || kind_of(fh) != kind || !slot ||
		atomic_load_explicit(&slot->fh, memory_order_acquire) != fh)
		return NULL;
	return slot->object;
}

void *open_table_remove(struct open_table *t, uint64_t fh, enum open_kind kind)
{
	pthread_mutex_lock(&t->lock);
	void *object = open_table_get(t, fh, kind);
	if (object) {
		uint32_t number = number_of(fh);
		struct open_slot *slot = slot_of(t, number);
		atomic_store_explicit(&slot->fh, 0, memory_order_relaxed);
		slot->next_free = t->free;
		t->free = number + 1;
	}
	pthread_mutex_unlock(&t->lock);
	return object;
}
