#include "fuse/pacefs.h"

#include "fuse/held.h"
#include "fuse/node.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SMALL_BYTES 65536u /* throttle.h: the exemption of small writers */
#define SMALL_SHARE 8

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

	double share = b->throttle.avg_write_bandwidth / p->pacer.nr_active;

	if (b->throttle.dirty_ratelimit < share)
		share = b->throttle.dirty_ratelimit;
	return h->payload.bytes <= SMALL_BYTES &&
		h->writer->throttle.rate * SMALL_SHARE < share && h->writer->bytes > 0;
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
	char path[40], text[4096];

	snprintf(path, sizeof(path), "/proc/%d/status", tid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	ssize_t n = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[n > 0 ? n : 0] = '\0';
	/* SIGKILL shows as such when it, or a fatal signal with no other one pending, was sent.
	 * A fatal signal behind a handled one stays pending as itself. */
	uint64_t pending = signal_mask(text, "SigPnd:\t") | signal_mask(text, "ShdPnd:\t");
	uint64_t kept = signal_mask(text, "SigBlk:\t") | signal_mask(text, "SigIgn:\t") |
		signal_mask(text, "SigCgt:\t") | harmless_signals();
	uint64_t kill = 1ull << (SIGKILL - 1);
	return pending & (~kept | kill);
}
