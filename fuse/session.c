#include "fuse/session.h"

#include "fuse/node.h"
#include "fuse/ops.h"
#include "fuse/request.h"
#include "util/clock.h"
#include "util/log.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
	HEADER_BYTES = sizeof(struct fuse_in_header) + sizeof(struct fuse_write_in),
	/* The least: SETXATTR of 64 KiB and its name. Batches of FORGET fill what there is. */
	OTHER_BYTES = 96 * 1024,
	READERS_AT_START = 2,
	READERS_IDLE_MOST = 6,
	READERS_MOST = 64,
	/* Waking an idle CPU costs about 90 us, as much as twenty small requests: one reader
	 * looks again and again for this long after the last request before it sleeps. */
	SPIN_US = 60,
};

struct reader {
	struct session *s;
	unsigned char *linear; /* header, and the whole of what is not a WRITE */
	uint32_t frames[WRITE_MAX_FRAMES];
	unsigned nr_frames; /* held, from frames[0] */
	struct iovec iov[WRITE_MAX_FRAMES + 1];
	struct payload payload;
	bool blocking;
	int epoll_fd; /* to wait with: one reader wakes up for one request */
	unsigned tries;
	bool found_one; /* the last try without waiting had a request */
};

struct session {
	struct pacefs *p;
	int fd;
	void (*destroy)(void *p);
	unsigned want_frames; /* per reader */
	pthread_mutex_t spawn_lock;
	pthread_cond_t gone; /* a reader ended */
	unsigned nr_readers, nr_blocking;
	unsigned nr_leaving; /* readers that no longer count, and are not gone yet */
	atomic_bool spinning, ended;
	atomic_bool destroyed;		/* DESTROY came */
	atomic_bool told_unsound;	/* in the log, once */
	unsigned spin_fails, spin_skip; /* whoever has set spinning */
	int error;
};

static _Thread_local struct reader *current;
static struct session session; /* one mount per process */

static void *reader_main(void *arg);

/* ---- hooks for libfuse ---- */

/* libfuse 3.14 knows no HANDLE_KILLPRIV_V2: the bit goes into the INIT reply on its way out. */
static void patch_init_reply(const struct iovec *iov, int count)
{
	static atomic_bool done;

	if (atomic_load_explicit(&done, memory_order_relaxed) || !current)
		return;
	const struct fuse_in_header *in = (const void *)current->linear;
	if (in->opcode != FUSE_INIT || count < 2 ||
		iov[1].iov_len < sizeof(struct fuse_init_out))
		return;
	const struct fuse_init_in *init = (const void *)(current->linear + sizeof(*in));
	struct fuse_init_out *out = iov[1].iov_base;
	if (init->flags & FUSE_HANDLE_KILLPRIV_V2) {
		out->flags |= FUSE_HANDLE_KILLPRIV_V2;
		out->flags &= ~(uint32_t)FUSE_HANDLE_KILLPRIV;
	}
	atomic_store(&done, true);
}

static bool connection_ended(int error)
{
	return error == ENODEV || error == ENOTCONN || error == ECONNABORTED;
}

/* Bytes, or -1 and errno. ENOENT: nobody waits for this answer. */
static ssize_t send_reply(int fd, const struct iovec *iov, int count)
{
	enum { TRIES = 100 }; /* with a millisecond between two: memory may come back */
	const struct fuse_out_header *reply = iov[0].iov_base;
	ssize_t n;

	for (int i = 0; i < TRIES; i++) {
		n = writev(fd, iov, count);
		if (n >= 0 || (errno != EINTR && errno != EAGAIN && errno != ENOMEM))
			break;
		usleep(1000);
	}
	if (n >= 0 || errno == ENOENT || connection_ended(errno))
		return n;
	log_warn("a reply was not taken: %s", strerror(errno));
	/* Who waits for it must not wait for ever. */
	struct fuse_out_header out = {
		.len = sizeof(out), .error = -EIO, .unique = reply->unique};
	if (out.unique && write(fd, &out, sizeof(out)) >= 0)
		errno = ENOENT;
	return -1;
}

static ssize_t hook_writev(int fd, struct iovec *iov, int count, void *userdata)
{
	patch_init_reply(iov, count);
	return send_reply(fd, iov, count);
}

