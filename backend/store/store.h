/* store.h - what lies below: files of a directory tree, or one raw device or file; and the
 * engines that move pages there.
 *
 * A store_file has two descriptors because toggling O_DIRECT on one races with I/O in flight.
 * Writes are O_DIRECT where the source really does it. Where it does not (it refuses, or its
 * pages turn up in the page cache after a "direct" write) they are deliberate buffered writes
 * followed by sync_file_range(), so that a completion still means that the device took it.
 *
 * Locks: none of ours. A store_file's fields are written only by its node's flusher and by
 * open/close, which the cache's lock orders.
 */
#ifndef PACEFS_BACKEND_STORE_STORE_H
#define PACEFS_BACKEND_STORE_STORE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#define STORE_MAX_IOV 256 /* pages of one request: 1 MiB */

struct store;

struct store_file {
	struct store *store;
	int fd;		/* buffered, read-write where permitted */
	int fd_direct;	/* O_DIRECT, or -1; open until the file is closed, because
				* requests that name it may be under way */
	bool direct;	/* write through fd_direct */
	unsigned align; /* offset and length of direct writes, bytes */
	bool probed;	/* the first direct write was looked at */
	bool writable;
	uint64_t size_below; /* the source's file is at least this long; the cache's lock */
	uint64_t reach;	     /* a size it is known to be able to have; atomic */
	char *name; /* relative to the tree as it was last known, or NULL; the cache's lock */
	bool dense; /* no holes below size_below, by its count of blocks; the cache's lock */
};

struct store_ops {
	/* path_fd: O_PATH of the file, not consumed (ignored by raw). *ret_file on success. */
	int (*open)(struct store *st, int path_fd, struct store_file **ret_file);
	int (*truncate)(struct store_file *f, uint64_t size);
	int (*set_mtime)(struct store_file *f, struct timespec mtime);
};

struct store {
	const struct store_ops *ops;
	int root_fd;   /* O_PATH on the tree, or the raw file's descriptor */
	int sync_fd;   /* real descriptor for syncfs, or -1 */
	char *root;    /* the tree's path as the kernel shows it, or NULL */
	bool buffered; /* the whole source fakes or lacks O_DIRECT */
	bool raw;
	bool serial_extends; /* ext4, xfs: direct writes beyond the end go one at a time */
	bool copies; /* btrfs: what is written over takes new blocks, and its figures of free
		      * ones are those of its last commit */
	bool zeroes; /* ext4, xfs, btrfs: FALLOC_FL_ZERO_RANGE writes nothing but the edges */
	unsigned nr_fds; /* descriptors of open files; atomic */
	bool clones_not; /* it has said that its files cannot share blocks; atomic */
	bool read_only;
	uint64_t raw_size;
	char device_path[256]; /* block device below, if it can be asked; or "" */
	dev_t device;
	bool device_read; /* by reading it, too */
};

/* A directory tree below root_fd (O_PATH or O_RDONLY; kept). */
int store_tree_init(struct store *st, int root_fd, bool read_only);
/* One raw block device or file, already open O_RDWR (or O_RDONLY) as fd (kept). */
int store_raw_init(struct store *st, int fd, bool read_only);
void store_finish(struct store *st);

/* path: the block device that all of it lies on, or "". It is looked at once, and
 * what cannot be asked now will not be asked later. */
void store_watch_device(struct store *st, const char *path);
enum store_presence {
	STORE_UNKNOWN, /* nobody to be asked */
	STORE_THERE,
	STORE_GONE, /* its name, its size or its answers are */
};
/* May take as long as the device does. */
enum store_presence store_look_for_device(const struct store *st);

int store_file_open(struct store *st, int path_fd, struct store_file **ret_file);
/* Returns the error of close(2), if any. NULL is fine. */
int store_file_close(struct store_file *f);
/* It was made longer below by other means than writes of the flusher. With the cache's lock. */
static inline void store_file_grew(struct store_file *f, uint64_t end)
{
	if (end <= f->size_below)
		return;
	f->size_below = end;
	f->dense = false;
}
/* Path of the file for messages, as the source has it now. */
void store_file_name(const struct store_file *f, char *text, size_t size);
int store_file_truncate(struct store_file *f, uint64_t size);
/* Make the file, which is at least from long, at least size long, with blocks of its own; never
 * shorter. 0 or -errno. */
