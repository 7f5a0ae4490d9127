/* anchor.h - a tiny loop device, only there so that a fuseblk mount has a block device.
 *
 * Its backing file is a hole of a few pages without a name in any directory. The loop device
 * clears itself (LO_FLAGS_AUTOCLEAR) when its last user has gone, also after a crash. Its
 * device node bears the name of the source, because that is what findmnt and df show, and
 * lives in a directory of ours: the mount source must not be on a nodev mount (/run is one),
 * and under /dev systemd would wait for a unit of that name.
 */
#ifndef PACEFS_FUSE_ANCHOR_H
#define PACEFS_FUSE_ANCHOR_H

#include <stddef.h>

#define ANCHOR_DIR "/var/lib/pacefs"
#define ANCHOR_BLOCK_SIZE 4096

struct anchor {
	int fd; /* the loop device; close it once the mount holds the device, not before */
	char node[256]; /* device node to name in mount(2) */
};

/* Make one for a mount of source; the nodes of crashed daemons are removed on the way.
 * Returns 0, or a negative errno with a half-sentence for a warning in why
 * ("no loop device: ..."), nothing left behind. */
int anchor_create(const char *source, struct anchor *ret_anchor, char *why, size_t why_size);

/* Remove a node; the loop device goes by itself with its last user. "" is fine. */
void anchor_remove_node(const char *node);

#endif
