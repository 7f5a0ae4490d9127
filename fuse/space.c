#include "fuse/space.h"

#include "fuse/quota.h"
#include "fuse/session.h"
#include "util/clock.h"
#include "util/log.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* Metadata of the source (extents, directories, journal credits) beside the data: what ext4 and
 * xfs keep for themselves on a small disk is below this. */
#define SPACE_MARGIN (8ull << 20)
/* What btrfs may set aside for the metadata of many small changes until it commits. */
#define SPACE_METADATA (16ull << 20)
#define CLUSTER_MOST (128u << 10)
#define SPACE_LOOK_US US_PER_S
/* Twice what btrfs commits after when nobody asks. */
#define SPACE_COMMIT_US (60 * US_PER_S)

static int source_fd(const struct store *st)
{
	return st->raw ? st->root_fd : st->sync_fd;
}

static uint64_t written_now(struct pacefs *p)
{
	domain_lock(&p->dom);
	uint64_t written = p->backing.dev.written;
	domain_unlock(&p->dom);
	return written;
}

/* How much of what is written do the figures of a source that lags tell? What was written when it was
 * synced last (synced, or NULL), and what is older than its own commits. */
static void follow_commits(
	struct space *s, const uint64_t *synced, uint64_t written, uint64_t now_us)
{
	if (synced) {
		s->committed = *synced;
		s->beside = 0;
	}
	if (now_us - s->epoch_us > SPACE_COMMIT_US) {
		if (s->epoch_written > s->committed)
			s->committed = s->epoch_written;
		s->epoch_us = now_us;
		s->epoch_written = written;
	}
}

/* df is not to show the same bytes as taken twice, so it follows the figures sooner, by what they
 * fall. To promise room by that would be rash: metadata makes them fall too. */
static void follow_avail(struct space *s, uint64_t avail, uint64_t written)
{
	uint64_t fell = avail < s->last_avail ? s->last_avail - avail : 0;

	s->seen += fell / PAGE_BYTES;
	if (s->seen < s->committed)
		s->seen = s->committed;
	if (s->seen > written)
		s->seen = written;
	s->last_avail = avail;
}

/* synced: dev.written of before the source was synced just now, or NULL. */
static void look(struct pacefs *p, const uint64_t *synced)
{
	struct backing *b = &p->backing;
	struct space *s = &b->space;
	uint64_t now_us = clock_now_us();
	struct statvfs vfs;

	/* Before the call: what completes during it may be counted twice, never not at all. */
	uint64_t written = written_now(p);
	if (fstatvfs(source_fd(&b->store), &vfs) < 0)
		return;
	uint64_t avail = (uint64_t)vfs.f_bavail * vfs.f_frsize;
	domain_lock(&p->dom);
	follow_commits(s, b->store.copies ? synced : &written, written, now_us);
	follow_avail(s, avail, written);
	s->full_at =
		s->committed * PAGE_BYTES + (avail > SPACE_MARGIN ? avail - SPACE_MARGIN : 0);
	/* Of NFS this is the size of its requests. */
	s->cluster_slack = vfs.f_frsize > PAGE_BYTES && vfs.f_frsize <= CLUSTER_MOST
		? vfs.f_frsize - PAGE_BYTES
		: 0;
	s->look_us = now_us;
	domain_unlock(&p->dom);
}

/* A filesystem with clusters larger than a page gives each small file a whole one. */
static uint64_t ragged_bytes(const struct backing *b)
{
	return b->dev.nr_unclean * b->space.cluster_slack;
}

/* Is there room for the bytes beside all that is accepted? With the lock. */
static bool fits(const struct pacefs *p, uint64_t quota_full_at, uint64_t bytes)
{
	const struct backing *b = &p->backing;
	const struct space *s = &b->space;
	uint64_t full_at = s->full_at < quota_full_at ? s->full_at : quota_full_at;
	uint64_t pages = b->dev.written + p->dom.nr_dirty + p->dom.nr_writeback;

	return full_at >= pages * PAGE_BYTES + s->promised + s->claimed + s->beside + bytes +
		ragged_bytes(b);
}

/* Then it is promised to this payload at once. */
static bool promise(struct pacefs *p, uint64_t quota_full_at, struct payload *payload)
{
	domain_lock(&p->dom);
	bool ample = fits(p, quota_full_at, payload->bytes);
	if (ample) {
		struct space *s = &p->backing.space;
		s->promised += payload->bytes;
		s->promised_of[s->colour] += payload->bytes;
		payload->promised = payload->bytes;
		payload->colour = s->colour;
	}
	domain_unlock(&p->dom);
	return ample;
}

