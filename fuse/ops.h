/* ops.h - the operations of the filesystem: ops_dir.c (names), ops_file.c (data), ops_attr.c
 * (attributes and xattrs). Each answers its request exactly once. Without the lock. */
#ifndef PACEFS_FUSE_OPS_H
#define PACEFS_FUSE_OPS_H

#include "fuse/node.h"
#include "fuse/pacefs.h"

#define RAW_NAME_MAX 255
#define XATTR_CAPS "security.capability"

struct open_file {
	struct fnode *fn; /* referenced */
	uint32_t err_seq; /* writeback errors it has heard of */
	bool writes;
	bool maps; /* it can have a shared mapping that is written to */
};

extern const struct fuse_lowlevel_ops pacefs_ops;

/* Once in each thread that serves requests. */
void ops_thread_init(void);

/* The node of a request, referenced; answers ESTALE itself and returns NULL if it is gone. */
struct fnode *ops_node(fuse_req_t req, fuse_ino_t ino);
/* The open file or directory of a request, if the kernel was given this handle for this node;
 * else NULL. */
struct open_file *ops_open_file(
	struct pacefs *p, fuse_ino_t ino, const struct fuse_file_info *fi);
/* Free one that nobody will release any more, at the very end. */
void ops_forsake(void *object, enum open_kind kind);
void ops_forsake_dir(void *object);
/* Answer with -ret, ret <= 0. */
void ops_reply(fuse_req_t req, int ret);

/* Fill *ret_entry for a looked-up descriptor (consumed): nlookup grows. at: where it was found, or
 * NULL. 0 or -errno. */
int ops_entry(struct pacefs *p, int path_fd, const struct place *at,
	struct fuse_entry_param *ret_entry);
double ops_attr_timeout(void);

/* Act as the caller while a file is made or takes room: owner, group, umask, and none of our own
 * right to more than a quota or the disk allows. 0 or -EPERM: nothing may be made, since it would
 * belong to somebody else. ops_become_self() follows in any case. */
int ops_become(fuse_req_t req);
void ops_become_self(void);

/* Threads at once that wait for the kernel to let go of pages: it may wait for answers of others. */
enum { OPS_DROPPING_MOST = 8 };
/* Pages that the kernel has of a file from before somebody changed the source go. To be called where
 * the kernel has no page of it locked: in answers to getattr and lookups. */
void ops_drop_stale(struct pacefs *p, struct fnode *fn);

/* The node's file is open below, from now on and until the matching ops_file_put(). */
int ops_file_get(struct pacefs *p, struct fnode *fn);
void ops_file_put(struct pacefs *p, struct fnode *fn);
/* Size becomes size, as truncate(2). The file must be open below. 0 or -errno. */
int ops_truncate(struct pacefs *p, struct fnode *fn, uint64_t size);
/* Not root, and a stranger to this group: neither its own nor one of its others. May look at
 * /proc. */
bool ops_lacks_group(fuse_req_t req, gid_t gid);
/* Capabilities go when a write is accepted, set-user-id and set-group-id if the kernel says that
 * the caller may not keep them (suid_too); where it says nothing (fallocate, copying) root may. */
void ops_kill_privs(fuse_req_t req, struct fnode *fn, bool suid_too);
/* Something of that kind may have been given to it: after chmod, an ACL, setxattr. */
void ops_privs_given(struct pacefs *p, struct fnode *fn);
/* Around a call that changes the source's file: node_change_begin() and _end(). Takes the lock. */
void ops_change_begin(struct node *node);
void ops_change_end(struct node *node);
/* Its content was changed now, by something else than a paced write. With the lock. */
void ops_touch(struct node *node);
/* "/proc/self/fd/N" */
#define OPS_PROC_PATH 32
void ops_proc_path(char *text, int fd);

void ops_init(void *userdata, struct fuse_conn_info *conn);
void ops_destroy(void *userdata);
void ops_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void ops_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup);
void ops_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets);
void ops_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev);
void ops_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void ops_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name);
void ops_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name);
void ops_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void ops_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);
void ops_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
	const char *new_name, unsigned int flags);
void ops_readlink(fuse_req_t req, fuse_ino_t ino);
void ops_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void ops_readdir(
	fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void ops_readdirplus(
	fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void ops_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void ops_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);

void ops_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	struct fuse_file_info *fi);
void ops_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void ops_read(
	fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void ops_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
	struct fuse_file_info *fi);
void ops_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void ops_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);
void ops_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void ops_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
	struct fuse_file_info *fi);
void ops_lseek(
	fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi);
void ops_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
	struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
	struct fuse_file_info *fi_out, size_t len, int flags);

void ops_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void ops_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
	struct fuse_file_info *fi);
void ops_statfs(fuse_req_t req, fuse_ino_t ino);
void ops_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
	size_t size, int flags);
void ops_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size);
void ops_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size);
void ops_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);

#endif