static ssize_t hook_read(int fd, void *buf, size_t bytes, void *userdata)
{
	return read(fd, buf, bytes);
}

/* ---- readers ---- */

static void spawn_reader(struct session *s)
{
	pthread_attr_t attr;
	pthread_t thread;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 256 * 1024);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &attr, reader_main, s) == 0)
		s->nr_readers++;
	pthread_attr_destroy(&attr);
}

static void free_frames(struct reader *r)
{
	domain_lock(&r->s->p->dom);
	for (unsigned i = 0; i < r->nr_frames; i++)
		cache_free_held(&r->s->p->dom, r->frames[i]);
	r->nr_frames = 0;
	domain_unlock(&r->s->p->dom);
}

static bool holds_lent(const struct reader *r)
{
	for (unsigned i = 0; i < r->nr_frames; i++)
		if (arena_is_lent(&r->s->p->dom.arena, r->frames[i]))
			return true;
	return false;
}

/* Many that wait need no memory to receive into meanwhile. What is not a WRITE lies in linear. */
static void lend_frames(struct reader *r)
{
	const struct fuse_in_header *in = (const void *)r->linear;

	if (in->opcode != FUSE_WRITE)
		free_frames(r);
}

void session_block_begin(void)
{
	struct reader *r = current;

	if (!r || r->blocking)
		return;
	r->blocking = true;
	pthread_mutex_lock(&r->s->spawn_lock);
	bool many = r->s->nr_blocking++ >= READERS_IDLE_MOST;
	if (r->s->nr_readers - r->s->nr_blocking < 1 && r->s->nr_readers < READERS_MOST)
		spawn_reader(r->s);
	pthread_mutex_unlock(&r->s->spawn_lock);
	if (many)
		lend_frames(r);
}

void session_block_end(void)
{
	struct reader *r = current;

	if (!r || !r->blocking)
		return;
	r->blocking = false;
	pthread_mutex_lock(&r->s->spawn_lock);
	r->s->nr_blocking--;
	pthread_mutex_unlock(&r->s->spawn_lock);
}

struct payload *session_payload(void)
{
	return &current->payload;
}

static const void *request_body(void)
{
	return current->linear + sizeof(struct fuse_in_header);
}

bool session_write_kills_privs(void)
{
	const struct fuse_write_in *in = request_body();

	return in->write_flags & FUSE_WRITE_KILL_SUIDGID;
}

bool session_open_kills_privs(void)
{
	const struct fuse_open_in *in = request_body();

	return in->open_flags & FUSE_OPEN_KILL_SUIDGID;
}

bool session_setattr_kills_privs(void)
{
	const struct fuse_setattr_in *in = request_body();

	return in->valid & FATTR_KILL_SUIDGID;
}

/* Frames for the next payload; waits for memory when there is none at all. */
static void refill(struct reader *r)
{
	struct session *s = r->s;
	struct device *dev = &s->p->backing.dev;
	bool waiting = false;

	if (r->nr_frames == s->want_frames)
		return;
	domain_lock(&s->p->dom);
	for (;;) {
		r->nr_frames += cache_alloc(
			&s->p->dom, s->want_frames - r->nr_frames, r->frames + r->nr_frames);
		if (r->nr_frames == s->want_frames)
			break;
		/* All memory is dirty: the flusher must make some of it clean. */
		dev->nr_blocked += !waiting;
		waiting = true;
		device_kick(dev);
		domain_unlock(&s->p->dom);
		usleep(1000);
		domain_lock(&s->p->dom);
	}
	dev->nr_blocked -= waiting;
	domain_unlock(&s->p->dom);
}

static int describe(struct reader *r)
{
	const struct arena *a = &r->s->p->dom.arena;
	int n = 0;

	r->iov[n++] = (struct iovec){.iov_base = r->linear, .iov_len = HEADER_BYTES};
	for (unsigned i = 0; i < r->nr_frames; i++) {
		unsigned char *data = arena_data(a, r->frames[i]);
		struct iovec *last = &r->iov[n - 1];
		if (n > 1 && (unsigned char *)last->iov_base + last->iov_len == data)
			last->iov_len += PAGE_BYTES;
		else
			r->iov[n++] = (struct iovec){.iov_base = data, .iov_len = PAGE_BYTES};
	}
	return n;
}

