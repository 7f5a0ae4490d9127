#include "fuse/ops.h"

#include "fuse/session.h"
#include "util/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { ERRNO_END = 512 }; /* the kernel refuses answers from here on */

static _Thread_local bool other;     /* this thread acts as a caller */
static _Thread_local bool own_umask; /* this thread may change it without harm to others */

void ops_thread_init(void)
{
	own_umask = true;
	umask(0);
}

void ops_forsake(void *object, enum open_kind kind)
{
	if (kind == OPEN_DIR)
		ops_forsake_dir(object);
	else
		free(object);
}

void ops_reply(fuse_req_t req, int ret)
{
	/* NFS and others below let errors of the kernel's own slip out, as ENOTSUPP: the kernel
	 * takes no such answer, and the caller would wait for good. */
	if (ret <= -ERRNO_END)
		ret = -EOPNOTSUPP;
	fuse_reply_err(req, -ret);
}

struct fnode *ops_node(fuse_req_t req, fuse_ino_t ino)
{
	struct fnode *fn = fnode_get(pacefs_of(req), ino);

	if (!fn)
		ops_reply(req, -errno);
	return fn;
}

void ops_proc_path(char *text, int fd)
{
	snprintf(text, OPS_PROC_PATH, "/proc/self/fd/%d", fd);
}

/* All changes go through this mount, so the kernel may keep what it knows; a second bounds how
 * long a change made behind our back stays unseen. */
double ops_attr_timeout(void)
{
	return 1.0;
}

/* In this thread and before the answer, or who asks on account of reading on at the end of the file
 * would go on with the page it had of it. It may wait for reads of these pages, and others answer
 * those: so not in too many threads at once. */
void ops_drop_stale(struct pacefs *p, struct fnode *fn)
{
	domain_lock(&p->dom);
	bool drop = fn->kernel_stale && p->nr_dropping < OPS_DROPPING_MOST;
	if (drop) {
		fn->kernel_stale = false;
		p->nr_dropping++;
	}
	domain_unlock(&p->dom);
	if (!drop)
		return;
	/* Whether the kernel knows it at all is its own affair. */
	fuse_lowlevel_notify_inval_inode(p->session, fn->node.nodeid, 0, 0);
	domain_lock(&p->dom);
	p->nr_dropping--;
	domain_unlock(&p->dom);
}

int ops_entry(struct pacefs *p, int path_fd, const struct place *at,
	struct fuse_entry_param *ret_entry)
{
	struct fuse_entry_param e = {
		.attr_timeout = ops_attr_timeout(),
		.entry_timeout = ops_attr_timeout(),
	};
	struct fnode *fn;

	int ret = fnode_from_fd(p, path_fd, at, &fn, &e.attr);
	if (ret < 0)
		return ret;
	ret = fnode_stat(p, fn, &e.attr);
	if (ret == 0) {
		ops_drop_stale(p, fn);
		domain_lock(&p->dom);
		if (fn != p->root)
			fnode_looked_up(fn);
		e.ino = fn->node.nodeid;
		domain_unlock(&p->dom);
		*ret_entry = e;
	}
	fnode_put(p, fn);
	return ret;
}

/* Of this thread. The right to make files and nodes in any directory, also a sticky one, is kept,
 * and to set-group-id: the kernel has already checked the caller with all of its groups, which are
 * not known here. The right to go over a quota and to take the blocks kept for root is not. */
static void adapt_capabilities(unsigned raise, unsigned drop)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];

	if (syscall(SYS_capget, &head, data) < 0)
		return;
	data[0].effective |= data[0].permitted & raise;
	data[0].effective &= ~drop;
	syscall(SYS_capset, &head, data);
}

/* Raw system calls: glibc's wrappers would change all threads. They return what was before, and do
 * not say whether it changed: asked for an impossible one they tell what is. */
static bool become(long call, unsigned id)
{
	syscall(call, id);
	return syscall(call, -1) == (long)id;
}

