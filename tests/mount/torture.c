/* torture.c - random operations on a few files, held against a copy in memory.
 *
 *   torture DIR [seed=N] [ops=N | seconds=N] [files=N] [max=BYTES] [save=FILE] [verbose=1]
 *           works in DIR on files named t<seed>.<slot>; every read, size and time is compared;
 *           with save, what the files must hold at the end goes to FILE
 *   torture --check DIR FILE
 *           the same contents, sizes and times are in DIR (the source, after umount)
 *
 * A mismatch prints seed, step and file, and ends with status 1. Processes with different seeds
 * may run in one directory.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FILES = 64, PAGE = 4096, NAME_BYTES = 64 };

/* One file object, whatever names it has. */
struct object {
	unsigned char *data;
	size_t size;
	unsigned links;
	unsigned users;
	bool times_set;	       /* mtime must be exactly this one */
	struct timespec mtime; /* else: not before this one */
};

struct slot {
	char name[NAME_BYTES];
	struct object *object; /* what the name stands for; NULL: there is no such file */
	int fd;		       /* -1: closed */
	struct object *open;   /* what fd stands for */
	bool append;
};

struct record {
	char name[NAME_BYTES];
	uint64_t size;
	int64_t sec, nsec;
};

static const char *dir;
static uint64_t seed = 1, state, max_ops = 3000, seconds, step;
static unsigned nr_files = 6;
static size_t max_bytes = 300000;
static bool verbose;
static struct slot slots[MAX_FILES];
static unsigned char *scratch;
static const char *doing = "start";

/* ---- helpers ---- */

static void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
static void die(const char *fmt, ...)
{
	va_list ap;

	printf("torture: seed %llu step %llu (%s): ", (unsigned long long)seed,
		(unsigned long long)step, doing);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	printf("\n");
	exit(1);
}

static uint64_t next_random(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state * 0x2545f4914f6cdd1dull;
}

static size_t below(size_t n)
{
	return n ? (size_t)(next_random() >> 11) % n : 0;
}

static bool one_in(unsigned n)
{
	return below(n) == 0;
}

/* Often a page border or close to it. */
static size_t some_offset(size_t most)
{
	size_t at = below(most + 1);

	switch (below(4)) {
	case 0:
		return at / PAGE * PAGE;
	case 1:
		at = at / PAGE * PAGE + below(3);
		return at > most ? most : at;
	default:
		return at;
	}
}

static size_t some_length(void)
{
	switch (below(6)) {
	case 0:
		return PAGE;
	case 1:
		return (1 + below(16)) * PAGE;
	case 2:
		return 1 + below(100);
	case 3:
		return 1 + below(100000);
	default:
		return 1 + below(3 * PAGE);
	}
}

static void fill_random(unsigned char *to, size_t bytes)
{
	uint64_t r = next_random();

	for (size_t i = 0; i < bytes; i++) {
		if (i % 8 == 0)
			r = r * 6364136223846793005ull + 1442695040888963407ull;
		to[i] = (unsigned char)(r >> (8 * (i % 8)) | 1); /* never 0: unlike a hole */
	}
}

/* Time stamps come from a coarse clock, on a busy machine some ticks behind, and the kernel may
 * leave one a tick old as it is. A second is less than what a wrong one is off by. */
static struct timespec coarse_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	now.tv_sec--;
	return now;
}

static int compare_times(struct timespec a, struct timespec b)
{
	if (a.tv_sec != b.tv_sec)
		return a.tv_sec < b.tv_sec ? -1 : 1;
	return a.tv_nsec < b.tv_nsec ? -1 : a.tv_nsec > b.tv_nsec;
}

static void path_of(char *path, const char *in, const char *name)
{
	if (snprintf(path, PATH_MAX, "%s/%s", in, name) >= PATH_MAX)
		die("%s: too long", in);
}

static void note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *fmt, ...)
{
	va_list ap;

	if (!verbose)
		return;
	printf("%llu ", (unsigned long long)step);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	printf("\n");
}

/* ---- objects ---- */

static struct object *object_new(void)
{
	struct object *o = calloc(1, sizeof(*o));

