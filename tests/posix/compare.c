/* compare.c - do both trees look the same? See twin.h for what is left out. */

#include "twin.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

enum {
	PIECE = 65536,
	SLACK_S = 2,	  /* of the clocks that filesystems use */
	NAMES_MOST = 4096 /* in one directory */
};

static unsigned char piece[NR_TREES][PIECE];

struct look look_at(int dirfd, const char *path)
{
	struct look look = {0};

	if (fstatat(dirfd, path, &look.st, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) < 0)
		look.error = errno;
	return look;
}

struct look look_fd(int fd)
{
	struct look look = {0};

	if (fstat(fd, &look.st) < 0)
		look.error = errno;
	return look;
}

static bool same_time(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static bool is_now(const struct trees *trees, const struct timespec *t)
{
	return t->tv_sec >= trees->begin.tv_sec - SLACK_S && t->tv_sec <= time(NULL) + SLACK_S;
}

static bool times_alike(
	const struct trees *trees, const struct timespec *a, const struct timespec *b)
{
	return same_time(a, b) || (is_now(trees, a) && is_now(trees, b));
}

static bool differs(char *why, size_t bytes, const char *what, long long a, long long b)
{
	snprintf(why, bytes, "%s: %lld, plain %lld", what, a, b);
	return false;
}

static bool time_differs(char *why, size_t bytes, const char *what, const struct timespec *a,
	const struct timespec *b)
{
	snprintf(why, bytes, "%s: %lld.%09ld, plain %lld.%09ld", what, (long long)a->tv_sec,
		a->tv_nsec, (long long)b->tv_sec, b->tv_nsec);
	return false;
}

static bool compare_stat(const struct trees *trees, const struct stat *a, const struct stat *b,
	char *why, size_t bytes)
{
	if (a->st_mode != b->st_mode)
		return differs(why, bytes, "st_mode", a->st_mode, b->st_mode);
	if (a->st_nlink != b->st_nlink)
		return differs(
			why, bytes, "st_nlink", (long long)a->st_nlink, (long long)b->st_nlink);
	if (a->st_uid != b->st_uid)
		return differs(why, bytes, "st_uid", a->st_uid, b->st_uid);
	if (a->st_gid != b->st_gid)
		return differs(why, bytes, "st_gid", a->st_gid, b->st_gid);
	if (a->st_rdev != b->st_rdev)
		return differs(
			why, bytes, "st_rdev", (long long)a->st_rdev, (long long)b->st_rdev);
	if (!S_ISDIR(a->st_mode) && a->st_size != b->st_size)
		return differs(why, bytes, "st_size", a->st_size, b->st_size);
	if (S_ISFIFO(a->st_mode))
		return true;
	if (!times_alike(trees, &a->st_atim, &b->st_atim))
		return time_differs(why, bytes, "atime", &a->st_atim, &b->st_atim);
	if (!times_alike(trees, &a->st_mtim, &b->st_mtim))
		return time_differs(why, bytes, "mtime", &a->st_mtim, &b->st_mtim);
	if (!times_alike(trees, &a->st_ctim, &b->st_ctim))
		return time_differs(why, bytes, "ctime", &a->st_ctim, &b->st_ctim);
	return true;
}

static bool earlier(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec != b->tv_sec ? a->tv_sec < b->tv_sec : a->tv_nsec < b->tv_nsec;
}

enum moves op_moves(const struct op *op)
{
	switch (op->kind) {
	case OP_FALLOCATE:
	case OP_MMAP_SHARED:
	case OP_TRUNCATE:
		return MOVES_MORE;
	case OP_RENAME:
		/* ext4 makes the whiteout first, and takes it back when the rename is refused:
		 * times of directories move that FUSE does not ask for after an error. */
		return op->flags & RENAME_WHITEOUT ? MOVES_ANY : MOVES_ALIKE;
	default:
		return MOVES_ALIKE;
	}
}

bool compare_looks(const struct trees *trees, const struct look before[NR_TREES],
	const struct look after[NR_TREES], enum moves moves, char *why, size_t bytes)
{
	const struct stat *was[NR_TREES], *is[NR_TREES];

	if (after[TREE_A].error != after[TREE_B].error)
		return differs(
			why, bytes, "stat: errno", after[TREE_A].error, after[TREE_B].error);
	if (after[TREE_A].error)
		return true;
	for (int i = 0; i < NR_TREES; i++) {
		was[i] = &before[i].st;
		is[i] = &after[i].st;
	}
	if (!compare_stat(trees, is[TREE_A], is[TREE_B], why, bytes))
		return false;
	/* The same file as before, in both? */
	if (moves == MOVES_ANY || trees->coarse || S_ISFIFO(is[TREE_A]->st_mode) ||
		before[TREE_A].error || before[TREE_B].error ||
		was[TREE_A]->st_ino != is[TREE_A]->st_ino ||
		was[TREE_B]->st_ino != is[TREE_B]->st_ino)
		return true;
	bool moved[NR_TREES], changed[NR_TREES];
	for (int i = 0; i < NR_TREES; i++) {
		moved[i] = !same_time(&was[i]->st_mtim, &is[i]->st_mtim);
		changed[i] = !same_time(&was[i]->st_ctim, &is[i]->st_ctim);
	}
	if (moves == MOVES_MORE && moved[TREE_A] && changed[TREE_A])
		return true;
	if (moved[TREE_A] != moved[TREE_B])
		return differs(why, bytes, "mtime moved", moved[TREE_A], moved[TREE_B]);
	/* Once more when what was written is below, which nobody can set there. */
	if (changed[TREE_A] != changed[TREE_B] &&
		!(changed[TREE_A] && S_ISREG(is[TREE_A]->st_mode)))
		return differs(why, bytes, "ctime moved", changed[TREE_A], changed[TREE_B]);
	if (earlier(&is[TREE_A]->st_ctim, &was[TREE_A]->st_ctim))
		return differs(why, bytes, "ctime went back", 1, 0);
	return true;
}

/* ---- content ---- */

static bool compare_range(const int fd[NR_TREES], off_t from, off_t to, char *why, size_t bytes)
{
	for (off_t at = from; at < to; at += PIECE) {
		ssize_t n[NR_TREES];
		for (int i = 0; i < NR_TREES; i++)
			n[i] = pread(fd[i], piece[i], PIECE, at);
		if (n[TREE_A] != n[TREE_B])
			return differs(why, bytes, "read", n[TREE_A], n[TREE_B]);
		for (ssize_t k = 0; k < n[TREE_A]; k++) {
			if (piece[TREE_A][k] == piece[TREE_B][k])
				continue;
			snprintf(why, bytes, "content at %lld: %#x, plain %#x",
				(long long)at + k, piece[TREE_A][k], piece[TREE_B][k]);
			return false;
		}
		if (n[TREE_A] < PIECE)
			break;
	}
	return true;
}

bool compare_fds(const int fd[NR_TREES], char *why, size_t bytes)
{
	struct stat st;

	if (fstat(fd[TREE_B], &st) < 0 || !S_ISREG(st.st_mode))
		return true;
	if (!compare_range(fd, 0, FILE_WHOLE, why, bytes))
		return false;
	return st.st_size <= FILE_WHOLE ||
		compare_range(fd, st.st_size - PIECE, st.st_size, why, bytes);
}

static bool compare_value(char path[NR_TREES][64], const char *name, char *why, size_t bytes)
{
	ssize_t n[NR_TREES];

	for (int i = 0; i < NR_TREES; i++)
		n[i] = lgetxattr(path[i], name, piece[i], PIECE);
	if (n[TREE_A] != n[TREE_B] ||
		(n[TREE_A] > 0 && memcmp(piece[TREE_A], piece[TREE_B], (size_t)n[TREE_A]))) {
		snprintf(why, bytes, "xattr %.60s: %zd bytes, plain %zd, or other ones", name,
			n[TREE_A], n[TREE_B]);
		return false;
	}
	return true;
}

/* fd: O_PATH */
static bool compare_xattrs(const int fd[NR_TREES], char *why, size_t bytes)
{
	static char names[NR_TREES][PIECE];
	char path[NR_TREES][64];
	ssize_t n[NR_TREES];

	for (int i = 0; i < NR_TREES; i++) {
		snprintf(path[i], sizeof(path[i]), "/proc/self/fd/%d", fd[i]);
		/* through the link in /proc, but not through what it leads to */
		n[i] = listxattr(path[i], names[i], PIECE);
		if (n[i] < 0)
			n[i] = -errno;
	}
	if (n[TREE_A] != n[TREE_B])
		return differs(why, bytes, "listxattr", n[TREE_A], n[TREE_B]);
	for (ssize_t at = 0; at < n[TREE_B]; at += (ssize_t)strlen(names[TREE_B] + at) + 1)
		if (!compare_value(path, names[TREE_B] + at, why, bytes))
			return false;
	return true;
}

static bool compare_target(const int fd[NR_TREES], char *why, size_t bytes)
{
	char target[NR_TREES][4097] = {"", ""};

	for (int i = 0; i < NR_TREES; i++)
		if (readlinkat(fd[i], "", target[i], sizeof(target[i]) - 1) < 0)
			snprintf(target[i], sizeof(target[i]), "errno %d", errno);
	if (strcmp(target[TREE_A], target[TREE_B]) == 0)
		return true;
	snprintf(why, bytes, "target %.60s, plain %.60s", target[TREE_A], target[TREE_B]);
	return false;
}

/* What two O_PATH descriptors are. */
static bool compare_files(const int fd[NR_TREES], bool content, char *why, size_t bytes)
{
	struct stat st;
	bool same = compare_xattrs(fd, why, bytes);
	int file[NR_TREES];

	if (!same || fstat(fd[TREE_B], &st) < 0)
		return same;
	if (S_ISLNK(st.st_mode))
		return compare_target(fd, why, bytes);
	if (!S_ISREG(st.st_mode) || !content)
		return true;
	for (int i = 0; i < NR_TREES; i++) {
		char path[64];
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd[i]);
		file[i] = open(path, O_RDONLY | O_CLOEXEC);
	}
	same = file[TREE_A] >= 0 && file[TREE_B] >= 0 && compare_fds(file, why, bytes);
	if (file[TREE_A] < 0 || file[TREE_B] < 0)
		differs(why, bytes, "open for reading", file[TREE_A], file[TREE_B]);
	for (int i = 0; i < NR_TREES; i++)
		if (file[i] >= 0)
			close(file[i]);
	return same;
}