/* With the lock. */
static bool is_failing(const struct pacefs *p)
{
	return p->backing.dev.health != DEVICE_HEALTHY;
}

bool space_promise(struct pacefs *p, struct fnode *fn, struct payload *payload)
{
	struct space *s = &p->backing.space;

	domain_lock(&p->dom);
	bool failing = is_failing(p);
	bool stale = clock_now_us() - s->look_us > SPACE_LOOK_US;
	domain_unlock(&p->dom);
	if (failing)
		return false; /* the writer is to hear its own error */
	if (p->backing.store.raw)
		return true; /* all of it is there */
	if (stale) {
		session_block_begin();
		look(p, NULL);
		session_block_end();
	}
	return promise(p, quota_full_at(p, &fn->node), payload);
}

void space_kept(struct pacefs *p, struct payload *payload)
{
	struct space *s = &p->backing.space;

	s->promised -= payload->promised;
	s->promised_of[payload->colour] -= payload->promised;
	payload->promised = 0;
}

static bool promises_pending(struct pacefs *p, unsigned colour)
{
	domain_lock(&p->dom);
	bool pending = p->backing.space.promised_of[colour] > 0;
	domain_unlock(&p->dom);
	return pending;
}

/* Everything accepted is below, also what is still on its way into the cache. Who is promised room
 * meanwhile has it beside all that, and is not waited for: there may always be somebody. With
 * through_lock. */
static void settle(struct pacefs *p)
{
	enum { WAIT_US = 5000 };

	domain_lock(&p->dom);
	unsigned before = p->backing.space.colour;
	p->backing.space.colour = before ^ 1;
	domain_unlock(&p->dom);
	while (promises_pending(p, before))
		usleep(WAIT_US);
	flusher_sync(&p->backing.flusher);
}

/* ---- writing through ---- */

/* What a write that failed has added at the end goes again: nobody was told of it. */
static void take_back(struct node *node)
{
	struct stat st;

	/* Said once: a device that fails fails here too, at every write. */
	if (fstat(node->file->fd, &st) == 0 && (uint64_t)st.st_size > node->size &&
		store_file_truncate(node->file, node->size) < 0 &&
		node->dev->health == DEVICE_HEALTHY)
		log_warn("what a failed write left at the end of a file could not be cut off: "
			 "%s",
			strerror(errno));
}

static ssize_t write_now(fuse_req_t req, struct node *node, const struct payload *pl)
{
	const struct arena *a = &node->dom->arena;
	struct iovec iov[WRITE_MAX_FRAMES];
	uint32_t left = pl->bytes;
	int n = 0;

	for (; left; n++) {
		size_t len = left < PAGE_BYTES ? left : PAGE_BYTES;
		iov[n] = (struct iovec){
			.iov_base = arena_data(a, pl->frames[n]), .iov_len = len};
		left -= (uint32_t)len;
	}
	/* Pages that the kernel could not write once: it might take their blocks for written
	 * (ext4), and what is put there now would read as zeroes. */
	store_file_forget(node->file);
	ssize_t done = ops_become(req);
	if (done == 0) {
		done = pwritev(node->file->fd, iov, n, (off_t)pl->offset);
		done = done < 0 ? -errno : done;
	}
	ops_become_self();
	/* Delayed allocation may still find the disk full: ask before it is promised. What btrfs sets
	 * aside comes back with a commit. */
	int ret = done > 0 ? store_file_sync(node->file, true) : 0;
	if (health_is_full(-ret) && node->file->store->copies)
		ret = store_sync_all(node->file->store) < 0 ? ret : 0;
	if (ret < 0)
		done = ret;
	if (done < 0) {
		store_file_forget(node->file);
		take_back(node);
	}
	return done;
}

/* A deleted file's blocks come free when the kernel has forgotten it and we have closed it,
 * some milliseconds after rm. Those that somebody has open stay: waiting once shows it. */
enum { DELETION_TRIES = 50, DELETION_WAIT_US = 10000 };

static bool deletions_pending(struct pacefs *p)
{
	struct space *s = &p->backing.space;

	domain_lock(&p->dom);
	if (s->fruitless > p->nr_unlinked)
		s->fruitless = p->nr_unlinked;
	bool hope = p->nr_unlinked > s->fruitless;
	domain_unlock(&p->dom);
	return hope;
}

static void give_up_deletions(struct pacefs *p)
{
	domain_lock(&p->dom);
	p->backing.space.fruitless = p->nr_unlinked;
	domain_unlock(&p->dom);
	nodes_close_idle(p);
}

