#include "tests/sim/model.h"

#include <stdlib.h>

static bool before(const struct sim_timer *a, const struct sim_timer *b)
{
	return a->at_us != b->at_us ? a->at_us < b->at_us : a->sequence < b->sequence;
}

static void put(struct sim_events *e, size_t slot, struct sim_timer *t)
{
	e->heap[slot] = t;
	t->slot = slot + 1;
}

static void sift_up(struct sim_events *e, size_t slot, struct sim_timer *t)
{
	while (slot) {
		size_t parent = (slot - 1) / 2;
		if (!before(t, e->heap[parent]))
			break;
		put(e, slot, e->heap[parent]);
		slot = parent;
	}
	put(e, slot, t);
}

static void sift_down(struct sim_events *e, size_t slot, struct sim_timer *t)
{
	for (;;) {
		size_t child = 2 * slot + 1;
		if (child >= e->nr)
			break;
		if (child + 1 < e->nr && before(e->heap[child + 1], e->heap[child]))
			child++;
		if (!before(e->heap[child], t))
			break;
		put(e, slot, e->heap[child]);
		slot = child;
	}
	put(e, slot, t);
}

void sim_timer_init(struct sim_timer *t, enum sim_event event, unsigned id, void *owner)
{
	*t = (struct sim_timer){.at_us = SIM_NEVER, .event = event, .id = id, .owner = owner};
}

bool sim_arm(struct sim_events *e, struct sim_timer *t, uint64_t at_us)
{
	sim_disarm(e, t);
	if (e->nr == e->room) {
		size_t room = e->room ? 2 * e->room : 256;
		struct sim_timer **heap = realloc(e->heap, room * sizeof(*heap));
		if (!heap)
			return false;
		e->heap = heap;
		e->room = room;
	}
	t->at_us = at_us;
	t->sequence = ++e->sequence;
	sift_up(e, e->nr++, t);
	return true;
}

void sim_disarm(struct sim_events *e, struct sim_timer *t)
{
	if (!t->slot)
		return;
	size_t slot = t->slot - 1;
	struct sim_timer *last = e->heap[--e->nr];
	t->slot = 0;
	t->at_us = SIM_NEVER;
	if (last == t)
		return;
	if (slot && before(last, e->heap[(slot - 1) / 2]))
		sift_up(e, slot, last);
	else
		sift_down(e, slot, last);
}

struct sim_timer *sim_next(struct sim_events *e)
{
	if (!e->nr)
		return NULL;
	struct sim_timer *t = e->heap[0];
	uint64_t at_us = t->at_us;
	sim_disarm(e, t);
	t->at_us = at_us; /* for whom it is about */
	return t;
}
