/* pick.h - which file is written next, and for how long before the others come.
 *
 * Files are written in rounds: every file that is dirty when a round begins is written once, one
 * slice of it; one that gets dirty later, or is still dirty then, comes in the next round. So
 * nobody waits longer than a round. Oldest first; where the device seeks (device->seeks) in the
 * order of their places on it, from the last file begun upwards and then from the lowest (C-LOOK),
 * and in slices four times as large: there a seek costs more than what is written of a small
 * file, and the others wait for the whole round in any order. A wrong order costs seeks only.
 *
 * There is one place where turns (long runs by taking writers one after the other) would come in:
 * begin_round() would take the sealed runs instead of whatever is dirty.
 *
 * Pure: works on the lists of struct device and on counters and positions of struct node, and
 * calls node_move() only; the flusher and the simulator call the same functions. A node with dirty
 * pages has its file open for writing, so files are not looked at here. Lock: the domain's.
 */
#ifndef PACEFS_BACKEND_FLUSH_PICK_H
#define PACEFS_BACKEND_FLUSH_PICK_H

#include "backend/cache/cache.h"
#include "backend/flush/plan.h"

#define FLUSH_SEEK_SLICES 4 /* one slice where the device seeks, in slices elsewhere */

struct flush_pick {
	struct node *current; /* whose slice is being written; only compared with */
	uint64_t head;	      /* struct node, position: of the last file begun */
	struct node *passed;  /* the first one since a request was made; only compared with */
};

/* What the plan is to be made from, out of the device's counters. time_round: of the plan before. */
struct flush_view flush_pick_view(const struct device *dev, bool time_round, uint64_t now_us);

/* The node to write from next, or NULL: nothing dirtied up to cutoff_us can be submitted now. A
 * node keeps its slice until it is used up, then the others come first. */
struct node *flush_pick(struct flush_pick *pick, struct device *dev,
	const struct flush_sizes *sizes, uint64_t cutoff_us);
/* The same of those with tagged pages, which somebody waits for: no rounds and no slices. */
struct node *flush_pick_tagged(
	struct flush_pick *pick, const struct device *dev, const struct flush_sizes *sizes);
/* Nothing of the picked node could go now: others come first. False: there are none, or none
 * of them could either. */
bool flush_pick_pass(struct flush_pick *pick, struct node *node);
/* A request of nr_pages at index was made of the node. */
void flush_pick_took(
	struct flush_pick *pick, struct node *node, uint64_t index, uint64_t nr_pages);

#endif
