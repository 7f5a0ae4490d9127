/* countdown.c - preloaded into pacefs, makes the Nth call of a function fail. See sweep.
 *
 * PACEFS_COUNTDOWN names a file of a struct control, shared with who drives the test: it says
 * which call fails, and is told how many calls there were. Nothing is counted before it is
 * armed, and in no other program.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

/* The order is the control file's. */
#define CALLS(X)                                                                                                  \
	X(malloc)                                                                                                 \
	X(calloc)                                                                                                 \
	X(realloc)                                                                                                \
	X(aligned_alloc)                                                                                          \
	X(mmap) X(madvise) X(memfd_create) X(open) X(openat) X(open_by_handle_at) X(                              \
		name_to_handle_at) X(fopen) X(fcntl) X(close) X(pread) X(preadv) X(pwritev)                       \
		X(sync_file_range) X(fsync) X(fdatasync) X(syncfs) X(ftruncate) X(fallocate) X(                   \
			lseek) X(ioctl) X(syscall) X(stat) X(fstat) X(fstatat) X(statx) X(fstatfs)                \
			X(fstatvfs) X(futimens) X(utimensat) X(chmod) X(fchownat) X(readlink) X(                  \
				readlinkat) X(realpath) X(opendir) X(fdopendir) X(readdir) X(mkdir)               \
				X(mkdirat) X(mknodat) X(symlinkat) X(linkat) X(renameat2) X(                      \
					unlinkat) X(unlink) X(getxattr) X(setxattr) X(listxattr)                  \
					X(removexattr) X(readv) X(writev) X(read) X(write) X(                     \
						poll) X(epoll_create1) X(epoll_ctl) X(epoll_wait)                 \
						X(eventfd) X(pthread_create) X(unshare) X(                        \
							prctl) X(mount) X(umount2) X(flock)                       \
							X(fork) X(pipe2) X(io_uring_queue_init) X(                \
								io_uring_register_buffers_sparse)                 \
								X(io_uring_register_buffers_update_tag)           \
									X(io_uring_submit) X(                     \
										io_uring_submit_and_wait_timeout) \
										X(completion) X(                  \
											kick_completion)

#define AS_ENUM(name) CALL_##name,
#define AS_TEXT(name) #name,

enum call { CALLS(AS_ENUM) NR_CALLS };

static const char *const call_names[NR_CALLS] = {CALLS(AS_TEXT)};

enum { NAME_BYTES = 40, MAX_CALLS = 128, SHORT = -1 };

struct control {
	uint32_t armed;
	uint32_t nth;	/* the first call that fails, from 1; 0: none */
	uint32_t times; /* how many fail */
	int32_t error;	/* errno, or SHORT: half of it is done */
	uint32_t fired; /* how many did */
	uint32_t nr_calls;
	char call[NAME_BYTES];
	char where[216]; /* file and offset of who called */
	uint32_t counts[MAX_CALLS];
	char names[MAX_CALLS][NAME_BYTES];
};

static struct control *control;
static int wanted = -1;
static int fuse_fd = -1;

/* ---- memory before anything else works ---- */

static _Alignas(16) char early[8192];
static size_t early_used;
static volatile bool resolving; /* dlsym() comes back here, which its prototype denies */

static void *early_alloc(size_t bytes)
{
	size_t at = (early_used + 15) & ~(size_t)15;

	if (at + bytes > sizeof(early))
		return NULL;
	early_used = at + bytes;
	return early + at;
}

static void *next(const char *name)
{
	bool before = resolving;

	resolving = true;
	void *found = dlsym(RTLD_NEXT, name);
	resolving = before;
	return found;
}

/* ---- the countdown ---- */

static void note_caller(const void *caller)
{
	Dl_info info;

	if (!dladdr(caller, &info) || !info.dli_fname)
		return;
	snprintf(control->where, sizeof(control->where), "%.180s+0x%lx", info.dli_fname,
		(unsigned long)((const char *)caller - (const char *)info.dli_fbase) - 1);
}

