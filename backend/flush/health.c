#include "backend/flush/health.h"

#include "backend/flush/flusher.h"
#include "util/clock.h"
#include "util/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- losses ---- */

/* The name is asked for without the lock. */
static void know_name(struct flusher *fl, struct node *node, char *name, size_t size)
{
	name[0] = '\0';
	if (lost_knows(&fl->lost, node->nodeid) || !node->file)
		return;
	node_get(node);
	struct store_file *file = node->file;
	node->file_users++; /* nobody closes it meanwhile */
	domain_unlock(node->dom);
	store_file_name(file, name, size);
	domain_lock(node->dom);
	if (--node->file_users == 0)
		flusher_work(fl, node);
	node_put(node);
}

void health_lost(struct flusher *fl, struct node *node, uint64_t from, uint64_t to,
	const char *what, int err, uint64_t now_us)
{
	char name[4096];

	know_name(fl, node, name, sizeof(name));
	if (!lost_add(&fl->lost, node->nodeid, name, from, to, now_us))
		return;
	if (!name[0])
		snprintf(name, sizeof(name), "%s", lost_name(&fl->lost, node->nodeid));
	const char *tail =
		strlen(name) > LOST_NAME_MOST ? name + strlen(name) - LOST_NAME_MOST : name;
	domain_unlock(node->dom);
	if (from < to)
		log_error("%s: bytes 0x%" PRIx64 "-0x%" PRIx64 " were not written: %s", tail,
			from, to, strerror(err));
	else
		log_error("%s: %s failed: %s", tail, what, strerror(err));
	domain_lock(node->dom);
}

/* The first run of dirty pages is dropped; its bytes. */
static uint64_t drop_run(struct node *node, uint64_t *ret_from)
{
	uint64_t first = mapping_next(&node->map, 0, true), i = first;

	for (; mapping_next(&node->map, i, true) == i; i++)
		cache_drop_page(node, i);
	uint64_t from = first << PAGE_SHIFT_BITS, to = i << PAGE_SHIFT_BITS;
	if (to > node->size)
		to = node->size;
	*ret_from = from;
	return to > from ? to - from : 0;
}

static void drop_node(struct flusher *fl, struct node *node, uint64_t now_us)
{
	struct device *dev = fl->dev;
	bool cut = node->cut_pending;

	node_get(node);
	if (node->nr_dirty || cut)
		node_set_error(node, EIO);
	while (node->nr_dirty) {
		uint64_t from, bytes = drop_run(node, &from);
		dev->lost_bytes += bytes;
		if (bytes)
			health_lost(fl, node, from, from + bytes, NULL, dev->error, now_us);
	}
	node->cut_pending = false;
	node->times_pending = false;
	node_update_unclean(node);
	if (cut)
		health_lost(fl, node, 0, 0, "truncate", dev->error, now_us);
	node_put(node);
}

void health_drop_all(struct flusher *fl, uint64_t now_us)
{
	struct node *node = fl->dev->unclean;

	while (node) {
		bool wanted = node->nr_dirty || node->cut_pending || node->times_pending;
		if (wanted)
			drop_node(fl, node, now_us);
		/* The lock was dropped: the list may be another one. What stays on it waits for
		 * its requests in flight, which are few. */
		node = wanted ? fl->dev->unclean : node->unclean_next;
	}
	domain_progress(fl->dev->dom);
}

/* ---- no room ---- */

void health_park(struct flusher *fl, struct node *node, int err, uint64_t now_us)
{
	struct device *dev = fl->dev;

	/* Once: not at each try. Who syncs looks for himself whether it is parked still. */
	if (!node->full)
		node_tell_error(node, err);
	node->full = true;
	cache_untag_node(node);
	if (!dev->parked) {
		dev->parked = true;
		dev->park_seq += dev->park_seq == 0;
		dev->parked_us = now_us;
		dev->retry_us = now_us + (dev->drain ? HEALTH_DRAIN_PARK_US : HEALTH_PARK_US);
	}
	node->park_seq = dev->park_seq;
	node->put_off++;
	dev->put_off++;
	domain_progress(dev->dom);
}

void health_unpark(struct device *dev)
{
	if (!dev->parked)
		return;
	dev->parked = false;
	dev->retrying = true;
	dev->park_seq++;
	device_kick(dev);
}

