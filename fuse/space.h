/* space.h - a full disk is found when a write is accepted, not when it is flushed.
 *
 * Every accepted byte is counted against what the source has free. When that comes close to
 * nothing, what is dirty is written first, and if it is still close the write goes through to
 * the source before it is answered, so that its error reaches the writer.
 */
#ifndef PACEFS_FUSE_SPACE_H
#define PACEFS_FUSE_SPACE_H

#include "fuse/node.h"
#include "fuse/pacefs.h"

/* Is there certainly room for the payload beside all that is accepted and not below yet? Then it
 * is promised (payload->promised), until the pacer has made pages of it. A few loads, and once a
 * second a statvfs. Without the lock, like all here. */
bool space_promise(struct pacefs *p, struct payload *payload);

/* There may not be: the whole way of one WRITE near the full mark, blocking. Returns 0 when the
 * payload may be cached after all (and is promised); else the bytes written through, or -errno. */
ssize_t space_write_through(
	struct pacefs *p, struct fnode *fn, struct payload *payload, uid_t uid);

/* Before somebody takes bytes of the source's room otherwise: later writes see them as taken, and
 * what is accepted goes below first. Blocks. */
void space_settle(struct pacefs *p, uint64_t bytes);
/* Ask the source anew. */
void space_look(struct pacefs *p);

#endif
