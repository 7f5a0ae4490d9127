#include "fuse/ops.h"

#include "fuse/control.h"
#include "fuse/inside.h"
#include "fuse/crash.h"
#include "fuse/raw.h"
#include "fuse/session.h"
#include "fuse/space.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct open_dir {
	DIR *dir;
	struct fnode *fn;
	struct dirent *entry; /* read but not given out yet */
	off_t offset;	      /* position of entry */
};

/* ---- looking up ---- */

static int open_child(struct pacefs *p, struct fnode *dir, const char *name)
{
	int dirfd = fnode_fd_get(p, dir);

	if (dirfd < 0)
		return dirfd;
	int fd = openat(dirfd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	int ret = fd < 0 ? -errno : fd;
	fnode_fd_put(p, dir);
	return ret;
}

/* Nothing of another filesystem mounted inside the source: it would be another device. */
static int check_device(struct pacefs *p, int fd)
{
	struct stat st;

	if (fstatat(fd, "", &st, AT_EMPTY_PATH) < 0)
		return -errno;
	return st.st_dev == p->backing.dev.dev ? 0 : -EXDEV;
}

static int lookup(struct pacefs *p, struct fnode *dir, const char *name,
	struct fuse_entry_param *ret_entry)
{
	struct place place = place_at(p, dir->node.nodeid, name);
	const struct place *at = &place;
	int fd;

	if (p->backing.store.raw)
		return raw_entry(p, name, ret_entry);
	if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		at = NULL;
	if (strcmp(name, ".") == 0 || (strcmp(name, "..") == 0 && dir == p->root)) {
		/* NFS asks for the node itself, or for the parent of a directory. */
		fd = fnode_fd_get(p, dir);
		if (fd < 0)
			return fd;
		int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		fnode_fd_put(p, dir);
		fd = copy < 0 ? -errno : copy;
	} else {
		fd = open_child(p, dir, name);
	}
	if (fd < 0)
		return fd;
	int ret = check_device(p, fd);
	/* Of a directory that was moved out of the source by others it leads anywhere. */
	if (ret == 0 && strcmp(name, "..") == 0 && !inside_source(p->backing.store.sync_fd, fd))
		ret = -ESTALE;
	/* Without a name it is only for those who have it open, not for a handle of NFS. */
	if (ret == 0 && strcmp(name, ".") == 0 && dir->unlinked)
		ret = -ESTALE;
	if (ret < 0) {
		close(fd);
		return ret;
	}
	return ops_entry(p, fd, at, ret_entry);
}

void ops_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct pacefs *p = pacefs_of(req);
	struct fuse_entry_param e;

	if (control_is_name(parent, name) ||
		(parent == NODEID_CONTROL && strcmp(name, ".") == 0)) {
		control_entry(p, &e);
		fuse_reply_entry(req, &e);
		return;
	}
	struct fnode *dir = ops_node(req, parent);
	if (!dir)
		return;
	session_block_begin();
	int ret = lookup(p, dir, name, &e);
	session_block_end();
	if (ret < 0)
		ops_reply(req, ret);
	else if (fuse_reply_entry(req, &e) == -ENOENT)
		fnode_forget(p, e.ino, 1);
	fnode_put(p, dir);
}

void ops_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
	fnode_forget(pacefs_of(req), ino, nlookup);
	fuse_reply_none(req);
}

void ops_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	for (size_t i = 0; i < count; i++)
		fnode_forget(pacefs_of(req), forgets[i].ino, forgets[i].nlookup);
	fuse_reply_none(req);
}

void ops_readlink(fuse_req_t req, fuse_ino_t ino)
{
	struct pacefs *p = pacefs_of(req);
	char target[PATH_MAX + 1];

	struct fnode *fn = ops_node(req, ino);
	if (!fn)
		return;
	session_block_begin();
	int fd = fnode_fd_get(p, fn);
	ssize_t n = fd < 0 ? fd : readlinkat(fd, "", target, PATH_MAX);
	if (fd >= 0) {
		if (n < 0)
			n = -errno;
		fnode_fd_put(p, fn);
	}
	session_block_end();
	if (n < 0) {
		ops_reply(req, (int)n);
	} else {
		target[n] = '\0';
		fuse_reply_readlink(req, target);
	}
	fnode_put(p, fn);
}