int ops_become(fuse_req_t req)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);

	if (own_umask)
		umask(ctx->umask);
	if (!pacefs_of(req)->is_root || (ctx->uid == 0 && ctx->gid == 0))
		return 0;
	other = true;
	if (!become(SYS_setfsgid, ctx->gid) || !become(SYS_setfsuid, ctx->uid))
		return -EPERM;
	adapt_capabilities(1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH |
			1u << CAP_MKNOD | 1u << CAP_FOWNER | 1u << CAP_FSETID,
		1u << CAP_SYS_RESOURCE);
	return 0;
}

void ops_become_self(void)
{
	if (own_umask)
		umask(0);
	if (other) {
		syscall(SYS_setfsuid, 0);
		syscall(SYS_setfsgid, 0);
		adapt_capabilities(1u << CAP_SYS_RESOURCE, 0);
		other = false;
	}
}

static bool caller_in_group(fuse_req_t req, gid_t gid)
{
	gid_t groups[256];

	if (fuse_req_ctx(req)->gid == gid)
		return true;
	int n = fuse_req_getgroups(req, 256, groups);
	for (int i = 0; i < n && i < 256; i++)
		if (groups[i] == gid)
			return true;
	return false;
}

bool ops_lacks_group(fuse_req_t req, gid_t gid)
{
	return fuse_req_ctx(req)->uid != 0 && !caller_in_group(req, gid);
}

/* Is none there now? *ret_was: but there was one. */
static bool kill_suid(fuse_req_t req, int fd, const char *path, bool *ret_was)
{
	struct stat st;

	if (fstatat(fd, "", &st, AT_EMPTY_PATH) < 0)
		return false;
	mode_t mode = st.st_mode & ~(mode_t)S_ISUID;
	/* Without the right to execute it lets nobody in, but who is in another group might not
	 * have set it. */
	if (st.st_mode & S_ISGID && (st.st_mode & S_IXGRP || ops_lacks_group(req, st.st_gid)))
		mode &= ~(mode_t)S_ISGID;
	*ret_was = mode != st.st_mode;
	if (!*ret_was || chmod(path, mode & 07777) == 0)
		return !(mode & S_ISGID);
	log_warn("%s: set-user-id could not be cleared: %s", path, strerror(errno));
	return false;
}

static bool kill_caps(const char *path)
{
	/* Asking first: taking away what is not there would still wait for the file's lock
	 * below, and so for writes in flight. */
	if (getxattr(path, XATTR_CAPS, NULL, 0) < 0 || removexattr(path, XATTR_CAPS) == 0)
		return true;
	log_warn("%s: capabilities could not be cleared: %s", path, strerror(errno));
	return false;
}

/* Relaxed: what a write must clear was given before it began. */
static bool is_known_free(const atomic_bool *flag)
{
	return atomic_load_explicit(flag, memory_order_relaxed);
}

void ops_privs_given(struct pacefs *p, struct fnode *fn)
{
	domain_lock(&p->dom);
	fn->privs_seq++;
	atomic_store_explicit(&fn->no_suid, false, memory_order_relaxed);
	atomic_store_explicit(&fn->no_caps, false, memory_order_relaxed);
	domain_unlock(&p->dom);
}

