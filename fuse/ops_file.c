#include "fuse/ops.h"

#include "fuse/control.h"
#include "fuse/session.h"
#include "fuse/space.h"
#include "util/log.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the file below ---- */

/* With the lock: files that are closed here, and only wait for the device, are written first. False:
 * there are none that could be waited for. */
static bool hurry_closed(struct pacefs *p)
{
	enum { MOST = 64 }; /* the oldest: more would not be written sooner */
	struct device *dev = &p->backing.dev;
	unsigned found = 0;

	if (dev->health == DEVICE_GONE)
		return false;
	for (struct node *n = dev->unclean; n && found < MOST; n = n->unclean_next) {
		if (!n->file || n->file_users || node_is_parked(n))
			continue;
		if (!n->nr_tagged)
			cache_tag_node(n);
		found++;
	}
	device_kick(dev);
	return found;
}

/* Many small files written at once to a slow device must not use up the descriptors. */
static void wait_for_fds(struct pacefs *p)
{
	const unsigned *nr_fds = &p->backing.store.nr_fds;

	if (__atomic_load_n(nr_fds, __ATOMIC_RELAXED) < p->max_file_fds)
		return;
	domain_lock(&p->dom);
	while (__atomic_load_n(nr_fds, __ATOMIC_RELAXED) >= p->max_file_fds &&
		hurry_closed(p)) {
		p->dom.wants_progress = true;
		pthread_cond_wait(&p->dom.progress, &p->dom.lock);
	}
	domain_unlock(&p->dom);
}

int ops_file_get(struct pacefs *p, struct fnode *fn)
{
	struct node *node = &fn->node;

	/* The kernel opens what else there is itself; a FIFO or a device opened here would act. */
	if (!S_ISREG(fn->type))
		return S_ISDIR(fn->type) ? -EISDIR : -EINVAL;
	domain_lock(&p->dom);
	node->file_users++; /* from here on nobody closes it */
	bool open = node->file != NULL;
	domain_unlock(&p->dom);
	if (open)
		return 0;
	wait_for_fds(p);
	struct store_file *file = NULL;
	int fd = fnode_fd_get(p, fn);
	int ret = fd < 0 ? fd : store_file_open(&p->backing.store, fd, &file);
	if (fd >= 0)
		fnode_fd_put(p, fn);
	domain_lock(&p->dom);
	if (ret < 0) {
		if (--node->file_users == 0)
			flusher_work(&p->backing.flusher, node);
	} else if (!node->file) {
		node->file = file;
		file = NULL;
	}
	domain_unlock(&p->dom);
	if (ret == 0)
		store_file_close(file); /* another thread was faster */
	return ret;
}

void ops_file_put(struct pacefs *p, struct fnode *fn)
{
	struct node *node = &fn->node;

	domain_lock(&p->dom);
	assert(node->file_users);
	if (--node->file_users == 0) {
		fnode_drop_if_dead(fn);
		flusher_work(&p->backing.flusher, node);
	}
	domain_unlock(&p->dom);
}

struct open_file *ops_open_file(
	struct pacefs *p, fuse_ino_t ino, const struct fuse_file_info *fi)
{
	struct open_file *of = open_table_get(&p->opens, fi->fh, OPEN_FILE);

	return of && of->fn->node.nodeid == ino ? of : NULL;
}

/* The same; answers EBADF itself when there is none. */
static struct open_file *open_file_of(
	fuse_req_t req, fuse_ino_t ino, const struct fuse_file_info *fi)
{
	struct open_file *of = ops_open_file(pacefs_of(req), ino, fi);

	if (!of)
		fuse_reply_err(req, EBADF);
	return of;
}

/* Errors of writeback since this open file was last told, as errseq does. */
static int take_error(struct pacefs *p, struct open_file *of)
{
	struct node *node = &of->fn->node;
	int ret = 0;

	domain_lock(&p->dom);
	if (of->err_seq != node->err_seq) {
		of->err_seq = node->err_seq;
		node->err_seen = true;
		ret = -node->err;
	}
	domain_unlock(&p->dom);
	return ret;
}

