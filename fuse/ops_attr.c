#include "fuse/ops.h"

#include "fuse/control.h"
#include "fuse/session.h"
#include "fuse/space.h"
#include "util/clock.h"
#include "util/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

void ops_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct pacefs *p = pacefs_of(req);
	struct stat st;

	if (ino == NODEID_CONTROL) {
		control_stat(p, &st);
		fuse_reply_attr(req, &st, ops_attr_timeout());
		return;
	}
	struct fnode *fn = ops_node(req, ino);
	if (!fn)
		return;
	session_block_begin();
	int ret = fnode_stat(p, fn, &st);
	ops_drop_stale(p, fn);
	session_block_end();
	if (ret < 0)
		ops_reply(req, ret);
	else
		fuse_reply_attr(req, &st, ops_attr_timeout());
	fnode_put(p, fn);
}

/* UTIME_NOW for what the caller left to us, UTIME_OMIT for what is not to be set. */
static void wanted_times(const struct stat *attr, int to_set, struct timespec times[2])
{
	times[0].tv_nsec = times[1].tv_nsec = UTIME_OMIT;
	if (to_set & FUSE_SET_ATTR_ATIME)
		times[0] = attr->st_atim;
	if (to_set & FUSE_SET_ATTR_ATIME_NOW)
		times[0].tv_nsec = UTIME_NOW;
	if (to_set & FUSE_SET_ATTR_MTIME)
		times[1] = attr->st_mtim;
	if (to_set & FUSE_SET_ATTR_MTIME_NOW)
		times[1].tv_nsec = UTIME_NOW;
}

/* Every filesystem has such dates: FAT from 1980 on, those with 32 bits until January 2038. */
static bool is_plain_date(const struct timespec *t)
{
	return t->tv_sec >= 315619200 && t->tv_sec < 2145916800;
}

/* The file's time, kept by us until what is dirty is written: that would move it. With the lock.
 * False: what the source makes of this date shows only there. */
static bool keep_mtime(struct node *node, const struct timespec *mtime)
{
	if (mtime->tv_nsec == UTIME_NOW) {
		node_touch(node);
		return true;
	}
	bool plain = is_plain_date(mtime) && node->dev->time_step_ns;
	node_touch_ctime(node);
	node_set_mtime(node, plain ? node_round_time(node, *mtime) : *mtime);
	return plain;
}

/* The source's file has other times now: what did it make of them? */
static void read_back(struct fnode *fn, const struct timespec *mtime, const struct stat *st)
{
	struct node *node = &fn->node;

	if (!node_is_unclean(node)) {
		if (!node->below_changing && !node->inflight)
			node_below_is(node, st->st_mtim);
	} else if (clock_same(&node->mtime, mtime)) {
		node->mtime = st->st_mtim;
	}
}

static int set_times(struct pacefs *p, struct fnode *fn, int fd, const char *path,
	const struct stat *attr, int to_set)
{
	struct timespec times[2];
	struct node *node = &fn->node;
	struct stat st;

	wanted_times(attr, to_set, times);
	domain_lock(&p->dom);
	struct timespec before = node->mtime;
	if ((node_is_unclean(node) || node->inflight) && times[1].tv_nsec != UTIME_OMIT &&
		keep_mtime(node, &times[1]))
		times[1].tv_nsec = UTIME_OMIT;
	if (times[1].tv_nsec == UTIME_OMIT) {
		domain_unlock(&p->dom);
		if (times[0].tv_nsec == UTIME_OMIT)
			return 0;
		return utimensat(AT_FDCWD, path, times, 0) < 0 ? -errno : 0;
	}
	node_change_begin(node);
	domain_unlock(&p->dom);
	int ret = utimensat(AT_FDCWD, path, times, 0) < 0 ? -errno : 0;
	bool seen = ret == 0 && fstatat(fd, "", &st, AT_EMPTY_PATH) == 0;
	domain_lock(&p->dom);
	node_change_end(node);
	if (seen)
		read_back(fn, &times[1], &st);
	else if (ret < 0 && clock_same(&node->mtime, &times[1]))
		node->mtime = before;
	domain_unlock(&p->dom);
	return ret;
}