void ops_kill_privs(fuse_req_t req, struct fnode *fn, bool suid_too)
{
	struct pacefs *p = pacefs_of(req);
	char path[OPS_PROC_PATH];

	bool suid = suid_too && !is_known_free(&fn->no_suid);
	bool caps = !is_known_free(&fn->no_caps);
	if ((!suid && !caps) || p->backing.store.raw)
		return;
	int fd = fnode_fd_get(p, fn);
	if (fd < 0)
		return;
	domain_lock(&p->dom);
	uint32_t seq = fn->privs_seq;
	domain_unlock(&p->dom);
	ops_proc_path(path, fd);
	bool was_suid = false;
	bool no_suid = suid && kill_suid(req, fd, path, &was_suid);
	bool no_caps = caps && kill_caps(path);
	/* The kernel would go on with the mode that it knows: it leaves this to us, and asks
	 * for nothing but size and times after a write. Attributes alone: that waits for nobody. */
	if (was_suid)
		fuse_lowlevel_notify_inval_inode(p->session, fn->node.nodeid, -1, 0);
	domain_lock(&p->dom);
	/* The kernel locks the file for all of these but an open with O_TRUNC, beside which
	 * something may be given to it right now. */
	if (seq == fn->privs_seq && no_suid)
		atomic_store_explicit(&fn->no_suid, true, memory_order_relaxed);
	if (seq == fn->privs_seq && no_caps)
		atomic_store_explicit(&fn->no_caps, true, memory_order_relaxed);
	domain_unlock(&p->dom);
	fnode_fd_put(p, fn);
}

void ops_init(void *userdata, struct fuse_conn_info *conn)
{
	struct pacefs *p = userdata;
	unsigned on = FUSE_CAP_ATOMIC_O_TRUNC | FUSE_CAP_EXPORT_SUPPORT | FUSE_CAP_DONT_MASK |
		FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_PARALLEL_DIROPS |
		FUSE_CAP_POSIX_ACL | FUSE_CAP_EXPLICIT_INVAL_DATA | FUSE_CAP_CACHE_SYMLINKS |
		FUSE_CAP_NO_OPENDIR_SUPPORT | FUSE_CAP_ASYNC_READ;

	/* What is left out matters: no WRITEBACK_CACHE (it hides the writer), no ASYNC_DIO (a held
	 * background request blocks other people's reads), no locks (the kernel's local ones
	 * serve NFS too), no splice (payloads are adopted instead). */
	conn->want = on & conn->capable & ~(unsigned)FUSE_CAP_NO_OPENDIR_SUPPORT;
	conn->max_write = p->options.max_write;
	conn->max_background = 512;
	conn->congestion_threshold = 384;
	conn->time_gran = 1;
	if (p->ready_fd >= 0) {
		/* The kernel holds all requests back until it has the answer to this one. */
		char ok = 0;
		if (write(p->ready_fd, &ok, 1) != 1)
			log_debug("nobody waits for the mount");
		close(p->ready_fd);
		p->ready_fd = -1;
	}
}

void ops_destroy(void *userdata)
{
	/* umount waits for this answer: when it returns, everything is on the device and
	 * nothing of ours is left. */
	session_block_begin();
	pacefs_end(userdata);
	session_block_end();
}

const struct fuse_lowlevel_ops pacefs_ops = {
	.init = ops_init,
	.destroy = ops_destroy,
	.lookup = ops_lookup,
	.forget = ops_forget,
	.forget_multi = ops_forget_multi,
	.getattr = ops_getattr,
	.setattr = ops_setattr,
	.readlink = ops_readlink,
	.mknod = ops_mknod,
	.mkdir = ops_mkdir,
	.unlink = ops_unlink,
	.rmdir = ops_rmdir,
	.symlink = ops_symlink,
	.rename = ops_rename,
	.link = ops_link,
	.open = ops_open,
	.read = ops_read,
	.write = ops_write,
	.flush = ops_flush,
	.release = ops_release,
	.fsync = ops_fsync,
	.opendir = ops_opendir,
	.readdir = ops_readdir,
	.readdirplus = ops_readdirplus,
	.releasedir = ops_releasedir,
	.fsyncdir = ops_fsyncdir,
	.statfs = ops_statfs,
	.setxattr = ops_setxattr,
	.getxattr = ops_getxattr,
	.listxattr = ops_listxattr,
	.removexattr = ops_removexattr,
	.create = ops_create,
	.fallocate = ops_fallocate,
	.copy_file_range = ops_copy_file_range,
	.lseek = ops_lseek,
};
