#include "backend/flush/flusher.h"

#include "backend/state/state.h"
#include "util/clock.h"
#include "util/log.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

enum {
	MAX_ATTEMPTS = 3, /* of one request that fails: a bridge may drop one */
	MAX_AGAIN = 1000, /* of one that the kernel wants to see again */
	MAX_FILLS = 16,	  /* reads for partial pages in flight */
	REAP_BATCH = 32,
	IDLE_WAIT_US = 1000000,
	RETRY_WAIT_US = 5000,	 /* something is dirty but could not be submitted now */
	PARKED_WAIT_US = 100000, /* ... as it has no room below */
	POSITION_EVERY_US = 1000000,
};

/* ---- requests ---- */

static struct flush_io *io_get(struct flusher *fl, struct node *node, uint64_t index)
{
	struct flush_io *io = fl->free_ios;

	if (!io)
		return NULL;
	fl->free_ios = io->next;
	io->node = node;
	io->index = index;
	io->nr_pages = io->bytes = io->done = io->attempts = io->again = 0;
	io->fill = io->buffered = io->ranged = io->shared = io->first = false;
	io->next = NULL;
	io->node_next = node->inflight;
	node->inflight = io;
	node_get(node);
	return io;
}

static void io_put(struct flusher *fl, struct flush_io *io)
{
	struct node *node = io->node;

	for (struct flush_io **at = &node->inflight; *at; at = &(*at)->node_next) {
		if (*at == io) {
			*at = io->node_next;
			break;
		}
	}
	io->node = NULL;
	io->next = fl->free_ios;
	fl->free_ios = io;
	node_update_unclean(node);
	if (!node->inflight &&
		(node->cut_pending || (node->nr_dirty == 0 && node->nr_writeback == 0)))
		flusher_work(fl, node);
	node_put(node);
}

/* Memory pieces for the bytes still to do: neighbouring frames make one piece. */
static void io_prepare(struct flusher *fl, struct flush_io *io)
{
	struct store_io *s = &io->io;
	const struct arena *a = &io->node->dom->arena;
	unsigned skip = io->done;

	if (!io->buffered && !io->fill && !io->node->file->direct)
		io->buffered = io->shared = true; /* refused meanwhile */
	s->offset = (io->index << PAGE_SHIFT_BITS) + io->done;
	s->bytes = io->bytes - io->done;
	s->nr_iov = 0;
	unsigned left = s->bytes;
	for (unsigned i = skip / PAGE_BYTES; left; i++) {
		unsigned at = i == skip / PAGE_BYTES ? skip % PAGE_BYTES : 0;
		unsigned len = PAGE_BYTES - at < left ? PAGE_BYTES - at : left;
		char *base =
			(char *)(io->fill ? io->bounce : arena_data(a, io->frames[i])) + at;
		struct iovec *last = s->nr_iov ? &s->iov[s->nr_iov - 1] : NULL;
		if (last && (char *)last->iov_base + last->iov_len == base &&
			io->frames[i] % ARENA_SEGMENT_FRAMES != 0)
			last->iov_len += len;
		else
			s->iov[s->nr_iov++] = (struct iovec){.iov_base = base, .iov_len = len};
		left -= len;
	}
	s->op = io->fill ? STORE_READ : STORE_WRITE;
	s->fd = io->buffered || io->fill ? io->node->file->fd : io->node->file->fd_direct;
}

/* ---- what to write ---- */

static bool overlaps_inflight(const struct node *node, uint64_t index)
{
	for (const struct flush_io *io = node->inflight; io; io = io->node_next)
		if (index >= io->index && index < io->index + io->nr_pages)
			return true;
	return false;
}

static bool buffered_inflight(const struct node *node)
{
	for (const struct flush_io *io = node->inflight; io; io = io->node_next)
		if (io->buffered)
			return true;
	return false;
}

