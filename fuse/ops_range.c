#include "fuse/ops.h"

#include "fuse/control.h"
#include "fuse/session.h"
#include "fuse/space.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

static bool beyond_raw(const struct pacefs *p, uint64_t end)
{
	return p->backing.store.raw && end > p->backing.store.raw_size;
}

/* What was written through shared mappings, and the kernel has not handed over yet, comes now: as
 * writes that others answer meanwhile, so not in too many threads at once. False: it may be that
 * not all of it came. */
static bool take_mapped(struct pacefs *p, struct fnode *fn, off_t off, off_t bytes)
{
	domain_lock(&p->dom);
	bool mapped = fn->mappers_open > 0;
	bool wait = mapped && bytes > 0 && p->nr_dropping < OPS_DROPPING_MOST;
	p->nr_dropping += wait;
	domain_unlock(&p->dom);
	if (!wait)
		return !mapped || bytes <= 0;
	int ret = fuse_lowlevel_notify_inval_inode(p->session, fn->node.nodeid, off, bytes);
	domain_lock(&p->dom);
	p->nr_dropping--;
	domain_unlock(&p->dom);
	return ret == 0 || ret == -ENOENT; /* the kernel has no page of what it does not know */
}

/* ---- room and holes ---- */

/* Which modes may reach the source? ZERO_RANGE only where it writes no zeroes, or nobody would pace
 * them; programs fall back to writing them. */
static bool can_allocate(const struct pacefs *p, int mode)
{
	int known = FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE;

	if (p->backing.store.zeroes)
		known |= FALLOC_FL_ZERO_RANGE;
	return (mode & ~known) == 0;
}

static int punch(struct pacefs *p, struct node *node, int mode, off_t offset, off_t length)
{
	/* Everything older is below first, so that nothing of it lands in the hole later; the
	 * kernel holds the file's lock, so nothing new comes. The source first: it may refuse. */
	int ret = flusher_sync_node(&p->backing.flusher, node);
	if (ret < 0)
		return ret;
	ops_change_begin(node);
	ret = fallocate(node->file->fd, mode, offset, length) < 0 ? -errno : 0;
	ops_change_end(node);
	return ret;
}

static int allocate(fuse_req_t req, struct node *node, int mode, off_t offset, off_t length)
{
	struct pacefs *p = pacefs_of(req);

	if (mode & FALLOC_FL_PUNCH_HOLE)
		return punch(p, node, mode, offset, length);
	domain_lock(&p->dom);
	flusher_settle_cut(&p->backing.flusher, node);
	domain_unlock(&p->dom);
	return space_preallocate(req, node, mode, offset, length);
}

void ops_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
	struct fuse_file_info *fi)
{
	struct pacefs *p = pacefs_of(req);

	if (ino == NODEID_CONTROL || !can_allocate(p, mode)) {
		fuse_reply_err(req, EOPNOTSUPP);
		return;
	}
	struct open_file *of = ops_open_file(p, ino, fi);
	if (!of || !of->writes) {
		fuse_reply_err(req, EBADF);
		return;
	}
	struct node *node = &of->fn->node;
	if (beyond_raw(p, (uint64_t)offset + (uint64_t)length)) {
		fuse_reply_err(req, ENOSPC);
		return;
	}
	session_block_begin();
	/* The kernel does not say what the caller may keep. */
	ops_kill_privs(req, of->fn, fuse_req_ctx(req)->uid != 0);
	int ret = allocate(req, node, mode, offset, length);
	domain_lock(&p->dom);
	/* Also when it failed: it may have come half way. */
	if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
		cache_invalidate(node);
	if (ret == 0) {
		uint64_t end = (uint64_t)(offset + length);
		if (!(mode & FALLOC_FL_KEEP_SIZE)) {
			if (end > node->size)
				node->size = end;
			store_file_grew(node->file, end);
		}
		ops_touch(node);
		flusher_work(&p->backing.flusher, node);
	}
	domain_unlock(&p->dom);
	session_block_end();
	ops_reply(req, ret);
}

