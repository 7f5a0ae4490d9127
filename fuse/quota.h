/* quota.h - what the owner of a file may still take of the source: quotas of user, group and
 * project as ext4, xfs and others tell them by quotactl(2), and the limits of a btrfs subvolume.
 *
 * The figures are at most a second old. Where there are no quotas, finding that out costs a few
 * system calls a second. A soft limit counts once its time of grace is (nearly) over.
 */
#ifndef PACEFS_FUSE_QUOTA_H
#define PACEFS_FUSE_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

struct pacefs;
struct node;

/* kinds: USRQUOTA, GRPQUOTA, PRJQUOTA, and the subvolume's */
#define QUOTA_KINDS 4
#define QUOTA_KEPT 64 /* figures at once; a power of two */

struct quota_figure {
	unsigned kind;
	uint32_t id;
	uint64_t full_at; /* as space.full_at */
	uint64_t look_us; /* 0: nothing here */
};

/* The lock guards it. */
struct quotas {
	bool on[QUOTA_KINDS];
	uint64_t look_us; /* at which kinds there are */
	uint64_t subvolume;
	struct quota_figure figures[QUOTA_KEPT];
};

/* When dev.written, in bytes, has reached this, the owner's quota is used up. UINT64_MAX: there is
 * none. The file is open below. Without the lock. */
uint64_t quota_full_at(struct pacefs *p, struct node *node);

/* Ask the source anew, for everybody. Without the lock. */
void quota_look(struct pacefs *p);

#endif
