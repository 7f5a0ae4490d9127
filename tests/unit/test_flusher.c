/* test_flusher.c - the flusher with an engine that does what disks and kernels do at times: short
 * writes, "again", an error once, an error for good. The file below is a real one. */
#include "backend/flush/flusher.h"
#include "util/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum fault { FAULT_NONE, FAULT_SHORT, FAULT_AGAIN, FAULT_ONCE, FAULT_ALWAYS, FAULT_RANGE };

struct faulty_engine {
	struct store_engine base;
	int kick_fd;
	enum fault fault;
	unsigned submitted, ranges;
	struct store_io *done;
};

enum { PAGES = 100 };

static struct {
	char dir[64];
	struct domain dom;
	struct device dev;
	struct store store;
	struct flusher flusher;
	struct node node;
	struct faulty_engine *engine;
	unsigned char want[PAGES * PAGE_BYTES];
} t;

static int write_some(struct faulty_engine *e, const struct store_io *io)
{
	enum { SOME = 3000 };
	size_t bytes = io->iov[0].iov_len < SOME ? io->iov[0].iov_len : SOME;
	ssize_t n;

	switch (e->fault) {
	case FAULT_SHORT:
		n = pwrite(io->fd, io->iov[0].iov_base, bytes, (off_t)io->offset);
		return n < 0 ? -errno : (int)n;
	case FAULT_AGAIN:
		/* More often for any request than an error would be tried. */
		if (e->submitted <= 50)
			return e->submitted % 2 ? -EAGAIN : -EINTR;
		break;
	case FAULT_ONCE:
		if (e->submitted == 1)
			return -EIO;
		break;
	case FAULT_ALWAYS:
		return -EIO;
	case FAULT_RANGE:
	case FAULT_NONE:
		break;
	}
	n = pwritev(io->fd, io->iov, (int)io->nr_iov, (off_t)io->offset);
	return n < 0 ? -errno : (int)n;
}

static int faulty_submit(struct store_engine *engine, struct store_io *io)
{
	struct faulty_engine *e = (struct faulty_engine *)engine;
	ssize_t n = 0;

	if (io->op == STORE_WRITE) {
		e->submitted++;
		n = write_some(e, io);
	} else if (io->op == STORE_READ) {
		n = preadv(io->fd, io->iov, (int)io->nr_iov, (off_t)io->offset);
	} else if (e->ranges++ == 0 && e->fault == FAULT_RANGE) {
		n = -EIO;
	}
	io->result = (int)n;
	io->next = e->done;
	e->done = io;
	return 0;
}

static unsigned faulty_reap(struct store_engine *engine, uint64_t timeout_us,
	struct store_io **ret_ios, unsigned max)
{
	struct faulty_engine *e = (struct faulty_engine *)engine;
	struct pollfd pfd = {.fd = e->kick_fd, .events = POLLIN};
	uint64_t value;
	unsigned n = 0;

	for (; e->done && n < max; e->done = e->done->next)
		ret_ios[n++] = e->done;
	if (poll(&pfd, 1, n ? 0 : (int)(timeout_us / 1000 + 1)) > 0 &&
		read(e->kick_fd, &value, sizeof(value)) < 0)
		return n;
	return n;
}

static void faulty_add_memory(struct store_engine *e, void *base, size_t bytes)
{
}

static void faulty_destroy(struct store_engine *e)
{
	free(e);
}

static const struct store_engine_ops faulty_ops = {
	.name = "faulty",
	.submit = faulty_submit,
	.reap = faulty_reap,
	.add_memory = faulty_add_memory,
	.destroy = faulty_destroy,
};

static int setup(void **state)
{
	char path[96];

	memset(&t, 0, sizeof(t));
	snprintf(t.dir, sizeof(t.dir), "/tmp/test_flusher.XXXXXX");
	assert_non_null(mkdtemp(t.dir));
	snprintf(path, sizeof(path), "%s/file", t.dir);
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	assert_true(fd >= 0);
	assert_int_equal(domain_init(&t.dom, 4096, 8192), 0);
	assert_int_equal(device_init(&t.dev, &t.dom, 1, "test"), 0);
	assert_int_equal(
		store_tree_init(&t.store, open(t.dir, O_PATH | O_DIRECTORY), false), 0);
	t.store.buffered = true; /* any length may be written */
	t.engine = calloc(1, sizeof(*t.engine));
	t.engine->base.ops = &faulty_ops;
	t.engine->kick_fd = t.dev.kick_fd;
	t.dev.limit_pages = 4096;
	t.dev.bytes_per_s = 50e6;
	node_init(&t.node, &t.dev, 100, 0);
	t.node.refs = 1;
	t.node.file_users = 1;
	assert_int_equal(store_file_open(&t.store, fd, &t.node.file), 0);
	close(fd);
	assert_int_equal(flusher_start(&t.flusher, &t.dev, &t.store, &t.engine->base), 0);
	return 0;
}