/* ---- where data is ---- */

/* First cached page at or after off, as an offset; -1 if none. Takes the lock. */
static off_t next_cached(struct pacefs *p, struct node *node, off_t off)
{
	domain_lock(&p->dom);
	uint64_t i = mapping_next(&node->map, (uint64_t)off >> PAGE_SHIFT_BITS, false);
	domain_unlock(&p->dom);
	if (i == MAPPING_END)
		return -1;
	off_t at = (off_t)(i << PAGE_SHIFT_BITS);
	return at > off ? at : off;
}

/* The cache is asked before the source: a page that has left it meanwhile is in the source. */
static off_t seek_data(struct pacefs *p, struct node *node, off_t off)
{
	off_t cached = next_cached(p, node, off);
	off_t below = lseek(node->file->fd, off, SEEK_DATA);

	if (below < 0 && errno != ENXIO)
		return -errno;
	if (below < 0 || (cached >= 0 && cached < below))
		below = cached;
	return below < 0 ? -ENXIO : below;
}

static off_t seek_hole(struct pacefs *p, struct node *node, off_t off, off_t size)
{
	while (off < size) {
		if (next_cached(p, node, off) == off) {
			off = (off | (PAGE_BYTES - 1)) + 1;
			continue;
		}
		off_t hole = lseek(node->file->fd, off, SEEK_HOLE);
		if (hole < 0 && errno != ENXIO)
			return -errno;
		if (hole <= off)
			return off;
		off = hole;
	}
	return size;
}

static off_t seek_merged(struct pacefs *p, struct node *node, off_t off, int whence, off_t size)
{
	return whence == SEEK_HOLE ? seek_hole(p, node, off, size) : seek_data(p, node, off);
}

/* The hole that this answer is about: only there may mapped pages make it wrong. */
static void hole_of(struct pacefs *p, struct node *node, int whence, off_t off, off_t at,
	off_t size, off_t *ret_from, off_t *ret_to)
{
	*ret_from = whence == SEEK_HOLE ? at : off;
	*ret_to = whence == SEEK_HOLE ? seek_data(p, node, at) : at;
	if (*ret_to < 0 || *ret_to > size)
		*ret_to = size;
}

/* What is not below yet is data, whatever the source says; and so is what the kernel has not handed
 * over yet. */
static off_t seek(struct pacefs *p, struct fnode *fn, off_t off, int whence, off_t size)
{
	struct node *node = &fn->node;
	off_t from, to, before;
	off_t at = seek_merged(p, node, off, whence, size);

	do {
		before = at;
		if (at < 0 && at != -ENXIO)
			return at;
		hole_of(p, node, whence, off, at, size, &from, &to);
		/* Called data, a hole is copied; called a hole, data would be lost. */
		if (!take_mapped(p, fn, from, to - from))
			return whence == SEEK_HOLE ? size : off;
		at = seek_merged(p, node, off, whence, size);
	} while (whence == SEEK_HOLE && at != before);
	return at;
}

void ops_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi)
{
	struct pacefs *p = pacefs_of(req);

	if (ino == NODEID_CONTROL) {
		fuse_reply_err(req, ENXIO);
		return;
	}
	struct open_file *of = ops_open_file(p, ino, fi);
	if (!of) {
		fuse_reply_err(req, EBADF);
		return;
	}
	struct node *node = &of->fn->node;
	session_block_begin();
	domain_lock(&p->dom);
	flusher_settle_cut(&p->backing.flusher, node);
	off_t size = (off_t)node->size;
	domain_unlock(&p->dom);
	off_t at = whence != SEEK_HOLE && whence != SEEK_DATA ? -EINVAL
		: off < 0 || off >= size		      ? -ENXIO
					 : seek(p, of->fn, off, whence, size);
	session_block_end();
	if (at < 0)
		ops_reply(req, (int)at);
	else if (whence == SEEK_DATA && at >= size)
		fuse_reply_err(req, ENXIO);
	else
		fuse_reply_lseek(req, at);
}

