/* twin.h - two trees that get the same operations and must look the same: the mount of pacefs (A)
 * and a plain filesystem of the kind below it (B).
 *
 * A run is a function of its seed: operation i is made from (seed, i) alone, so that a shorter
 * run is had by leaving operations out (shrink.c). Each is done by one of a few processes of
 * different users (worker.c), first on A, then on B, one operation at a time (perform_*.c); what
 * they returned is compared, and then what is there (compare.c).
 *
 * What cannot be the same, and is not compared; nothing else is left out:
 *   st_dev            there are two
 *   st_ino            of two filesystems; but names are links of one file in both or in neither
 *   st_blocks         of dirty data nobody knows yet
 *   st_size of a directory      its names came and went at other times
 *   values of "now"   each tree has its own; both must be of this run, and they must have moved
 *                     in both or in neither (but for a refused RENAME_WHITEOUT: see shrink.c);
 *                     ctime of a file may move once more when its data are below; fallocate(2),
 *                     a mapping and truncate(2) move them always, which not every filesystem does
 *   st_blksize, statfs          but the longest name and the block size of statfs
 *   order of readdir, its cookies           a hash has its own seed in each filesystem
 *   places of holes   a filesystem may make a hole out of nothing and back; but no hole may hide
 *                     data, and beyond the end is ENXIO in both
 *   times of a FIFO   reading and writing are the kernel's alone, and it tells nobody
 *   lseek(2), sendfile(2), splice(2) beyond the largest file        the same
 *   chown(2) that names neither an owner nor a group     it arrives as no change at all
 *   security.capability of what is mapped and changed, and not handed over yet: the later write
 *                     takes it away; so all is written before it is set, and what has one is not
 *                     mapped
 *   set-user-id when a file is truncated to the size it has, or a hole is punched into nothing
 *   names of trusted.* xattrs       btrfs shows them to everybody
 *   sendfile(2) and splice(2) from a file to itself     depend on when pages are copied
 *   what FUSE itself has not    FALLOC_FL_COLLAPSE_RANGE and _INSERT_RANGE, mandatory alignment of
 *                     O_DIRECT; and FALLOC_FL_ZERO_RANGE if it is refused with EOPNOTSUPP
 */
#ifndef PACEFS_TESTS_POSIX_TWIN_H
#define PACEFS_TESTS_POSIX_TWIN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>

enum {
	TREE_A,
	TREE_B,
	NR_TREES,
	NR_WORKERS = 4,
	NR_SLOTS = 6,		 /* open files of a worker */
	PATH_BYTES = 4400,	 /* PATH_MAX and more */
	VALUE_BYTES = 70000,	 /* XATTR_SIZE_MAX and more */
	DATA_MOST = 192 * 1024,	 /* one request at most: more than max_write */
	FILE_WHOLE = 1024 * 1024 /* up to this, content is compared whole */
};

#define LARGEST (1ll << 43) /* file of any of the filesystems */

enum op_kind {
	OP_OPEN,
	OP_CLOSE,
	OP_READ,
	OP_PREAD,
	OP_WRITE,
	OP_PWRITE,
	OP_SEEK,
	OP_SEEK_HOLE,
	OP_FTRUNCATE,
	OP_TRUNCATE,
	OP_FALLOCATE,
	OP_COPY_RANGE,
	OP_SENDFILE,
	OP_SPLICE,
	OP_MMAP_SHARED,
	OP_MMAP_PRIVATE,
	OP_DIRECT,
	OP_FSYNC,
	OP_FSTAT,
	OP_FCHMOD,
	OP_FCHOWN,
	OP_FUTIMENS,
	OP_FLOCK,
	OP_LOCK,
	OP_STAT,
	OP_ACCESS,
	OP_MKDIR,
	OP_RMDIR,
	OP_UNLINK,
	OP_RENAME,
	OP_LINK,
	OP_SYMLINK,
	OP_READLINK,
	OP_MKNOD,
	OP_CHMOD,
	OP_CHOWN,
	OP_UTIMENS,
	OP_SETXATTR,
	OP_GETXATTR,
	OP_LISTXATTR,
	OP_REMOVEXATTR,
	OP_SETACL,
	OP_READDIR,
	OP_STATFS,
	OP_IOCTL,
	OP_OPEN_UNLINKED, /* tempnam, open, unlink: an open file without a name */
	NR_OP_KINDS
};

