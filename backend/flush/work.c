#include "backend/flush/flusher.h"

#include "backend/state/state.h"
#include "util/clock.h"
#include "util/log.h"

#include <errno.h>
#include <string.h>

/* Wait for progress with the lock held. */
static void wait_progress(struct domain *dom)
{
	dom->wants_progress = true;
	pthread_cond_wait(&dom->progress, &dom->lock);
}

void flusher_work(struct flusher *fl, struct node *node)
{
	/* At the end, when all was written, nothing is left to do. */
	if (node->work_queued || fl->stopping)
		return;
	node->work_queued = true;
	node->work_next = NULL;
	node_get(node);
	if (fl->work_tail)
		fl->work_tail->work_next = node;
	else
		fl->work_head = node;
	fl->work_tail = node;
	pthread_cond_signal(&fl->work_cond);
}

/* Drops the lock. */
static void source_error(struct flusher *fl, struct node *node, const char *what, int ret)
{
	uint64_t now_us = clock_now_us();

	node_set_error(node, -ret);
	health_failed(fl, -ret, now_us);
	health_lost(fl, node, 0, 0, what, -ret, now_us);
}

/* The source's own ftruncate waits for direct I/O in flight, so nobody waits for it here but
 * later writes of this node, and those who ask for durability. */
static void apply_cut(struct flusher *fl, struct node *node)
{
	struct domain *dom = node->dom;
	uint64_t seq = node->cut_seq;
	uint64_t size = node->cut_size, end = node->cut_end;
	struct store_file *file = node->file;

	node_change_begin(node);
	domain_unlock(dom);
	int ret = file ? store_file_truncate(file, size) : -EBADF;
	/* Cut, written further on and cut again there: what lies between is a hole, and there
	 * may be no page left that would bring the size with it. */
	if (ret == 0 && end > size)
		ret = store_file_truncate(file, end);
	domain_lock(dom);
	node_change_end(node);
	if (ret == -EINTR)
		return;
	if (file && file->size_below > size)
		file->size_below = size;
	if (node->cut_seq == seq)
		node->cut_pending = false;
	node_update_unclean(node);
	if (ret < 0)
		source_error(fl, node, "truncate", ret);
	else
		health_room_made(node->dev, clock_now_us());
	device_kick(node->dev);
}

/* Ahead of a stream of writes, see flusher.c. */
static void apply_extend(struct flusher *fl, struct node *node)
{
	struct domain *dom = node->dom;
	uint64_t size = node->extend_to < node->size ? node->extend_to : node->size;
	struct store_file *file = node->file;
	uint64_t from = file->size_below;

	if (size <= from) {
		node->extend_to = 0;
		return;
	}
	state_extending(node, from, size);
	node_change_begin(node);
	domain_unlock(dom);
	int ret = store_file_extend(file, from, size);
	domain_lock(dom);
	node_change_end(node);
	state_extended(node, ret == 0 ? size : from);
	node->extend_to = 0;
	if (ret == 0 && size > file->size_below)
		file->size_below = size;
	else if (ret == -EOPNOTSUPP)
		fl->store->serial_extends = false; /* nothing to be gained here */
	/* Other errors (a full disk) are the write's own to find. */
}

/* Where its next pages go, for writing files in disk order. */
static void look_for_position(struct node *node)
{
	struct domain *dom = node->dom;
	uint64_t offset = node->flush_index << PAGE_SHIFT_BITS;
	struct store_file *file = node->file;

	node->position_wanted = false;
	domain_unlock(dom);
	uint64_t position = store_file_position(file, offset);
	domain_lock(dom);
	node->position = position;
}

void flusher_collided(struct flusher *fl, struct node *node)
{
	char name[LOST_NAME_MOST];

	fl->dev->foreign_collisions++;
	domain_unlock(fl->dev->dom);
	store_file_name(node->file, name, sizeof(name));
	log_warn("%s: somebody changed it in the source while what was written to it here was "
		 "on its way: the two may be mixed",
		name);
	domain_lock(fl->dev->dom);
}