/* ---- copies that share blocks ---- */

/* The count in the answer has 32 bits, and what is not done now is asked for again. */
enum { CLONE_MOST = 1 << 30 };

/* Whole blocks of the source, or all up to the end. Others need not wait to be refused. */
static bool are_blocks(
	const struct node *in, off_t off_in, const struct node *out, off_t off_out, size_t len)
{
	uint64_t end_in = (uint64_t)off_in + len, end_out = (uint64_t)off_out + len;

	if (((uint64_t)off_in | (uint64_t)off_out) & (PAGE_BYTES - 1))
		return false;
	domain_lock(in->dom);
	bool to_end = end_in == in->size && end_out >= out->size;
	domain_unlock(in->dom);
	return to_end || (len & (PAGE_BYTES - 1)) == 0;
}

static int clone_range(struct pacefs *p, struct node *in, off_t off_in, struct node *out,
	off_t off_out, size_t len)
{
	struct store *st = &p->backing.store;
	struct file_clone_range range = {
		.src_fd = in->file->fd,
		.src_offset = (uint64_t)off_in,
		.src_length = len,
		.dest_offset = (uint64_t)off_out,
	};

	/* A source that cannot is asked once: what is dirty need not be below for that. */
	if (__atomic_load_n(&st->clones_not, __ATOMIC_RELAXED) ||
		!are_blocks(in, off_in, out, off_out, len))
		return -EOPNOTSUPP;
	/* The kernel has handed over what was mapped. */
	if (flusher_sync_node(&p->backing.flusher, in) < 0 ||
		flusher_sync_node(&p->backing.flusher, out) < 0)
		return -EAGAIN;
	ops_change_begin(out);
	int ret = ioctl(out->file->fd, FICLONERANGE, &range) < 0 ? -errno : 0;
	ops_change_end(out);
	if (ret == -EOPNOTSUPP || ret == -ENOTTY)
		__atomic_store_n(&st->clones_not, true, __ATOMIC_RELAXED);
	return ret;
}

void ops_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
	struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
	struct fuse_file_info *fi_out, size_t len, int flags)
{
	struct pacefs *p = pacefs_of(req);

	if (len > CLONE_MOST)
		len = CLONE_MOST;
	if (ino_in == NODEID_CONTROL || ino_out == NODEID_CONTROL ||
		beyond_raw(p, (uint64_t)off_out + len)) {
		fuse_reply_err(req, EOPNOTSUPP);
		return;
	}
	/* Only by sharing blocks, where the source can: copied bytes would reach it unpaced.
	 * Otherwise the kernel copies through us. */
	struct open_file *of_in = ops_open_file(p, ino_in, fi_in);
	struct open_file *of_out = ops_open_file(p, ino_out, fi_out);
	if (!of_in || !of_out || !of_out->writes) {
		fuse_reply_err(req, EBADF);
		return;
	}
	struct node *out = &of_out->fn->node;
	session_block_begin();
	bool cloned = clone_range(p, &of_in->fn->node, off_in, out, off_out, len) == 0;
	if (cloned) {
		ops_kill_privs(req, of_out->fn, fuse_req_ctx(req)->uid != 0);
		domain_lock(&p->dom);
		cache_invalidate(out);
		if ((uint64_t)off_out + len > out->size)
			out->size = (uint64_t)off_out + len;
		store_file_grew(out->file, (uint64_t)off_out + len);
		ops_touch(out);
		flusher_work(&p->backing.flusher, out);
		domain_unlock(&p->dom);
	}
	session_block_end();
	if (cloned)
		fuse_reply_write(req, len);
	else
		fuse_reply_err(req, EOPNOTSUPP);
}