/* The error this call is to fail with, or 0. */
static int hit(enum call call, const void *caller)
{
	if (!control || !__atomic_load_n(&control->armed, __ATOMIC_ACQUIRE))
		return 0;
	uint32_t n = __atomic_add_fetch(&control->counts[call], 1, __ATOMIC_RELAXED);
	if ((int)call != wanted || control->nth == 0 || n < control->nth ||
		n - control->nth >= control->times)
		return 0;
	if (__atomic_fetch_add(&control->fired, 1, __ATOMIC_RELAXED) == 0)
		note_caller(caller);
	return control->error;
}

__attribute__((constructor)) static void countdown_start(void)
{
	const char *path = getenv("PACEFS_COUNTDOWN");

	if (!path || strcmp(program_invocation_short_name, "pacefs") != 0)
		return;
	int (*real_open)(const char *, int, ...) = next("open");
	void *(*real_mmap)(void *, size_t, int, int, int, off_t) = next("mmap");
	int fd = real_open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return;
	struct control *c =
		real_mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	((int (*)(int))next("close"))(fd);
	if (c == MAP_FAILED)
		return;
	for (int i = 0; i < NR_CALLS; i++) {
		strcpy(c->names[i], call_names[i]);
		if (strcmp(c->call, call_names[i]) == 0)
			wanted = i;
	}
	c->nr_calls = NR_CALLS;
	control = c;
}

/* ---- plain functions ---- */

/* One function that returns type, and failed when it fails. Here it has another name, so that no
 * prototype of the headers is in the way. */