static bool pages_clean(const struct node *node)
{
	return node->nr_dirty == 0 && node->nr_writeback == 0;
}

/* The source has all of the node as it is here, and this time. Returns whether it has another size
 * nevertheless, which then somebody else gave it. */
static bool all_is_below(struct flusher *fl, struct node *node, const struct store_look *look)
{
	bool foreign = look->size != node->size && !fl->store->raw;

	node->mtime = look->mtime; /* what it made of it */
	node->below_ctime_ns = clock_ns(&look->ctime);
	/* What could not be written is no sign of others. */
	if (foreign && node->err_seq)
		return false;
	node_below_is(node, look->mtime);
	if (!foreign)
		node->file->size_below = look->size; /* a cut may have left it too low */
	return foreign;
}

static void apply_times(struct flusher *fl, struct node *node)
{
	struct domain *dom = node->dom;
	struct timespec mtime = node->mtime;
	uint32_t times_seq = node->times_seq;
	uint64_t ended = node->ended_seq;
	struct store_file *file = node->file;
	struct store_look look;

	node_change_begin(node);
	uint64_t seq = node->unclean_seq;
	domain_unlock(dom);
	int ret = file ? store_file_set_mtime(file, mtime) : -EBADF;
	bool seen = ret == 0 && store_file_look(file, &look) == 0;
	domain_lock(dom);
	bool alone =
		seq == node->unclean_seq && node->below_changing == 1 && !node->cut_pending;
	node_change_end(node);
	/* A page on its way, or one that arrived meanwhile, moves the source's time again. */
	bool last = ended == node->ended_seq && pages_clean(node);
	bool set = times_seq == node->times_seq && (ret < 0 || last);
	if (set)
		node->times_pending = false;
	bool foreign = set && seen && alone && all_is_below(fl, node, &look);
	node_update_unclean(node);
	/* A time that finds no room is not lost data. */
	if (ret < 0 && !health_is_full(-ret))
		source_error(fl, node, "setting its time", ret);
	if (foreign)
		flusher_collided(fl, node);
}

/* One thing to do for the node; false when there is nothing (now). */
static bool work_once(struct flusher *fl, struct node *node)
{
	if (node->cut_pending && !node->inflight) {
		apply_cut(fl, node);
		return true;
	}
	if (node->extend_to && node->file && !node->cut_pending) {
		apply_extend(fl, node);
		return true;
	}
	if (node->times_pending && !node->cut_pending && pages_clean(node)) {
		apply_times(fl, node);
		return true;
	}
	if (node->position_wanted && node->file && node->file_users) {
		look_for_position(node);
		return true;
	}
	if (node->file && node->file_users == 0 && !node_is_unclean(node) && !node->inflight) {
		struct store_file *file = node->file;
		node->file = NULL;
		domain_unlock(node->dom);
		int ret = store_file_close(file);
		domain_lock(node->dom);
		if (ret < 0)
			source_error(fl, node, "close", ret);
		return true;
	}
	return false;
}

static void run_work(struct flusher *fl, struct node *node)
{
	struct domain *dom = node->dom;

	while (node->work_running)
		wait_progress(dom);
	node->work_running = true;
	while (work_once(fl, node))
		;
	node->work_running = false;
	domain_progress(dom);
}

void flusher_do_work(struct flusher *fl, struct node *node)
{
	node_get(node);
	run_work(fl, node);
	node_put(node);
}

void *flusher_worker(void *arg)
{
	struct flusher *fl = arg;
	struct domain *dom = fl->dev->dom;

	domain_lock(dom);
	for (;;) {
		struct node *node = fl->work_head;
		if (!node) {
			if (fl->stopping)
				break;
			pthread_cond_wait(&fl->work_cond, &dom->lock);
			continue;
		}
		fl->work_head = node->work_next;
		if (!fl->work_head)
			fl->work_tail = NULL;
		node->work_queued = false;
		run_work(fl, node);
		node_put(node);
	}
	domain_unlock(dom);
	return NULL;
}

