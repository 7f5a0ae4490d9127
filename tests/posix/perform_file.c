/* perform_file.c - operations on open files, and of opening. */

#include "twin.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { PAGE = 4096 };

static unsigned char data[DATA_MOST + PAGE] __attribute__((aligned(4096)));
static sigjmp_buf bus;

uint64_t hash_bytes(uint64_t h, const void *bytes, size_t n)
{
	const unsigned char *at = bytes;

	for (size_t i = 0; i < n; i++)
		h = (h ^ at[i]) * 1099511628211ull;
	return h ^ (h >> 29);
}

static void done(struct outcome *out, long ret)
{
	out->ret = ret;
	out->error = ret < 0 ? errno : 0;
}

static void note_read(struct outcome *out, long n)
{
	done(out, n);
	if (n > 0)
		out->hash = hash_bytes(0, data, (size_t)n);
}

static void close_slot(struct worker_files *files, int tree, unsigned slot)
{
	if (files->fd[tree][slot] >= 0)
		close(files->fd[tree][slot]);
	files->fd[tree][slot] = -1;
}

/* O_NONBLOCK: a FIFO would wait for the other end. */
static void do_open(struct worker_files *files, const struct trees *trees, int tree,
	const struct op *op, struct outcome *out)
{
	char name[16];

	close_slot(files, tree, op->slot);
	if (op->kind == OP_OPEN) {
		files->fd[tree][op->slot] = openat(trees->root[tree], op->path,
			op->flags | O_NONBLOCK | O_CLOEXEC, op->mode & 07777);
	} else {
		snprintf(name, sizeof(name), "t%u", op->worker);
		files->fd[tree][op->slot] = openat(
			trees->root[tree], name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		if (files->fd[tree][op->slot] >= 0)
			unlinkat(trees->root[tree], name, 0);
	}
	done(out, files->fd[tree][op->slot] >= 0 ? 0 : -1);
}

/* In one piece or several. */
static ssize_t write_some(int fd, const struct op *op, off_t offset)
{
	struct iovec iov[3];
	size_t third = op->length / 3;

	op_fill(op, data, op->length);
	if (op->flags != 3)
		return offset < 0 && op->kind == OP_WRITE
			? write(fd, data, op->length)
			: pwrite(fd, data, op->length, offset);
	for (int i = 0; i < 3; i++) {
		iov[i].iov_base = data + third * (size_t)i;
		iov[i].iov_len = i < 2 ? third : op->length - 2 * third;
	}
	return op->kind == OP_WRITE ? writev(fd, iov, 3) : pwritev(fd, iov, 3, offset);
}

/* Does [from, to) read as zeroes? */
static void check_hole(int fd, off_t from, off_t to, struct outcome *out)
{
	while (from < to) {
		size_t want = (size_t)(to - from) < DATA_MOST ? (size_t)(to - from) : DATA_MOST;
		ssize_t n = pread(fd, data, want, from);
		if (n <= 0)
			return; /* not open for reading */
		for (ssize_t i = 0; i < n; i++)
			if (data[i]) {
				snprintf(out->note, sizeof(out->note),
					"a hole hides data at %lld", (long long)from + i);
				return;
			}
		from += n;
	}
}

/* Where holes are is the filesystem's business, within reason. */
static void do_seek_hole(int fd, const struct op *op, struct outcome *out)
{
	struct stat st;
	int whence = op->flags & 1 ? SEEK_DATA : SEEK_HOLE;
	bool exists = fstat(fd, &st) == 0;

	if (op->offset < 0 || (exists && !S_ISREG(st.st_mode)))
		return; /* of directories, and of -1, each filesystem has its own mind */
	off_t at = lseek(fd, op->offset, whence);
	if (!exists || op->offset >= st.st_size) {
		done(out, at < 0 ? -1 : 0);
		return;
	}
	bool none = at < 0 && whence == SEEK_DATA && errno == ENXIO;
	if (at < 0 && !none)
		done(out, -1);
	else if (!none && (at < op->offset || at > st.st_size))
		snprintf(out->note, sizeof(out->note), "SEEK gave %lld of %lld", (long long)at,
			(long long)st.st_size);
	else if (whence == SEEK_DATA && st.st_size <= FILE_WHOLE)
		check_hole(fd, op->offset, none ? st.st_size : at, out);
	lseek(fd, op->offset2, SEEK_SET); /* the next write is at the same place in both */
}

/* A pipe holds pages, not copies: what it has of a file may change while it is written to. */
static bool same_file(int a, int b)
{
	struct stat sa, sb;

	return fstat(a, &sa) == 0 && fstat(b, &sb) == 0 && sa.st_ino == sb.st_ino;
}

/* All of it, however it is cut. */
static void do_copy(int from, int to, const struct op *op, struct outcome *out)
{
	off_t in = op->offset, at = op->offset2;
	size_t left = op->length;
	long sum = 0, n = 0;

	while (left) {
		if (op->kind == OP_COPY_RANGE)
			n = copy_file_range(from, &in, to, &at, left, 0);
		else
			n = sendfile(to, from, &in, left);
		if (n <= 0)
			break;
		sum += n;
		left -= (size_t)n;
	}
	done(out, n < 0 && sum == 0 ? -1 : sum);
}

static void do_splice(int from, int to, const struct op *op, struct outcome *out)
{
	int pipes[2];
	off_t in = op->offset, at = op->offset2;
	size_t length = op->length < 60000 ? op->length : 60000; /* what a pipe holds */

	if (pipe2(pipes, O_CLOEXEC | O_NONBLOCK) < 0)
		abort();
	long n = splice(from, &in, pipes[1], NULL, length, 0);
	done(out, n);
	while (n > 0) {
		long m = splice(pipes[0], NULL, to, &at, (size_t)n, 0);
		if (m <= 0) {
			done(out, m);
			break;
		}
		n -= m;
	}
	close(pipes[0]);
	close(pipes[1]);
}

static void on_bus(int number)
{
	siglongjmp(bus, number);
}

/* For what moves the times in one filesystem and not in the other: they are now, then. */
static bool times_are_now(int fd, struct outcome *out)
{
	done(out, futimens(fd, NULL));
	return out->ret == 0;
}

static void do_mmap(int fd, const struct op *op, struct outcome *out)
{
	bool shared = op->kind == OP_MMAP_SHARED;
	off_t start = op->offset2 & ~(off_t)(PAGE - 1);
	struct stat st;

	if (fstat(fd, &st) < 0) {
		done(out, -1);
		return;
	}
	if (!S_ISREG(st.st_mode) || start >= st.st_size)
		return; /* the same in both: compared by fstat */
	if (shared &&
		(fgetxattr(fd, "security.capability", NULL, 0) >= 0 || !times_are_now(fd, out)))
		return;
	size_t length = op->length % DATA_MOST + 1;
	size_t inside = (size_t)(st.st_size - start);
	if (length > inside)
		length = inside;
	unsigned char *map = mmap(NULL, length, PROT_READ | PROT_WRITE,
		shared ? MAP_SHARED : MAP_PRIVATE, fd, start);
	if (map == MAP_FAILED) {
		done(out, -1);
		return;
	}
	signal(SIGBUS, on_bus);
	if (sigsetjmp(bus, 1)) {
		snprintf(out->note, sizeof(out->note), "SIGBUS inside of the file");
	} else {
		out->hash = hash_bytes(0, map, length);
		size_t from = op->salt % length, n = (length - from + 1) / 2;
		op_fill(op, data, n);
		memcpy(map + from, data, n);
		done(out, op->flags & 1 ? msync(map, length, MS_SYNC) : 0);
		out->hash = hash_bytes(out->hash, map, length);
	}
	signal(SIGBUS, SIG_DFL);
	munmap(map, length);
}

static void do_direct(
	const struct trees *trees, int tree, const struct op *op, struct outcome *out)
{
	int create = op->flags & 1 ? O_CREAT : 0;
	int fd = openat(trees->root[tree], op->path,
		O_RDWR | O_DIRECT | O_NONBLOCK | O_CLOEXEC | create, op->mode & 0777);
	struct stat st;
	size_t length = (op->length / PAGE % 32 + 1) * PAGE;
	off_t offset = op->offset2 & ~(off_t)(PAGE - 1);

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
		done(out, fd < 0 ? -1 : 0);
	} else if (op->flags & 2) {
		op_fill(op, data, length);
		done(out, pwrite(fd, data, length, offset));
	} else {
		note_read(out, pread(fd, data, length, offset));
	}
	if (fd >= 0)
		close(fd);
}