#define FAILS(type, failed, call, name, parameters, arguments)                                 \
	type my_##name parameters __asm__(#name);                                              \
	type my_##name parameters                                                              \
	{                                                                                      \
		static type(*real) parameters;                                                 \
		int error = hit(CALL_##call, __builtin_return_address(0));                     \
		if (error > 0) {                                                               \
			errno = error;                                                         \
			return failed;                                                         \
		}                                                                              \
		if (!real)                                                                     \
			real = (type(*) parameters)next(#name);                                \
		return real arguments;                                                         \
	}

/* For functions that return the error. */
#define RETURNS(sign, name, parameters, arguments)                                             \
	int my_##name parameters __asm__(#name);                                               \
	int my_##name parameters                                                               \
	{                                                                                      \
		static int(*real) parameters;                                                  \
		int error = hit(CALL_##name, __builtin_return_address(0));                     \
		if (error > 0)                                                                 \
			return sign error;                                                     \
		if (!real)                                                                     \
			real = (int(*) parameters)next(#name);                                 \
		return real arguments;                                                         \
	}

/* With what may follow: at most five more words. */
#define VARIADIC(type, call, name, fixed, last, arguments)                                     \
	type my_##name fixed __asm__(#name);                                                   \
	type my_##name fixed                                                                   \
	{                                                                                      \
		static type(*real) fixed;                                                      \
		unsigned long more[6];                                                         \
		va_list ap;                                                                    \
		va_start(ap, last);                                                            \
		for (int i = 0; i < 6; i++)                                                    \
			more[i] = va_arg(ap, unsigned long);                                   \
		va_end(ap);                                                                    \
		int error = hit(CALL_##call, __builtin_return_address(0));                     \
		if (error > 0) {                                                               \
			errno = error;                                                         \
			return -1;                                                             \
		}                                                                              \
		if (!real)                                                                     \
			real = (type(*) fixed)next(#name);                                     \
		return real arguments;                                                         \
	}

#define P void *
#define PC const void *
/* clang-format off */
FAILS(int, -1, madvise, madvise, (P a, size_t n, int advice), (a, n, advice))
FAILS(int, -1, memfd_create, memfd_create, (const char *s, unsigned f), (s, f))
FAILS(P, MAP_FAILED, mmap, mmap, (P a, size_t n, int p, int f, int fd, off_t o), (a, n, p, f, fd, o))
FAILS(P, MAP_FAILED, mmap, mmap64, (P a, size_t n, int p, int f, int fd, off_t o), (a, n, p, f, fd, o))
FAILS(int, -1, open, __open_2, (const char *s, int f), (s, f))
FAILS(int, -1, open, __open64_2, (const char *s, int f), (s, f))
FAILS(int, -1, openat, __openat64_2, (int d, const char *s, int f), (d, s, f))
VARIADIC(int, openat, openat, (int d, const char *s, int f, ...), f, (d, s, f, more[0]))
VARIADIC(int, openat, openat64, (int d, const char *s, int f, ...), f, (d, s, f, more[0]))
VARIADIC(int, fcntl, fcntl64, (int d, int f, ...), f, (d, f, more[0]))
VARIADIC(int, ioctl, ioctl, (int d, unsigned long f, ...), f, (d, f, more[0]))
VARIADIC(int, prctl, prctl, (int f, ...), f, (f, more[0], more[1], more[2], more[3]))
VARIADIC(long, syscall, syscall, (long f, ...), f, (f, more[0], more[1], more[2], more[3], more[4], more[5]))
FAILS(int, -1, open_by_handle_at, open_by_handle_at, (int d, P h, int f), (d, h, f))
FAILS(int, -1, name_to_handle_at, name_to_handle_at, (int d, const char *s, P h, int *m, int f), (d, s, h, m, f))
FAILS(P, NULL, fopen, fopen, (const char *s, const char *m), (s, m))
FAILS(P, NULL, fopen, fopen64, (const char *s, const char *m), (s, m))
FAILS(int, -1, sync_file_range, sync_file_range, (int d, off_t o, off_t n, unsigned f), (d, o, n, f))
FAILS(int, -1, fsync, fsync, (int d), (d))
FAILS(int, -1, fdatasync, fdatasync, (int d), (d))
FAILS(int, -1, syncfs, syncfs, (int d), (d))
FAILS(int, -1, ftruncate, ftruncate64, (int d, off_t o), (d, o))
FAILS(int, -1, fallocate, fallocate64, (int d, int m, off_t o, off_t n), (d, m, o, n))
FAILS(off_t, -1, lseek, lseek64, (int d, off_t o, int w), (d, o, w))
FAILS(int, -1, stat, stat64, (const char *s, P st), (s, st))
FAILS(int, -1, fstat, fstat64, (int d, P st), (d, st))
FAILS(int, -1, fstatat, fstatat64, (int d, const char *s, P st, int f), (d, s, st, f))
FAILS(int, -1, statx, statx, (int d, const char *s, int f, unsigned m, P st), (d, s, f, m, st))
FAILS(int, -1, fstatfs, fstatfs64, (int d, P st), (d, st))
FAILS(int, -1, fstatvfs, fstatvfs64, (int d, P st), (d, st))
FAILS(int, -1, futimens, futimens, (int d, PC t), (d, t))
FAILS(int, -1, utimensat, utimensat, (int d, const char *s, PC t, int f), (d, s, t, f))
FAILS(int, -1, chmod, chmod, (const char *s, mode_t m), (s, m))
FAILS(int, -1, fchownat, fchownat, (int d, const char *s, uid_t u, gid_t g, int f), (d, s, u, g, f))
FAILS(ssize_t, -1, readlink, readlink, (const char *s, char *b, size_t n), (s, b, n))
FAILS(ssize_t, -1, readlinkat, readlinkat, (int d, const char *s, char *b, size_t n), (d, s, b, n))
FAILS(char *, NULL, realpath, realpath, (const char *s, char *r), (s, r))
FAILS(char *, NULL, realpath, __realpath_chk, (const char *s, char *r, size_t n), (s, r, n))
FAILS(P, NULL, opendir, opendir, (const char *s), (s))
FAILS(P, NULL, fdopendir, fdopendir, (int d), (d))
FAILS(P, NULL, readdir, readdir64, (P d), (d))
FAILS(int, -1, mkdir, mkdir, (const char *s, mode_t m), (s, m))
FAILS(int, -1, mkdirat, mkdirat, (int d, const char *s, mode_t m), (d, s, m))
FAILS(int, -1, mknodat, mknodat, (int d, const char *s, mode_t m, dev_t v), (d, s, m, v))
FAILS(int, -1, symlinkat, symlinkat, (const char *t, int d, const char *s), (t, d, s))
FAILS(int, -1, linkat, linkat, (int d, const char *s, int e, const char *t, int f), (d, s, e, t, f))
FAILS(int, -1, renameat2, renameat2, (int d, const char *s, int e, const char *t, unsigned f), (d, s, e, t, f))
FAILS(int, -1, unlinkat, unlinkat, (int d, const char *s, int f), (d, s, f))
FAILS(int, -1, unlink, unlink, (const char *s), (s))
FAILS(ssize_t, -1, getxattr, getxattr, (const char *s, const char *n, P v, size_t l), (s, n, v, l))
FAILS(int, -1, setxattr, setxattr, (const char *s, const char *n, PC v, size_t l, int f), (s, n, v, l, f))
FAILS(ssize_t, -1, listxattr, listxattr, (const char *s, P v, size_t l), (s, v, l))
FAILS(int, -1, removexattr, removexattr, (const char *s, const char *n), (s, n))
FAILS(ssize_t, -1, readv, readv, (int d, PC v, int n), (d, v, n))
FAILS(ssize_t, -1, writev, writev, (int d, PC v, int n), (d, v, n))
FAILS(ssize_t, -1, read, read, (int d, P b, size_t n), (d, b, n))
FAILS(int, -1, poll, poll, (P f, nfds_t n, int ms), (f, n, ms))
FAILS(int, -1, epoll_create1, epoll_create1, (int f), (f))
FAILS(int, -1, epoll_ctl, epoll_ctl, (int e, int o, int d, P v), (e, o, d, v))
FAILS(int, -1, epoll_wait, epoll_wait, (int e, P v, int n, int ms), (e, v, n, ms))
FAILS(int, -1, eventfd, eventfd, (unsigned n, int f), (n, f))
FAILS(int, -1, unshare, unshare, (int f), (f))
FAILS(int, -1, mount, mount, (const char *s, const char *t, const char *y, unsigned long f, PC d), (s, t, y, f, d))
FAILS(int, -1, umount2, umount2, (const char *t, int f), (t, f))
FAILS(int, -1, flock, flock, (int d, int o), (d, o))
FAILS(pid_t, -1, fork, fork, (void), ())
FAILS(int, -1, pipe2, pipe2, (int *e, int f), (e, f))
RETURNS(, pthread_create, (pthread_t *t, PC a, P (*f)(P), P v), (t, a, f, v))
RETURNS(-, io_uring_queue_init, (unsigned n, P r, unsigned f), (n, r, f))
RETURNS(-, io_uring_register_buffers_sparse, (P r, unsigned n), (r, n))
RETURNS(-, io_uring_register_buffers_update_tag, (P r, unsigned o, PC v, PC t, unsigned n), (r, o, v, t, n))
/* clang-format on */

/* ---- functions with a behaviour of their own ---- */

/* The descriptor is gone all the same. */
int close(int fd)
{
	static int (*real)(int);
	int error = hit(CALL_close, __builtin_return_address(0));

	if (!real)
		real = (int (*)(int))next("close");
	int ret = real(fd);
	if (error <= 0)
		return ret;
	errno = error;
	return -1;
}

static int any_open(
	const char *name, const char *path, int flags, unsigned long mode, PC caller)
{
	int error = hit(CALL_open, caller);

	if (error > 0) {
		errno = error;
		return -1;
	}
	int fd = ((int (*)(const char *, int, ...))next(name))(path, flags, mode);
	if (fd >= 0 && strcmp(path, "/dev/fuse") == 0)
		fuse_fd = fd;
	return fd;
}

#define OPEN(name)                                                                             \
	int name(const char *path, int flags, ...)                                             \
	{                                                                                      \
		va_list ap;                                                                    \
		va_start(ap, flags);                                                           \
		unsigned long mode = va_arg(ap, unsigned long);                                \
		va_end(ap);                                                                    \
		return any_open(#name, path, flags, mode, __builtin_return_address(0));        \
	}

OPEN(open)
OPEN(open64)

/* To the kernel they are replies, whichever function sends them. */
ssize_t write(int fd, const void *data, size_t bytes)
{
	static ssize_t (*real)(int, const void *, size_t);
	enum call call = fd == fuse_fd ? CALL_writev : CALL_write;
	int error = hit(call, __builtin_return_address(0));

	if (!real)
		real = (ssize_t(*)(int, const void *, size_t))next("write");
	if (error <= 0)
		return real(fd, data, bytes);
	errno = error;
	return -1;
}

/* Half of the bytes, in whole sectors if there are so many. */
static size_t half(size_t bytes)
{
	return bytes >= 1024 ? bytes / 2 & ~(size_t)511 : bytes / 2;
}

typedef ssize_t vector_call(int, const struct iovec *, int, off_t);

static ssize_t vectored(enum call call, const char *name, int fd, const struct iovec *iov,
	int count, off_t offset, const void *caller)
{
	vector_call *real = (vector_call *)next(name);
	int error = hit(call, caller);

	if (error > 0) {
		errno = error;
		return -1;
	}
	if (error == SHORT) {
		struct iovec first = {iov[0].iov_base, half(iov[0].iov_len)};
		return real(fd, &first, 1, offset);
	}
	return real(fd, iov, count, offset);
}

ssize_t preadv64(int fd, const struct iovec *iov, int count, off_t offset)
{
	return vectored(
		CALL_preadv, "preadv64", fd, iov, count, offset, __builtin_return_address(0));
}

ssize_t pwritev64(int fd, const struct iovec *iov, int count, off_t offset)
{
	return vectored(
		CALL_pwritev, "pwritev64", fd, iov, count, offset, __builtin_return_address(0));
}

ssize_t pread64(int fd, void *data, size_t bytes, off_t offset)
{
	struct iovec iov = {data, bytes};

	return vectored(
		CALL_pread, "preadv64", fd, &iov, 1, offset, __builtin_return_address(0));
}

/* ---- allocation ---- */

void *malloc(size_t bytes)
{
	static void *(*real)(size_t);

	if (!real && resolving)
		return early_alloc(bytes);
	if (!real)
		real = (void *(*)(size_t))next("malloc");
	if (hit(CALL_malloc, __builtin_return_address(0))) {
		errno = ENOMEM;
		return NULL;
	}
	return real(bytes);
}

void *calloc(size_t count, size_t bytes)
{
	static void *(*real)(size_t, size_t);

	if (!real && resolving)
		return early_alloc(count * bytes); /* used once: still zero */
	if (!real)
		real = (void *(*)(size_t, size_t))next("calloc");
	if (hit(CALL_calloc, __builtin_return_address(0))) {
		errno = ENOMEM;
		return NULL;
	}
	return real(count, bytes);
}

void *realloc(void *old, size_t bytes)
{
	static void *(*real)(void *, size_t);

	if (!real)
		real = (void *(*)(void *, size_t))next("realloc");
	if (hit(CALL_realloc, __builtin_return_address(0))) {
		errno = ENOMEM;
		return NULL;
	}
	return real(old, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
	static void *(*real)(size_t, size_t);

	if (!real)
		real = (void *(*)(size_t, size_t))next("aligned_alloc");
	if (hit(CALL_aligned_alloc, __builtin_return_address(0))) {
		errno = ENOMEM;
		return NULL;
	}
	return real(alignment, bytes);
}

void free(void *data)
{
	static void (*real)(void *);

	if ((char *)data >= early && (char *)data < early + sizeof(early))
		return;
	if (!real && resolving)
		return;
	if (!real)
		real = (void (*)(void *))next("free");
	real(data);
}

/* ---- io_uring ---- */

/* A request that does nothing and completes with the error. */
static void fail_request(struct io_uring_sqe *sqe, uint64_t *ret_failed)
{
	uint64_t user_data = sqe->user_data;

	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = IORING_OP_NOP;
	sqe->user_data = user_data;
	*ret_failed = user_data;
}

/* What is really done is half of its first piece. */
static void shorten_request(struct io_uring_sqe *sqe)
{
	if (sqe->opcode == IORING_OP_READV || sqe->opcode == IORING_OP_WRITEV) {
		const struct iovec *iov = (const struct iovec *)(uintptr_t)sqe->addr;

		sqe->opcode = sqe->opcode == IORING_OP_READV ? IORING_OP_READ : IORING_OP_WRITE;
		sqe->addr = (uintptr_t)iov[0].iov_base;
		sqe->len = (unsigned)half(iov[0].iov_len);
	} else if (sqe->opcode == IORING_OP_WRITE_FIXED) {
		sqe->len = (unsigned)half(sqe->len);
	}
}

enum { MAX_FAILED = 64 };

/* Only the flusher's thread submits. */
static uint64_t failed[MAX_FAILED];
static unsigned nr_failed;
static unsigned counted; /* of the queue's entries, by their number */

static void count_requests(struct io_uring *ring, const void *caller)
{
	nr_failed = 0;
	for (; counted != ring->sq.sqe_tail; counted++) {
		struct io_uring_sqe *sqe = &ring->sq.sqes[counted & ring->sq.ring_mask];
		/* The only plain read is that of the eventfd. */
		bool kick = sqe->opcode == IORING_OP_READ;
		int error = hit(kick ? CALL_kick_completion : CALL_completion, caller);

		if (error > 0 && nr_failed < MAX_FAILED)
			fail_request(sqe, &failed[nr_failed++]);
		else if (error == SHORT)
			shorten_request(sqe);
	}
}

/* They completed as they were submitted. */
static void fail_completions(struct io_uring *ring)
{
	unsigned tail = __atomic_load_n(ring->cq.ktail, __ATOMIC_ACQUIRE);

	for (unsigned at = *ring->cq.khead; nr_failed && at != tail; at++) {
		struct io_uring_cqe *cqe = &ring->cq.cqes[at & ring->cq.ring_mask];
		for (unsigned i = 0; i < nr_failed; i++)
			if (cqe->user_data == failed[i])
				cqe->res = -control->error;
	}
}

int io_uring_submit(struct io_uring *ring)
{
	static int (*real)(struct io_uring *);
	const void *caller = __builtin_return_address(0);
	int error = hit(CALL_io_uring_submit, caller);

	if (!real)
		real = (int (*)(struct io_uring *))next("io_uring_submit");
	if (error > 0)
		return -error;
	count_requests(ring, caller);
	int ret = real(ring);
	fail_completions(ring);
	return ret;
}

int io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe,
	unsigned nr, struct __kernel_timespec *ts, sigset_t *mask)
{
	static int (*real)(struct io_uring *, struct io_uring_cqe **, unsigned,
		struct __kernel_timespec *, sigset_t *);
	const void *caller = __builtin_return_address(0);
	int error = hit(CALL_io_uring_submit_and_wait_timeout, caller);

	if (!real)
		real = (int (*)(struct io_uring *, struct io_uring_cqe **, unsigned,
			struct __kernel_timespec *,
			sigset_t *))next("io_uring_submit_and_wait_timeout");
	if (error > 0)
		return -error;
	count_requests(ring, caller);
	int ret = real(ring, cqe, nr, ts, mask);
	fail_completions(ring);
	return ret;
}