void flusher_settle_cut(struct flusher *fl, struct node *node)
{
	while (node->cut_pending) {
		if (!node->inflight)
			flusher_do_work(fl, node);
		else
			wait_progress(node->dom);
	}
}

int flusher_sync_node(struct flusher *fl, struct node *node)
{
	struct domain *dom = node->dom;

	domain_lock(dom);
	node_get(node);
	uint64_t put_off = node->put_off;
	node->park_seq = 0; /* it is tried again */
	cache_tag_node(node);
	flusher_settle_cut(fl, node);
	device_kick(node->dev);
	while (node->nr_tagged)
		wait_progress(dom);
	flusher_settle_cut(fl, node);
	/* With newer pages on their way the times follow those. */
	if (node->times_pending)
		flusher_do_work(fl, node);
	int ret = node->put_off == put_off ? 0 : node->err == EDQUOT ? -EDQUOT : -ENOSPC;
	node_put(node);
	domain_unlock(dom);
	return ret;
}

/* All that was left to do for other nodes than pages, as of now. */
static void settle_all(struct flusher *fl)
{
	struct device *dev = fl->dev;

	for (struct node *n = dev->unclean; n;) {
		bool todo = n->cut_pending || (n->times_pending && pages_clean(n));
		if (!todo) {
			n = n->unclean_next;
			continue;
		}
		node_get(n);
		if (n->cut_pending)
			flusher_settle_cut(fl, n);
		else
			flusher_do_work(fl, n);
		/* The lock was dropped: the list may be another one. Each node is settled at
		 * most once per change of its own, so this ends. */
		node_put(n);
		n = dev->unclean;
	}
}

void flusher_heard(struct flusher *fl, struct node *node, const char *what, int err)
{
	domain_lock(fl->dev->dom);
	if (err && node)
		source_error(fl, node, what, -err);
	else if (err)
		health_failed(fl, err, clock_now_us());
	else {
		health_went_well(fl, clock_now_us());
		health_room_made(fl->dev, clock_now_us());
	}
	domain_unlock(fl->dev->dom);
}

/* The source tells of an error once, and not which files it cost: whoever asks later finds it
 * counted here. */
static int sync_source(struct flusher *fl)
{
	int ret = store_sync_all(fl->store);

	if (ret == 0)
		return 0;
	log_error("%s: its sync failed: %s", fl->dev->name, strerror(-ret));
	domain_lock(fl->dev->dom);
	fl->dev->errors++;
	health_failed(fl, -ret, clock_now_us());
	domain_unlock(fl->dev->dom);
	return ret;
}

int flusher_sync(struct flusher *fl)
{
	struct device *dev = fl->dev;

	domain_lock(dev->dom);
	uint64_t put_off = dev->put_off;
	health_unpark(dev);
	/* Others who sync all the time add tags all the time. Once the older colour is used up,
	 * newcomers get it, and the count of ours only falls: what this waits for is bounded by
	 * what was dirty at the call and at that moment. */
	cache_tag_device(dev);
	device_kick(dev);
	unsigned mine = dev->colour;
	while (dev->nr_coloured[mine ^ 1])
		wait_progress(dev->dom);
	if (dev->colour == mine)
		dev->colour = mine ^ 1;
	while (dev->nr_coloured[mine])
		wait_progress(dev->dom);
	settle_all(fl);
	int err = dev->put_off == put_off ? 0 : -ENOSPC;
	domain_unlock(dev->dom);
	int ret = sync_source(fl);
	return ret < 0 ? ret : err;
}

void flusher_drain(struct flusher *fl)
{
	struct device *dev = fl->dev;

	domain_lock(dev->dom);
	dev->drain = true;
	dev->drain_until_us = clock_now_us() + HEALTH_DRAIN_US;
	health_unpark(dev);
	while (dev->nr_unclean || dev->nr_writeback) {
		device_kick(dev);
		settle_all(fl);
		if (dev->nr_unclean || dev->nr_writeback)
			wait_progress(dev->dom);
	}
	dev->drain = false;
	domain_unlock(dev->dom);
	sync_source(fl);
}