/* May the kernel keep the pages it has? Not when the source was changed behind us. */
static bool source_as_known(struct pacefs *p, struct fnode *fn)
{
	struct node *node = &fn->node;
	struct stat st;
	bool same = true;

	domain_lock(&p->dom);
	struct node_look look = node_look_begin(node);
	domain_unlock(&p->dom);
	if (!look.clean || fstat(node->file->fd, &st) < 0)
		return true;
	domain_lock(&p->dom);
	if (node_look_holds(node, &look)) {
		if (!node->below_known || fnode_is_foreign(fn, &st))
			fnode_follow(fn, &st);
	}
	same = !fn->kernel_stale;
	fn->kernel_stale = false;
	domain_unlock(&p->dom);
	return same;
}

/* Is the file below open for what the caller wants to do? */
static int check_access(struct pacefs *p, struct fnode *fn, const struct fuse_file_info *fi)
{
	bool writes = (fi->flags & O_ACCMODE) != O_RDONLY || fi->flags & O_TRUNC;

	if (!writes || fn->node.file->writable)
		return 0;
	return p->backing.store.read_only ? -EROFS : -EACCES;
}

/* The file below is open (a reference of file_users is handed over). */
static int finish_open(struct pacefs *p, struct fnode *fn, struct fuse_file_info *fi)
{
	struct open_file *of = calloc(1, sizeof(*of));
	struct node *node = &fn->node;

	if (!of)
		return -ENOMEM;
	of->fn = fn;
	of->writes = (fi->flags & O_ACCMODE) != O_RDONLY;
	of->maps = (fi->flags & O_ACCMODE) == O_RDWR;
	uint64_t fh = open_table_add(&p->opens, of, OPEN_FILE);
	if (!fh) {
		free(of);
		return -ENFILE;
	}
	fi->keep_cache = source_as_known(p, fn);
	domain_lock(&p->dom);
	node_get(node);
	/* An error that nobody has heard of yet is for this one too. */
	of->err_seq = node->err_seq - (node->err_seq && !node->err_seen);
	fn->writers_open += of->writes;
	fn->mappers_open += of->maps;
	domain_unlock(&p->dom);
	fi->noflush = !of->writes;
	fi->fh = fh;
	return 0;
}

/* The kernel does not lock the file for an open with O_TRUNC: a write of it may be half
 * admitted. It is finished first, or it would be torn. The opener would wait in any case: the
 * kernel locks the file afterwards, and the writer has that lock until its whole write(2) is
 * answered. */
static void wait_for_queued(struct pacefs *p, struct fnode *fn)
{
	domain_lock(&p->dom);
	while (fn->queued) {
		p->dom.wants_progress = true;
		pthread_cond_wait(&p->dom.progress, &p->dom.lock);
	}
	domain_unlock(&p->dom);
}

static int release(struct pacefs *p, fuse_ino_t ino, const struct fuse_file_info *fi)
{
	struct open_file *of = ops_open_file(p, ino, fi);

	if (!of || !open_table_remove(&p->opens, fi->fh, OPEN_FILE))
		return -EBADF;
	struct fnode *fn = of->fn;
	domain_lock(&p->dom);
	fn->writers_open -= of->writes;
	fn->mappers_open -= of->maps;
	domain_unlock(&p->dom);
	ops_file_put(p, fn);
	fnode_put(p, fn);
	free(of);
	return 0;
}

void ops_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct pacefs *p = pacefs_of(req);

	if (ino == NODEID_CONTROL) {
		fi->direct_io = 1;
		fuse_reply_open(req, fi);
		return;
	}
	struct fnode *fn = ops_node(req, ino);
	if (!fn)
		return;
	session_block_begin();
	int ret = ops_file_get(p, fn);
	if (ret == 0) {
		ret = check_access(p, fn, fi);
		if (ret == 0 && fi->flags & O_TRUNC) {
			ops_kill_privs(req, fn, session_open_kills_privs());
			wait_for_queued(p, fn);
			ret = ops_truncate(p, fn, 0);
		}
		if (ret == 0)
			ret = finish_open(p, fn, fi);
		if (ret < 0)
			ops_file_put(p, fn);
	}
	session_block_end();
	if (ret < 0)
		ops_reply(req, ret);
	else if (fuse_reply_open(req, fi) == -ENOENT) {
		/* Interrupted: nobody will release it. */
		release(p, ino, fi);
	}
	fnode_put(p, fn);
}

