#include "fuse/space.h"

#include "fuse/ops.h"
#include "fuse/session.h"
#include "util/clock.h"

#include <errno.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

/* Metadata of the source (extents, directories, journal credits) beside the data: what ext4 and
 * xfs keep for themselves on a small disk is below this. */
#define SPACE_MARGIN (8ull << 20)
#define SPACE_LOOK_US US_PER_S

static void look(struct pacefs *p, struct backing *b, uint64_t now_us)
{
	struct statvfs vfs;
	int fd = b->store.raw ? b->store.root_fd : b->store.sync_fd;

	/* Before the call: what completes during it may be counted twice, never not at all. */
	domain_lock(&p->dom);
	uint64_t written = b->dev.written;
	domain_unlock(&p->dom);
	if (fstatvfs(fd, &vfs) < 0)
		return;
	domain_lock(&p->dom);
	b->free_bytes = (uint64_t)vfs.f_bavail * vfs.f_frsize;
	b->free_bytes_root = (uint64_t)vfs.f_bfree * vfs.f_frsize;
	b->free_written = written;
	b->free_look_us = now_us;
	domain_unlock(&p->dom);
}

/* Is there room beside all that is accepted? Then it is promised to this payload at once. */
static bool promise(struct pacefs *p, struct backing *b, struct payload *payload)
{
	domain_lock(&p->dom);
	/* What was written since the look has taken its room already, as far as is known. */
	uint64_t pages =
		p->dom.nr_dirty + p->dom.nr_writeback + b->dev.written - b->free_written;
	bool ample = b->free_bytes >=
		pages * PAGE_BYTES + b->promised + payload->bytes + SPACE_MARGIN;
	if (ample) {
		b->promised += payload->bytes;
		payload->promised = payload->bytes;
	}
	domain_unlock(&p->dom);
	return ample;
}

bool space_promise(struct pacefs *p, struct payload *payload)
{
	struct backing *b = &p->backing;
	uint64_t now = clock_now_us();

	if (b->store.raw)
		return true; /* all of it is there */
	domain_lock(&p->dom);
	bool stale = now - b->free_look_us > SPACE_LOOK_US;
	domain_unlock(&p->dom);
	if (stale) {
		session_block_begin();
		look(p, b, now);
		session_block_end();
	}
	return promise(p, b, payload);
}

void space_look(struct pacefs *p)
{
	look(p, &p->backing, clock_now_us());
}

static bool promises_pending(struct pacefs *p)
{
	domain_lock(&p->dom);
	bool pending = p->backing.promised > 0;
	domain_unlock(&p->dom);
	return pending;
}

void space_settle(struct pacefs *p, uint64_t bytes)
{
	enum { WAIT_US = 5000 };
	struct backing *b = &p->backing;

	domain_lock(&p->dom);
	b->free_bytes -= bytes < b->free_bytes ? bytes : b->free_bytes;
	domain_unlock(&p->dom);
	/* The queue drains by completions; new promises end where room does. */
	while (promises_pending(p))
		usleep(WAIT_US);
	flusher_sync(&b->flusher);
}

static ssize_t write_now(struct pacefs *p, struct node *node, const struct payload *pl)
{
	struct iovec iov[WRITE_MAX_FRAMES];
	uint32_t left = pl->bytes;
	int n = 0;

	for (; left; n++) {
		size_t len = left < PAGE_BYTES ? left : PAGE_BYTES;
		iov[n] = (struct iovec){
			.iov_base = arena_data(&p->dom.arena, pl->frames[n]),
			.iov_len = len,
		};
		left -= (uint32_t)len;
	}
	ssize_t done = pwritev(node->file->fd, iov, n, (off_t)pl->offset);
	if (done < 0)
		return -errno;
	/* Delayed allocation may still find the disk full: ask before it is promised. */
	if (fdatasync(node->file->fd) < 0)
		return -errno;
	return done;
}

/* A deleted file's blocks come free when the kernel has forgotten it and we have closed it,
 * some milliseconds after rm. Those that somebody has open stay: waiting once shows it. */
static bool room_by_deletions(struct pacefs *p, struct backing *b, struct payload *payload)
{
	enum { TRIES = 50, WAIT_US = 10000 };
	uint64_t pending = 0;

	for (int i = 0; i < TRIES; i++) {
		domain_lock(&p->dom);
		pending = p->nr_unlinked;
		if (b->fruitless > pending)
			b->fruitless = pending;
		bool hope = pending > b->fruitless;
		domain_unlock(&p->dom);
		if (!hope)
			break;
		usleep(WAIT_US);
		look(p, b, clock_now_us());
		if (promise(p, b, payload))
			return true;
	}
	domain_lock(&p->dom);
	b->fruitless = pending;
	domain_unlock(&p->dom);
	look(p, b, clock_now_us());
	return promise(p, b, payload);
}

/* With through_lock: nobody else takes room that was promised to nobody. */
static ssize_t write_through(
	struct pacefs *p, struct fnode *fn, struct payload *payload, uid_t uid)
{
	struct backing *b = &p->backing;
	struct node *node = &fn->node;

	domain_lock(&p->dom);
	uint32_t err_seq = node->err_seq;
	domain_unlock(&p->dom);
	/* Everything accepted is below, and then the source is asked again. */
	space_settle(p, 0);
	look(p, b, clock_now_us());
	domain_lock(&p->dom);
	int err = node->err_seq != err_seq ? node->err : 0;
	domain_unlock(&p->dom);
	if (err)
		return -err;
	if (promise(p, b, payload) || room_by_deletions(p, b, payload))
		return 0;
	if (uid != 0 && b->free_bytes == 0 && b->free_bytes_root > 0)
		return -ENOSPC; /* the rest is root's, whom we would write as */
	domain_lock(&p->dom);
	b->free_bytes = 0; /* nothing is promised until this is done and looked at */
	domain_unlock(&p->dom);
	ssize_t done = write_now(p, node, payload);
	if (done > 0) {
		domain_lock(&p->dom);
		cache_invalidate(node);
		uint64_t end = payload->offset + (uint64_t)done;
		if (end > node->size)
			node->size = end;
		ops_touch(node);
		flusher_work(&b->flusher, node);
		domain_unlock(&p->dom);
	}
	look(p, b, clock_now_us());
	return done;
}

ssize_t space_write_through(
	struct pacefs *p, struct fnode *fn, struct payload *payload, uid_t uid)
{
	struct backing *b = &p->backing;

	pthread_mutex_lock(&b->through_lock);
	ssize_t done = write_through(p, fn, payload, uid);
	pthread_mutex_unlock(&b->through_lock);
	return done;
}