static bool would_wait(ssize_t n)
{
	return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

/* Stay awake for a moment. Where that is in vain (the writer is paused, or needs the CPU we spin
 * on) it is tried ever more rarely, where it helps each time. */
static bool spin(struct reader *r)
{
	enum { FAILS_MOST = 6 };
	struct session *s = r->s;
	struct pollfd pfd = {.fd = s->fd, .events = POLLIN};
	int ready;

	if (atomic_exchange_explicit(&s->spinning, true, memory_order_acquire))
		return false;
	if (s->spin_skip) {
		s->spin_skip--;
		ready = 0;
	} else {
		uint64_t until = clock_now_us() + SPIN_US;
		do {
			/* Cheaper than trying to read: no list of pieces to hand over. */
			ready = poll(&pfd, 1, 0);
		} while (ready == 0 && clock_now_us() < until);
		if (ready)
			s->spin_fails = 0;
		else if (s->spin_fails < FAILS_MOST)
			s->spin_fails++;
		s->spin_skip = (1u << s->spin_fails) - 1;
	}
	atomic_store_explicit(&s->spinning, false, memory_order_release);
	return ready != 0;
}

/* Until there may be a request. An idle reader keeps no lent memory from being given back.
 * Returns the pieces to receive into, nr_iov if they are the same. */
static int sleep_for_request(struct reader *r, int nr_iov)
{
	enum { LOOK_MS = 1000 }; /* another reader may have seen the end */
	struct epoll_event event;

	if (epoll_wait(r->epoll_fd, &event, 1, LOOK_MS) != 0 || !holds_lent(r))
		return nr_iov;
	free_frames(r);
	refill(r);
	return describe(r);
}

/* The next request. Bytes, or -errno (ENODEV: unmounted). */
static ssize_t receive(struct reader *r)
{
	enum { RETRY_EVERY = 16 }; /* see whether several write by now */
	struct session *s = r->s;
	int nr_iov = describe(r);
	/* One writer alone sends its next request only after the answer: a try at once is in
	 * vain. Several have one waiting. */
	bool wait_first = !r->found_one;

	for (bool waited = false;; waited = true) {
		if (wait_first && !waited) {
			if (!spin(r))
				nr_iov = sleep_for_request(r, nr_iov);
			continue;
		}
		ssize_t n = readv(s->fd, r->iov, nr_iov);
		if (n >= 0) {
			r->found_one = !waited || (++r->tries % RETRY_EVERY == 0);
			return n;
		}
		if (errno == EINTR ||
			errno == ENOENT) /* ENOENT: it was interrupted meanwhile */
			continue;
		if (!would_wait(n))
			return -errno;
		if (spin(r))
			continue;
		if (atomic_load(&s->ended))
			return -ENODEV;
		nr_iov = sleep_for_request(r, nr_iov);
	}
}

static int reader_poll_init(struct reader *r)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE};

	r->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (r->epoll_fd < 0)
		return -errno;
	return epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, r->s->fd, &event) < 0 ? -errno : 0;
}

/* As much as can be received; untouched memory costs nothing. */
static size_t linear_bytes(const struct session *s)
{
	return PAGE_BYTES + (size_t)s->want_frames * PAGE_BYTES;
}

/* What is not a WRITE must lie in one piece for libfuse. */
static int make_linear(struct reader *r, size_t bytes)
{
	const struct arena *a = &r->s->p->dom.arena;
	size_t done = HEADER_BYTES;

	if (bytes > linear_bytes(r->s))
		return -E2BIG;
	for (unsigned i = 0; done < bytes; i++) {
		size_t piece = bytes - done < PAGE_BYTES ? bytes - done : PAGE_BYTES;
		memcpy(r->linear + done, arena_data(a, r->frames[i]), piece);
		done += piece;
	}
	return 0;
}

static void answer(struct session *s, uint64_t unique, int error)
{
	struct fuse_out_header out = {
		.len = sizeof(out),
		.error = error,
		.unique = unique,
	};

	send_reply(s->fd, &(struct iovec){&out, sizeof(out)}, 1);
}

