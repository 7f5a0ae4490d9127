#include "backend/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <linux/fs.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Filesystems whose O_DIRECT is refused, or silently goes through the page cache for extending
 * writes (vfat, exfat), or is answered by another daemon's rules. And btrfs, which holds the
 * file's lock for the whole of a direct write and checksums it there: a stream of 4 KiB writes
 * reached 39 of 50 MB/s by direct writes and 48 by buffered ones. */
static const long buffered_types[] = {
	TMPFS_MAGIC,
	RAMFS_MAGIC,
	MSDOS_SUPER_MAGIC,
	0x2011BAB0 /* exfat */,
	0x65735546 /* fuse */,
	OVERLAYFS_SUPER_MAGIC,
	NFS_SUPER_MAGIC,
	ECRYPTFS_SUPER_MAGIC,
	0x7366746e /* ntfs3 */,
	BTRFS_SUPER_MAGIC,
};

static bool type_is_buffered(int fd)
{
	struct statfs sf;

	if (fstatfs(fd, &sf) < 0)
		return true;
	for (size_t i = 0; i < sizeof(buffered_types) / sizeof(*buffered_types); i++)
		if ((long)sf.f_type == buffered_types[i])
			return true;
	return false;
}

/* Offset alignment the kernel asks of direct writes, or one page when it does not say: a page
 * is a multiple of every sector size in use. */
static unsigned direct_align(int fd)
{
#ifdef STATX_DIOALIGN
	struct statx sx;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) == 0 &&
		sx.stx_mask & STATX_DIOALIGN && sx.stx_dio_offset_align)
		return sx.stx_dio_offset_align;
#endif
	return 4096;
}

static int reopen(int path_fd, int flags)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", path_fd);
	int fd = open(path, flags | O_CLOEXEC | O_NOCTTY | O_NOATIME);
	if (fd < 0 && errno == EPERM)
		fd = open(path, flags | O_CLOEXEC | O_NOCTTY);
	return fd < 0 ? -errno : fd;
}

static char *path_of(int fd)
{
	char link[40], path[4096];

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, sizeof(path) - 1);
	if (n < 0)
		return NULL;
	path[n] = '\0';
	return strdup(path);
}

char *store_file_find_name(const struct store *st, int fd)
{
	size_t length = st->root ? strlen(st->root) : 0;
	char *path = st->root ? path_of(fd) : NULL, *name = NULL;

	if (length == 1)
		length = 0; /* of "/" */
	if (path && strncmp(path, st->root, length) == 0 && path[length] == '/')
		name = strdup(path + length + 1);
	free(path);
	return name;
}

static unsigned nr_fds(const struct store_file *f)
{
	return f->fd_direct >= 0 ? 2 : 1;
}

static int file_create(struct store *st, int path_fd, struct store_file **ret_file)
{
	struct store_file *f = calloc(1, sizeof(*f));

	if (!f)
		return -ENOMEM;
	f->store = st;
	f->fd_direct = -1;
	f->writable = !st->read_only;
	f->fd = reopen(path_fd, f->writable ? O_RDWR : O_RDONLY);
	/* Not to be written by us: another error passes, and would make a file read-only that is
	 * not. */
	if (f->writable &&
		(f->fd == -EACCES || f->fd == -EPERM || f->fd == -EROFS || f->fd == -ETXTBSY)) {
		f->writable = false;
		f->fd = reopen(path_fd, O_RDONLY);
	}
	if (f->fd < 0) {
		int ret = f->fd;
		free(f);
		return ret;
	}
	struct stat sb;
	if (fstat(f->fd, &sb) == 0) {
		f->size_below = st->raw ? st->raw_size : (uint64_t)sb.st_size;
		f->dense = sb.st_blocks >= sb.st_size / 512;
	}
	if (f->writable && !st->buffered) {
		f->fd_direct = reopen(path_fd, O_RDWR | O_DIRECT);
		f->direct = f->fd_direct >= 0;
		f->align = direct_align(f->fd);
	}
	if (f->writable)
		f->name = store_file_find_name(st, f->fd);
	__atomic_fetch_add(&st->nr_fds, nr_fds(f), __ATOMIC_RELAXED);
	*ret_file = f;
	return 0;
}

static int tree_truncate(struct store_file *f, uint64_t size)
{
	return ftruncate(f->fd, (off_t)size) < 0 ? -errno : 0;
}

static int tree_set_mtime(struct store_file *f, struct timespec mtime)
{
	struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, mtime};

	if (futimens(f->fd, times) == 0)
		return 0;
	/* Only its owner and root may set a file's time; who may just write to it has done so
	 * a moment ago, and that is its time. */
	return errno == EPERM ? 0 : -errno;
}

static const struct store_ops tree_ops = {
	.open = file_create,
	.truncate = tree_truncate,
	.set_mtime = tree_set_mtime,
};