static bool open_both(const int dir[NR_TREES], const char *path, int ret_fd[NR_TREES])
{
	for (int i = 0; i < NR_TREES; i++)
		ret_fd[i] = openat(dir[i], path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (ret_fd[TREE_A] >= 0 && ret_fd[TREE_B] >= 0)
		return true;
	for (int i = 0; i < NR_TREES; i++)
		if (ret_fd[i] >= 0)
			close(ret_fd[i]);
	return false;
}

static void close_both(const int fd[NR_TREES])
{
	close(fd[TREE_A]);
	close(fd[TREE_B]);
}

bool compare_file(
	const struct trees *trees, const char *path, bool content, char *why, size_t bytes)
{
	int fd[NR_TREES];

	/* Both are there or not: compare_looks() has said so. */
	if (!open_both(trees->root, path, fd))
		return true;
	bool same = compare_files(fd, content, why, bytes);
	close_both(fd);
	return same;
}

/* ---- everything ---- */

struct pairs { /* of inode numbers that one name has in both */
	ino_t (*list)[NR_TREES];
	size_t nr, room;
};

static void pairs_add(struct pairs *p, ino_t a, ino_t b)
{
	if (p->nr == p->room) {
		p->room = p->room ? 2 * p->room : 256;
		p->list = realloc(p->list, p->room * sizeof(*p->list));
		if (!p->list)
			abort();
	}
	p->list[p->nr][TREE_A] = a;
	p->list[p->nr++][TREE_B] = b;
}

static int sort_side;

static int by_side(const void *x, const void *y)
{
	const ino_t *a = x, *b = y;

	return (a[sort_side] > b[sort_side]) - (a[sort_side] < b[sort_side]);
}

/* Two names are one file in A just when they are in B. */
static bool pairs_agree(struct pairs *p, char *why, size_t bytes)
{
	for (sort_side = 0; sort_side < NR_TREES; sort_side++) {
		qsort(p->list, p->nr, sizeof(*p->list), by_side);
		for (size_t i = 1; i < p->nr; i++)
			if (p->list[i][sort_side] == p->list[i - 1][sort_side] &&
				p->list[i][!sort_side] != p->list[i - 1][!sort_side]) {
				snprintf(why, bytes, "names are one file in %s only",
					sort_side == TREE_A ? "this tree" : "the plain one");
				return false;
			}
	}
	return true;
}

static int by_name(const void *x, const void *y)
{
	const struct dirent *const *a = x, *const *b = y;

	return strcmp((*a)->d_name, (*b)->d_name);
}

/* Sorted; the entries are copies. */
static int list_dir(int dirfd, struct dirent **list)
{
	int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), n = 0;
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);

	if (!dir)
		return -errno;
	for (struct dirent *d; n < NAMES_MOST && (d = readdir(dir)); n++) {
		list[n] = malloc(sizeof(*d));
		if (!list[n])
			abort();
		memcpy(list[n], d, d->d_reclen < sizeof(*d) ? d->d_reclen : sizeof(*d));
	}
	closedir(dir);
	qsort(list, (size_t)n, sizeof(*list), by_name);
	return n;
}

