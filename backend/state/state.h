/* state.h - what would be lost if this process died now, in a file that outlives it.
 *
 * The file (format.h) is mapped: each unclean node has a record there, and its counters follow
 * the node's by plain stores, so that a kill -9 finds them right, and neither a system call nor
 * memory is needed on the way of a write. It lies in a tmpfs and does not outlive the machine.
 * The next start on the same source calls state_recover(), then state_start().
 *
 * Lock: the domain's, for everything but start, finish and recover.
 */
#ifndef PACEFS_BACKEND_STATE_STATE_H
#define PACEFS_BACKEND_STATE_STATE_H

#include "backend/cache/cache.h"
#include "backend/state/format.h"

struct state {
	struct state_header *header; /* of the mapping; NULL: there is no file */
	struct state_record *records;
	uint32_t *free; /* stack of record numbers: low ones are used again first */
	unsigned nr_free;
	/* Fills in *ret_who of the node (all zeroes before) and says whether its last name is
	 * gone. Stores only. */
	bool (*describe)(const struct node *node, struct state_who *ret_who);
};

/* The source that a file is about. */
struct state_source {
	const char *path; /* for messages */
	int root_fd;	  /* a directory or a raw device or file, not O_PATH */
	bool raw;
	bool read_only;
};

/* What the last daemon on a source did not get done. */
struct state_loss {
	unsigned files, trimmed;
	uint64_t bytes;
};

/* Reads what a daemon that was killed left in fd, says in the log what of which file was lost, and
 * cuts off zeroes at the end of files that were lengthened ahead. An empty file says that nothing
 * was left. Read-only nothing is cut off, and the caller leaves the file as it is. */
void state_recover(int fd, const struct state_source *src, struct state_loss *ret_loss);

/* Begin anew in fd (taken over on success, or not). 0 or -errno: then there is no state, and
 * everything else here does nothing. */
int state_start(struct state *s, int fd, const struct state_source *src,
	bool (*describe)(const struct node *node, struct state_who *ret_who));
/* Nothing is unclean any more, or the process is about to end: the records are not kept from
 * here on. The caller removes the file. */
void state_finish(struct state *s);

/* The node became unclean, or clean. */
void state_claim(struct state *s, struct node *node);
void state_release(struct state *s, struct node *node);
/* Its name is another one now, or gone. */
void state_renamed(struct state *s, struct node *node);
/* Its file below is about to be made to long, and is it now (or could not be). */
void state_extending(struct node *node, uint64_t from, uint64_t to);
void state_extended(struct node *node, uint64_t size);

/* A write of [from, to) has ended. One that failed leaves a hole for good: from then on the end
 * of the data cannot be told by where the holes begin. */
static inline void state_written(struct node *node, uint64_t from, uint64_t to, bool failed)
{
	struct state_record *r = node->record;

	if (r && failed)
		r->extended_to = r->extended_from = 0;
	else if (r && from <= r->written && to > r->written)
		r->written = to;
}

/* Pages, size or cut may have changed. */
static inline void state_update(const struct node *node)
{
	struct state_record *r = node->record;

	if (!r)
		return;
	r->pages = node->nr_dirty + node->nr_writeback;
	r->size = node->size;
	r->cut = node->cut_pending;
}

#endif
