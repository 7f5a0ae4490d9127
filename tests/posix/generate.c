/* generate.c - an operation out of a seed and a number. */

#include "twin.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <stddef.h>
#include <string.h>
#include <sys/file.h>
#include <sys/xattr.h>
#include <unistd.h>

struct dice {
	uint64_t state;
};

static uint64_t roll(struct dice *d) /* splitmix64 */
{
	uint64_t z = (d->state += 0x9e3779b97f4a7c15ull);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static unsigned below(struct dice *d, unsigned n)
{
	return (unsigned)(roll(d) % n);
}

static bool one_in(struct dice *d, unsigned n)
{
	return below(d, n) == 0;
}

#define PICK(d, list) ((list)[below(d, sizeof(list) / sizeof(*(list)))])

/* Few names, so that operations meet. */
static const char *const file_names[] = {"f0", "f1", "f2", "f3", "f4"};
static const char *const dir_names[] = {"d0", "d1", "d2"};
static const char *const odd_names[] = {"a b", "line\nbreak", "-rf", "\xff\xfe", "*", "...",
	"\xc3\xa4\xcc\x88", "l0", "l1", ".", "..", ""};

static void put_name(struct dice *d, char *path, size_t at, bool dir)
{
	unsigned which = below(d, 100);

	if (which < 1) { /* at NAME_MAX, and one more */
		size_t n = 255 + below(d, 2);
		memset(path + at, 'a' + (char)below(d, 2), n);
		path[at + n] = '\0';
	} else if (which < 10) {
		strcpy(path + at, PICK(d, odd_names));
	} else if (dir != (which < 20)) {
		strcpy(path + at, PICK(d, dir_names));
	} else {
		strcpy(path + at, PICK(d, file_names));
	}
}

static void put_path(struct dice *d, char *path, bool dir)
{
	unsigned depth = below(d, 3);
	size_t at = 0;

	if (one_in(d, 2000)) { /* at PATH_MAX */
		size_t n = 4094 + below(d, 3);
		for (at = 0; at + 1 < n; at += 2)
			memcpy(path + at, "./", 2);
		path[at++] = 'x';
		path[at] = '\0';
		return;
	}
	if (one_in(d, 40))
		depth += 3;
	while (depth--) {
		strcpy(path + at, PICK(d, dir_names));
		at += strlen(path + at);
		path[at++] = '/';
	}
	put_name(d, path, at, dir);
	if (one_in(d, 60))
		strcat(path, "/");
	if (path[0] == '\0')
		strcpy(path, "f0");
}

/* Near what is interesting: pages, requests, ends. */
static off_t some_offset(struct dice *d)
{
	static const int64_t around[] = {0, 4096, 8192, 65536, 131072, 262144, 524288};

	switch (below(d, 12)) {
	case 0:
		return 0;
	case 1:
	case 2:
	case 3:
		return PICK(d, around) + (int)below(d, 3) - 1;
	case 4:
	case 5:
	case 6:
		return (off_t)below(d, 64) * 4096;
	default:
		return below(d, 300000);
	}
}

static off_t wild_offset(struct dice *d)
{
	static const int64_t wild[] = {-1, INT64_MIN, INT64_MAX, INT64_MAX - 4096, 1ll << 31,
		(1ll << 32) - 1, (1ll << 43) + 1, (1ll << 44) - 4096, 1ll << 44, 1ll << 60};

	return one_in(d, 60) ? PICK(d, wild) : some_offset(d);
}

static size_t some_length(struct dice *d)
{
	switch (below(d, 8)) {
	case 0:
		return below(d, 2);
	case 1:
	case 2:
	case 3:
		return below(d, 5000);
	case 4:
		return (size_t)4096 * (1 + below(d, 16));
	case 5:
		return below(d, DATA_MOST);
	default:
		return below(d, 30000);
	}
}

static mode_t some_mode(struct dice *d)
{
	static const mode_t modes[] = {0644, 0666, 0600, 0755, 0777, 0700, 0640, 0400, 0000,
		02755, 02775, 04755, 06777, 01777, 02644, 07777};

	return PICK(d, modes);
}

static int open_flags(struct dice *d)
{
	static const int access_modes[] = {O_RDONLY, O_WRONLY, O_RDWR, O_RDWR, O_RDWR};
	static const int more[] = {O_EXCL, O_APPEND, O_TRUNC, O_DIRECTORY, O_NOFOLLOW, O_SYNC,
		O_DSYNC, O_PATH, O_NOATIME, O_TRUNC, O_APPEND};
	int flags = PICK(d, access_modes);

	if (!one_in(d, 3))
		flags |= O_CREAT;
	while (one_in(d, 3))
		flags |= PICK(d, more);
	/* The kernel's answer to both together changed in 6.4. */
	return flags & O_DIRECTORY ? flags & ~O_CREAT : flags;
}

static void some_times(struct dice *d, struct timespec times[2])
{
	static const int64_t seconds[] = {0, 1, 1000000000, 1234567890, 2147483647,
		2147483648ll, 4102444800ll, 946684800, 315532800};
	static const long nanoseconds[] = {0, 1, 999999999, 123456789, 500000000};

	for (int i = 0; i < 2; i++) {
		times[i].tv_sec = PICK(d, seconds);
		times[i].tv_nsec = PICK(d, nanoseconds);
		if (one_in(d, 4))
			times[i].tv_nsec = UTIME_NOW;
		else if (one_in(d, 4))
			times[i].tv_nsec = UTIME_OMIT;
	}
}

static void some_xattr(struct dice *d, struct op *op)
{
	static const char *const names[] = {"user.a", "user.b", "user.long", "trusted.t",
		"security.s", "security.capability", "user.", "nonsense", "system.odd",
		"user.c"};
	static const size_t sizes[] = {0, 1, 8, 20, 100, 1000, 3000, 5000, 65536, 65537};
	static const int flags[] = {0, 0, 0, XATTR_CREATE, XATTR_REPLACE, 77};

	strcpy(op->name, PICK(d, names));
	if (strcmp(op->name, "user.long") == 0)
		memset(op->name + 5, 'x', 250 + below(d, 2)); /* XATTR_NAME_MAX, and one more */
	op->value_bytes = one_in(d, 10) ? PICK(d, sizes) : sizes[below(d, 6)];
	op->flags = PICK(d, flags);
}

static const int fallocate_modes[] = {0, 0, FALLOC_FL_KEEP_SIZE,
	FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE,
	FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE,
	FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE, 0x4000};
static const int lock_types[] = {F_RDLCK, F_WRLCK, F_UNLCK};
static const int lock_commands[] = {F_SETLK, F_SETLK, F_GETLK, F_OFD_SETLK, F_OFD_GETLK};
static const int flock_kinds[] = {LOCK_SH, LOCK_EX, LOCK_UN, LOCK_UN, 77};
static const int rename_flags[] = {
	0, 0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT, 1 << 5};
static const mode_t node_types[] = {S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK, S_IFREG, 0};
static const char *const targets[] = {"f0", "../f1", "d0", "d1/f0", "l0", "nowhere", ".", ""};

struct weight {
	enum op_kind kind;
	unsigned weight;
};

static const struct weight weights[] = {{OP_OPEN, 120}, {OP_CLOSE, 40}, {OP_READ, 20},
	{OP_PREAD, 40}, {OP_WRITE, 40}, {OP_PWRITE, 90}, {OP_SEEK, 8}, {OP_SEEK_HOLE, 16},
	{OP_FTRUNCATE, 30}, {OP_TRUNCATE, 14}, {OP_FALLOCATE, 24}, {OP_COPY_RANGE, 14},
	{OP_SENDFILE, 8}, {OP_SPLICE, 10}, {OP_MMAP_SHARED, 24}, {OP_MMAP_PRIVATE, 10},
	{OP_DIRECT, 14}, {OP_FSYNC, 16}, {OP_FSTAT, 12}, {OP_FCHMOD, 8}, {OP_FCHOWN, 6},
	{OP_FUTIMENS, 14}, {OP_FLOCK, 8}, {OP_LOCK, 14}, {OP_STAT, 14}, {OP_ACCESS, 10},
	{OP_MKDIR, 24}, {OP_RMDIR, 10}, {OP_UNLINK, 24}, {OP_RENAME, 36}, {OP_LINK, 16},
	{OP_SYMLINK, 8}, {OP_READLINK, 6}, {OP_MKNOD, 8}, {OP_CHMOD, 20}, {OP_CHOWN, 14},
	{OP_UTIMENS, 16}, {OP_SETXATTR, 20}, {OP_GETXATTR, 8}, {OP_LISTXATTR, 6},
	{OP_REMOVEXATTR, 8}, {OP_SETACL, 10}, {OP_READDIR, 10}, {OP_STATFS, 2}, {OP_IOCTL, 2},
	{OP_OPEN_UNLINKED, 8}};

static enum op_kind some_kind(struct dice *d)
{
	unsigned sum = 0, at;

	for (unsigned i = 0; i < sizeof(weights) / sizeof(*weights); i++)
		sum += weights[i].weight;
	at = below(d, sum);
	for (unsigned i = 0;; i++) {
		if (at < weights[i].weight)
			return weights[i].kind;
		at -= weights[i].weight;
	}
}

static void choose_flags(struct dice *d, struct op *op)
{
	switch (op->kind) {
	case OP_OPEN:
		op->flags = open_flags(d);
		break;
	case OP_FALLOCATE:
		op->flags = PICK(d, fallocate_modes);
		break;
	case OP_LOCK:
		op->flags = PICK(d, lock_commands);
		op->mode = (mode_t)PICK(d, lock_types);
		break;
	case OP_FLOCK:
		op->flags = PICK(d, flock_kinds);
		break;
	case OP_RENAME:
		op->flags = PICK(d, rename_flags);
		break;
	case OP_LINK:
		op->flags = one_in(d, 4) ? 0x400 /* AT_SYMLINK_FOLLOW */ : 0;
		break;
	case OP_MKNOD:
		op->mode = (op->mode & 07777) | PICK(d, node_types);
		op->rdev = (dev_t)below(d, 2) * 259;
		break;
	case OP_SYMLINK:
		strcpy(op->path2, PICK(d, targets));
		break;
	case OP_SETXATTR:
	case OP_GETXATTR:
	case OP_REMOVEXATTR:
		some_xattr(d, op);
		break;
	default:
		op->flags = (int)below(d, 4);
	}
}

void op_generate(struct op *op, uint64_t seed, uint64_t index)
{
	static const uid_t ids[] = {0, 1001, 1002, 1003, (uid_t)-1};
	struct dice d = {.state = seed * 0x2545f4914f6cdd1dull + index};
	bool dir;

	roll(&d);
	memset(op, 0, offsetof(struct op, path));
	op->kind = some_kind(&d);
	/* Root half of the time: others are refused much. */
	op->worker = one_in(&d, 2) ? 0 : below(&d, NR_WORKERS);
	op->slot = below(&d, NR_SLOTS);
	op->slot2 = below(&d, NR_SLOTS);
	dir = op->kind == OP_MKDIR || op->kind == OP_RMDIR || op->kind == OP_READDIR;
	dir = dir || ((op->kind == OP_RENAME || op->kind == OP_CHMOD) && one_in(&d, 4));
	put_path(&d, op->path, dir);
	put_path(&d, op->path2, dir != one_in(&d, 8));
	op->mode = some_mode(&d);
	op->uid = PICK(&d, ids);
	op->gid = (gid_t)PICK(&d, ids);
	if (op->uid == (uid_t)-1 && op->gid == (gid_t)-1)
		op->gid = 1001; /* that one FUSE does not know from other things */
	op->offset = wild_offset(&d);
	op->offset2 = some_offset(&d);
	/* The kernel alone decides on the first two; of the others, which are refused, it takes
	 * capabilities away before it asks. */
	if (op->kind == OP_SENDFILE || op->kind == OP_SPLICE || op->kind == OP_PWRITE ||
		op->kind == OP_FALLOCATE)
		op->offset &= LARGEST - 1;
	op->length = some_length(&d);
	some_times(&d, op->times);
	op->salt = roll(&d);
	op->value_bytes = 0;
	op->name[0] = '\0';
	op->rdev = 0;
	choose_flags(&d, op);
}

void op_fill(const struct op *op, unsigned char *data, size_t bytes)
{
	struct dice d = {.state = op->salt};

	for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
		uint64_t word = roll(&d);
		size_t n = bytes - at < sizeof(word) ? bytes - at : sizeof(word);
		memcpy(data + at, &word, n);
	}
}

