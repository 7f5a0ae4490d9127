#include "backend/cache/cache.h"

#include "backend/state/state.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

void domain_progress(struct domain *dom)
{
	if (dom->wants_progress) {
		dom->wants_progress = false;
		pthread_cond_broadcast(&dom->progress);
	}
}

int device_init(struct device *dev, struct domain *dom, dev_t id, const char *name)
{
	memset(dev, 0, sizeof(*dev));
	dev->dom = dom;
	dev->dev = id;
	snprintf(dev->name, sizeof(dev->name), "%s", name);
	dev->bg_pages = dev->bg_time_pages = UINT64_MAX;
	dev->kick_fd = eventfd(0, EFD_CLOEXEC);
	return dev->kick_fd < 0 ? -errno : 0;
}

void device_finish(struct device *dev)
{
	close(dev->kick_fd);
}

void device_kick(struct device *dev)
{
	uint64_t one = 1;

	if (!dev->asleep)
		return;
	dev->asleep = false;
	if (write(dev->kick_fd, &one, sizeof(one)) < 0)
		assert(errno == EINTR); /* it wakes at its next timeout */
}

void node_init(struct node *node, struct device *dev, uint64_t nodeid, uint64_t size)
{
	memset(node, 0, sizeof(*node));
	node->dom = dev->dom;
	node->dev = dev;
	node->nodeid = nodeid;
	node->size = size;
	node->map.bytes = &dev->dom->map_bytes;
}

void node_get(struct node *node)
{
	node->refs++;
}

void node_put(struct node *node)
{
	assert(node->refs);
	if (--node->refs)
		return;
	node->on_dead = true;
	node->dead_next = node->dom->dead;
	node->dom->dead = node;
}

void node_revive(struct node *node)
{
	if (!node->on_dead)
		return;
	for (struct node **at = &node->dom->dead; *at; at = &(*at)->dead_next) {
		if (*at == node) {
			*at = node->dead_next;
			break;
		}
	}
	node->on_dead = false;
}

struct node *node_reap(struct domain *dom)
{
	struct node *node = dom->dead;

	if (node) {
		dom->dead = node->dead_next;
		node->on_dead = false;
	}
	return node;
}

bool node_is_unclean(const struct node *node)
{
	return node->nr_dirty || node->nr_writeback || node->cut_pending || node->times_pending;
}

void node_update_unclean(struct node *node)
{
	struct device *dev = node->dev;
	bool unclean = node_is_unclean(node);

	if (unclean == node->on_unclean) {
		state_update(node);
		return;
	}
	node->on_unclean = unclean;
	if (unclean) {
		state_claim(node->dom->state, node);
		node->unclean_seq++;
		DL_APPEND2(dev->unclean, node, unclean_prev, unclean_next);
		dev->nr_unclean++;
		node_get(node);
	} else {
		DL_DELETE2(dev->unclean, node, unclean_prev, unclean_next);
		dev->nr_unclean--;
		state_release(node->dom->state, node);
		node->full = false; /* whatever became of its pages */
		node->park_seq = 0;
		node_put(node);
	}
}

static struct node **list_of(struct device *dev, enum node_place place)
{
	switch (place) {
	case NODE_ON_DIRTY:
		return &dev->dirty;
	case NODE_ON_IO:
		return &dev->io;
	case NODE_ON_MORE_IO:
		return &dev->more_io;
	case NODE_CLEAN:
		break;
	}
	return NULL;
}

void node_move(struct node *node, enum node_place place)
{
	struct node **from = list_of(node->dev, node->place);
	struct node **to = list_of(node->dev, place);

	if (from)
		DL_DELETE(*from, node);
	else if (to)
		DL_APPEND2(node->dev->aged, node, aged_prev, aged_next);
	if (to)
		DL_APPEND(*to, node);
	else if (from)
		DL_DELETE2(node->dev->aged, node, aged_prev, aged_next);
	node->dev->nr_dirty_nodes += (to != NULL);
	node->dev->nr_dirty_nodes -= (from != NULL);
	node->place = place;
}

void node_tell_error(struct node *node, int err)
{
	node->err_seq++;
	node->err_seen = false;
	/* As the kernel's: fsync is not expected to say that a filesystem is read-only. */
	node->err = err == ENOSPC || err == EDQUOT ? err : EIO;
}

void node_set_error(struct node *node, int err)
{
	node_tell_error(node, err);
	node->dev->errors++;
}