static bool compare_dir(const struct trees *trees, const int dir[NR_TREES], struct pairs *pairs,
	char *why, size_t bytes);

/* Puts name before what differs below it. */
static bool below(const char *name, char *why, size_t bytes)
{
	char *inner = strdup(why);

	snprintf(why, bytes, "%.80s: %s", name, inner);
	free(inner);
	return false;
}

static bool compare_entry(const struct trees *trees, const int dir[NR_TREES],
	struct dirent *const entry[NR_TREES], struct pairs *pairs, char *why, size_t bytes)
{
	const char *name = entry[TREE_A]->d_name;
	struct look look[NR_TREES];
	int fd[NR_TREES];

	if (entry[TREE_A]->d_type != entry[TREE_B]->d_type)
		return differs(why, bytes, "d_type", entry[TREE_A]->d_type,
			       entry[TREE_B]->d_type) ||
			below(name, why, bytes);
	for (int i = 0; i < NR_TREES; i++)
		look[i] = look_at(dir[i], name);
	if (look[TREE_A].error == 0 && look[TREE_A].st.st_ino != entry[TREE_A]->d_ino)
		return differs(why, bytes, "d_ino", (long long)entry[TREE_A]->d_ino,
			       (long long)look[TREE_A].st.st_ino) ||
			below(name, why, bytes);
	if (!compare_looks(trees, look, look, MOVES_ANY, why, bytes))
		return below(name, why, bytes);
	if (!open_both(dir, name, fd)) {
		snprintf(why, bytes, "it cannot be opened");
		return below(name, why, bytes);
	}
	pairs_add(pairs, look[TREE_A].st.st_ino, look[TREE_B].st.st_ino);
	bool same = compare_files(fd, true, why, bytes) &&
		(!S_ISDIR(look[TREE_A].st.st_mode) ||
			compare_dir(trees, fd, pairs, why, bytes));
	close_both(fd);
	return same || below(name, why, bytes);
}

