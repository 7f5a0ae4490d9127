#include "fuse/pacefs.h"

#include "fuse/held.h"
#include "fuse/node.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct held *held_create(unsigned nr_frames)
{
	struct held *h = malloc(sizeof(*h) + nr_frames * sizeof(h->frames[0]));

	if (h)
		memset(h, 0, sizeof(*h));
	return h;
}

void held_destroy(struct held *h)
{
	free(h);
}

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

bool held_is_small(const struct pacefs *p, const struct held *h)
{
	const struct backing *b = backing_of(h->fn->node.dev);

	return h->writer->bytes > 0 &&
		throttle_is_small(&b->throttle, p->pacer.nr_active, h->writer->throttle.rate,
			ceil((double)h->payload.bytes / PAGE_BYTES));
}

/* The mask on this line of /proc/TID/status, 0 if there is none. */
static uint64_t signal_mask(const char *status, const char *key)
{
	const char *at = strstr(status, key);

	return at ? strtoull(at + strlen(key), NULL, 16) : 0;
}

/* Signals that do nothing by default, or only stop. */
static uint64_t harmless_signals(void)
{
	static const int signals[] = {
		SIGCHLD, SIGCONT, SIGURG, SIGWINCH, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU};
	uint64_t mask = 0;

	for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++)
		mask |= 1ull << (signals[i] - 1);
	return mask;
}

bool held_is_killed(pid_t tid)
{
	char text[4096];

	if (writer_read_status(tid, text, sizeof(text)) < 0)
		return false;
	/* SIGKILL shows as such when it, or a fatal signal with no other one pending, was sent.
	 * A fatal signal behind a handled one stays pending as itself. */
	uint64_t pending = signal_mask(text, "SigPnd:\t") | signal_mask(text, "ShdPnd:\t");
	uint64_t kept = signal_mask(text, "SigBlk:\t") | signal_mask(text, "SigIgn:\t") |
		signal_mask(text, "SigCgt:\t") | harmless_signals();
	uint64_t kill = 1ull << (SIGKILL - 1);
	return pending & (~kept | kill);
}