void health_room_made(struct device *dev, uint64_t now_us)
{
	if (now_us - dev->parked_us >= HEALTH_PARK_LEAST_US)
		health_unpark(dev);
	else
		dev->retry_us = dev->parked_us + HEALTH_PARK_LEAST_US;
}

/* ---- health ---- */

static void become(struct flusher *fl, enum device_health health)
{
	fl->dev->health = health;
	if (health == DEVICE_GONE) {
		device_kick(fl->dev);
		domain_progress(fl->dev->dom);
	}
	pthread_cond_signal(&fl->health_cond);
}

void health_failed(struct flusher *fl, int err, uint64_t now_us)
{
	struct device *dev = fl->dev;

	dev->error_us = now_us;
	dev->error = err;
	if (dev->health == DEVICE_HEALTHY)
		become(fl, DEVICE_FAILING);
	if (dev->health == DEVICE_FAILING) {
		fl->ask = true;
		pthread_cond_signal(&fl->health_cond);
	}
}

void health_went_well(struct flusher *fl, uint64_t now_us)
{
	struct device *dev = fl->dev;

	uint64_t recover_us =
		health_is_full(dev->error) ? HEALTH_RECOVER_FULL_US : HEALTH_RECOVER_US;

	if (dev->health == DEVICE_FAILING && now_us - dev->error_us >= recover_us &&
		!dev->parked && !dev->retrying)
		become(fl, DEVICE_HEALTHY);
}

static void say(const struct device *dev, enum device_health health, int err)
{
	switch (health) {
	case DEVICE_HEALTHY:
		log_info("%s: writes succeed again, and are buffered again", dev->name);
		break;
	case DEVICE_FAILING:
		log_warn("%s: %s: until writes succeed again they go through to it one by one",
			dev->name, strerror(err));
		break;
	case DEVICE_GONE:
		log_error("%s: device gone: writes fail, and what was not written is lost",
			dev->name);
		break;
	}
}

static void wait_for(struct flusher *fl, uint64_t until_us)
{
	struct timespec until = {
		.tv_sec = (time_t)(until_us / US_PER_S),
		.tv_nsec = (long)(until_us % US_PER_S * 1000),
	};

	pthread_cond_timedwait(&fl->health_cond, &fl->dev->dom->lock, &until);
}

/* Once is not enough to throw away what is dirty: a bridge that starts anew, a network path that is
 * another one now, answer again within a second. */
static void missing(struct flusher *fl, uint64_t now_us)
{
	if (!fl->missing_since_us)
		fl->missing_since_us = now_us;
	if (now_us - fl->missing_since_us >= HEALTH_MISSING_US)
		become(fl, DEVICE_GONE);
	else
		fl->ask = true;
}

static void ask(struct flusher *fl)
{
	struct device *dev = fl->dev;

	fl->ask = false;
	domain_unlock(dev->dom);
	enum store_presence presence = store_look_for_device(fl->store);
	domain_lock(dev->dom);
	if (presence == STORE_GONE && dev->health == DEVICE_FAILING)
		missing(fl, clock_now_us());
	else
		fl->missing_since_us = 0;
	if (presence != STORE_GONE && dev->health == DEVICE_GONE) {
		dev->error_us = clock_now_us();
		become(fl, DEVICE_FAILING);
	}
}

void *health_main(void *arg)
{
	struct flusher *fl = arg;
	struct device *dev = fl->dev;
	enum device_health said = DEVICE_HEALTHY;
	uint64_t next_us = 0;

	domain_lock(dev->dom);
	while (!fl->stopping) {
		uint64_t now = clock_now_us();
		if (said != dev->health) {
			said = dev->health;
			int err = dev->error;
			domain_unlock(dev->dom);
			say(dev, said, err);
			domain_lock(dev->dom);
		} else if (!fl->ask && dev->health != DEVICE_GONE) {
			pthread_cond_wait(&fl->health_cond, &dev->dom->lock);
		} else if (now < next_us) {
			wait_for(fl, next_us);
		} else {
			ask(fl);
			next_us = clock_now_us() +
				(dev->health == DEVICE_GONE ? HEALTH_ASK_AGAIN_US
							    : HEALTH_ASK_LEAST_US);
		}
	}
	domain_unlock(dev->dom);
	return NULL;
}