static int create_as(fuse_req_t req, int dirfd, const char *name, mode_t mode, int flags)
{
	int ret = ops_become(req);
	/* What is there by now is not opened by its name: it could be a FIFO or a device. */
	int fd = ret < 0 ? -1
			 : openat(dirfd, name, O_CREAT | O_EXCL | O_RDONLY | O_CLOEXEC, mode);
	if (ret == 0 && fd < 0)
		ret = errno == EEXIST && !(flags & O_EXCL) ? 0 : -errno;
	ops_become_self();
	if (fd >= 0)
		close(fd);
	return ret;
}

void ops_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	struct fuse_file_info *fi)
{
	struct pacefs *p = pacefs_of(req);
	struct fuse_entry_param e;
	struct fnode *fn = NULL;

	if (control_is_name(parent, name) || p->backing.store.raw) {
		fuse_reply_err(req, p->backing.store.raw ? EPERM : EEXIST);
		return;
	}
	struct fnode *dir = ops_node(req, parent);
	if (!dir)
		return;
	session_block_begin();
	int dirfd = fnode_fd_get(p, dir);
	int ret = dirfd < 0 ? dirfd : 0;
	if (ret == 0) {
		ret = create_as(req, dirfd, name, mode, fi->flags);
		if (space_make_room(p, ret))
			ret = create_as(req, dirfd, name, mode, fi->flags);
		struct place at = place_at(p, dir->node.nodeid, name);
		int path_fd =
			ret < 0 ? -1 : openat(dirfd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
		if (ret == 0 && path_fd < 0)
			ret = -errno;
		if (ret == 0)
			ret = ops_entry(p, path_fd, &at, &e);
		fnode_fd_put(p, dir);
	}
	if (ret == 0) {
		fn = fnode_get(p, e.ino);
		/* ESTALE: the kernel looks again, what it is now. */
		ret = fn && S_ISREG(fn->type) ? ops_file_get(p, fn) : -ESTALE;
		if (ret == 0) {
			ret = check_access(p, fn, fi);
			if (ret == 0 && fi->flags & O_TRUNC && e.attr.st_size) {
				wait_for_queued(p, fn);
				/* Somebody was faster, and the file is not new. */
				ops_kill_privs(req, fn, fuse_req_ctx(req)->uid != 0);
				ret = ops_truncate(p, fn, 0);
				if (ret == 0)
					ret = fnode_stat(p, fn, &e.attr);
			}
			if (ret == 0)
				ret = finish_open(p, fn, fi);
			if (ret < 0)
				ops_file_put(p, fn);
		}
		if (ret < 0)
			fnode_forget(p, e.ino, 1);
	}
	session_block_end();
	if (ret < 0)
		ops_reply(req, ret);
	else if (fuse_reply_create(req, &e, fi) == -ENOENT) {
		release(p, e.ino, fi);
		fnode_forget(p, e.ino, 1);
	}
	if (fn)
		fnode_put(p, fn);
	fnode_put(p, dir);
}

void ops_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	ops_reply(req, ino == NODEID_CONTROL ? 0 : release(pacefs_of(req), ino, fi));
}

/* ---- reading ---- */

static int read_merged(
	struct pacefs *p, struct node *node, char *buf, size_t size, uint64_t off)
{
	struct cache_pin pins[WRITE_MAX_FRAMES];
	bool whole;
	ssize_t n = 0;