/* ---- making ---- */

struct making {
	const char *name;
	mode_t mode;
	dev_t rdev;
	const char *link;  /* symlink: its target */
	struct fnode *old; /* link: the file */
};

static int make_at(struct pacefs *p, int dirfd, const struct making *m)
{
	char path[OPS_PROC_PATH];
	int ret;

	if (m->link)
		return symlinkat(m->link, dirfd, m->name) < 0 ? -errno : 0;
	if (m->old) {
		int fd = fnode_fd_get(p, m->old);
		if (fd < 0)
			return fd;
		ops_proc_path(path, fd);
		ret = linkat(AT_FDCWD, path, dirfd, m->name, AT_SYMLINK_FOLLOW) < 0 ? -errno
										    : 0;
		if (ret == 0)
			fnode_changed(p, m->old);
		fnode_fd_put(p, m->old);
		return ret;
	}
	if (S_ISDIR(m->mode))
		return mkdirat(dirfd, m->name, m->mode & 07777) < 0 ? -errno : 0;
	return mknodat(dirfd, m->name, m->mode, m->rdev) < 0 ? -errno : 0;
}

static int make_as(fuse_req_t req, int dirfd, const struct making *m)
{
	int ret = m->old ? 0 : ops_become(req);
	if (ret == 0)
		ret = make_at(pacefs_of(req), dirfd, m);
	ops_become_self();
	return ret;
}

/* mknod, mkdir, symlink and link: all make a name, as the caller, and look it up. */
static void make(fuse_req_t req, fuse_ino_t parent, const struct making *m)
{
	struct pacefs *p = pacefs_of(req);
	struct fuse_entry_param e;

	if (control_is_name(parent, m->name)) {
		fuse_reply_err(req, EEXIST);
		return;
	}
	if (p->backing.store.raw) {
		fuse_reply_err(req, EPERM);
		return;
	}
	struct fnode *dir = ops_node(req, parent);
	if (!dir)
		return;
	session_block_begin();
	int dirfd = fnode_fd_get(p, dir);
	int ret = dirfd < 0 ? dirfd : 0;
	if (ret == 0) {
		ret = make_as(req, dirfd, m);
		if (space_make_room(p, ret))
			ret = make_as(req, dirfd, m);
		fnode_fd_put(p, dir);
	}
	if (ret == 0)
		ret = lookup(p, dir, m->name, &e);
	session_block_end();
	if (ret < 0)
		ops_reply(req, ret);
	else if (fuse_reply_entry(req, &e) == -ENOENT)
		fnode_forget(p, e.ino, 1);
	fnode_put(p, dir);
}

void ops_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	make(req, parent, &(struct making){.name = name, .mode = mode, .rdev = rdev});
}

void ops_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	make(req, parent, &(struct making){.name = name, .mode = (mode & 07777) | S_IFDIR});
}

void ops_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name)
{
	make(req, parent, &(struct making){.name = name, .link = link});
}

void ops_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
	struct pacefs *p = pacefs_of(req);
	struct fnode *fn = ino == NODEID_CONTROL ? NULL : fnode_get(p, ino);

	if (!fn) {
		ops_reply(req, ino == NODEID_CONTROL ? -EPERM : -errno);
		return;
	}
	make(req, parent, &(struct making){.name = name, .old = fn});
	fnode_put(p, fn); /* the request is answered: it is gone */
}

/* ---- taking away ---- */

struct victim {
	struct fnode *fn; /* NULL: none */
	int fd;		  /* pinned, since the last name may go */
};