static void do_lock(int fd, const struct op *op, struct outcome *out)
{
	struct flock lock = {
		.l_type = (short)op->mode,
		.l_whence = SEEK_SET,
		.l_start = op->offset2,
		.l_len = (off_t)op->length,
	};

	done(out, fcntl(fd, op->flags, &lock));
	if (out->ret == 0 && (op->flags == F_GETLK || op->flags == F_OFD_GETLK)) {
		out->hash = hash_bytes((uint64_t)lock.l_type, &lock.l_pid, sizeof(lock.l_pid));
		if (lock.l_type != F_UNLCK)
			out->hash = hash_bytes(out->hash, &lock.l_start, 2 * sizeof(off_t));
	}
}

static void do_fallocate(int fd, const struct op *op, struct outcome *out)
{
	off_t offset = op->offset, length = (off_t)op->length;

	bool shifts = op->flags & (FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE);
	struct stat st;
	/* One that changes nothing takes set-user-id away here, and not from each filesystem. */
	if (fstat(fd, &st) == 0 && st.st_mode & (S_ISUID | S_ISGID))
		return;
	if (!shifts && !times_are_now(fd, out))
		return;
	if (shifts) {
		offset = op->offset2 & ~(off_t)(PAGE - 1);
		length = (length / PAGE + 1) * PAGE;
	}
	done(out, fallocate(fd, op->flags, offset, length));
}

