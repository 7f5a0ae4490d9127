#include "backend/store/store.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>

enum {
	MAX_BUFFERS = 4096,
	SYNC_WAIT_ALL =
		SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER
};

struct uring_engine {
	struct store_engine base;
	struct io_uring ring;
	int kick_fd;
	uint64_t kick_value; /* the eventfd is read into it */
	bool kick_armed;
	bool fixed; /* registered buffers are to be had */
	bool full;  /* ... but no more: the next ones would leave a gap */
	unsigned nr_buffers;
	struct iovec buffers[MAX_BUFFERS];
};

static char kick_mark; /* user_data of the eventfd read */

static struct uring_engine *of(struct store_engine *e)
{
	return (struct uring_engine *)e;
}

/* An SQE, making room by submitting when the queue is full. */
static struct io_uring_sqe *get_sqe(struct uring_engine *u)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

	if (!sqe && io_uring_submit(&u->ring) >= 0)
		sqe = io_uring_get_sqe(&u->ring);
	return sqe;
}

/* Registered buffer that holds this piece of memory, or -1. */
static int buffer_of(const struct uring_engine *u, const struct iovec *piece)
{
	const char *from = piece->iov_base;

	if (!u->fixed || u->nr_buffers == 0)
		return -1;
	/* All buffers are of the size of the first one and lie one after another. */
	const char *base = u->buffers[0].iov_base;
	size_t each = u->buffers[0].iov_len;
	if (from < base)
		return -1;
	size_t i = (size_t)(from - base) / each;
	if (i >= u->nr_buffers || (size_t)(from - base) % each + piece->iov_len > each)
		return -1;
	return (int)i;
}

static int uring_submit(struct store_engine *e, struct store_io *io)
{
	struct uring_engine *u = of(e);
	struct io_uring_sqe *sqe = get_sqe(u);

	if (!sqe)
		return -EBUSY;
	int buffer = io->nr_iov == 1 ? buffer_of(u, &io->iov[0]) : -1;
	switch (io->op) {
	case STORE_WRITE:
		if (buffer >= 0)
			io_uring_prep_write_fixed(sqe, io->fd, io->iov[0].iov_base,
				(unsigned)io->iov[0].iov_len, io->offset, buffer);
		else
			io_uring_prep_writev(sqe, io->fd, io->iov, io->nr_iov, io->offset);
		break;
	case STORE_READ:
		io_uring_prep_readv(sqe, io->fd, io->iov, io->nr_iov, io->offset);
		break;
	case STORE_RANGE_SYNC:
		io_uring_prep_sync_file_range(
			sqe, io->fd, io->bytes, io->offset, SYNC_WAIT_ALL);
		break;
	}
	io_uring_sqe_set_data(sqe, io);
	return 0;
}

static void arm_kick(struct uring_engine *u)
{
	struct io_uring_sqe *sqe = get_sqe(u);

	if (!sqe)
		return;
	io_uring_prep_read(sqe, u->kick_fd, &u->kick_value, sizeof(u->kick_value), 0);
	io_uring_sqe_set_data(sqe, &kick_mark);
	u->kick_armed = true;
}

static unsigned uring_reap(
	struct store_engine *e, uint64_t timeout_us, struct store_io **ret_ios, unsigned max)
{
	struct uring_engine *u = of(e);
	struct io_uring_cqe *cqe;
	unsigned n = 0;
	struct __kernel_timespec ts = {
		.tv_sec = (long long)(timeout_us / 1000000),
		.tv_nsec = (long long)(timeout_us % 1000000 * 1000),
	};

	if (!u->kick_armed)
		arm_kick(u);
	if (timeout_us)
		io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, &ts, NULL);
	else
		io_uring_submit(&u->ring);
	while (n < max && io_uring_peek_cqe(&u->ring, &cqe) == 0) {
		void *data = io_uring_cqe_get_data(cqe);
		if (data == &kick_mark) {
			u->kick_armed = false;
		} else if (data) {
			struct store_io *io = data;
			io->result = cqe->res;
			ret_ios[n++] = io;
		}
		io_uring_cqe_seen(&u->ring, cqe);
	}
	return n;
}

static void uring_add_memory(struct store_engine *e, void *base, size_t bytes)
{
	struct uring_engine *u = of(e);
	struct iovec *slot = &u->buffers[u->nr_buffers];
	__u64 tag = 0;

	if (!u->fixed || u->full || u->nr_buffers == MAX_BUFFERS)
		return;
	*slot = (struct iovec){.iov_base = base, .iov_len = bytes};
	if (io_uring_register_buffers_update_tag(&u->ring, u->nr_buffers, slot, &tag, 1) < 0)
		u->full = true; /* what is registered stays in use */
	else
		u->nr_buffers++;
}

static void uring_destroy(struct store_engine *e)
{
	io_uring_queue_exit(&of(e)->ring);
	free(e);
}

static const struct store_engine_ops uring_ops = {
	.name = "io_uring",
	.submit = uring_submit,
	.reap = uring_reap,
	.add_memory = uring_add_memory,
	.destroy = uring_destroy,
};

int store_uring_create(unsigned depth, int kick_fd, struct store_engine **ret_engine)
{
	struct uring_engine *u = calloc(1, sizeof(*u));

	if (!u)
		return -ENOMEM;
	/* One more for the kick. The wait below needs EXT_ARG (5.11). */
	int ret = io_uring_queue_init(depth + 1, &u->ring, 0);
	if (ret < 0 || !(u->ring.features & IORING_FEAT_EXT_ARG)) {
		if (ret == 0)
			io_uring_queue_exit(&u->ring);
		free(u);
		return ret < 0 ? ret : -ENOSYS;
	}
	u->base.ops = &uring_ops;
	u->kick_fd = kick_fd;
	u->fixed = io_uring_register_buffers_sparse(&u->ring, MAX_BUFFERS) == 0;
	*ret_engine = &u->base;
	return 0;
}