/* The node a name stands for now, before it is taken away. */
static struct victim victim_get(struct pacefs *p, struct fnode *dir, const char *name)
{
	struct victim v = {0};
	struct stat st;
	struct place at = place_at(p, dir->node.nodeid, name);

	int fd = open_child(p, dir, name);
	if (fd < 0 || fnode_from_fd(p, fd, &at, &v.fn, &st) < 0)
		return (struct victim){0};
	v.fd = fnode_fd_get(p, v.fn);
	if (v.fd < 0) {
		fnode_put(p, v.fn);
		return (struct victim){0};
	}
	return v;
}

static void victim_put(struct pacefs *p, struct victim v)
{
	if (!v.fn)
		return;
	fnode_fd_put(p, v.fn);
	fnode_put(p, v.fn);
}

/* A name of it was taken away. Was it the last one? Who has it open goes on; when nobody has,
 * pages that nobody can read any more are dropped, written or not. */
static void victim_is_gone(
	struct pacefs *p, struct victim v, struct fnode *dir, const char *name)
{
	struct stat st;

	if (!v.fn)
		return;
	domain_lock(&p->dom);
	place_lost(p, v.fn, dir->node.nodeid, name);
	domain_unlock(&p->dom);
	if (!S_ISDIR(v.fn->type) &&
		(fstatat(v.fd, "", &st, AT_EMPTY_PATH) < 0 || st.st_nlink > 0)) {
		fnode_changed(p, v.fn);
		victim_put(p, v);
		return;
	}
	domain_lock(&p->dom);
	p->nr_unlinked += !v.fn->unlinked;
	v.fn->unlinked = true; /* and the pin stays */
	node_touch_ctime(&v.fn->node);
	state_renamed(p->dom.state, &v.fn->node);
	fnode_drop_if_dead(v.fn);
	domain_unlock(&p->dom);
	fnode_put(p, v.fn);
}

static void take_away(fuse_req_t req, fuse_ino_t parent, const char *name, int flags)
{
	struct pacefs *p = pacefs_of(req);

	if (control_is_name(parent, name) || p->backing.store.raw) {
		fuse_reply_err(req, EPERM);
		return;
	}
	struct fnode *dir = ops_node(req, parent);
	if (!dir)
		return;
	session_block_begin();
	struct victim v = victim_get(p, dir, name);
	int dirfd = fnode_fd_get(p, dir);
	places_move_begin(p);
	int ret = dirfd < 0 ? dirfd : unlinkat(dirfd, name, flags) < 0 ? -errno : 0;
	if (dirfd >= 0)
		fnode_fd_put(p, dir);
	if (ret == 0)
		victim_is_gone(p, v, dir, name);
	else
		victim_put(p, v);
	places_move_end(p);
	session_block_end();
	ops_reply(req, ret);
	fnode_put(p, dir);
}

void ops_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	take_away(req, parent, name, 0);
}

void ops_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	take_away(req, parent, name, AT_REMOVEDIR);
}

static void places_renamed(
	struct pacefs *p, struct fnode *fn, struct fnode *dir, const char *name)
{
	if (!fn)
		return;
	domain_lock(&p->dom);
	struct place at = place_at(p, dir->node.nodeid, name); /* it is surely there */
	place_set(p, fn, &at);
	domain_unlock(&p->dom);
}