	domain_lock(&p->dom);
	/* A cut that has not reached the source: what is there behind it is no more. */
	uint64_t below = node->cut_pending ? node->cut_size : UINT64_MAX;
	unsigned nr = cache_read_begin(node, off, size, pins, WRITE_MAX_FRAMES, &whole);
	domain_unlock(&p->dom);
	size_t want = whole || off >= below ? 0 : below - off < size ? below - off : size;
	if (want)
		n = store_file_read(node->file, buf, want, off);
	memset(buf + want, 0, size - want);
	domain_lock(&p->dom);
	cache_read_end(node, off, size, buf, pins, nr);
	uint64_t end = node->size;
	domain_unlock(&p->dom);
	if (n < 0)
		return (int)n;
	if (off >= end)
		return 0;
	return (int)(end - off < size ? end - off : size);
}

void ops_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct pacefs *p = pacefs_of(req);

	if (ino == NODEID_CONTROL) {
		fuse_reply_buf(req, NULL, 0);
		return;
	}
	struct open_file *of = open_file_of(req, ino, fi);
	if (!of)
		return;
	char *buf = malloc(size);
	if (!buf) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	session_block_begin();
	int ret = read_merged(p, &of->fn->node, buf, size, (uint64_t)off);
	session_block_end();
	if (ret < 0)
		ops_reply(req, ret);
	else
		fuse_reply_buf(req, buf, (size_t)ret);
	free(buf);
}

/* ---- writing ---- */

static bool knows_time_step(const struct pacefs *p)
{
	return p->backing.store.raw ||
		__atomic_load_n(&p->backing.dev.time_step_ns, __ATOMIC_RELAXED);
}

/* How fine are the source's times? Tried once, on the first file whose time moves in any case. */
static void learn_time_step(struct pacefs *p, struct node *node)
{
	if (knows_time_step(p))
		return;
	domain_lock(&p->dom);
	bool clean = !node_is_unclean(node) && !node->inflight;
	if (clean)
		node_change_begin(node);
	domain_unlock(&p->dom);
	if (!clean)
		return;
	uint32_t found = store_file_time_step(node->file);
	domain_lock(&p->dom);
	node_change_end(node);
	if (found)
		__atomic_store_n(&p->backing.dev.time_step_ns, found, __ATOMIC_RELAXED);
	domain_unlock(&p->dom);
}

static bool source_is_gone(struct pacefs *p)
{
	domain_lock(&p->dom);
	bool gone = p->backing.dev.health == DEVICE_GONE;
	domain_unlock(&p->dom);
	return gone;
}

/* What the source could never take must be refused now, not when it is flushed. */
static int refuse_write(struct pacefs *p, struct fnode *fn, uint64_t off, size_t size)
{
	const struct store *st = &p->backing.store;

	if (st->raw && off + size > st->raw_size)
		return -ENOSPC;
	if (off + size > (uint64_t)INT64_MAX)
		return -EFBIG;
	return st->raw || store_file_can_hold(fn->node.file, off + size) ? 0 : -EFBIG;
}

void ops_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
	struct fuse_file_info *fi)
{
	struct pacefs *p = pacefs_of(req);

	if (ino == NODEID_CONTROL) {
		fuse_reply_err(req, EPERM);
		return;
	}
	struct open_file *of = ops_open_file(p, ino, fi);
	int ret = of && of->writes ? refuse_write(p, of->fn, (uint64_t)off, size) : -EBADF;
	if (ret == 0 && !fi->writepage && source_is_gone(p))
		ret = -EIO;
	struct fnode *fn = ret == 0 ? fnode_get(p, ino) : NULL;
	if (!fn) {
		ops_reply(req, ret ? ret : -ESTALE);
		return;
	}
	if (!knows_time_step(p)) {
		session_block_begin();
		learn_time_step(p, &fn->node);
		session_block_end();
	}
	if (!fi->writepage)
		ops_kill_privs(req, fn, session_write_kills_privs());
	struct payload *payload = session_payload();
	if (!fi->writepage && !space_promise(p, fn, payload)) {
		session_block_begin();
		ssize_t done = space_write_through(req, fn, payload);
		session_block_end();
		if (done) {
			if (done < 0)
				ops_reply(req, (int)done);
			else
				fuse_reply_write(req, (size_t)done);
			fnode_put(p, fn);
			return;
		}
	}
	writes_submit(p, req, fn, payload, fi->writepage);
}