int store_tree_init(struct store *st, int root_fd, bool read_only)
{
	memset(st, 0, sizeof(*st));
	st->ops = &tree_ops;
	st->root_fd = root_fd;
	st->read_only = read_only;
	st->sync_fd = reopen(root_fd, O_RDONLY | O_DIRECTORY);
	if (st->sync_fd < 0)
		return st->sync_fd;
	st->root = path_of(st->sync_fd);
	st->buffered = type_is_buffered(st->sync_fd);
	struct statfs sf;
	if (fstatfs(st->sync_fd, &sf) == 0) {
		st->serial_extends =
			sf.f_type == EXT4_SUPER_MAGIC || sf.f_type == XFS_SUPER_MAGIC;
		st->copies = sf.f_type == BTRFS_SUPER_MAGIC;
		st->zeroes = st->serial_extends || st->copies;
	}
	return 0;
}

static int raw_open(struct store *st, int path_fd, struct store_file **ret_file)
{
	return file_create(st, st->root_fd, ret_file);
}

static int raw_truncate(struct store_file *f, uint64_t size)
{
	/* The size of a raw device or image is what it is. */
	return size == f->store->raw_size ? 0 : -EPERM;
}

static int raw_set_mtime(struct store_file *f, struct timespec mtime)
{
	struct stat st;

	/* A device node's times are its directory's business, not the medium's. */
	if (fstat(f->fd, &st) < 0 || S_ISBLK(st.st_mode))
		return 0;
	return tree_set_mtime(f, mtime);
}

static const struct store_ops raw_ops = {
	.open = raw_open,
	.truncate = raw_truncate,
	.set_mtime = raw_set_mtime,
};

int store_raw_init(struct store *st, int fd, bool read_only)
{
	struct stat sb;

	memset(st, 0, sizeof(*st));
	st->ops = &raw_ops;
	st->root_fd = fd;
	st->sync_fd = -1;
	st->raw = true;
	st->read_only = read_only;
	if (fstat(fd, &sb) < 0)
		return -errno;
	st->raw_size = (uint64_t)sb.st_size;
	if (S_ISBLK(sb.st_mode)) {
		if (ioctl(fd, BLKGETSIZE64, &st->raw_size) < 0)
			return -errno;
	} else {
		st->buffered = type_is_buffered(fd);
	}
	return 0;
}

void store_finish(struct store *st)
{
	if (st->sync_fd >= 0)
		close(st->sync_fd);
	if (st->root_fd >= 0)
		close(st->root_fd);
	st->sync_fd = st->root_fd = -1;
	free(st->root);
	st->root = NULL;
}

int store_file_open(struct store *st, int path_fd, struct store_file **ret_file)
{
	return st->ops->open(st, path_fd, ret_file);
}

int store_file_close(struct store_file *f)
{
	int ret = 0;

	if (!f)
		return 0;
	__atomic_fetch_sub(&f->store->nr_fds, nr_fds(f), __ATOMIC_RELAXED);
	if (f->fd_direct >= 0 && close(f->fd_direct) < 0)
		ret = -errno;
	if (close(f->fd) < 0)
		ret = -errno;
	free(f->name);
	free(f);
	return ret;
}

void store_file_name(const struct store_file *f, char *text, size_t size)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", f->fd);
	ssize_t n = readlink(path, text, size - 1);
	text[n < 0 ? 0 : n] = '\0';
}

int store_file_truncate(struct store_file *f, uint64_t size)
{
	return f->store->ops->truncate(f, size);
}

int store_file_extend(struct store_file *f, uint64_t from, uint64_t size)
{
	/* Not ftruncate: a write in flight may have made it longer meanwhile. */
	return fallocate(f->fd, 0, (off_t)from, (off_t)(size - from)) < 0 ? -errno : 0;
}

int store_file_set_mtime(struct store_file *f, struct timespec mtime)
{
	return f->store->ops->set_mtime(f, mtime);
}

int store_file_look(const struct store_file *f, struct store_look *ret_look)
{
	struct statx sx;

	if (statx(f->fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC,
		    STATX_MTIME | STATX_CTIME | STATX_SIZE, &sx) < 0)
		return -errno;
	*ret_look = (struct store_look){
		.mtime = {sx.stx_mtime.tv_sec, sx.stx_mtime.tv_nsec},
		.ctime = {sx.stx_ctime.tv_sec, sx.stx_ctime.tv_nsec},
		.size = sx.stx_size,
	};
	return 0;
}

uint32_t store_file_time_step(struct store_file *f)
{
	enum { NS_PER_S = 1000000000, STEP_MOST_S = 2 /* FAT */ };
	struct stat before, after;

	if (fstat(f->fd, &before) < 0)
		return 0;
	/* Of a date that is on no grid the source keeps the next lower one that is on its own. */
	struct timespec odd = {time(NULL) / STEP_MOST_S * STEP_MOST_S - 1, NS_PER_S - 1};
	struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, odd};
	if (futimens(f->fd, times) < 0 || fstat(f->fd, &after) < 0)
		return 0;
	times[1] = before.st_mtim;
	if (futimens(f->fd, times) < 0)
		return 0;
	int64_t less = (odd.tv_sec - after.st_mtim.tv_sec) * (int64_t)NS_PER_S + odd.tv_nsec -
		after.st_mtim.tv_nsec;
	/* Anything else is no grid. */
	return less >= 0 && less < STEP_MOST_S * (int64_t)NS_PER_S ? (uint32_t)less + 1 : 0;
}