static bool direct_inflight(const struct node *node)
{
	for (const struct flush_io *io = node->inflight; io; io = io->node_next)
		if (!io->buffered && !io->fill)
			return true;
	return false;
}

/* Read what is missing of a partial page. */
static struct flush_io *start_fill(
	struct flusher *fl, struct node *node, uint64_t index, uint32_t frame)
{
	struct domain *dom = node->dom;

	if (node->nr_fills >= MAX_FILLS || overlaps_inflight(node, index))
		return NULL;
	struct flush_io *io = io_get(fl, node, index);
	if (!io)
		return NULL;
	io->fill = true;
	io->nr_pages = 1;
	io->bytes = PAGE_BYTES;
	io->fill_seq = dom->arena.frames[frame].seq;
	dom->arena.frames[frame].flags |= FRAME_FILLING;
	node->nr_fills++;
	node->dev->fill_reads++;
	return io;
}

/* Bytes of the page that belong to the file. */
static unsigned page_bytes_in_file(const struct node *node, uint64_t index)
{
	uint64_t start = index << PAGE_SHIFT_BITS;

	return node->size - start < PAGE_BYTES ? (unsigned)(node->size - start) : PAGE_BYTES;
}

/* The kernel tells an error of its page cache once per descriptor, to whoever asks first: of several
 * that are in flight it may be another one's. */
static void mark_shared(struct node *node, struct flush_io *io)
{
	for (struct flush_io *other = node->inflight; other; other = other->node_next)
		if (other != io && other->buffered)
			other->shared = io->shared = true;
}

/* The run of dirty pages starting at index that one request can carry. */
static struct flush_io *start_write(
	struct flusher *fl, struct node *node, uint64_t index, bool tagged_only)
{
	struct domain *dom = node->dom;
	struct store_file *file = node->file;
	unsigned first_bytes = page_bytes_in_file(node, index);
	bool direct = file->direct && first_bytes % file->align == 0;

	/* Direct and buffered writes of one file are never in flight together: the kernel
	 * would have to throw away pages that are being written. */
	if (direct ? buffered_inflight(node) : direct_inflight(node))
		return NULL;
	struct flush_io *io = io_get(fl, node, index);
	if (!io)
		return NULL;
	io->buffered = !direct;
	if (io->buffered)
		mark_shared(node, io);
	io->nr_pages = 0; /* so that overlaps_inflight() does not see itself */
	for (uint64_t i = index; io->nr_pages < fl->sizes.request_pages; i++) {
		uint32_t frame = mapping_get(&node->map, i);
		if (frame == FRAME_NONE)
			break;
		const struct frame *f = &dom->arena.frames[frame];
		if (f->state != FRAME_DIRTY || (tagged_only && !(f->flags & FRAME_TAGGED)))
			break;
		unsigned bytes = page_bytes_in_file(node, i);
		if (i > index &&
			(!cache_make_whole(node, i, frame) || (direct && bytes % file->align) ||
				overlaps_inflight(node, i)))
			break;
		io->frames[io->nr_pages] = cache_begin_writeback(node, i);
		io->nr_pages++;
		io->bytes += bytes;
		if (bytes < PAGE_BYTES)
			break;
	}
	io->first = node->below_known && !node->below_changing && !fl->store->raw;
	io->size_below = file->size_below;
	io->unclean_seq = node->unclean_seq;
	node->below_known = false;
	node->inflight_bytes += io->bytes;
	fl->inflight_bytes += io->bytes;
	flush_pick_took(&fl->pick, node, index, io->nr_pages);
	return io;
}

/* Direct writes beyond the end of an ext4 file go one at a time, and the device idles between
 * them: 8 % at 50 MB/s with requests of 1 MiB. So a stream's file is lengthened ahead of it, by
 * half a second of writing and never beyond what was accepted. After a kill -9 the next start cuts
 * that off again (backend/state). After a crash of the machine that much of the end of a file that
 * nobody had synced may read as zeroes: blocks that leave the size alone would not do, since it is
 * the size that makes the writes wait for each other. */