void ops_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
	const char *new_name, unsigned int flags)
{
	struct pacefs *p = pacefs_of(req);

	if (control_is_name(parent, name) || control_is_name(new_parent, new_name) ||
		p->backing.store.raw) {
		fuse_reply_err(req, EPERM);
		return;
	}
	struct fnode *dir = ops_node(req, parent);
	if (!dir)
		return;
	struct fnode *new_dir = ops_node(req, new_parent);
	if (!new_dir) {
		fnode_put(p, dir);
		return;
	}
	session_block_begin();
	bool exchange = flags & RENAME_EXCHANGE;
	/* What new_name stands for: it goes, or changes places. */
	struct victim old = victim_get(p, new_dir, new_name);
	struct victim moved = victim_get(p, dir, name);
	char *name_before =
		moved.fn && S_ISDIR(moved.fn->type) ? crash_name(p, moved.fn) : NULL;
	int from = fnode_fd_get(p, dir), to = fnode_fd_get(p, new_dir);
	int ret = from < 0 ? from : to < 0 ? to : 0;
	places_move_begin(p);
	/* A whiteout left behind is a new node, of the caller's. */
	if (ret == 0 && flags & RENAME_WHITEOUT)
		ret = ops_become(req);
	if (ret == 0 && renameat2(from, name, to, new_name, flags) < 0)
		ret = -errno;
	ops_become_self();
	if (from >= 0)
		fnode_fd_put(p, dir);
	if (to >= 0)
		fnode_fd_put(p, new_dir);
	if (ret == 0)
		places_renamed(p, moved.fn, new_dir, new_name);
	if (ret == 0 && exchange)
		places_renamed(p, old.fn, dir, name);
	places_move_end(p);
	if (ret == 0 && !exchange && moved.fn && old.fn && moved.fn != old.fn) {
		/* Replacing a file is how programs commit: start writing the new one now, so
		 * that a crash soon after finds one of the two. */
		domain_lock(&p->dom);
		cache_tag_node(&moved.fn->node);
		device_kick(moved.fn->node.dev);
		domain_unlock(&p->dom);
	}
	if (ret == 0 && exchange && old.fn)
		fnode_changed(p, old.fn);
	if (ret == 0 && moved.fn) {
		fnode_changed(p, moved.fn);
		crash_renamed(p, moved.fn, name_before);
	} else {
		free(name_before);
	}
	if (ret == 0 && !exchange && old.fn != moved.fn)
		victim_is_gone(p, old, new_dir, new_name);
	else
		victim_put(p, old);
	victim_put(p, moved);
	session_block_end();
	ops_reply(req, ret);
	fnode_put(p, new_dir);
	fnode_put(p, dir);
}

/* ---- directories ---- */

static struct open_dir *find_open_dir(
	struct pacefs *p, fuse_ino_t ino, const struct fuse_file_info *fi)
{
	struct open_dir *od = open_table_get(&p->opens, fi->fh, OPEN_DIR);

	return od && od->fn->node.nodeid == ino ? od : NULL;
}

/* The same; answers EBADF itself when there is none. */
static struct open_dir *open_dir_of(
	fuse_req_t req, fuse_ino_t ino, const struct fuse_file_info *fi)
{
	struct open_dir *od = find_open_dir(pacefs_of(req), ino, fi);

	if (!od)
		fuse_reply_err(req, EBADF);
	return od;
}

void ops_forsake_dir(void *object)
{
	struct open_dir *od = object;

	if (od->dir)
		closedir(od->dir);
	free(od);
}

static int release_dir(struct pacefs *p, fuse_ino_t ino, const struct fuse_file_info *fi)
{
	struct open_dir *od = find_open_dir(p, ino, fi);

	if (!od || !open_table_remove(&p->opens, fi->fh, OPEN_DIR))
		return -EBADF;
	fnode_put(p, od->fn);
	ops_forsake_dir(od);
	return 0;
}

void ops_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct pacefs *p = pacefs_of(req);
	struct fnode *fn = ops_node(req, ino);

	if (!fn)
		return;
	struct open_dir *od = calloc(1, sizeof(*od));
	int ret = !od ? -ENOMEM : !S_ISDIR(fn->type) ? -ENOTDIR : 0;
	session_block_begin();
	if (ret == 0 && !p->backing.store.raw) {
		int dirfd = fnode_fd_get(p, fn);
		int fd =
			dirfd < 0 ? -1 : openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0 || !(od->dir = fdopendir(fd)))
			ret = dirfd < 0 ? dirfd : -errno;
		if (ret < 0 && fd >= 0)
			close(fd);
		if (dirfd >= 0)
			fnode_fd_put(p, fn);
	}
	session_block_end();
	if (ret == 0) {
		od->fn = fn; /* referenced until releasedir */
		fi->fh = open_table_add(&p->opens, od, OPEN_DIR);
		ret = fi->fh ? 0 : -ENFILE;
	}
	if (ret < 0) {
		if (od)
			ops_forsake_dir(od);
		ops_reply(req, ret);
		fnode_put(p, fn);
		return;
	}
	if (fuse_reply_open(req, fi) == -ENOENT)
		release_dir(p, ino, fi);
}