uint64_t store_file_position(const struct store_file *f, uint64_t offset)
{
	union {
		struct fiemap map;
		char room[sizeof(struct fiemap) + sizeof(struct fiemap_extent)];
	} u = {.map.fm_extent_count = 1};
	const struct fiemap_extent *extent = u.map.fm_extents;
	struct statx sx;

	/* Only what is known here: no server is asked, nor does it flush anything before. */
	if (statx(f->fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO | STATX_SIZE, &sx) <
		0)
		return 0;
	if (offset >= sx.stx_size)
		offset = sx.stx_size ? sx.stx_size - 1 : 0;
	u.map.fm_start = offset;
	u.map.fm_length = FIEMAP_MAX_OFFSET - offset;
	if (ioctl(f->fd, FS_IOC_FIEMAP, &u.map) < 0 || u.map.fm_mapped_extents == 0 ||
		extent->fe_flags & FIEMAP_EXTENT_UNKNOWN)
		return sx.stx_ino;
	return extent->fe_physical +
		(offset > extent->fe_logical ? offset - extent->fe_logical : 0);
}

bool store_file_has_blocks(const struct store_file *f, uint64_t offset, uint64_t bytes)
{
	enum { EXTENTS = 16 };
	const uint32_t elsewhere = FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DELALLOC |
		FIEMAP_EXTENT_ENCODED | FIEMAP_EXTENT_DATA_INLINE | FIEMAP_EXTENT_SHARED;
	union {
		struct fiemap map;
		char room[sizeof(struct fiemap) + EXTENTS * sizeof(struct fiemap_extent)];
	} u;
	uint64_t end = offset + bytes;

	if (f->store->copies)
		return false;
	while (offset < end) {
		u.map = (struct fiemap){.fm_extent_count = EXTENTS};
		u.map.fm_start = offset;
		u.map.fm_length = end - offset;
		if (ioctl(f->fd, FS_IOC_FIEMAP, &u.map) < 0 || u.map.fm_mapped_extents == 0)
			return false;
		for (unsigned i = 0; i < u.map.fm_mapped_extents; i++) {
			const struct fiemap_extent *e = &u.map.fm_extents[i];
			if (e->fe_logical > offset || e->fe_flags & elsewhere)
				return false;
			if (e->fe_logical + e->fe_length > offset)
				offset = e->fe_logical + e->fe_length;
		}
	}
	return true;
}

bool store_file_can_hold(struct store_file *f, uint64_t end)
{
	if (end <= __atomic_load_n(&f->reach, __ATOMIC_RELAXED))
		return true;
	/* Seeking knows the limit. In large steps, since files grow by small ones. */
	for (uint64_t more = 1ull << 30;; more = 0) {
		if (end + more <= (uint64_t)INT64_MAX &&
			lseek(f->fd, (off_t)(end + more), SEEK_SET) >= 0) {
			__atomic_store_n(&f->reach, end + more, __ATOMIC_RELAXED);
			return true;
		}
		if (!more)
			return false;
	}
}

int store_file_sync(struct store_file *f, bool datasync)
{
	int ret = datasync ? fdatasync(f->fd) : fsync(f->fd);

	if (ret == 0)
		return 0;
	ret = -errno;
	/* What it could not write is clean for the kernel: writing it again must start anew. */
	store_file_forget(f);
	return ret;
}

int store_sync_all(struct store *st)
{
	int ret = st->raw ? fsync(st->root_fd) : syncfs(st->sync_fd);

	return ret < 0 ? -errno : 0;
}

ssize_t store_file_read(const struct store_file *f, void *buf, size_t bytes, uint64_t offset)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t n =
			pread(f->fd, (char *)buf + done, bytes - done, (off_t)(offset + done));
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		done += (size_t)n;
	}
	memset((char *)buf + done, 0, bytes - done);
	return (ssize_t)done;
}

void store_file_forget(struct store_file *f)
{
	posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
}

void store_file_refuse_direct(struct store_file *f)
{
	f->direct = false;
}

void store_file_probe(struct store_file *f, uint64_t offset, uint64_t bytes)
{
#ifndef SYS_cachestat
#define SYS_cachestat 451 /* Linux 6.5; older ones say ENOSYS and the table above decides */
#endif
	struct {
		uint64_t off, len;
	} range = {offset, bytes};
	struct {
		uint64_t nr_cache, nr_dirty, nr_writeback, nr_evicted, nr_recently_evicted;
	} stat = {0};

	f->probed = true;
	if (syscall(SYS_cachestat, f->fd, &range, &stat, 0) < 0)
		return;
	/* All of it is in the page cache: the "direct" write was buffered. Part of it may be
	 * there because somebody reads the file. */
	if (stat.nr_cache >= (bytes + 4095) / 4096)
		store_file_refuse_direct(f);
}