struct op {
	enum op_kind kind;
	unsigned worker;
	unsigned slot, slot2; /* open files */
	char path[PATH_BYTES], path2[PATH_BYTES];
	int flags;
	mode_t mode;
	dev_t rdev;
	uid_t uid;
	gid_t gid;
	off_t offset, offset2;
	size_t length;
	struct timespec times[2];
	char name[300];	    /* of an xattr */
	size_t value_bytes; /* of its value, made from salt */
	uint64_t salt;	    /* content of what is written */
};

/* What one operation gave on one tree. */
struct outcome {
	long ret;
	int error;	/* if ret < 0 */
	uint64_t hash;	/* of what was read */
	char note[160]; /* a rule that was broken, in words; "" if none */
};

/* A file as it looks at one moment. */
struct look {
	int error;
	struct stat st;
};

struct trees {
	int root[NR_TREES]; /* descriptors of the directories */
	struct timespec begin;
	bool coarse; /* times of these filesystems move by luck */
};

/* ---- generate.c ---- */

void op_generate(struct op *op, uint64_t seed, uint64_t index);
void op_print(FILE *out, const struct op *op, uint64_t index);
/* The bytes an operation writes at offset. */
void op_fill(const struct op *op, unsigned char *data, size_t bytes);

/* ---- perform_file.c, perform_name.c ---- */

struct worker_files {
	int fd[NR_TREES][NR_SLOTS]; /* -1: none */
};

/* 1 if it is one of this room; then *out is filled in. */
bool perform_file(struct worker_files *files, const struct trees *trees, int tree,
	const struct op *op, struct outcome *out);
bool perform_name(struct worker_files *files, const struct trees *trees, int tree,
	const struct op *op, struct outcome *out);
uint64_t hash_bytes(uint64_t h, const void *data, size_t bytes);

/* ---- worker.c ---- */

struct worker {
	pid_t pid;
	int socket;
};

/* Processes of different users, which wait for operations. */
void workers_start(struct worker workers[NR_WORKERS], const struct trees *trees, uint64_t seed);
/* Does operation index; "" or what was different. */
void worker_do(struct worker *worker, uint64_t index, char *ret_why, size_t bytes);
/* They close everything and end. */
void workers_stop(struct worker workers[NR_WORKERS]);

/* ---- compare.c: each fills why and returns false at the first difference ---- */

struct look look_at(int dirfd, const char *path);
struct look look_fd(int fd);
/* Must times have moved, since before, in both trees or in none? */
enum moves {
	MOVES_ANY,
	MOVES_ALIKE,
	MOVES_MORE, /* or in A alone */
};
bool compare_looks(const struct trees *trees, const struct look before[NR_TREES],
	const struct look after[NR_TREES], enum moves moves, char *why, size_t bytes);
enum moves op_moves(const struct op *op);
/* The xattrs of what path is, a symbolic link's target, and the content of a regular file if that is
 * wanted. */
bool compare_file(
	const struct trees *trees, const char *path, bool content, char *why, size_t bytes);
bool compare_fds(const int fd[NR_TREES], char *why, size_t bytes);
/* Everything there is. */
bool compare_trees(const struct trees *trees, char *why, size_t bytes);

/* ---- shrink.c ---- */

struct options {
	const char *dir[NR_TREES];
	uint64_t seed, count;
	uint64_t check_every; /* operations between two looks at everything */
	double seconds;	      /* 0: until count */
	bool verbose;
	bool coarse;
};

/* Runs in a new directory of both trees those of operations [0, count) that keep says (NULL:
 * all), prints what was different, and returns the number of operations done when it was seen; 0 if
 * nothing was. */
uint64_t run_once(const struct options *options, const bool *keep, uint64_t count, FILE *out);
/* Looks for the fewest operations of [0, count) that still differ, and prints them. */
void shrink(const struct options *options, uint64_t count);

#endif