static void serve_syncfs(struct session *s, const struct fuse_in_header *in)
{
	session_block_begin();
	int ret = flusher_sync(&s->p->backing.flusher);
	session_block_end();
	/* What was lost since the last one that asked: syncfs does not succeed silently. */
	domain_lock(&s->p->dom);
	if (ret == 0 && s->p->errors_told != s->p->backing.dev.errors)
		ret = -EIO;
	s->p->errors_told = s->p->backing.dev.errors;
	domain_unlock(&s->p->dom);
	answer(s, in->unique, ret);
}

/* 0 when the operations may see it; else -errno. */
static int inspect(struct reader *r, size_t bytes)
{
	const struct fuse_in_header *in = (const void *)r->linear;
	struct session *s = r->s;

	if (in->opcode != FUSE_WRITE && make_linear(r, bytes) < 0)
		return -E2BIG;
	int ret = request_check(r->linear, bytes);
	if (ret < 0 && ret != -ENOSYS && !atomic_exchange(&s->told_unsound, true))
		log_warn("a request of the kernel is not sound (opcode %u, %zu bytes): refused",
			in->opcode, bytes);
	/* Nothing comes after DESTROY but late FORGETs: what the rest needs is closed. */
	if (ret == 0 && request_wants_answer(in) && atomic_load(&s->destroyed))
		ret = -ENODEV;
	if (ret == 0 && in->opcode == FUSE_DESTROY)
		atomic_store(&s->destroyed, true);
	return ret;
}

/* The payload of a WRITE; the number of its frames. */
static unsigned take_payload(struct reader *r)
{
	const struct fuse_write_in *w = request_body();
	unsigned frames = (w->size + PAGE_BYTES - 1) / PAGE_BYTES;

	r->payload = (struct payload){
		.offset = w->offset,
		.bytes = w->size,
		.nr_frames = frames,
		.frames = r->frames,
	};
	return frames;
}

static void serve(struct reader *r, size_t bytes)
{
	struct session *s = r->s;
	const struct fuse_in_header *in = (const void *)r->linear;
	struct fuse_buf buf = {.mem = r->linear, .size = bytes};
	unsigned used = 0;

	int ret = inspect(r, bytes);
	if (ret == 0 && in->opcode == FUSE_WRITE && (used = take_payload(r)) > r->nr_frames)
		ret = -EIO;
	if (ret < 0) {
		if (request_wants_answer(in))
			answer(s, in->unique, ret);
		return;
	}
	log_debug("opcode %u by thread %u for node %llu, %zu bytes", in->opcode, in->pid,
		(unsigned long long)in->nodeid, bytes);
	/* umount must wait also when libfuse has no memory to tell us of it. */
	if (in->opcode == FUSE_DESTROY && s->destroy)
		s->destroy(s->p);
	if (in->opcode == FUSE_SYNCFS)
		serve_syncfs(s, in);
	else
		fuse_session_process_buf(s->p->session, &buf);
	/* Frames that were taken are gone from the front. */
	unsigned kept = 0;
	for (unsigned i = 0; i < r->nr_frames; i++)
		if (i >= used || r->frames[i] != FRAME_NONE)
			r->frames[kept++] = r->frames[i];
	r->nr_frames = kept;
	/* A busy reader that receives no data keeps no lent memory from being given back; one that
	 * does has other frames each time. */
	if (in->opcode != FUSE_WRITE && holds_lent(r))
		free_frames(r);
}

/* There are more readers than need be, and this one goes. It counts as gone at once, or all those
 * that end a wait together would go together, and nobody would be left. */
static bool leave_as_surplus(struct session *s)
{
	pthread_mutex_lock(&s->spawn_lock);
	bool leave = s->nr_readers - s->nr_blocking > READERS_IDLE_MOST;
	s->nr_readers -= leave;
	s->nr_leaving += leave;
	pthread_mutex_unlock(&s->spawn_lock);
	return leave;
}

static void reader_finish(struct reader *r)
{
	free_frames(r);
	if (r->epoll_fd >= 0)
		close(r->epoll_fd);
	free(r->linear);
	free(r);
	current = NULL;
}