/* Fetch od->entry for offset; 0, -errno, or 1 at the end. */
static int next_entry(struct open_dir *od, off_t offset)
{
	if (od->entry && od->offset == offset)
		return 0;
	if (od->offset != offset) {
		seekdir(od->dir, offset);
		od->offset = offset;
	}
	errno = 0;
	od->entry = readdir(od->dir);
	if (!od->entry)
		return errno ? -errno : 1;
	return 0;
}

/* One entry into buf. Bytes used (0: no room) or -errno. A looked-up one in *ret_nodeid. */
static ssize_t put_entry(fuse_req_t req, struct open_dir *od, char *buf, size_t room, bool plus,
	uint64_t *ret_nodeid)
{
	struct pacefs *p = pacefs_of(req);
	const struct dirent *d = od->entry;
	struct fuse_entry_param e = {
		.attr.st_ino = d->d_ino,
		.attr.st_mode = (mode_t)DTTOIF(d->d_type),
	};
	bool dots = strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0;

	*ret_nodeid = 0;
	if (!plus)
		return (ssize_t)fuse_add_direntry(req, buf, room, d->d_name, &e.attr, d->d_off);
	if (fuse_add_direntry_plus(req, NULL, 0, d->d_name, NULL, 0) > room)
		return (ssize_t)room + 1;
	if (!dots && lookup(p, od->fn, d->d_name, &e) == 0)
		*ret_nodeid = e.ino;
	return (ssize_t)fuse_add_direntry_plus(req, buf, room, d->d_name, &e, d->d_off);
}

static void read_dir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
	struct fuse_file_info *fi, bool plus)
{
	struct pacefs *p = pacefs_of(req);
	size_t used = 0;
	int ret = 0;

	struct open_dir *od = open_dir_of(req, ino, fi);
	if (!od)
		return;
	char *buf = malloc(size);
	if (!buf) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	if (p->backing.store.raw) {
		size_t n = raw_readdir(req, buf, size, off, plus);
		fuse_reply_buf(req, buf, n);
		free(buf);
		return;
	}
	session_block_begin();
	while ((ret = next_entry(od, off)) == 0) {
		uint64_t nodeid;
		bool hidden = control_is_name(od->fn->node.nodeid, od->entry->d_name);
		ssize_t n =
			hidden ? 0 : put_entry(req, od, buf + used, size - used, plus, &nodeid);
		if (!hidden && (size_t)n > size - used) {
			if (nodeid)
				fnode_forget(p, nodeid, 1);
			break;
		}
		used += (size_t)n;
		off = od->entry->d_off;
		od->entry = NULL;
		od->offset = off;
	}
	session_block_end();
	if (ret < 0 && used == 0)
		ops_reply(req, ret);
	else
		fuse_reply_buf(req, buf, used);
	free(buf);
}

void ops_readdir(
	fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	read_dir(req, ino, size, off, fi, false);
}

void ops_readdirplus(
	fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	read_dir(req, ino, size, off, fi, true);
}

void ops_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	ops_reply(req, release_dir(pacefs_of(req), ino, fi));
}

void ops_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	struct open_dir *od = open_dir_of(req, ino, fi);
	int ret = 0;

	if (!od)
		return;
	session_block_begin();
	if (od->dir && (datasync ? fdatasync(dirfd(od->dir)) : fsync(dirfd(od->dir))) < 0)
		ret = -errno;
	session_block_end();
	ops_reply(req, ret);
}
