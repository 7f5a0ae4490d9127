#include "fuse/quota.h"

#include "fuse/pacefs.h"
#include "util/clock.h"

#include <endian.h>
#include <errno.h>
#include <linux/btrfs.h>
#include <linux/btrfs_tree.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/quota.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_quotactl_fd
#define SYS_quotactl_fd 443 /* Linux 5.14; older ones say ENOSYS, as if there were no quotas */
#endif
#ifndef PRJQUOTA
#define PRJQUOTA 2
#endif

enum {
	SUBVOLUME = 3,
	GRACE_S = 60, /* what is accepted now is written by then */
	LOOK_US = 1000000,
};

/* Metadata that the source charges beside the data: blocks of extents, and what btrfs sets aside
 * for a while. */
#define QUOTA_MARGIN (1ull << 20)
#define SUBVOLUME_MARGIN (4ull << 20)
/* ---- quotactl(2) ---- */

static int get_quota(int fd, int kind, uint32_t id, struct dqblk *ret_quota)
{
	/* Unsigned: as an int it is shifted out of range. */
	int cmd = (int)QCMD((unsigned)Q_GETQUOTA, (unsigned)kind);

	return syscall(SYS_quotactl_fd, fd, cmd, id, ret_quota) < 0 ? -errno : 0;
}