static void lengthen_ahead(struct flusher *fl, struct node *node, const struct flush_io *io)
{
	struct store_file *file = node->file;
	uint64_t end = (io->index << PAGE_SHIFT_BITS) + io->bytes;
	uint64_t request = (uint64_t)fl->sizes.request_pages * PAGE_BYTES;

	if (!fl->store->serial_extends || io->buffered || io->fill || node->extend_to ||
		end + 4 * request <= file->size_below || node->size < end + 2 * request)
		return;
	/* Only over pages that are cached without a gap from the end below on: no hole gets blocks
	 * by this, nor is one taken for the end of what was written (backend/state). */
	uint64_t last =
		(end + (uint64_t)(node->dev->bytes_per_s / 2) + 4 * request) >> PAGE_SHIFT_BITS;
	uint64_t i = file->size_below >> PAGE_SHIFT_BITS;
	while (i < last && mapping_next(&node->map, i, false) == i)
		i++;
	if (i << PAGE_SHIFT_BITS < end + 2 * request)
		return;
	node->extend_to = i << PAGE_SHIFT_BITS;
	flusher_work(fl, node);
}

/* The next request for this node, or NULL when it has none now. */
static struct flush_io *next_request(struct flusher *fl, struct node *node, bool tagged_only)
{
	struct domain *dom = node->dom;
	bool wrapped = node->flush_index == 0;

	assert(node->file && node->file->writable);
	uint64_t i = mapping_next(&node->map, node->flush_index, true);

	for (;; i = mapping_next(&node->map, i + 1, true)) {
		if (i == MAPPING_END) {
			if (wrapped)
				return NULL;
			wrapped = true;
			i = mapping_next(&node->map, 0, true);
			if (i == MAPPING_END)
				return NULL;
		}
		uint32_t frame = mapping_get(&node->map, i);
		const struct frame *f = &dom->arena.frames[frame];
		if (tagged_only && !(f->flags & FRAME_TAGGED))
			continue;
		if (f->flags & FRAME_FILLING || overlaps_inflight(node, i))
			continue;
		if (cache_make_whole(node, i, frame))
			return start_write(fl, node, i, tagged_only);
		struct flush_io *io = start_fill(fl, node, i, frame);
		if (io)
			return io;
	}
}

static struct flush_plan make_plan(struct flusher *fl, uint64_t now_us)
{
	struct flush_view v = flush_pick_view(fl->dev, fl->plan.time_round, now_us);
	struct flush_plan p = flush_plan_make(&v);

	fl->dev->periodic_round = p.periodic_round;
	fl->dev->next_periodic_us = p.next_periodic_us;
	return p;
}

/* ---- completions ---- */

static void finish_fill(struct flusher *fl, struct flush_io *io, int result, uint64_t now_us)
{
	struct node *node = io->node;
	struct domain *dom = node->dom;
	uint32_t frame = mapping_get(&node->map, io->index);
	bool wanted = frame != FRAME_NONE && dom->arena.frames[frame].state == FRAME_DIRTY &&
		dom->arena.frames[frame].flags & FRAME_FILLING &&
		dom->arena.frames[frame].seq == io->fill_seq;

	node->nr_fills--;
	if (wanted && result >= 0) {
		cache_fill(node, io->index, frame, io->bounce, (unsigned)result);
	} else if (wanted) {
		/* Its other bytes cannot be read: written without them it would destroy what a
		 * later attempt may still find there. */
		uint64_t from = io->index << PAGE_SHIFT_BITS;
		unsigned bytes = page_bytes_in_file(node, io->index);
		node_set_error(node, -result);
		node->dev->lost_bytes += bytes;
		cache_drop_page(node, io->index);
		health_failed(fl, -result, now_us);
		health_lost(fl, node, from, from + bytes, NULL, -result, now_us);
	}
	io_put(fl, io);
}

