#include "backend/cache/cache.h"

#include "backend/state/state.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

#define NS_PER_S 1000000000

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

/* ---- times ---- */

struct timespec node_round_time(const struct node *node, struct timespec t)
{
	const uint32_t step = node->dev->time_step_ns;

	if (step >= NS_PER_S)
		t.tv_sec -= t.tv_sec % (step / NS_PER_S), t.tv_nsec = 0;
	else if (step > 1)
		t.tv_nsec -= t.tv_nsec % step;
	return t;
}

/* Now, by the clock of the filesystem below, which ticks every some milliseconds: what it stamps a
 * moment later (touch of a clean file) must not look older than this. Never before the last one;
 * after it if that was seen, where the source has times as fine as that: who compares must find
 * that something happened. */
static struct timespec stamp(const struct node *node)
{
	enum { FINE_NS = 1000000 };
	const uint32_t step = node->dev->time_step_ns ? node->dev->time_step_ns : 1;
	struct timespec now, next = node->ctime;

	clock_gettime(CLOCK_REALTIME_COARSE, &now);
	now = node_round_time(node, now);
	double ahead = (double)(next.tv_sec - now.tv_sec) +
		(double)(next.tv_nsec - now.tv_nsec) / NS_PER_S;
	/* Not over the date of a clock that was set back meanwhile. */
	if (ahead < 0 || ahead > 1)
		return now;
	if (node->times_shown && step < FINE_NS) {
		next.tv_nsec += step;
		next.tv_sec += next.tv_nsec / NS_PER_S;
		next.tv_nsec %= NS_PER_S;
	}
	return next;
}

void node_touch_ctime(struct node *node)
{
	node->ctime = stamp(node);
	node->times_shown = false;
}

void node_touch(struct node *node)
{
	node_touch_ctime(node);
	node_set_mtime(node, node->ctime);
}

void node_set_mtime(struct node *node, struct timespec mtime)
{
	node->mtime = mtime;
	node->times_seq++;
	node->times_pending = true;
	node_update_unclean(node);
}

/* ---- changes of ours below ---- */

void node_change_begin(struct node *node)
{
	node->below_changing++;
	node->below_known = false;
	node->unclean_seq++;
}

void node_change_end(struct node *node)
{
	assert(node->below_changing);
	node->below_changing--;
	node->below_known = false;
	node->unclean_seq++;
}

struct node_look node_look_begin(const struct node *node)
{
	return (struct node_look){.clean = !node_is_unclean(node), .seq = node->unclean_seq};
}

bool node_look_holds(const struct node *node, const struct node_look *look)
{
	return look->clean && !node_is_unclean(node) && !node->below_changing &&
		look->seq == node->unclean_seq;
}

void node_below_is(struct node *node, struct timespec mtime)
{
	node->below_mtime = mtime;
	node->below_known = true;
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