static int sync_file(struct pacefs *p, struct open_file *of, bool datasync)
{
	struct node *node = &of->fn->node;

	int full = flusher_sync_node(&p->backing.flusher, node);
	int ret = full ? 0 : store_file_sync(node->file, datasync);
	/* The source tells its one descriptor once; everybody who has it open is to hear it. */
	if (ret < 0)
		flusher_heard(&p->backing.flusher, node, "fsync", -ret);
	ret = take_error(p, of);
	return ret ? ret : full; /* as long as it is not below it is not */
}

void ops_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct pacefs *p = pacefs_of(req);
	struct open_file *of = NULL;
	int ret = 0;

	if (ino != NODEID_CONTROL && !(of = open_file_of(req, ino, fi)))
		return;
	if (of && of->writes) {
		if (p->options.flush_on_close) {
			session_block_begin();
			ret = sync_file(p, of, false);
			session_block_end();
		} else {
			ret = take_error(p, of);
		}
	}
	ops_reply(req, ret);
}

void ops_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	struct pacefs *p = pacefs_of(req);
	struct open_file *of = NULL;
	int ret = 0;

	if (ino != NODEID_CONTROL && !(of = open_file_of(req, ino, fi)))
		return;
	if (of) {
		session_block_begin();
		ret = sync_file(p, of, datasync);
		session_block_end();
	}
	ops_reply(req, ret);
}

/* ---- size ---- */

void ops_change_begin(struct node *node)
{
	domain_lock(node->dom);
	node_change_begin(node);
	domain_unlock(node->dom);
}

void ops_change_end(struct node *node)
{
	domain_lock(node->dom);
	node_change_end(node);
	domain_unlock(node->dom);
}

void ops_touch(struct node *node)
{
	/* Holes may be the user's own from here on. */
	state_extended(node, 0);
	node_touch(node);
}

/* Upwards: the source says now whether it can. */
static int extend(struct pacefs *p, struct node *node, uint64_t size)
{
	domain_lock(&p->dom);
	flusher_settle_cut(&p->backing.flusher, node);
	node_change_begin(node);
	domain_unlock(&p->dom);
	int ret = store_file_truncate(node->file, size);
	domain_lock(&p->dom);
	node_change_end(node);
	if (ret < 0) {
		domain_unlock(&p->dom);
		return ret;
	}
	if (size > node->size)
		node->size = size;
	if (size > node->file->size_below) {
		node->file->size_below = size;
		node->file->dense = false;
	}
	ops_touch(node);
	domain_unlock(&p->dom);
	return 0;
}

int ops_truncate(struct pacefs *p, struct fnode *fn, uint64_t size)
{
	struct node *node = &fn->node;

	if (p->backing.store.raw)
		return size == p->backing.store.raw_size || size == 0 ? 0 : -EPERM;
	if (!node->file->writable)
		return p->backing.store.read_only ? -EROFS : -EACCES;
	if (source_is_gone(p))
		return -EIO;
	learn_time_step(p, node);
	domain_lock(&p->dom);
	uint64_t old = node->size;
	if (size > old) {
		domain_unlock(&p->dom);
		return extend(p, node, size);
	}
	domain_unlock(&p->dom);
	int cut = size < old ? space_truncate(p, node, size) : 0;
	if (cut < 0)
		return cut;
	domain_lock(&p->dom);
	if (cut && size < node->file->size_below)
		node->file->size_below = size;
	int ret = size < old ? cache_truncate(node, size, 0) : 0;
	if (ret == 0) {
		if (size < old && !cut) {
			node->cut_size = node->cut_pending && node->cut_size < size
				? node->cut_size
				: size;
			node->cut_end = size;
			node->cut_pending = true;
			node->cut_seq++;
		}
		ops_touch(node);
		domain_progress(&p->dom); /* dropped pages made room */
		flusher_work(&p->backing.flusher, node);
	}
	domain_unlock(&p->dom);
	return ret;
}
