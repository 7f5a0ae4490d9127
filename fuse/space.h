/* space.h - a full disk is found when a write is accepted, not when it is flushed.
 *
 * Every accepted byte is counted against what the source has free and against the quota of the
 * file's owner. When that comes close to nothing, what is dirty is written first, and if it is
 * still close the write goes through to the source before it is answered, with the writer's own
 * rights, so that its error reaches the writer. What is written over blocks that the file has
 * needs no room.
 *
 * What was accepted is then flushed with the daemon's rights: blocks kept for root, and on ext4
 * the right to go over a quota, are a reserve for it that no writer gets at.
 */
#ifndef PACEFS_FUSE_SPACE_H
#define PACEFS_FUSE_SPACE_H

#include "fuse/node.h"
#include "fuse/ops.h"
#include "fuse/pacefs.h"

#include <sys/statvfs.h>

/* Is there certainly room for the payload beside all that is accepted and not below yet? Then it
 * is promised (payload->promised), until the pacer has made pages of it. A few loads, and once a
 * second a statvfs. Without the lock, like all here but space_kept(). */
bool space_promise(struct pacefs *p, struct fnode *fn, struct payload *payload);

/* The payload's bytes are pages now, or will never be: its promise is kept. With the lock. */
void space_kept(struct pacefs *p, struct payload *payload);

/* There may not be: the whole way of one WRITE near the full mark, blocking. Returns 0 when the
 * payload may be cached after all; else the bytes written through, or -errno. */
ssize_t space_write_through(fuse_req_t req, struct fnode *fn, struct payload *payload);

/* ret is the error of making a file: is it one of room, so that trying again is worth it? What was
 * deleted or is not allocated yet has been settled by then. Blocks. */
bool space_make_room(struct pacefs *p, int ret);

/* fallocate(2) with the caller's rights. What is accepted was there first: it is below before, and
 * later writes see these bytes as taken. A file that cannot have them all stays what it was. */
int space_preallocate(fuse_req_t req, struct node *node, int mode, off_t offset, off_t length);

/* Before a file is made shorter. Only btrfs needs room for that, and says now whether it has it:
 * -errno, 0, or 1 when there was so little that the file below has been cut already. */
int space_truncate(struct pacefs *p, struct node *node, uint64_t size);

/* fstatvfs() of the source, with what is accepted and not below yet as taken. */
int space_statfs(struct pacefs *p, int fd, struct statvfs *ret_vfs);

#endif