static int teardown(void **state)
{
	char path[96];

	flusher_stop(&t.flusher);
	domain_lock(&t.dom);
	cache_drop(&t.node);
	domain_unlock(&t.dom);
	assert_int_equal(t.dom.nr_dirty + t.dom.nr_writeback, 0);
	store_file_close(t.node.file);
	store_finish(&t.store);
	device_finish(&t.dev);
	domain_finish(&t.dom);
	snprintf(path, sizeof(path), "%s/file", t.dir);
	unlink(path);
	rmdir(t.dir);
	return 0;
}

/* All of the file, of a length that ends within a page, then everything is brought below. */
static void write_and_sync(enum fault fault)
{
	unsigned bytes = sizeof(t.want) - 77;

	for (unsigned i = 0; i < bytes; i++)
		t.want[i] = (unsigned char)(i * 31 + i / 4096);
	domain_lock(&t.dom);
	t.engine->fault = fault;
	for (unsigned at = 0; at < bytes; at += PAGE_BYTES) {
		unsigned n = bytes - at < PAGE_BYTES ? bytes - at : PAGE_BYTES;
		assert_int_equal(cache_write(&t.node, at, t.want + at, n, clock_now_us()), 1);
	}
	domain_unlock(&t.dom);
	flusher_sync_node(&t.flusher, &t.node);
	assert_int_equal(t.node.nr_dirty + t.node.nr_writeback, 0);
}

static void assert_file_is_right(void)
{
	static unsigned char got[sizeof(t.want) + 1];
	ssize_t n = pread(t.node.file->fd, got, sizeof(got), 0);

	assert_int_equal(n, sizeof(t.want) - 77);
	assert_memory_equal(got, t.want, (size_t)n);
	assert_int_equal(t.dev.errors, 0);
	assert_int_equal(t.dev.lost_bytes, 0);
	assert_int_equal(t.dev.written, PAGES);
}

static void plain(void **state)
{
	write_and_sync(FAULT_NONE);
	assert_file_is_right();
	assert_int_equal(t.dev.retries, 0);
}

static void short_writes_go_on_where_they_stopped(void **state)
{
	write_and_sync(FAULT_SHORT);
	assert_file_is_right();
	assert_true(t.engine->submitted >= sizeof(t.want) / 3000);
}

static void again_is_asked_again(void **state)
{
	write_and_sync(FAULT_AGAIN);
	assert_file_is_right();
	assert_true(t.dev.retries > 0);
}

static void one_error_is_retried(void **state)
{
	write_and_sync(FAULT_ONCE);
	assert_file_is_right();
	assert_int_equal(t.dev.retries, 1);
}

static void a_range_error_alone_is_retried(void **state)
{
	domain_lock(&t.dom);
	t.engine->fault = FAULT_RANGE;
	assert_int_equal(cache_write(&t.node, 0, t.want, PAGE_BYTES, clock_now_us()), 1);
	domain_unlock(&t.dom);
	flusher_sync_node(&t.flusher, &t.node);
	assert_int_equal(t.dev.retries, 1);
	assert_int_equal(t.dev.errors, 0);
	assert_int_equal(t.engine->submitted, 2);
}

/* It may be that of another request, which will hear nothing. */
static void a_range_error_among_others_is_told(void **state)
{
	write_and_sync(FAULT_RANGE);
	assert_true(t.engine->submitted > 1);
	assert_int_equal(t.node.err, EIO);
	assert_int_equal(t.dev.errors, 1);
}

static void an_error_for_good_is_told(void **state)
{
	write_and_sync(FAULT_ALWAYS);
	assert_int_equal(t.node.err, EIO);
	assert_true(t.node.err_seq > 0 && t.dev.errors > 0);
	assert_int_equal(t.dev.lost_bytes, sizeof(t.want) - 77);
	assert_int_equal(t.dev.written, 0);
	assert_true(t.flusher.nr_lost > 0);
	assert_int_equal(t.flusher.lost[0].from, 0);
	/* And the disk may come back. */
	domain_lock(&t.dom);
	t.engine->fault = FAULT_NONE;
	assert_int_equal(cache_write(&t.node, 0, t.want, PAGE_BYTES, clock_now_us()), 1);
	domain_unlock(&t.dom);
	flusher_sync_node(&t.flusher, &t.node);
	assert_int_equal(t.dev.written, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(plain, setup, teardown),
		cmocka_unit_test_setup_teardown(
			short_writes_go_on_where_they_stopped, setup, teardown),
		cmocka_unit_test_setup_teardown(again_is_asked_again, setup, teardown),
		cmocka_unit_test_setup_teardown(one_error_is_retried, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_range_error_alone_is_retried, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_range_error_among_others_is_told, setup, teardown),
		cmocka_unit_test_setup_teardown(an_error_for_good_is_told, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
