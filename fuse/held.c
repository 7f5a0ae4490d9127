#include "fuse/held.h"

#include <stdlib.h>

static void heap_put(struct pacer *pacer, size_t slot, struct held *h)
{
	pacer->heap[slot] = h;
	h->heap_slot = slot;
}

bool held_push(struct pacer *pacer, struct held *h)
{
	if (pacer->nr_heap == pacer->heap_room) {
		size_t room = pacer->heap_room ? 2 * pacer->heap_room : 64;
		struct held **heap = realloc(pacer->heap, room * sizeof(*heap));
		if (!heap)
			return false;
		pacer->heap = heap;
		pacer->heap_room = room;
	}
	size_t slot = pacer->nr_heap++;
	while (slot) {
		size_t parent = (slot - 1) / 2;
		if (pacer->heap[parent]->deadline_us <= h->deadline_us)
			break;
		heap_put(pacer, slot, pacer->heap[parent]);
		slot = parent;
	}
	heap_put(pacer, slot, h);
	return true;
}

struct held *held_pop(struct pacer *pacer)
{
	struct held *first = pacer->heap[0];
	struct held *last = pacer->heap[--pacer->nr_heap];
	size_t slot = 0;

	for (;;) {
		size_t child = 2 * slot + 1;
		if (child >= pacer->nr_heap)
			break;
		if (child + 1 < pacer->nr_heap &&
			pacer->heap[child + 1]->deadline_us < pacer->heap[child]->deadline_us)
			child++;
		if (last->deadline_us <= pacer->heap[child]->deadline_us)
			break;
		heap_put(pacer, slot, pacer->heap[child]);
		slot = child;
	}
	if (pacer->nr_heap)
		heap_put(pacer, slot, last);
	return first;
}
