#include "backend/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

struct sync_engine {
	struct store_engine base;
	int kick_fd;
	struct store_io *done;
};

static struct sync_engine *of(struct store_engine *e)
{
	return (struct sync_engine *)e;
}

static int sync_submit(struct store_engine *e, struct store_io *io)
{
	ssize_t ret = 0;

	switch (io->op) {
	case STORE_WRITE:
		ret = pwritev(io->fd, io->iov, (int)io->nr_iov, (off_t)io->offset);
		break;
	case STORE_READ:
		ret = preadv(io->fd, io->iov, (int)io->nr_iov, (off_t)io->offset);
		break;
	case STORE_RANGE_SYNC:
		ret = sync_file_range(io->fd, (off_t)io->offset, io->bytes,
			SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
				SYNC_FILE_RANGE_WAIT_AFTER);
		break;
	}
	io->result = ret < 0 ? -errno : (int)ret;
	io->next = of(e)->done;
	of(e)->done = io;
	return 0;
}

static unsigned sync_reap(
	struct store_engine *e, uint64_t timeout_us, struct store_io **ret_ios, unsigned max)
{
	struct sync_engine *s = of(e);
	struct pollfd pfd = {.fd = s->kick_fd, .events = POLLIN};
	uint64_t value;
	unsigned n = 0;

	for (; s->done && n < max; s->done = s->done->next)
		ret_ios[n++] = s->done;
	int ms = n ? 0 : (int)((timeout_us + 999) / 1000);
	if (poll(&pfd, 1, ms) > 0 && read(s->kick_fd, &value, sizeof(value)) < 0)
		return n; /* another reader was faster: nothing lost */
	return n;
}

static void sync_add_memory(struct store_engine *e, void *base, size_t bytes)
{
}

static void sync_destroy(struct store_engine *e)
{
	free(e);
}

static const struct store_engine_ops sync_ops = {
	.name = "sync",
	.submit = sync_submit,
	.reap = sync_reap,
	.add_memory = sync_add_memory,
	.destroy = sync_destroy,
};

int store_sync_create(int kick_fd, struct store_engine **ret_engine)
{
	struct sync_engine *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->base.ops = &sync_ops;
	s->kick_fd = kick_fd;
	*ret_engine = &s->base;
	return 0;
}