static int set_owner(int fd, const struct stat *attr, int to_set)
{
	uid_t uid = to_set & FUSE_SET_ATTR_UID ? attr->st_uid : (uid_t)-1;
	gid_t gid = to_set & FUSE_SET_ATTR_GID ? attr->st_gid : (gid_t)-1;

	return fchownat(fd, "", uid, gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

static int set_size(struct pacefs *p, struct fnode *fn, uint64_t size)
{
	int ret = ops_file_get(p, fn);

	if (ret == 0) {
		ret = ops_truncate(p, fn, size);
		ops_file_put(p, fn);
	}
	return ret;
}

enum {
	SETS_OWNER = FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID,
	SETS_TIMES = FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_ATIME_NOW |
		FUSE_SET_ATTR_MTIME_NOW,
};

static int set_attributes(fuse_req_t req, struct fnode *fn, const struct stat *attr, int to_set)
{
	struct pacefs *p = pacefs_of(req);
	char path[OPS_PROC_PATH];
	int ret = 0;

	if (p->backing.store.raw) {
		/* Owner, mode and times of a device node are its directory's business. */
		if (to_set & (SETS_OWNER | FUSE_SET_ATTR_MODE))
			return -EPERM;
		return to_set & FUSE_SET_ATTR_SIZE ? set_size(p, fn, (uint64_t)attr->st_size)
						   : 0;
	}
	int fd = fnode_fd_get(p, fn);
	if (fd < 0)
		return fd;
	ops_proc_path(path, fd);
	bool kills = session_setattr_kills_privs();
	/* A size that is refused takes nothing away. */
	if (to_set & FUSE_SET_ATTR_SIZE)
		ret = set_size(p, fn, (uint64_t)attr->st_size);
	if (ret == 0 && (to_set & FUSE_SET_ATTR_SIZE || kills))
		ops_kill_privs(req, fn, kills);
	if (ret == 0 && to_set & SETS_OWNER)
		ret = set_owner(fd, attr, to_set);
	if (ret == 0 && to_set & FUSE_SET_ATTR_MODE) {
		ret = chmod(path, attr->st_mode & 07777) < 0 ? -errno : 0;
		ops_privs_given(p, fn);
	}
	if (ret == 0 && to_set & SETS_TIMES)
		ret = set_times(p, fn, fd, path, attr, to_set);
	if (ret == 0)
		fnode_changed(p, fn);
	fnode_fd_put(p, fn);
	return ret;
}

void ops_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
	struct fuse_file_info *fi)
{
	struct pacefs *p = pacefs_of(req);
	struct stat st;

	if (ino == NODEID_CONTROL) {
		fuse_reply_err(req, EPERM);
		return;
	}
	struct fnode *fn = ops_node(req, ino);
	if (!fn)
		return;
	session_block_begin();
	int ret = set_attributes(req, fn, attr, to_set);
	if (ret == 0)
		ret = fnode_stat(p, fn, &st);
	session_block_end();
	if (ret < 0)
		ops_reply(req, ret);
	else
		fuse_reply_attr(req, &st, ops_attr_timeout());
	fnode_put(p, fn);
}

void ops_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct pacefs *p = pacefs_of(req);
	struct statvfs vfs;

	if (p->backing.store.raw) {
		/* All of it is there, and taken. */
		vfs = (struct statvfs){
			.f_bsize = PAGE_BYTES,
			.f_frsize = PAGE_BYTES,
			.f_blocks = p->backing.store.raw_size / PAGE_BYTES,
			.f_files = 1,
			.f_namemax = RAW_NAME_MAX,
		};
		fuse_reply_statfs(req, &vfs);
		return;
	}
	/* Asked of the file itself: a directory with a quota of its own may have figures of its own. */
	struct fnode *fn = ops_node(req, ino == NODEID_CONTROL ? NODEID_ROOT : ino);
	if (!fn)
		return;
	session_block_begin();
	int fd = fnode_fd_get(p, fn);
	int ret = fd < 0 ? fd : space_statfs(p, fd, &vfs);
	if (fd >= 0)
		fnode_fd_put(p, fn);
	session_block_end();
	fnode_put(p, fn);
	if (ret < 0) {
		ops_reply(req, ret);
		return;
	}
	fuse_reply_statfs(req, &vfs);
}

/* ---- xattrs ---- */

/* The node's path below, which leads to a symbolic link itself and not on; answers errors. */
static struct fnode *xattr_begin(fuse_req_t req, fuse_ino_t ino, char *path)
{
	struct pacefs *p = pacefs_of(req);
	struct fnode *fn = ops_node(req, ino);

	if (!fn)
		return NULL;
	session_block_begin();
	/* A raw device's xattrs would be those of its node in /dev. */
	int fd = p->backing.store.raw ? -EOPNOTSUPP : fnode_fd_get(p, fn);
	int ret = fd < 0 ? fd : 0;
	if (ret < 0) {
		session_block_end();
		ops_reply(req, ret);
		fnode_put(p, fn);
		return NULL;
	}
	ops_proc_path(path, fd);
	return fn;
}

static void xattr_end(fuse_req_t req, struct fnode *fn)
{
	fnode_fd_put(pacefs_of(req), fn);
	session_block_end();
	fnode_put(pacefs_of(req), fn);
}

/* Who is not in the file's group may not keep its set-group-id by way of an ACL. The kernel says so
 * by a flag that libfuse 3.14 does not know, and the source takes us for root. */
static void acl_kills_sgid(fuse_req_t req, const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0 || !(st.st_mode & S_ISGID) || !ops_lacks_group(req, st.st_gid))
		return;
	if (chmod(path, st.st_mode & 07777 & ~(mode_t)S_ISGID) < 0)
		log_warn("%s: set-group-id could not be cleared: %s", path, strerror(errno));
}

