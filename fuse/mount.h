/* mount.h - where the mount comes from and goes to: /dev/fuse, anchor, fuseblk, refusals.
 *
 * As root the mount is of type fuseblk on an anchor (a tiny loop device), because only then
 * does the kernel send a synchronous DESTROY at umount. Without root or loop devices it is
 * plain fuse (through fusermount3 when not root), with one warning.
 *
 * The order of a start: mount_resolve() on the mountpoint, then open the source (which may
 * be the same directory), mount_check(), mount_create(). At the end mount_destroy(): best
 * called before DESTROY is answered, so that nothing of ours is left when umount returns.
 *
 * None of this touches what the mount shows: the daemon would wait for itself.
 */
#ifndef PACEFS_FUSE_MOUNT_H
#define PACEFS_FUSE_MOUNT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "fuse/lock.h"

struct mount_request {
	const char *source;	/* as the user typed it; absolute when raw_block */
	const char *mountpoint; /* from mount_resolve() */
	mode_t root_mode;	/* S_IFDIR or S_IFREG of the root node */
	bool read_only;
	bool allow_other;
	bool raw_block;		    /* source is a block device used raw: it is its own anchor,
				    * claimed exclusively by the mount (so the daemon must not
				    * hold it with O_EXCL) */
	const char *kernel_options; /* generic mount flags as text: "noatime,nodev,..." or "" */
};

struct mount {
	int fuse_fd;	       /* /dev/fuse, owned by the caller after mount_create() */
	bool fuseblk;	       /* umount waits for DESTROY */
	char anchor_node[256]; /* device node used as mount source, "" if none */
	char mountpoint[4096];
	dev_t dev; /* st_dev of the mount, 0 when unknown */
};

/* The mountpoint as typed, made absolute and free of symlinks in resolved (of size bytes).
 * Dead pacefs mounts there (ENOTCONN) are taken away first, since nothing resolves through
 * them. Prints one line and returns a negative errno when it refuses. */
int mount_resolve(const char *typed, char *resolved, size_t size);

/* Check what can be refused before mounting: mountpoint exists, is of the right type, is empty
 * or is the source itself, and is not inside the source; /dev/fuse usable; source not served by
 * a live pacefs already (lock.h: released by the caller). Prints one line and returns a negative
 * errno when it refuses. source_fd: O_PATH or better on the source. The process that calls it is
 * the one named as holder to others: call it after going to the background. */
int mount_check(const struct mount_request *req, int source_fd, struct source_lock *ret_lock);

/* Mount. The kernel's INIT request is readable from fuse_fd afterwards.
 * One line and a negative errno on failure, with nothing left behind. */
int mount_create(const struct mount_request *req, struct mount *ret_mount);

/* Take away what is left (mount when lazy_umount, anchor node). Fine to call twice. */
void mount_destroy(struct mount *m, bool lazy_umount);

/* When /dev/fuse is closed and all is written: a connection that was aborted leaves a dead mount,
 * which goes, and so does the entry in libmount's table. */
void mount_clear(struct mount *m);

/* Is word a mount flag that the kernel knows ("noatime"), for kernel_options? */
bool mount_is_kernel_option(const char *word);

/* Is there a mount whose daemon is gone? Asks whatever is mounted there. */
bool mount_is_dead(const char *path);

/* As root, for good: become the user who mounted the pacefs mount at exactly this path, since only
 * that user can ask its daemon. -EACCES when there is no such user. For commands. */
int mount_become_owner(const char *typed);

/* umount2(2), or fusermount3 -u without root. 0 or a negative errno, silent. */
int mount_umount(const char *mountpoint, bool lazy);

/* The uppermost pacefs mount on exactly this (resolved) path, from /proc/self/mountinfo.
 * false: there is none. source and ret_dev may be NULL. */
bool mount_find(const char *mountpoint, char *source, size_t source_size, dev_t *ret_dev);

#endif