/* The node's last request: some of its pages have found their place on the device. */
static void want_position(struct flusher *fl, struct node *node, uint64_t now_us)
{
	if (!fl->dev->seeks || node->inflight_bytes || now_us < node->position_due_us)
		return;
	node->position_due_us = now_us + POSITION_EVERY_US;
	node->position_wanted = true;
	flusher_work(fl, node);
}

static void leave_flight(struct flusher *fl, struct flush_io *io)
{
	io->node->inflight_bytes -= io->bytes;
	fl->inflight_bytes -= io->bytes;
}

static void finish_write(struct flusher *fl, struct flush_io *io, uint64_t now_us)
{
	struct node *node = io->node;

	flush_window_completed(&fl->window, io->submitted_us, now_us, fl->inflight_bytes);
	leave_flight(fl, io);
	if (io->buffered)
		node->dev->buffered_bytes += io->bytes;
	else
		node->dev->direct_bytes += io->bytes;
	uint64_t start = io->index << PAGE_SHIFT_BITS, end = start + io->bytes;
	state_written(node, start, end, false);
	if (end > node->file->size_below && !node->cut_pending) {
		/* Beyond the end: what it leaves out is a hole. */
		if (start > node->file->size_below)
			node->file->dense = false;
		node->file->size_below = end;
	}
	for (unsigned i = 0; i < io->nr_pages; i++)
		cache_end_writeback(node, io->index + i, io->frames[i], 0, now_us);
	node->full = false;
	health_went_well(fl, now_us);
	want_position(fl, node, now_us);
	io_put(fl, io);
}

/* The pages of the request that are still the file's newest: the next run of them at or after page
 * *at, ends there; its bytes, 0 when there is none. Others were written to again, dropped or cut
 * meanwhile, and nothing of them is lost. */
static unsigned lose_run(struct flush_io *io, unsigned *at, int err, uint64_t now_us)
{
	struct node *node = io->node;
	const struct frame *frames = node->dom->arena.frames;
	unsigned bytes = 0, left = io->bytes - *at * PAGE_BYTES;

	for (; *at < io->nr_pages; ++*at) {
		uint32_t frame = io->frames[*at];
		if (frames[frame].state == FRAME_ORPHAN) {
			if (bytes)
				break;
			/* A sync that waits for it waits for the newer page now. */
			cache_redirty(node, io->index + *at, frame, now_us);
		} else {
			bytes += left < PAGE_BYTES ? left : PAGE_BYTES;
			cache_end_writeback(node, io->index + *at, frame, err, now_us);
		}
		left -= left < PAGE_BYTES ? left : PAGE_BYTES;
	}
	return bytes;
}

static void finish_lost(struct flusher *fl, struct flush_io *io, int err, uint64_t now_us)
{
	struct node *node = io->node;
	uint64_t start = io->index << PAGE_SHIFT_BITS;
	bool told = false;

	leave_flight(fl, io);
	for (unsigned at = 0; at < io->nr_pages;) {
		unsigned bytes = lose_run(io, &at, err, now_us);
		if (!bytes)
			break;
		/* The run ends at page at, or within the last one. */
		uint64_t to = start + (at == io->nr_pages ? io->bytes : at * PAGE_BYTES);
		if (!told)
			node_set_error(node, err);
		told = true;
		node->dev->lost_bytes += bytes;
		state_written(node, to - bytes, to, true);
		health_lost(fl, node, to - bytes, to, NULL, err, now_us);
	}
	io_put(fl, io);
}

/* All are dirty again. */
static void finish_unwritten(struct flusher *fl, struct flush_io *io, uint64_t now_us)
{
	leave_flight(fl, io);
	for (unsigned i = 0; i < io->nr_pages; i++)
		cache_redirty(io->node, io->index + i, io->frames[i], now_us);
}