void ops_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
	size_t size, int flags)
{
	char path[OPS_PROC_PATH];

	if (control_is_xattr(name)) {
		ops_reply(req, control_set(req, name, value, size));
		return;
	}
	if (ino == NODEID_CONTROL) {
		fuse_reply_err(req, EPERM);
		return;
	}
	struct fnode *fn = xattr_begin(req, ino, path);
	if (!fn)
		return;
	bool acl = strcmp(name, "system.posix_acl_access") == 0;
	/* Any write to the source's file takes them away there, ours too: all are done first. */
	if (strcmp(name, XATTR_CAPS) == 0 && S_ISREG(fn->type))
		flusher_sync_node(&pacefs_of(req)->backing.flusher, &fn->node);
	int ret = setxattr(path, name, value, size, flags) < 0 ? -errno : 0;
	if (acl || strcmp(name, XATTR_CAPS) == 0)
		ops_privs_given(pacefs_of(req), fn);
	if (ret == 0 && acl)
		acl_kills_sgid(req, path);
	if (ret == 0)
		fnode_changed(pacefs_of(req), fn);
	xattr_end(req, fn);
	ops_reply(req, ret);
}

/* The answer to a request for size bytes (0: only how many). */
static void reply_value(fuse_req_t req, const char *value, ssize_t bytes, size_t size)
{
	if (bytes < 0)
		ops_reply(req, (int)bytes);
	else if (size == 0)
		fuse_reply_xattr(req, (size_t)bytes);
	else if ((size_t)bytes > size)
		fuse_reply_err(req, ERANGE);
	else
		fuse_reply_buf(req, value, (size_t)bytes);
}

void ops_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	char path[OPS_PROC_PATH];

	if (control_is_xattr(name)) {
		char *text = malloc(CONTROL_TEXT_MAX);
		ssize_t n = text ? control_get(pacefs_of(req), fuse_req_ctx(req)->uid, name,
					   text, CONTROL_TEXT_MAX)
				 : -ENOMEM;
		reply_value(req, text, n, size);
		free(text);
		return;
	}
	if (ino == NODEID_CONTROL || pacefs_of(req)->backing.store.raw) {
		fuse_reply_err(req, ENODATA);
		return;
	}
	struct fnode *fn = xattr_begin(req, ino, path);
	if (!fn)
		return;
	char *value = malloc(size ? size : 1);
	ssize_t n = value ? getxattr(path, name, size ? value : NULL, size) : -1;
	if (n < 0)
		n = value ? -errno : -ENOMEM;
	xattr_end(req, fn);
	reply_value(req, value, n, size);
	free(value);
}

/* The source lists these for whom it takes us: root. */
static bool is_for_root(const char *name)
{
	return strncmp(name, "trusted.", strlen("trusted.")) == 0;
}

/* Take out of the names what the caller may not see. Bytes that are left. */
static ssize_t visible_names(fuse_req_t req, char *names, ssize_t bytes)
{
	ssize_t kept = 0;

	if (fuse_req_ctx(req)->uid == 0)
		return bytes;
	for (ssize_t at = 0, n; at < bytes; at += n) {
		n = (ssize_t)strnlen(names + at, (size_t)(bytes - at - 1)) + 1;
		if (is_for_root(names + at))
			continue;
		memmove(names + kept, names + at, (size_t)n);
		kept += n;
	}
	return kept;
}

void ops_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	char path[OPS_PROC_PATH];

	if (ino == NODEID_CONTROL) {
		char *names = malloc(CONTROL_TEXT_MAX);
		ssize_t n = names ? control_list(names, CONTROL_TEXT_MAX) : -ENOMEM;
		reply_value(req, names, n, size);
		free(names);
		return;
	}
	/* None, rather than an error in every ls and cp. */
	if (pacefs_of(req)->backing.store.raw) {
		reply_value(req, NULL, 0, size);
		return;
	}
	struct fnode *fn = xattr_begin(req, ino, path);
	if (!fn)
		return;
	/* All of them, whatever was asked for: how many the caller sees is known afterwards. */
	char *names = malloc(XATTR_LIST_MAX);
	ssize_t n = names ? listxattr(path, names, XATTR_LIST_MAX) : -1;
	if (n < 0)
		n = names ? -errno : -ENOMEM;
	else
		n = visible_names(req, names, n);
	xattr_end(req, fn);
	reply_value(req, names, n, size);
	free(names);
}

void ops_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	char path[OPS_PROC_PATH];

	if (control_is_xattr(name) || ino == NODEID_CONTROL) {
		fuse_reply_err(req, EPERM);
		return;
	}
	struct fnode *fn = xattr_begin(req, ino, path);
	if (!fn)
		return;
	int ret = removexattr(path, name) < 0 ? -errno : 0;
	if (ret == 0)
		fnode_changed(pacefs_of(req), fn);
	xattr_end(req, fn);
	ops_reply(req, ret);
}