static bool room_by_deletions(struct pacefs *p, struct node *node, struct payload *payload)
{
	bool any = false;

	for (int i = 0; i < DELETION_TRIES && deletions_pending(p); i++) {
		any = true;
		usleep(DELETION_WAIT_US);
		look(p, NULL);
		if (promise(p, quota_full_at(p, node), payload))
			return true;
	}
	give_up_deletions(p);
	uint64_t written = written_now(p);
	bool commit = any && p->backing.store.copies;
	if (commit)
		settle(p);
	look(p, commit ? &written : NULL);
	quota_look(p);
	return promise(p, quota_full_at(p, node), payload);
}

/* Returns whether there was anything to wait for. */
static bool wait_for_deletions(struct pacefs *p)
{
	bool any = false;

	for (int i = 0; i < DELETION_TRIES && deletions_pending(p); i++) {
		any = true;
		usleep(DELETION_WAIT_US);
	}
	give_up_deletions(p);
	return any;
}

bool space_make_room(struct pacefs *p, int ret)
{
	pthread_mutex_t *lock = &p->backing.space.through_lock;

	if (!health_is_full(-ret))
		return false;
	pthread_mutex_lock(lock);
	wait_for_deletions(p);
	settle(p);
	pthread_mutex_unlock(lock);
	return true;
}

/* The error of a write that was accepted before is the next one's too. */
static int error_since(struct pacefs *p, const struct node *node, uint32_t err_seq)
{
	domain_lock(&p->dom);
	int err = node->err_seq != err_seq ? node->err : 0;
	domain_unlock(&p->dom);
	return err;
}

/* What the file has in the cache is below first, or it would be written over this. 0, or the error
 * of what cannot be. */
static int settle_range(struct pacefs *p, struct node *node, const struct payload *pl)
{
	unsigned all = (unsigned)((pl->offset + pl->bytes - 1) / PAGE_BYTES -
		pl->offset / PAGE_BYTES + 1);

	flusher_sync_node(&p->backing.flusher, node);
	domain_lock(&p->dom);
	bool left = cache_count_new(node, pl->offset, pl->bytes) < all;
	int err = node->err ? node->err : EIO;
	domain_unlock(&p->dom);
	return left ? -err : 0;
}

/* Not of the file, nor of who writes it; and a full disk is in good health. */
static bool is_fault(int err)
{
	return err == EIO || err == ENXIO || err == ENODEV || err == EROFS || err == EUCLEAN;
}

/* A write that does not go through the cache: for the device's health, and for the cache. */
static ssize_t write_source(fuse_req_t req, struct node *node, const struct payload *payload)
{
	struct pacefs *p = pacefs_of(req);
	struct backing *b = &p->backing;
	ops_change_begin(node);
	ssize_t done = write_now(req, node, payload);
	ops_change_end(node);

	if (done >= 0)
		flusher_heard(&b->flusher, NULL, NULL, 0);
	else if (is_fault((int)-done))
		flusher_heard(&b->flusher, NULL, NULL, (int)-done);
	if (done > 0) {
		domain_lock(&p->dom);
		b->space.beside += (uint64_t)done;
		cache_invalidate(node);
		uint64_t end = payload->offset + (uint64_t)done;
		if (end > node->size)
			node->size = end;
		store_file_grew(node->file, end);
		ops_touch(node);
		flusher_work(&b->flusher, node);
		domain_unlock(&p->dom);
	}
	return done;
}

/* While the device fails: its error is the writer's, and no room is promised. */
static ssize_t write_failing(fuse_req_t req, struct node *node, const struct payload *payload)
{
	struct pacefs *p = pacefs_of(req);

	for (;;) {
		ssize_t done = settle_range(p, node, payload);
		if (done == 0)
			done = write_source(req, node, payload);
		if (!health_is_full((int)-done) || !wait_for_deletions(p))
			return done;
	}
}

/* With through_lock: nobody else takes room that was promised to nobody. */
static ssize_t write_through(fuse_req_t req, struct fnode *fn, struct payload *payload)
{
	struct pacefs *p = pacefs_of(req);
	struct backing *b = &p->backing;
	struct node *node = &fn->node;

	domain_lock(&p->dom);
	bool failing = is_failing(p);
	uint32_t err_seq = node->err_seq;
	uint64_t written = b->dev.written;
	domain_unlock(&p->dom);
	if (failing || b->store.raw)
		return write_failing(req, node, payload);
	settle(p);
	look(p, &written);
	quota_look(p);
	int err = error_since(p, node, err_seq);
	if (err)
		return -err;
	if (promise(p, quota_full_at(p, node), payload) || room_by_deletions(p, node, payload))
		return 0;
	domain_lock(&p->dom);
	b->space.full_at = 0; /* nothing is promised until this is done and looked at */
	domain_unlock(&p->dom);
	ssize_t done = settle_range(p, node, payload);
	if (done == 0)
		done = write_source(req, node, payload);
	look(p, NULL);
	quota_look(p);
	return done;
}