static void finish_failed(struct flusher *fl, struct flush_io *io, int err, uint64_t now_us)
{
	struct device *dev = fl->dev;
	struct node *node = io->node;

	health_failed(fl, err, now_us);
	bool keep = !dev->drain_until_us || now_us < dev->drain_until_us || !node->full;
	if (health_is_full(err) && keep && dev->health != DEVICE_GONE) {
		finish_unwritten(fl, io, now_us);
		health_park(fl, node, err, now_us);
		io_put(fl, io);
	} else {
		finish_lost(fl, io, err, now_us);
	}
}

/* A "direct" write that the file refuses: buffered from now on. */
static void finish_refused(struct flusher *fl, struct flush_io *io, uint64_t now_us)
{
	io->node->dev->retries++;
	finish_unwritten(fl, io, now_us);
	io_put(fl, io);
}

/* The kernel could not write pages of its cache, and takes them for clean: waiting for them again
 * would succeed, and writing them again too, without a byte on the device (ext4: their blocks are
 * still unwritten). So it must forget them. Takes and drops the lock. Returns whether a second try
 * is of use: not if it is another request that failed. */
static bool range_failed(struct flusher *fl, struct flush_io *io)
{
	domain_unlock(fl->dev->dom);
	store_file_forget(io->node->file);
	domain_lock(fl->dev->dom);
	io->ranged = false;
	io->done = 0;
	return !io->shared;
}

/* Looks at one completion. Returns true when the request must be submitted again. */
static bool completed(struct flusher *fl, struct flush_io *io, uint64_t now_us)
{
	int result = io->io.result;
	struct store_file *file = io->node->file;

	if ((result == -EAGAIN || result == -EINTR || result == -ENOMEM) &&
		++io->again < MAX_AGAIN) {
		io->node->dev->retries++;
		return true;
	}
	if (io->fill) {
		if (result < 0 && ++io->attempts < MAX_ATTEMPTS)
			return true;
		/* Less than asked for is not the end of the file: that reads as nothing. */
		if (result > 0 && (io->done += (unsigned)result) < io->bytes)
			return true;
		finish_fill(fl, io, result < 0 ? result : (int)io->done, now_us);
		return false;
	}
	if (result == -EINVAL && !io->buffered) {
		store_file_refuse_direct(file);
		finish_refused(fl, io, now_us);
		return false;
	}
	if (result == 0 && !io->ranged)
		result = -EIO; /* a write that takes nothing will never end */
	if (result < 0) {
		io->node->dev->retries++;
		bool retry = !io->ranged || range_failed(fl, io);
		if (retry && ++io->attempts < MAX_ATTEMPTS && fl->dev->health != DEVICE_GONE)
			return true;
		finish_failed(fl, io, -result, now_us);
		return false;
	}
	if (!io->ranged) {
		io->done += (unsigned)result;
		if (io->done < io->bytes)
			return true;
		if (io->buffered) {
			io->ranged = true;
			return true;
		}
		if (!file->probed)
			store_file_probe(file, io->index << PAGE_SHIFT_BITS, io->bytes);
	}
	finish_write(fl, io, now_us);
	return false;
}

static void prepare_again(struct flusher *fl, struct flush_io *io)
{
	if (io->ranged) {
		io->io.op = STORE_RANGE_SYNC;
		io->io.offset = io->index << PAGE_SHIFT_BITS;
		io->io.bytes = io->bytes;
		io->io.nr_iov = 0;
		return;
	}
	io_prepare(fl, io);
}

static void know_memory(struct flusher *fl, uint32_t nr_frames)
{
	const struct arena *a = &fl->dev->dom->arena;

	/* Only what has been grown, and is kept for ever. */
	if (nr_frames > a->own_frames)
		nr_frames = a->own_frames;
	while (fl->memory_frames < nr_frames) {
		fl->engine->ops->add_memory(fl->engine, arena_data(a, fl->memory_frames),
			(size_t)ARENA_SEGMENT_FRAMES * PAGE_BYTES);
		fl->memory_frames += ARENA_SEGMENT_FRAMES;
	}
}