static void *reader_main(void *arg)
{
	struct session *s = arg;
	struct reader *r = calloc(1, sizeof(*r));
	ssize_t n = -ENOMEM;
	bool left = false, served = false;

	if (r)
		r->linear = aligned_alloc(PAGE_BYTES, linear_bytes(s));
	if (r && r->linear) {
		r->s = s;
		served = true;
		current = r;
		if (reader_poll_init(r) < 0)
			log_warn("a reader cannot wait for requests: %s", strerror(errno));
		/* An own umask and working directory: files are made with the caller's umask. */
		if (unshare(CLONE_FS) == 0)
			ops_thread_init();
		while (!atomic_load_explicit(&s->ended, memory_order_acquire)) {
			refill(r);
			n = receive(r);
			if (n < (ssize_t)sizeof(struct fuse_in_header))
				break;
			serve(r, (size_t)n);
			left = leave_as_surplus(s);
			if (left)
				break;
		}
		reader_finish(r);
	} else {
		free(r);
	}
	pthread_mutex_lock(&s->spawn_lock);
	if (left)
		s->nr_leaving--;
	else
		s->nr_readers--;
	/* Without memory for one more reader the others go on. */
	if (!left && (served || s->nr_readers == 0)) {
		atomic_store_explicit(&s->ended, true, memory_order_release);
		if (n < 0 && n != -ENODEV && n != -ECONNABORTED)
			s->error = (int)n;
	}
	pthread_cond_broadcast(&s->gone);
	pthread_mutex_unlock(&s->spawn_lock);
	return NULL;
}

/* ---- lifetime ---- */

int session_create(struct pacefs *p, const struct fuse_lowlevel_ops *ops)
{
	static const struct fuse_custom_io io = {.writev = hook_writev, .read = hook_read};
	char name[] = "pacefs";
	char *argv[] = {name, NULL};
	struct fuse_args args = FUSE_ARGS_INIT(1, argv);

	p->session = fuse_session_new(&args, ops, sizeof(*ops), p);
	fuse_opt_free_args(&args);
	if (!p->session)
		return -ENOMEM;
	if (fuse_session_custom_io(p->session, &io, p->mount.fuse_fd) != 0) {
		fuse_session_destroy(p->session);
		p->session = NULL;
		return -EINVAL;
	}
	int flags = fcntl(p->mount.fuse_fd, F_GETFL);
	if (flags < 0 || fcntl(p->mount.fuse_fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return -errno;
	session.p = p;
	session.destroy = ops->destroy;
	session.fd = p->mount.fuse_fd;
	session.want_frames = p->options.max_write / PAGE_BYTES;
	/* Room for the kernel's least buffer (8 KiB) and for what is not a WRITE. */
	if (session.want_frames < OTHER_BYTES / PAGE_BYTES)
		session.want_frames = OTHER_BYTES / PAGE_BYTES;
	pthread_mutex_init(&session.spawn_lock, NULL);
	pthread_cond_init(&session.gone, NULL);
	return 0;
}

int session_loop(struct pacefs *p)
{
	struct session *s = &session;

	pthread_mutex_lock(&s->spawn_lock);
	for (int i = 0; i < READERS_AT_START; i++)
		spawn_reader(s);
	if (s->nr_readers == 0)
		s->error = -EAGAIN;
	while (s->nr_readers + s->nr_leaving)
		pthread_cond_wait(&s->gone, &s->spawn_lock);
	pthread_mutex_unlock(&s->spawn_lock);
	return s->error;
}

void session_end(void)
{
	atomic_store_explicit(&session.ended, true, memory_order_release);
}

void session_cut(struct pacefs *p)
{
	/* Its last descriptor ends the connection. libfuse closes it once more, so it must not
	 * be anything else by then. */
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0)
		return; /* then session_destroy() does it */
	dup3(null, p->mount.fuse_fd, O_CLOEXEC);
	close(null);
}

void session_destroy(struct pacefs *p)
{
	if (p->session)
		fuse_session_destroy(p->session); /* closes the descriptor */
	p->session = NULL;
	p->mount.fuse_fd = -1;
}