static uint64_t less(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

static uint64_t left_of_quota(int fd, int kind, uint32_t id)
{
	struct dqblk q;

	if (get_quota(fd, kind, id, &q) < 0)
		return UINT64_MAX;
	uint64_t hard = dbtob(q.dqb_bhardlimit), soft = dbtob(q.dqb_bsoftlimit);
	bool over = soft && q.dqb_curspace > soft && q.dqb_btime;
	if (over && (uint64_t)time(NULL) + GRACE_S >= q.dqb_btime)
		return 0;
	return hard ? less(hard, q.dqb_curspace + QUOTA_MARGIN) : UINT64_MAX;
}

/* ---- btrfs ---- */

/* The item with this key of the tree of quotas, or the first one up to offset `last`. Returns its
 * size, and its offset in *ret_offset; 0 when there is none. */
static size_t search(int fd, uint64_t objectid, uint32_t type, uint64_t offset, uint64_t last,
	void *ret_item, size_t size, uint64_t *ret_offset)
{
	struct btrfs_ioctl_search_args args = {
		.key =
			{
				.tree_id = BTRFS_QUOTA_TREE_OBJECTID,
				.min_objectid = objectid,
				.max_objectid = objectid,
				.min_type = type,
				.max_type = type,
				.min_offset = offset,
				.max_offset = last,
				.max_transid = UINT64_MAX,
				.nr_items = 1,
			},
	};
	struct btrfs_ioctl_search_header head;

	if (ioctl(fd, BTRFS_IOC_TREE_SEARCH, &args) < 0 || args.key.nr_items == 0)
		return 0;
	memcpy(&head, args.buf, sizeof(head));
	*ret_offset = head.offset;
	if (head.len > size)
		head.len = (uint32_t)size;
	memcpy(ret_item, args.buf + sizeof(head), head.len);
	return head.len ? head.len : 1;
}

static uint64_t left_of_group(int fd, uint64_t group)
{
	struct btrfs_qgroup_info_item info;
	struct btrfs_qgroup_limit_item limit;
	uint64_t at, left = UINT64_MAX;

	if (search(fd, 0, BTRFS_QGROUP_INFO_KEY, group, group, &info, sizeof(info), &at) <
			sizeof(info) ||
		search(fd, 0, BTRFS_QGROUP_LIMIT_KEY, group, group, &limit, sizeof(limit),
			&at) < sizeof(limit))
		return left;
	uint64_t flags = le64toh(limit.flags);
	if (flags & BTRFS_QGROUP_LIMIT_MAX_RFER)
		left = less(le64toh(limit.max_rfer), le64toh(info.rfer) + SUBVOLUME_MARGIN);
	if (flags & BTRFS_QGROUP_LIMIT_MAX_EXCL) {
		uint64_t own =
			less(le64toh(limit.max_excl), le64toh(info.excl) + SUBVOLUME_MARGIN);
		left = own < left ? own : left;
	}
	return left;
}

/* Of the subvolume's group and of those it belongs to, the first eight found. */
static uint64_t left_of_subvolume(int fd, uint64_t subvolume)
{
	enum { GROUPS = 8 };
	uint64_t groups[GROUPS] = {subvolume}, left = UINT64_MAX, parent, from;
	unsigned nr = 1;
	char none;

	for (unsigned i = 0; i < nr; i++) {
		uint64_t own = left_of_group(fd, groups[i]);
		left = own < left ? own : left;
		/* Relations are there in both directions: parents have higher numbers. */
		for (from = groups[i] + 1; nr < GROUPS &&
			search(fd, groups[i], BTRFS_QGROUP_RELATION_KEY, from, UINT64_MAX,
				&none, 0, &parent);
			from = parent + 1)
			groups[nr++] = parent;
	}
	return left;
}

static uint64_t subvolume_of(int fd)
{
	struct btrfs_ioctl_ino_lookup_args args = {.objectid = BTRFS_FIRST_FREE_OBJECTID};

	return ioctl(fd, BTRFS_IOC_INO_LOOKUP, &args) < 0 ? 0 : args.treeid;
}

/* ---- figures ---- */

static bool is_on(int fd, unsigned kind, uint64_t subvolume)
{
	struct btrfs_qgroup_info_item info;
	struct dqblk quota;
	uint64_t at;

	if (kind == SUBVOLUME)
		return subvolume &&
			search(fd, 0, BTRFS_QGROUP_INFO_KEY, subvolume, subvolume, &info,
				sizeof(info), &at);
	int ret = get_quota(fd, (int)kind, 0, &quota);
	return ret == 0 || ret == -ENOENT; /* xfs: nobody has written as 0 */
}

void quota_look(struct pacefs *p)
{
	struct backing *b = &p->backing;
	int fd = b->store.sync_fd;
	bool on[QUOTA_KINDS];
	uint64_t subvolume = b->store.copies ? subvolume_of(fd) : 0;

	for (unsigned kind = 0; kind < QUOTA_KINDS; kind++)
		on[kind] = fd >= 0 && is_on(fd, kind, subvolume);
	domain_lock(&p->dom);
	memset(&b->quotas, 0, sizeof(b->quotas));
	memcpy(b->quotas.on, on, sizeof(on));
	b->quotas.subvolume = subvolume;
	b->quotas.look_us = clock_now_us();
	domain_unlock(&p->dom);
}

static struct quota_figure *figure_of(struct quotas *q, unsigned kind, uint32_t id)
{
	return &q->figures[(id * QUOTA_KINDS + kind) % QUOTA_KEPT];
}

/* With the lock, which is dropped to ask. */
static uint64_t full_at_of(struct pacefs *p, unsigned kind, uint32_t id)
{
	struct backing *b = &p->backing;
	struct quota_figure *f = figure_of(&b->quotas, kind, id);
	uint64_t now_us = clock_now_us();

	if (f->look_us && f->kind == kind && f->id == id && now_us - f->look_us < LOOK_US)
		return f->full_at;
	/* What completes while we ask may be counted twice, never not at all. */
	uint64_t written = kind == SUBVOLUME ? b->space.committed : b->dev.written;
	uint64_t subvolume = b->quotas.subvolume;
	domain_unlock(&p->dom);
	uint64_t left = kind == SUBVOLUME ? left_of_subvolume(b->store.sync_fd, subvolume)
					  : left_of_quota(b->store.sync_fd, (int)kind, id);
	domain_lock(&p->dom);
	uint64_t full_at = left == UINT64_MAX ? left : left + written * PAGE_BYTES;
	*f = (struct quota_figure){
		.kind = kind, .id = id, .full_at = full_at, .look_us = now_us};
	return full_at;
}

uint64_t quota_full_at(struct pacefs *p, struct node *node)
{
	struct quotas *q = &p->backing.quotas;
	struct fsxattr fsx = {0};
	struct stat st;
	uint64_t full_at = UINT64_MAX;
	bool on[QUOTA_KINDS];

	domain_lock(&p->dom);
	bool stale = clock_now_us() - q->look_us > LOOK_US;
	domain_unlock(&p->dom);
	if (stale)
		quota_look(p);
	domain_lock(&p->dom);
	memcpy(on, q->on, sizeof(on));
	domain_unlock(&p->dom);
	if (!on[USRQUOTA] && !on[GRPQUOTA] && !on[PRJQUOTA] && !on[SUBVOLUME])
		return full_at;
	if (fstat(node->file->fd, &st) < 0)
		return full_at;
	if (on[PRJQUOTA] && ioctl(node->file->fd, FS_IOC_FSGETXATTR, &fsx) < 0)
		on[PRJQUOTA] = false;
	const uint32_t ids[QUOTA_KINDS] = {st.st_uid, st.st_gid, fsx.fsx_projid, 0};
	domain_lock(&p->dom);
	for (unsigned kind = 0; kind < QUOTA_KINDS; kind++) {
		uint64_t own = on[kind] ? full_at_of(p, kind, ids[kind]) : UINT64_MAX;
		full_at = own < full_at ? own : full_at;
	}
	domain_unlock(&p->dom);
	return full_at;
}
