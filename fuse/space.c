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

	if (fstatvfs(fd, &vfs) < 0)
		return;
	domain_lock(&p->dom);
	b->free_bytes = (uint64_t)vfs.f_bavail * vfs.f_frsize;
	b->free_bytes_root = (uint64_t)vfs.f_bfree * vfs.f_frsize;
	b->free_written = b->dev.written;
	b->free_look_us = now_us;
	domain_unlock(&p->dom);
}

static bool fits(struct pacefs *p, const struct backing *b, uint64_t bytes)
{
	domain_lock(&p->dom);
	/* What was written since the look has taken its room already, as far as is known. */
	uint64_t pages = p->dom.nr_dirty + p->dom.nr_writeback + b->dev.written - b->free_written;
	bool ample = b->free_bytes >= pages * PAGE_BYTES + bytes + SPACE_MARGIN;
	domain_unlock(&p->dom);
	return ample;
}

bool space_is_ample(struct pacefs *p, uint64_t bytes)
{
	struct backing *b = &p->backing;
	uint64_t now = clock_now_us();

	if (b->store.raw)
		return true; /* all of it is there */
	if (now - __atomic_load_n(&b->free_look_us, __ATOMIC_RELAXED) > SPACE_LOOK_US) {
		session_block_begin();
		look(p, b, now);
		session_block_end();
	}
	return fits(p, b, bytes);
}

static ssize_t write_now(struct pacefs *p, struct node *node, const struct payload *pl)
{
	struct iovec iov[PACER_MAX_FRAMES];
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
 * some milliseconds after rm. */
static bool room_by_deletions(struct pacefs *p, struct backing *b, uint64_t bytes)
{
	enum { TRIES = 50, WAIT_US = 10000 };

	for (int i = 0; i < TRIES; i++) {
		domain_lock(&p->dom);
		bool pending = p->nr_unlinked > 0;
		domain_unlock(&p->dom);
		if (!pending)
			break;
		usleep(WAIT_US);
		look(p, b, clock_now_us());
		if (fits(p, b, bytes))
			return true;
	}
	look(p, b, clock_now_us());
	return fits(p, b, bytes);
}

ssize_t space_write_through(struct pacefs *p, struct fnode *fn, const struct payload *payload,
	uid_t uid)
{
	struct backing *b = &p->backing;
	struct node *node = &fn->node;

	domain_lock(&p->dom);
	uint32_t err_seq = node->err_seq;
	domain_unlock(&p->dom);
	/* Everything accepted is below, and then the source is asked again. */
	flusher_sync(&b->flusher);
	look(p, b, clock_now_us());
	domain_lock(&p->dom);
	int err = node->err_seq != err_seq ? node->err : 0;
	domain_unlock(&p->dom);
	if (err)
		return -err;
	if (fits(p, b, payload->bytes) || room_by_deletions(p, b, payload->bytes))
		return 0;
	if (uid != 0 && b->free_bytes == 0 && b->free_bytes_root > 0)
		return -ENOSPC; /* the rest is root's, whom we would write as */
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
	return done;
}
