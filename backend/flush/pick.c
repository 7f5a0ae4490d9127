#include "backend/flush/pick.h"

struct flush_view flush_pick_view(const struct device *dev, bool time_round, uint64_t now_us)
{
	const struct node *oldest = dev->io ? dev->io
		: dev->more_io		    ? dev->more_io
					    : dev->dirty;

	return (struct flush_view){
		.now_us = now_us,
		.dirty_pages = dev->nr_dirty,
		.tagged_pages = dev->nr_tagged,
		.bg_pages = dev->bg_pages,
		.bg_time_pages = dev->bg_time_pages,
		.bg_age_us = dev->bg_age_us,
		.oldest_dirtied_us = oldest ? oldest->dirtied_when_us : FLUSH_NEVER_US,
		.writeback_us = dev->writeback_us,
		.expire_us = dev->expire_us,
		.next_periodic_us = dev->next_periodic_us,
		.periodic_round = dev->periodic_round,
		.time_round = time_round,
		.blocked = dev->nr_blocked > 0,
		.drain = dev->drain,
	};
}

static bool can_submit(const struct node *node, const struct flush_sizes *sizes)
{
	return node->nr_dirty && !node->cut_pending &&
		node->inflight_bytes < sizes->inflight_bytes;
}

/* The io list is empty: nodes whose slice was used up, then those dirtied before the cutoff,
 * oldest first. */
static void refill_io(struct device *dev, uint64_t cutoff_us)
{
	while (dev->more_io)
		node_move(dev->more_io, NODE_ON_IO);
	while (dev->dirty && dev->dirty->dirtied_when_us <= cutoff_us)
		node_move(dev->dirty, NODE_ON_IO);
}

static void begin_slice(
	struct flush_pick *pick, struct node *node, const struct flush_sizes *sizes)
{
	pick->current = node;
	node->slice_pages = sizes->slice_pages;
}

struct node *flush_pick(struct flush_pick *pick, struct device *dev,
	const struct flush_sizes *sizes, uint64_t cutoff_us)
{
	for (int round = 0; round < 2; round++) {
		struct node *n, *next;
		for (n = dev->io; n; n = next) {
			next = n->next;
			if (n->cut_pending) { /* its turn comes when the source is cut */
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
			return NULL; /* all of them have their share in flight */
		refill_io(dev, cutoff_us);
	}
	return NULL;
}

struct node *flush_pick_tagged(const struct device *dev, const struct flush_sizes *sizes)
{
	for (struct node *n = dev->unclean; n; n = n->unclean_next)
		if (n->nr_tagged && can_submit(n, sizes))
			return n;
	return NULL;
}

bool flush_pick_pass(struct flush_pick *pick, struct node *node)
{
	if (node->place != NODE_ON_IO)
		return false;
	pick->current = NULL;
	node_move(node, NODE_ON_MORE_IO);
	return node->dev->io != NULL;
}

void flush_pick_took(struct node *node, uint64_t index, uint64_t nr_pages)
{
	node->flush_index = index + nr_pages;
	node->slice_pages -= node->slice_pages < nr_pages ? node->slice_pages : nr_pages;
}