	if (!o || !(o->data = calloc(1, max_bytes + PAGE)))
		die("no memory");
	o->mtime = coarse_now();
	return o;
}

static void object_put(struct object *o)
{
	if (o && o->links == 0 && o->users == 0) {
		free(o->data);
		free(o);
	}
}

static void changed(struct object *o, struct timespec before)
{
	o->times_set = false;
	o->mtime = before;
}

static void resize(struct object *o, size_t size)
{
	if (size < o->size)
		memset(o->data + size, 0, o->size - size);
	o->size = size;
}

/* ---- checks ---- */

static void compare(const struct object *o, const unsigned char *got, size_t offset,
	size_t bytes, const char *what, const char *name)
{
	for (size_t i = 0; i < bytes; i++) {
		if (got[i] == o->data[offset + i])
			continue;
		size_t end = i;
		while (end < bytes && got[end] != o->data[offset + end])
			end++;
		die("%s of %s: byte %zu (0x%zx) is %02x, want %02x; %zu bytes differ in a row, "
		    "size %zu",
			what, name, offset + i, offset + i, got[i], o->data[offset + i],
			end - i, o->size);
	}
}

static void check_stat(const struct slot *s)
{
	struct stat st;
	const struct object *o = s->open;

	if (fstat(s->fd, &st) < 0)
		die("fstat %s: %s", s->name, strerror(errno));
	if ((size_t)st.st_size != o->size)
		die("%s: size is %lld, want %zu", s->name, (long long)st.st_size, o->size);
	if (st.st_nlink != o->links)
		die("%s: %u links, want %u", s->name, (unsigned)st.st_nlink, o->links);
	int order = compare_times(st.st_mtim, o->mtime);
	if (o->times_set ? order != 0 : order < 0)
		die("%s: mtime is %lld.%09ld, want %s%lld.%09ld", s->name,
			(long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec,
			o->times_set ? "" : "at least ", (long long)o->mtime.tv_sec,
			o->mtime.tv_nsec);
}

static void check_range(const struct slot *s, size_t offset, size_t bytes, const char *what)
{
	size_t want = offset >= s->open->size ? 0 : s->open->size - offset;

	if (want > bytes)
		want = bytes;
	memset(scratch, 0xEE, bytes);
	ssize_t n = pread(s->fd, scratch, bytes, (off_t)offset);
	if (n < 0)
		die("%s of %s at %zu: %s", what, s->name, offset, strerror(errno));
	if ((size_t)n != want)
		die("%s of %s at %zu+%zu: %zd bytes, want %zu", what, s->name, offset, bytes, n,
			want);
	compare(s->open, scratch, offset, want, what, s->name);
}

/* ---- opening ---- */

static void slot_close(struct slot *s)
{
	if (s->fd < 0)
		return;
	if (close(s->fd) < 0)
		die("close %s: %s", s->name, strerror(errno));
	s->fd = -1;
	s->open->users--;
	object_put(s->open);
	s->open = NULL;
}

static void slot_open(struct slot *s, int flags)
{
	char path[PATH_MAX];

	path_of(path, dir, s->name);
	s->append = one_in(8);
	if (s->append)
		flags |= O_APPEND;
	if (!s->object)
		flags |= O_CREAT | (one_in(2) ? O_EXCL : 0);
	struct timespec before = coarse_now();
	s->fd = open(path, O_RDWR | O_CLOEXEC | flags, 0644);
	if (s->fd < 0)
		die("open %s: %s", s->name, strerror(errno));
	if (!s->object) {
		s->object = object_new();
		s->object->links = 1;
	}
	s->open = s->object;
	s->open->users++;
	if (flags & O_TRUNC) {
		resize(s->open, 0);
		changed(s->open, before);
	}
}

static void drop_name(struct slot *s)
{
	struct object *o = s->object;

	s->object = NULL;
	o->links--;
	object_put(o);
}

/* ---- operations ---- */

static void op_write(struct slot *s)
{
	size_t offset =
		s->append ? s->open->size : some_offset(one_in(6) ? max_bytes : s->open->size);
	size_t bytes = some_length();

	if (offset >= max_bytes)
		return;
	if (bytes > max_bytes - offset)
		bytes = max_bytes - offset;
	fill_random(scratch, bytes);
	struct timespec before = coarse_now();
	note("write %s %zu+%zu", s->name, offset, bytes);
	ssize_t n = pwrite(s->fd, scratch, bytes, (off_t)offset);
	if (n != (ssize_t)bytes)
		die("write of %s %zu+%zu: %zd %s", s->name, offset, bytes, n, strerror(errno));
	memcpy(s->open->data + offset, scratch, bytes);
	if (offset + bytes > s->open->size)
		s->open->size = offset + bytes;
	changed(s->open, before);
}

static void op_read(struct slot *s)
{
	size_t offset = some_offset(s->open->size);

	note("read %s %zu", s->name, offset);
	if (one_in(2))
		posix_fadvise(s->fd, 0, 0, POSIX_FADV_DONTNEED);
	check_range(s, offset, some_length(), "read");
}

static void op_read_all(struct slot *s)
{
	note("read all of %s", s->name);
	posix_fadvise(s->fd, 0, 0, POSIX_FADV_DONTNEED);
	check_range(s, 0, max_bytes, "reading all");
}

static void op_truncate(struct slot *s)
{
	size_t size = some_offset(one_in(3) ? max_bytes : s->open->size);
	struct timespec before = coarse_now();

	note("truncate %s %zu -> %zu", s->name, s->open->size, size);
	if (ftruncate(s->fd, (off_t)size) < 0)
		die("truncate %s to %zu: %s", s->name, size, strerror(errno));
	resize(s->open, size);
	changed(s->open, before);
}

static void op_fallocate(struct slot *s)
{
	size_t offset = some_offset(s->open->size);
	size_t bytes = some_length();
	int mode = one_in(3) ? 0
		: one_in(2)  ? FALLOC_FL_KEEP_SIZE
			     : FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE;
	struct timespec before = coarse_now();

	if (offset + bytes > max_bytes)
		return;
	note("fallocate %s mode %d %zu+%zu", s->name, mode, offset, bytes);
	if (fallocate(s->fd, mode, (off_t)offset, (off_t)bytes) < 0) {
		if (errno == EOPNOTSUPP)
			return;
		die("fallocate %s mode %d %zu+%zu: %s", s->name, mode, offset, bytes,
			strerror(errno));
	}
	if (mode & FALLOC_FL_PUNCH_HOLE) {
		size_t end = offset + bytes < s->open->size ? offset + bytes : s->open->size;
		if (offset < end)
			memset(s->open->data + offset, 0, end - offset);
		changed(s->open, before);
	} else if (mode == 0 && offset + bytes > s->open->size) {
		resize(s->open, offset + bytes);
		changed(s->open, before);
	} else {
		/* Whether the times move is the filesystem's choice. */
		s->open->times_set = false;
		s->open->mtime = (struct timespec){0};
	}
}

static void op_sync(struct slot *s)
{
	note("sync %s", s->name);
	int ret = one_in(2) ? fsync(s->fd) : fdatasync(s->fd);
	if (ret < 0)
		die("fsync %s: %s", s->name, strerror(errno));
	if (one_in(8) && syncfs(s->fd) < 0)
		die("syncfs: %s", strerror(errno));
}

static void op_reopen(struct slot *s)
{
	note("reopen %s", s->name);
	slot_close(s);
	if (one_in(4))
		return;
	slot_open(s, one_in(5) ? O_TRUNC : 0);
}

static void op_map(struct slot *s)
{
	size_t size = s->open->size;
	struct timespec before = coarse_now();

	if (size == 0)
		return;
	unsigned char *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
	if (map == MAP_FAILED)
		die("mmap %s: %s", s->name, strerror(errno));
	for (int i = 0; i < 4; i++) {
		size_t offset = some_offset(size - 1), bytes = 1 + below(2 * PAGE);
		if (bytes > size - offset)
			bytes = size - offset;
		compare(s->open, map + offset, offset, bytes, "mapped read", s->name);
		if (one_in(2)) {
			note("map write %s %zu+%zu", s->name, offset, bytes);
			changed(s->open, before);
			fill_random(scratch, bytes);
			memcpy(map + offset, scratch, bytes);
			memcpy(s->open->data + offset, scratch, bytes);
		}
	}
	if (msync(map, size, one_in(2) ? MS_SYNC : MS_ASYNC) < 0)
		die("msync %s: %s", s->name, strerror(errno));
	if (munmap(map, size) < 0)
		die("munmap: %s", strerror(errno));
	if (fsync(s->fd) < 0)
		die("fsync %s: %s", s->name, strerror(errno));
}

static void op_rename(struct slot *s)
{
	struct slot *to = &slots[below(nr_files)];
	char from_path[PATH_MAX], to_path[PATH_MAX];

	if (to == s || !s->object)
		return;
	path_of(from_path, dir, s->name);
	path_of(to_path, dir, to->name);
	note("rename %s %s", s->name, to->name);
	if (rename(from_path, to_path) < 0)
		die("rename %s to %s: %s", s->name, to->name, strerror(errno));
	if (to->object == s->object)
		return; /* two names of one file: both stay */
	/* An open file of the replaced name goes on as it is. */
	struct object *moved = s->object;
	if (to->object)
		drop_name(to);
	to->object = moved;
	s->object = NULL;
}

static void op_unlink(struct slot *s)
{
	char path[PATH_MAX];

	if (!s->object)
		return;
	path_of(path, dir, s->name);
	note("unlink %s", s->name);
	if (unlink(path) < 0)
		die("unlink %s: %s", s->name, strerror(errno));
	drop_name(s);
}

static void op_link(struct slot *s)
{
	struct slot *to = &slots[below(nr_files)];
	char from_path[PATH_MAX], to_path[PATH_MAX];

	if (!s->object || to->object)
		return;
	path_of(from_path, dir, s->name);
	path_of(to_path, dir, to->name);
	note("link %s %s", s->name, to->name);
	if (link(from_path, to_path) < 0)
		die("link %s to %s: %s", s->name, to->name, strerror(errno));
	to->object = s->object;
	to->object->links++;
}

static void op_times(struct slot *s)
{
	struct timespec times[2] = {
		{.tv_nsec = UTIME_OMIT},
		{.tv_sec = (time_t)(1000000000 + below(700000000)),
			.tv_nsec = (long)below(1000000000)},
	};

	note("utimens %s", s->name);
	if (futimens(s->fd, times) < 0)
		die("futimens %s: %s", s->name, strerror(errno));
	s->open->mtime = times[1];
	s->open->times_set = true;
}

/* Whatever is called a hole must be zeroes. */
static void op_seek(struct slot *s)
{
	off_t at = 0, size = (off_t)s->open->size;

	note("seek %s", s->name);
	while (at < size) {
		off_t data = lseek(s->fd, at, SEEK_DATA);
		if (data < 0 && errno != ENXIO)
			die("SEEK_DATA %s %lld: %s", s->name, (long long)at, strerror(errno));
		off_t end = data < 0 ? size : data;
		for (off_t i = at; i < end; i++)
			if (s->open->data[i])
				die("%s: byte %lld is called a hole", s->name, (long long)i);
		if (data < 0)
			break;
		at = lseek(s->fd, data, SEEK_HOLE);
		if (at <= data)
			die("SEEK_HOLE %s %lld: %lld", s->name, (long long)data, (long long)at);
	}
	if (lseek(s->fd, size, SEEK_DATA) >= 0 || errno != ENXIO)
		die("SEEK_DATA %s at the end: no ENXIO", s->name);
}

static void op_copy(struct slot *s)
{
	struct slot *to = &slots[below(nr_files)];
	size_t from = some_offset(s->open->size), at = some_offset(max_bytes / 2);
	size_t bytes = some_length();

	if (to->fd < 0 || to->append || to->open == s->open)
		return;
	if (one_in(2)) { /* what can be cloned */
		from = from / PAGE * PAGE;
		at = at / PAGE * PAGE;
	}
	if (from >= s->open->size)
		return;
	if (bytes > s->open->size - from)
		bytes = s->open->size - from;
	if (at + bytes > max_bytes)
		bytes = max_bytes - at;
	off_t in = (off_t)from, out = (off_t)at;
	struct timespec before = coarse_now();
	note("copy %s %zu -> %s %zu, %zu", s->name, from, to->name, at, bytes);
	ssize_t n = copy_file_range(s->fd, &in, to->fd, &out, bytes, 0);
	if (n < 0 && (errno == EOPNOTSUPP || errno == EXDEV))
		return;
	if (n <= 0)
		die("copy %s %zu to %s %zu, %zu bytes: %zd %s", s->name, from, to->name, at,
			bytes, n, strerror(errno));
	memcpy(to->open->data + at, s->open->data + from, (size_t)n);
	if (at + (size_t)n > to->open->size)
		to->open->size = at + (size_t)n;
	changed(to->open, before);
	check_stat(to);
}

/* A direct write and read beside the buffered ones. */
static void op_direct(struct slot *s)
{
	char path[64];
	size_t offset = some_offset(s->open->size) / PAGE * PAGE;
	size_t bytes = (1 + below(16)) * PAGE;

	if (offset + bytes > max_bytes)
		return;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", s->fd);
	int fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
	if (fd < 0)
		return;
	fill_random(scratch, bytes);
	struct timespec before = coarse_now();
	note("direct write %s %zu+%zu", s->name, offset, bytes);
	ssize_t n = pwrite(fd, scratch, bytes, (off_t)offset);
	if (n != (ssize_t)bytes)
		die("direct write of %s: %zd %s", s->name, n, strerror(errno));
	memcpy(s->open->data + offset, scratch, bytes);
	if (offset + bytes > s->open->size)
		s->open->size = offset + bytes;
	changed(s->open, before);
	memset(scratch, 0xEE, bytes);
	n = pread(fd, scratch, bytes, (off_t)offset);
	if (n < 0)
		die("direct read of %s: %s", s->name, strerror(errno));
	compare(s->open, scratch, offset, (size_t)n, "direct read", s->name);
	if (close(fd) < 0)
		die("close %s: %s", s->name, strerror(errno));
}

static const struct {
	const char *name;
	void (*run)(struct slot *s);
	unsigned weight;
} ops[] = {
	{"write", op_write, 40},
	{"read", op_read, 16},
	{"read all", op_read_all, 4},
	{"truncate", op_truncate, 8},
	{"fallocate", op_fallocate, 6},
	{"fsync", op_sync, 3},
	{"reopen", op_reopen, 5},
	{"map", op_map, 4},
	{"rename", op_rename, 3},
	{"unlink", op_unlink, 2},
	{"link", op_link, 2},
	{"times", op_times, 4},
	{"seek", op_seek, 3},
	{"copy", op_copy, 4},
	{"direct", op_direct, 4},
};
enum { NR_OPS = sizeof(ops) / sizeof(*ops) };

static void one_step(void)
{
	struct slot *s = &slots[below(nr_files)];
	unsigned sum = 0;

	for (unsigned i = 0; i < NR_OPS; i++)
		sum += ops[i].weight;
	size_t pick = below(sum);
	if (s->fd < 0)
		slot_open(s, 0);
	check_stat(s);
	unsigned i = 0;
	while (pick >= ops[i].weight)
		pick -= ops[i++].weight;
	doing = ops[i].name;
	ops[i].run(s);
	if (s->fd >= 0)
		check_stat(s);
	/* A file without a name lives on for a while only. */
	if (s->fd >= 0 && s->open->links == 0 && one_in(4)) {
		op_read_all(s);
		slot_close(s);
	}
}

/* ---- what remains ---- */

static void save(const char *path)
{
	FILE *out = fopen(path, "w");

	if (!out)
		die("%s: %s", path, strerror(errno));
	for (unsigned i = 0; i < nr_files; i++) {
		const struct slot *s = &slots[i];
		char file[PATH_MAX];
		struct stat st;
		if (!s->object)
			continue;
		path_of(file, dir, s->name);
		if (stat(file, &st) < 0)
			die("stat %s: %s", s->name, strerror(errno));
		struct record r = {
			.size = s->object->size,
			.sec = st.st_mtim.tv_sec,
			.nsec = st.st_mtim.tv_nsec,
		};
		memcpy(r.name, s->name, sizeof(r.name));
		if (fwrite(&r, sizeof(r), 1, out) != 1 ||
			fwrite(s->object->data, 1, s->object->size, out) != s->object->size)
			die("%s: %s", path, strerror(errno));
	}
	if (fclose(out) != 0)
		die("%s: %s", path, strerror(errno));
}

static void check_one(const char *in, const struct record *r, FILE *from)
{
	char path[PATH_MAX];
	struct stat st;
	struct object o = {.data = malloc(r->size + 1), .size = r->size};
	unsigned char *got = malloc(r->size + 1);

	path_of(path, in, r->name);
	if (!o.data || !got || fread(o.data, 1, r->size, from) != r->size)
		die("the saved file is cut short");
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		die("%s: %s", path, strerror(errno));
	if ((uint64_t)st.st_size != r->size)
		die("%s: size is %lld, want %llu", path, (long long)st.st_size,
			(unsigned long long)r->size);
	if (read(fd, got, r->size) != (ssize_t)r->size)
		die("%s: %s", path, strerror(errno));
	compare(&o, got, 0, r->size, "content", path);
	if (st.st_mtim.tv_sec != r->sec || st.st_mtim.tv_nsec != r->nsec)
		die("%s: mtime is %lld.%09ld, want %lld.%09lld", path,
			(long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec, (long long)r->sec,
			(long long)r->nsec);
	close(fd);
	free(o.data);
	free(got);
}

static int check_saved(const char *in, const char *path)
{
	FILE *from = fopen(path, "r");
	struct record r;
	unsigned n = 0;

	doing = "check";
	if (!from)
		die("%s: %s", path, strerror(errno));
	for (; fread(&r, sizeof(r), 1, from) == 1; n++)
		check_one(in, &r, from);
	fclose(from);
	printf("files=%u\n", n);
	return n ? 0 : 1;
}

static void finish(const char *to)
{
	doing = "end";
	for (unsigned i = 0; i < nr_files; i++) {
		if (slots[i].fd >= 0)
			op_read_all(&slots[i]);
		slot_close(&slots[i]);
	}
	if (to)
		save(to);
	printf("seed=%llu steps=%llu\n", (unsigned long long)seed, (unsigned long long)step);
}

int main(int argc, char **argv)
{
	const char *to = NULL;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 4 && strcmp(argv[1], "--check") == 0)
		return check_saved(argv[2], argv[3]);
	if (argc < 2)
		return 2;
	dir = argv[1];
	for (int i = 2; i < argc; i++) {
		char *value = strchr(argv[i], '=');
		if (!value)
			return 2;
		*value++ = '\0';
		uint64_t number = strtoull(value, NULL, 0);
		if (strcmp(argv[i], "seed") == 0)
			seed = number;
		else if (strcmp(argv[i], "ops") == 0)
			max_ops = number;
		else if (strcmp(argv[i], "seconds") == 0)
			seconds = number;
		else if (strcmp(argv[i], "files") == 0)
			nr_files = (unsigned)(number < MAX_FILES ? number : MAX_FILES);
		else if (strcmp(argv[i], "max") == 0)
			max_bytes = number;
		else if (strcmp(argv[i], "save") == 0)
			to = value;
		else if (strcmp(argv[i], "verbose") == 0)
			verbose = number;
		else
			return 2;
	}
	state = seed * 0x9e3779b97f4a7c15ull | 1;
	scratch = aligned_alloc(PAGE, (max_bytes + 200000) / PAGE * PAGE);
	if (!scratch)
		die("no memory");
	for (unsigned i = 0; i < nr_files; i++) {
		snprintf(slots[i].name, NAME_BYTES, "t%llu.%u", (unsigned long long)seed, i);
		slots[i].fd = -1;
	}
	time_t end = time(NULL) + (time_t)seconds;
	for (step = 0; seconds ? time(NULL) < end : step < max_ops; step++)
		one_step();
	finish(to);
	return 0;
}