/* Collect what should be submitted now. With the lock. */
static struct flush_io *collect(struct flusher *fl, uint64_t now_us)
{
	struct device *dev = fl->dev;
	struct flush_io *list = NULL, **tail = &list;

	fl->sizes = flush_sizes_make(
		&fl->window, dev->bytes_per_s, dev->limit_pages, fl->max_request_pages);
	if (dev->health == DEVICE_GONE)
		health_drop_all(fl, now_us);
	if (now_us >= dev->retry_us)
		health_unpark(dev);
	for (;;) {
		fl->plan = make_plan(fl, now_us);
		if (dev->nr_dirty == 0) /* what could not be written before is, or on its way */
			dev->retrying &= fl->nr_inflight > 0;
		if (fl->plan.reason == FLUSH_NONE || !fl->free_ios ||
			fl->inflight_bytes >= fl->sizes.inflight_bytes)
			break;
		bool tagged = fl->plan.reason == FLUSH_SYNC;
		struct node *node = tagged
			? flush_pick_tagged(&fl->pick, dev, &fl->sizes)
			: flush_pick(&fl->pick, dev, &fl->sizes, fl->plan.cutoff_us);
		/* While a sync waits only for what is in flight, others may use the device. */
		if (!node && tagged) {
			tagged = false;
			node = fl->inflight_bytes
				? NULL
				: flush_pick(&fl->pick, dev, &fl->sizes, now_us);
		}
		if (!node) {
			dev->retrying &= fl->nr_inflight || list; /* or all have been tried */
			break;
		}
		struct flush_io *io = next_request(fl, node, tagged);
		if (!io && !tagged && flush_pick_pass(&fl->pick, node))
			continue;
		if (!io)
			break;
		io_prepare(fl, io);
		lengthen_ahead(fl, node, io);
		io->submitted_us = now_us;
		*tail = io;
		tail = &io->next;
	}
	*tail = NULL;
	return list;
}

/* The first write since the file was clean: is it still as it was left? It costs a system call for
 * each time a file becomes dirty, and no I/O. */
static void look_for_others(struct flusher *fl, struct flush_io *io)
{
	struct node *node = io->node;
	struct store_look look;

	if (!io->first)
		return;
	io->first = false; /* not when it is tried again */
	if (store_file_look(node->file, &look) < 0 ||
		(look.size == io->size_below && clock_same(&look.mtime, &node->below_mtime)))
		return;
	domain_lock(node->dom);
	if (io->unclean_seq == node->unclean_seq && !node->below_changing)
		flusher_collided(fl, node);
	domain_unlock(node->dom);
}

static void submit(struct flusher *fl, struct flush_io *list)
{
	while (list) {
		struct flush_io *io = list;
		list = io->next;
		io->next = NULL;
		look_for_others(fl, io);
		int ret = fl->engine->ops->submit(fl->engine, &io->io);
		/* The pool is no larger than the ring. */
		assert(ret == 0);
		fl->nr_inflight++;
	}
}

uint64_t flusher_step(
	struct flusher *fl, struct store_io **done, unsigned nr_done, uint64_t now_us)
{
	struct domain *dom = fl->dev->dom;
	struct flush_io *again = NULL;
	uint64_t wait_us;

	domain_lock(dom);
	fl->dev->asleep = false;
	fl->nr_inflight -= nr_done;
	for (unsigned i = 0; i < nr_done; i++) {
		struct flush_io *io = (struct flush_io *)done[i];
		if (completed(fl, io, now_us)) {
			prepare_again(fl, io);
			io->next = again;
			again = io;
		}
	}
	if (nr_done)
		domain_progress(dom);
	struct flush_io *list = collect(fl, now_us);
	bool waiting = fl->nr_inflight || list || again;
	busy_clock_update(&fl->dev->busy, waiting, nr_done > 0, now_us);
	if (waiting || fl->plan.reason == FLUSH_NONE)
		wait_us = fl->plan.wake_us == FLUSH_NEVER_US || fl->plan.wake_us <= now_us
			? IDLE_WAIT_US
			: fl->plan.wake_us - now_us;
	else
		wait_us = fl->dev->parked ? PARKED_WAIT_US : RETRY_WAIT_US;
	uint32_t nr_frames = dom->arena.nr_frames;
	fl->dev->asleep = true; /* from here on a kick writes the eventfd */
	domain_unlock(dom);
	submit(fl, list);
	submit(fl, again);
	know_memory(fl, nr_frames);
	return wait_us < IDLE_WAIT_US ? wait_us : IDLE_WAIT_US;
}