int store_file_extend(struct store_file *f, uint64_t from, uint64_t size);
/* Its name now, relative to the tree, from malloc(); NULL where there is none. */
char *store_file_find_name(const struct store *st, int fd);
int store_file_set_mtime(struct store_file *f, struct timespec mtime);
struct store_look {
	struct timespec mtime, ctime;
	uint64_t size;
};
/* Times and size of the source's file, as far as they are known here: no server is asked. */
int store_file_look(const struct store_file *f, struct store_look *ret_look);
/* How fine the source's times are, in ns, tried on this file, whose time is as before afterwards. 0
 * when that may not be set. */
uint32_t store_file_time_step(struct store_file *f);
/* Where on the device the file's bytes at offset are, or its last ones if there are none: bytes,
 * for putting files in order. The inode number where the filesystem does not tell (no FIEMAP, no
 * blocks yet). May wait for a write to the file that is under way. */
uint64_t store_file_position(const struct store_file *f, uint64_t offset);
/* Are all the bytes in blocks of the file's own, so that writing over them takes no room? No where
 * that is not known. */
bool store_file_has_blocks(const struct store_file *f, uint64_t offset, uint64_t bytes);
/* May it be as large as end? Filesystems have limits, and a write beyond them must be refused
 * when it is accepted. */
bool store_file_can_hold(struct store_file *f, uint64_t end);
/* fsync(2) or fdatasync(2): on the device when it returns 0. */
int store_file_sync(struct store_file *f, bool datasync);
/* Everything of the source, as syncfs(2). */
int store_sync_all(struct store *st);
/* From the buffered descriptor; zero-fills behind the end. Returns bytes read before that. */
ssize_t store_file_read(const struct store_file *f, void *buf, size_t bytes, uint64_t offset);
/* After the first direct write of a file: did it bypass the page cache? Otherwise the file
 * (and, for a filesystem that always does so, the source) is buffered from now on. */
void store_file_probe(struct store_file *f, uint64_t offset, uint64_t bytes);
/* Drop what the page cache has of the file and could not write. */
void store_file_forget(struct store_file *f);
void store_file_refuse_direct(struct store_file *f);

/* ---- engines ---- */

enum store_op { STORE_WRITE, STORE_READ, STORE_RANGE_SYNC };

/* One request. Owned by the engine between submit and reap. */
struct store_io {
	enum store_op op;
	int fd;
	uint64_t offset;
	unsigned bytes;
	unsigned nr_iov;
	struct iovec iov[STORE_MAX_IOV];
	int result;	       /* bytes or -errno */
	struct store_io *next; /* engine's own */
};

struct store_engine;
struct store_engine_ops {
	const char *name;
	/* Take the request; runs when reap() is called at the latest. 0 or -errno (-EBUSY: full) */
	int (*submit)(struct store_engine *e, struct store_io *io);
	/* Wait until a completion, a write to kick_fd or the timeout; returns completions. */
	unsigned (*reap)(struct store_engine *e, uint64_t timeout_us, struct store_io **ret_ios,
		unsigned max);
	/* Memory that requests will come from, one piece per call; a refusal is harmless. */
	void (*add_memory)(struct store_engine *e, void *base, size_t bytes);
	void (*destroy)(struct store_engine *e);
};
struct store_engine {
	const struct store_engine_ops *ops;
};

/* io_uring with up to depth requests. kick_fd: eventfd that ends a wait. */
int store_uring_create(unsigned depth, int kick_fd, struct store_engine **ret_engine);
/* The same by plain system calls, each done when submitted; for tests and where io_uring is
 * not to be had. */
int store_sync_create(int kick_fd, struct store_engine **ret_engine);

#endif