ssize_t space_write_through(fuse_req_t req, struct fnode *fn, struct payload *payload)
{
	struct pacefs *p = pacefs_of(req);
	pthread_mutex_t *lock = &p->backing.space.through_lock;

	domain_lock(&p->dom);
	bool cut = fn->node.cut_pending; /* blocks may be there that are about to go */
	bool failing = is_failing(p);
	domain_unlock(&p->dom);
	if (!cut && !failing &&
		store_file_has_blocks(fn->node.file, payload->offset, payload->bytes))
		return 0;
	pthread_mutex_lock(lock);
	ssize_t done = write_through(req, fn, payload);
	pthread_mutex_unlock(lock);
	return done;
}

/* ---- others who take room, or ask for it ---- */

int space_preallocate(fuse_req_t req, struct node *node, int mode, off_t offset, off_t length)
{
	struct pacefs *p = pacefs_of(req);
	struct space *s = &p->backing.space;

	pthread_mutex_lock(&s->through_lock);
	domain_lock(&p->dom);
	s->claimed = (uint64_t)length;
	domain_unlock(&p->dom);
	settle(p);
	ops_change_begin(node);
	int ret = ops_become(req);
	if (ret == 0 && fallocate(node->file->fd, mode, offset, length) < 0)
		ret = -errno;
	ops_become_self();
	if (ret < 0)
		take_back(node);
	ops_change_end(node);
	domain_lock(&p->dom);
	s->beside += ret < 0 ? 0 : (uint64_t)length;
	domain_unlock(&p->dom);
	look(p, NULL);
	quota_look(p);
	domain_lock(&p->dom);
	s->claimed = 0;
	domain_unlock(&p->dom);
	pthread_mutex_unlock(&s->through_lock);
	return ret;
}

int space_truncate(struct pacefs *p, struct node *node, uint64_t size)
{
	const struct store *st = &p->backing.store;

	if (!st->copies)
		return 0;
	uint64_t quota = quota_full_at(p, node);
	domain_lock(&p->dom);
	bool ample = fits(p, quota, SPACE_METADATA);
	domain_unlock(&p->dom);
	if (ample)
		return 0;
	flusher_sync_node(&p->backing.flusher, node);
	int ret = store_sync_all(&p->backing.store);
	if (ret == 0) {
		ops_change_begin(node);
		ret = store_file_truncate(node->file, size);
		ops_change_end(node);
	}
	return ret < 0 ? ret : 1;
}

/* Dirty pages of the node that have blocks below, as far as its size and count of blocks tell. */
static uint64_t pages_with_blocks(const struct node *node)
{
	const struct store_file *f = node->file;
	uint64_t pages = node->nr_dirty + node->nr_writeback;

	if (!f || !f->dense || f->store->copies)
		return 0;
	uint64_t below = node->size > f->size_below ? node->size - f->size_below : 0;
	uint64_t beyond = (below + PAGE_BYTES - 1) / PAGE_BYTES;
	return pages > beyond ? pages - beyond : 0;
}

/* With the lock. */
static uint64_t taken_bytes(struct pacefs *p)
{
	enum {
		NODES_MOST = 1000
	}; /* the lock is not held for more; the others count in full */
	const struct backing *b = &p->backing;
	uint64_t pages = p->dom.nr_dirty + p->dom.nr_writeback, have = 0;
	unsigned nr = 0;

	for (const struct node *n = b->dev.unclean; n && nr < NODES_MOST;
		n = n->unclean_next, nr++)
		have += pages_with_blocks(n);
	pages += b->dev.written - b->space.seen;
	return (pages > have ? pages - have : 0) * PAGE_BYTES;
}

int space_statfs(struct pacefs *p, int fd, struct statvfs *ret_vfs)
{
	struct statvfs vfs;

	look(p, NULL);
	if (fstatvfs(fd, &vfs) < 0)
		return -errno;
	domain_lock(&p->dom);
	uint64_t bytes = taken_bytes(p);
	domain_unlock(&p->dom);
	if (vfs.f_frsize) {
		fsblkcnt_t taken = bytes / vfs.f_frsize;
		vfs.f_bfree -= taken < vfs.f_bfree ? taken : vfs.f_bfree;
		vfs.f_bavail -= taken < vfs.f_bavail ? taken : vfs.f_bavail;
	}
	*ret_vfs = vfs;
	return 0;
}