static void *flusher_main(void *arg)
{
	struct flusher *fl = arg;
	struct store_io *done[REAP_BATCH];
	unsigned nr_done = 0;

	while (!__atomic_load_n(&fl->stopping, __ATOMIC_ACQUIRE) || fl->nr_inflight) {
		uint64_t wait_us = flusher_step(fl, done, nr_done, clock_now_us());
		nr_done = fl->engine->ops->reap(fl->engine, wait_us, done, REAP_BATCH);
	}
	return NULL;
}

int flusher_start(struct flusher *fl, struct device *dev, struct store *store,
	struct store_engine *engine)
{
	memset(fl, 0, sizeof(*fl));
	fl->dev = dev;
	fl->store = store;
	fl->engine = engine;
	flush_window_init(&fl->window);
	fl->max_request_pages = STORE_MAX_IOV;
	/* Touched, so that no later use of them needs memory. (Of calloc() a compiler knows that
	 * it need not be cleared.) */
	size_t pool_bytes = FLUSH_DEPTH * sizeof(*fl->pool);
	fl->pool = aligned_alloc(PAGE_BYTES, (pool_bytes | (PAGE_BYTES - 1)) + 1);
	fl->bounces = aligned_alloc(PAGE_BYTES, (size_t)FLUSH_DEPTH * PAGE_BYTES);
	if (!fl->pool || !fl->bounces) {
		free(fl->pool);
		free(fl->bounces);
		return -ENOMEM;
	}
	memset(fl->pool, 0, FLUSH_DEPTH * sizeof(*fl->pool));
	memset(fl->bounces, 0, (size_t)FLUSH_DEPTH * PAGE_BYTES);
	for (unsigned i = 0; i < FLUSH_DEPTH; i++) {
		fl->pool[i].bounce = (unsigned char *)fl->bounces + (size_t)i * PAGE_BYTES;
		fl->pool[i].next = fl->free_ios;
		fl->free_ios = &fl->pool[i];
	}
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&fl->health_cond, &attr);
	pthread_condattr_destroy(&attr);
	pthread_cond_init(&fl->work_cond, NULL);
	int ret = pthread_create(&fl->thread, NULL, flusher_main, fl);
	if (ret == 0)
		ret = pthread_create(&fl->worker, NULL, flusher_worker, fl);
	if (ret == 0)
		ret = pthread_create(&fl->health, NULL, health_main, fl);
	fl->started = ret == 0;
	return -ret;
}

void flusher_stop(struct flusher *fl)
{
	if (!fl->started)
		return;
	domain_lock(fl->dev->dom);
	__atomic_store_n(&fl->stopping, true, __ATOMIC_RELEASE);
	fl->dev->asleep = true;
	device_kick(fl->dev);
	pthread_cond_signal(&fl->work_cond);
	pthread_cond_signal(&fl->health_cond);
	domain_unlock(fl->dev->dom);
	pthread_join(fl->thread, NULL);
	pthread_join(fl->worker, NULL);
	pthread_join(fl->health, NULL);
	pthread_cond_destroy(&fl->work_cond);
	pthread_cond_destroy(&fl->health_cond);
	lost_finish(&fl->lost);
	fl->engine->ops->destroy(fl->engine);
	free(fl->pool);
	free(fl->bounces);
	fl->started = false;
}