static bool compare_dir(const struct trees *trees, const int dir[NR_TREES], struct pairs *pairs,
	char *why, size_t bytes)
{
	struct dirent **list[NR_TREES];
	int n[NR_TREES];
	bool same = true;

	for (int i = 0; i < NR_TREES; i++) {
		list[i] = calloc(NAMES_MOST, sizeof(*list[i]));
		n[i] = list_dir(dir[i], list[i]);
	}
	for (int k = 0; same && k < n[TREE_A] && k < n[TREE_B]; k++) {
		struct dirent *const entry[NR_TREES] = {list[TREE_A][k], list[TREE_B][k]};
		const char *name = entry[TREE_A]->d_name;
		if (strcmp(name, entry[TREE_B]->d_name) != 0) {
			snprintf(why, bytes, "entry %.80s, plain %.80s", name,
				entry[TREE_B]->d_name);
			same = false;
		} else if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0) {
			same = compare_entry(trees, dir, entry, pairs, why, bytes);
		}
	}
	if (same && n[TREE_A] != n[TREE_B])
		same = differs(why, bytes, "entries", n[TREE_A], n[TREE_B]);
	for (int i = 0; i < NR_TREES; i++) {
		for (int k = 0; k < n[i]; k++)
			free(list[i][k]);
		free(list[i]);
	}
	return same;
}

bool compare_trees(const struct trees *trees, char *why, size_t bytes)
{
	struct pairs pairs = {0};

	bool same = compare_dir(trees, trees->root, &pairs, why, bytes) &&
		pairs_agree(&pairs, why, bytes);
	free(pairs.list);
	return same;
}