static void do_sync(int fd, const struct op *op, struct outcome *out)
{
	done(out,
		op->flags == 0		 ? fsync(fd)
			: op->flags == 1 ? fdatasync(fd)
			: op->flags == 2 ? sync_file_range(fd, op->offset2, (off_t)op->length,
						   SYNC_FILE_RANGE_WRITE)
					 : syncfs(fd));
}

static void do_seek(int fd, const struct op *op, struct outcome *out)
{
	static const int whence[] = {SEEK_SET, SEEK_CUR, SEEK_END, 99};
	struct stat st;

	/* Of a directory they are cookies. */
	if (op->offset > LARGEST || (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)))
		return;
	done(out, lseek(fd, op->offset, whence[op->flags]));
}

bool perform_file(struct worker_files *files, const struct trees *trees, int tree,
	const struct op *op, struct outcome *out)
{
	int fd = files->fd[tree][op->slot], fd2 = files->fd[tree][op->slot2], bytes;
	struct iovec iov[2] = {{data, op->length / 2}, {data + op->length / 2, op->length / 2}};

	switch (op->kind) {
	case OP_OPEN:
	case OP_OPEN_UNLINKED:
		do_open(files, trees, tree, op, out);
		return true;
	case OP_CLOSE:
		done(out, close(fd));
		files->fd[tree][op->slot] = -1;
		return true;
	case OP_READ:
		note_read(out, read(fd, data, op->length));
		return true;
	case OP_PREAD:
		note_read(out,
			op->flags == 3 ? preadv(fd, iov, 2, op->offset)
				       : pread(fd, data, op->length, op->offset));
		return true;
	case OP_WRITE:
		done(out, write_some(fd, op, -1));
		return true;
	case OP_PWRITE:
		done(out, write_some(fd, op, op->offset));
		return true;
	case OP_SEEK:
		do_seek(fd, op, out);
		return true;
	case OP_SEEK_HOLE:
		do_seek_hole(fd, op, out);
		return true;
	case OP_FTRUNCATE:
		done(out, ftruncate(fd, op->offset));
		return true;
	case OP_FALLOCATE:
		do_fallocate(fd, op, out);
		return true;
	case OP_COPY_RANGE:
	case OP_SENDFILE:
		if (op->kind == OP_COPY_RANGE || !same_file(fd, fd2))
			do_copy(fd, fd2, op, out);
		return true;
	case OP_SPLICE:
		if (!same_file(fd, fd2))
			do_splice(fd, fd2, op, out);
		return true;
	case OP_MMAP_SHARED:
	case OP_MMAP_PRIVATE:
		do_mmap(fd, op, out);
		return true;
	case OP_DIRECT:
		do_direct(trees, tree, op, out);
		return true;
	case OP_FSYNC:
		do_sync(fd, op, out);
		return true;
	case OP_FSTAT:
		return true; /* compared after each operation */
	case OP_FCHMOD:
		done(out, fchmod(fd, op->mode & 07777));
		return true;
	case OP_FCHOWN:
		done(out, fchown(fd, op->uid, op->gid));
		return true;
	case OP_FUTIMENS:
		done(out, futimens(fd, op->times));
		return true;
	case OP_FLOCK:
		done(out, flock(fd, op->flags | LOCK_NB));
		return true;
	case OP_LOCK:
		do_lock(fd, op, out);
		return true;
	case OP_IOCTL:
		bytes = 0;
		done(out,
			ioctl(fd, op->flags & 1 ? (unsigned long)FIONREAD : _IO('~', 77),
				&bytes));
		out->hash = (uint64_t)bytes;
		return true;
	default:
		return false;
	}
}
