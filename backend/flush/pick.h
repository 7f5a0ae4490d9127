/* pick.h - which file is written next, and for how long before the others come.
 *
 * Pure: works on the lists of struct device and on counters and positions of struct node, nothing
 * else, and calls node_move() only; the flusher and the simulator call the same functions. A node
 * with dirty pages has its file open for writing, so files are not looked at here.
 * Lock: the domain's.
 */
#ifndef PACEFS_BACKEND_FLUSH_PICK_H
#define PACEFS_BACKEND_FLUSH_PICK_H

#include "backend/cache/cache.h"
#include "backend/flush/plan.h"

struct flush_pick {
	struct node *current; /* whose slice is being written */
};

/* What the plan is to be made from, out of the device's counters. time_round: of the plan before. */
struct flush_view flush_pick_view(const struct device *dev, bool time_round, uint64_t now_us);

/* The node to write from next, or NULL: nothing dirtied up to cutoff_us can be submitted now. A
 * node keeps its slice until it is used up, then the others come first. */
struct node *flush_pick(struct flush_pick *pick, struct device *dev,
	const struct flush_sizes *sizes, uint64_t cutoff_us);
/* Of those that somebody waits for (tagged pages). Their pages count for no slice. */
struct node *flush_pick_tagged(const struct device *dev, const struct flush_sizes *sizes);
/* Nothing of the picked node could go now: others come first. False: there are none. */
bool flush_pick_pass(struct flush_pick *pick, struct node *node);
/* A request of nr_pages at index was made of the node. */
void flush_pick_took(struct node *node, uint64_t index, uint64_t nr_pages);

#endif