static const char *const kind_names[NR_OP_KINDS] = {"open", "close", "read", "pread", "write",
	"pwrite", "lseek", "seek-hole", "ftruncate", "truncate", "fallocate", "copy_file_range",
	"sendfile", "splice", "mmap-shared", "mmap-private", "direct", "fsync", "fstat",
	"fchmod", "fchown", "futimens", "flock", "lock", "stat", "access", "mkdir", "rmdir",
	"unlink", "rename", "link", "symlink", "readlink", "mknod", "chmod", "chown", "utimens",
	"setxattr", "getxattr", "listxattr", "removexattr", "setacl", "readdir", "statfs",
	"ioctl", "open-unlinked"};

static void print_path(FILE *out, const char *path)
{
	fputs(" \"", out);
	for (size_t i = 0; path[i] && i < 60; i++) {
		unsigned char c = (unsigned char)path[i];
		fprintf(out, c < ' ' || c > '~' ? "\\x%02x" : "%c", c);
	}
	fputs(strlen(path) > 60 ? "...\"" : "\"", out);
}

void op_print(FILE *out, const struct op *op, uint64_t index)
{
	fprintf(out, "%6llu worker %u %s", (unsigned long long)index, op->worker,
		kind_names[op->kind]);
	if (op->kind < OP_STAT)
		fprintf(out, " slot %u/%u", op->slot, op->slot2);
	print_path(out, op->path);
	print_path(out, op->path2);
	fprintf(out,
		" flags %#x mode %#o uid %d gid %d offset %lld/%lld length %zu times "
		"%lld.%ld/%lld.%ld",
		(unsigned)op->flags, op->mode, (int)op->uid, (int)op->gid,
		(long long)op->offset, (long long)op->offset2, op->length,
		(long long)op->times[0].tv_sec, op->times[0].tv_nsec,
		(long long)op->times[1].tv_sec, op->times[1].tv_nsec);
	if (op->name[0])
		fprintf(out, " %.40s = %zu bytes", op->name, op->value_bytes);
	fputc('\n', out);
}
