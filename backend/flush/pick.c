#include "backend/flush/pick.h"

#include <utlist.h>

struct flush_view flush_pick_view(const struct device *dev, bool time_round, uint64_t now_us)
{
	return (struct flush_view){
		.now_us = now_us,
		.dirty_pages = dev->nr_dirty,
		.tagged_pages = dev->nr_tagged,
		.bg_pages = dev->bg_pages,
		.bg_time_pages = dev->bg_time_pages,
		.bg_age_us = dev->bg_age_us,
		.oldest_dirtied_us = dev->aged ? dev->aged->dirtied_when_us : FLUSH_NEVER_US,
		.writeback_us = dev->writeback_us,
		.expire_us = dev->expire_us,
		.next_periodic_us = dev->next_periodic_us,
		.periodic_round = dev->periodic_round,
		.time_round = time_round,
		.blocked = dev->nr_blocked > 0 || dev->retrying,
		.drain = dev->drain,
	};
}

static bool can_submit(const struct node *node, const struct flush_sizes *sizes)
{
	return node->nr_dirty && !node->cut_pending && !node_is_parked(node) &&
		node->inflight_bytes < sizes->inflight_bytes;
}

/* How far the node is from the head for a head that only goes up: what lies below comes after
 * everything above, by wrapping around. */
static uint64_t ahead_of(const struct flush_pick *pick, const struct node *node)
{
	return node->position - pick->head;
}

static int by_ahead(const struct node *a, const struct node *b)
{
	return (a->ahead > b->ahead) - (a->ahead < b->ahead);
}

/* The io list is empty: nodes whose slice was used up, then those dirtied before the cutoff,
 * oldest first; sorting keeps that order for equal places. */
static void begin_round(struct flush_pick *pick, struct device *dev, uint64_t cutoff_us)
{
	struct node *n;

	pick->current = NULL; /* it begins a slice like everybody else */
	while (dev->more_io)
		node_move(dev->more_io, NODE_ON_IO);
	while (dev->dirty && dev->dirty->dirtied_when_us <= cutoff_us)
		node_move(dev->dirty, NODE_ON_IO);
	if (!dev->seeks)
		return;
	DL_FOREACH (dev->io, n)
		n->ahead = ahead_of(pick, n);
	DL_SORT(dev->io, by_ahead);
}

static void begin_slice(
	struct flush_pick *pick, struct node *node, const struct flush_sizes *sizes)
{
	pick->current = node;
	pick->head = node->position;
	node->slice_pages = sizes->slice_pages * (node->dev->seeks ? FLUSH_SEEK_SLICES : 1);
}

struct node *flush_pick(struct flush_pick *pick, struct device *dev,
	const struct flush_sizes *sizes, uint64_t cutoff_us)
{
	for (int round = 0; round < 2; round++) {
		struct node *n, *next;
		for (n = dev->io; n; n = next) {
			next = n->next;
			/* Its turn comes when the source is cut, or has room. */
			if (n->cut_pending || node_is_parked(n)) {
				node_move(n, NODE_ON_MORE_IO);
				continue;
			}
			if (n->slice_pages == 0 && n == pick->current) {
				pick->current = NULL;
				node_move(n, NODE_ON_MORE_IO);
				continue;
			}
			if (!can_submit(n, sizes))
				continue;
			if (n != pick->current)
				begin_slice(pick, n, sizes);
			return n;
		}
		if (dev->io)
			break; /* all of them have their share in flight */
		begin_round(pick, dev, cutoff_us);
	}
	pick->passed = NULL;
	return NULL;
}

struct node *flush_pick_tagged(
	struct flush_pick *pick, const struct device *dev, const struct flush_sizes *sizes)
{
	struct node *best = NULL;

	for (struct node *n = dev->unclean; n; n = n->unclean_next) {
		if (n->nr_tagged && can_submit(n, sizes) &&
			(!best || ahead_of(pick, n) < ahead_of(pick, best)))
			best = n;
		if (best && !dev->seeks)
			break;
	}
	if (best)
		pick->head = best->position;
	return best;
}

bool flush_pick_pass(struct flush_pick *pick, struct node *node)
{
	/* Passed once already: they went round, and none of them could. */
	bool again = node == pick->passed;

	if (node->place == NODE_ON_IO && !again) {
		if (!pick->passed)
			pick->passed = node;
		pick->current = NULL;
		node_move(node, NODE_ON_MORE_IO);
		if (node->dev->io)
			return true;
	}
	pick->passed = NULL;
	return false;
}

void flush_pick_took(
	struct flush_pick *pick, struct node *node, uint64_t index, uint64_t nr_pages)
{
	pick->passed = NULL;
	node->flush_index = index + nr_pages;
	node->slice_pages -= node->slice_pages < nr_pages ? node->slice_pages : nr_pages;
}
