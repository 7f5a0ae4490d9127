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
#include <sys/sysmacros.h>
#include <unistd.h>
#include <cmocka.h>

enum fault {
	FAULT_NONE,
	FAULT_SHORT,
	FAULT_AGAIN,
	FAULT_ONCE,
	FAULT_ALWAYS,
	FAULT_RANGE,
	FAULT_FULL,
	FAULT_REWRITTEN
};

struct faulty_engine {
	struct store_engine base;
	int kick_fd;
	enum fault fault;
	unsigned submitted, ranges;
	unsigned first_tries; /* of what begins the file */
	struct store_io *done;
};

enum { PAGES = 100 };

static struct {
	char dir[64];
	struct domain dom;
	struct device dev;
	struct store store;
	struct flusher flusher;
	struct node node, other;
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
	case FAULT_REWRITTEN:
		if (io->offset || ++e->first_tries > 3)
			break;
		/* The second page is written to again while it is on its way. */
		domain_lock(&t.dom);
		if (e->first_tries == 1)
			cache_write(&t.node, PAGE_BYTES, t.want + PAGE_BYTES, PAGE_BYTES,
				clock_now_us());
		domain_unlock(&t.dom);
		return -EIO;
	case FAULT_FULL:
		if (io->fd == t.node.file->fd) /* the other one overwrites what it has */
			return -ENOSPC;
		break;
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

static void add_node(struct node *node, uint64_t nodeid, int fd)
{
	assert_true(fd >= 0);
	node_init(node, &t.dev, nodeid, 0);
	node->refs = 1;
	node->file_users = 1;
	assert_int_equal(store_file_open(&t.store, fd, &node->file), 0);
	close(fd);
}

static int setup(void **state)
{
	char path[96];

	memset(&t, 0, sizeof(t));
	snprintf(t.dir, sizeof(t.dir), "/tmp/test_flusher.XXXXXX");
	assert_non_null(mkdtemp(t.dir));
	snprintf(path, sizeof(path), "%s/file", t.dir);
	int fd = open(path, O_RDWR | O_CREAT, 0600);
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
	add_node(&t.node, 100, fd);
	snprintf(path, sizeof(path), "%s/other", t.dir);
	add_node(&t.other, 101, open(path, O_RDWR | O_CREAT, 0600));
	assert_int_equal(flusher_start(&t.flusher, &t.dev, &t.store, &t.engine->base), 0);
	return 0;
}

static int teardown(void **state)
{
	char path[96];

	flusher_stop(&t.flusher);
	domain_lock(&t.dom);
	cache_drop(&t.node);
	cache_drop(&t.other);
	domain_unlock(&t.dom);
	assert_int_equal(t.dom.nr_dirty + t.dom.nr_writeback, 0);
	store_file_close(t.node.file);
	store_file_close(t.other.file);
	store_finish(&t.store);
	device_finish(&t.dev);
	domain_finish(&t.dom);
	snprintf(path, sizeof(path), "%s/file", t.dir);
	unlink(path);
	snprintf(path, sizeof(path), "%s/other", t.dir);
	unlink(path);
	rmdir(t.dir);
	return 0;
}

enum { BYTES = PAGES * PAGE_BYTES - 77 }; /* ends within a page */

/* All of the file becomes dirty. */
static void write_all(enum fault fault)
{
	unsigned bytes = BYTES;

	for (unsigned i = 0; i < bytes; i++)
		t.want[i] = (unsigned char)(i * 31 + i / 4096);
	domain_lock(&t.dom);
	t.engine->fault = fault;
	for (unsigned at = 0; at < bytes; at += PAGE_BYTES) {
		unsigned n = bytes - at < PAGE_BYTES ? bytes - at : PAGE_BYTES;
		assert_int_equal(cache_write(&t.node, at, t.want + at, n, clock_now_us()), 1);
	}
	domain_unlock(&t.dom);
}

static void write_and_sync(enum fault fault)
{
	write_all(fault);
	flusher_sync_node(&t.flusher, &t.node);
	assert_int_equal(t.node.nr_dirty + t.node.nr_writeback, 0);
}

static void write_page(struct node *node, uint64_t index)
{
	domain_lock(&t.dom);
	assert_int_equal(
		cache_write(node, index * PAGE_BYTES, t.want, PAGE_BYTES, clock_now_us()), 1);
	domain_unlock(&t.dom);
}

/* Without anybody who syncs. */
static void wait_until_clean(struct node *node)
{
	enum { TRIES = 1000, WAIT_US = 5000 };
	bool unclean = true;

	for (int i = 0; i < TRIES && unclean; i++) {
		domain_lock(&t.dom);
		unclean = node->nr_dirty + node->nr_writeback > 0;
		device_kick(&t.dev);
		domain_unlock(&t.dom);
		if (unclean)
			usleep(WAIT_US);
	}
	assert_false(unclean);
}

static void set_fault(enum fault fault)
{
	domain_lock(&t.dom);
	t.engine->fault = fault;
	domain_unlock(&t.dom);
}

static void assert_lost(unsigned at, uint64_t from, uint64_t to)
{
	struct lost_range range = {0};
	const char *name = "";

	assert_true(lost_next(&t.flusher.lost, &at, &name, &range));
	assert_int_equal(range.from, from);
	assert_int_equal(range.to, to);
	assert_non_null(strstr(name, "/file"));
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
	assert_int_equal(t.flusher.lost.nr_ranges, 1);
	assert_lost(0, 0, BYTES);
	assert_int_equal(t.dev.health, DEVICE_FAILING);
	/* And the disk may come back. */
	domain_lock(&t.dom);
	t.engine->fault = FAULT_NONE;
	assert_int_equal(cache_write(&t.node, 0, t.want, PAGE_BYTES, clock_now_us()), 1);
	domain_unlock(&t.dom);
	flusher_sync_node(&t.flusher, &t.node);
	assert_int_equal(t.dev.written, 1);
}

/* What is written to again while its write fails is in the newer page, and not lost. */
static void only_the_newest_is_lost(void **state)
{
	uint64_t end = (uint64_t)PAGE_BYTES * 32; /* of the first request */

	write_and_sync(FAULT_REWRITTEN);
	assert_int_equal(t.node.err, EIO);
	assert_int_equal(t.flusher.lost.nr_ranges, 2);
	assert_lost(0, 0, PAGE_BYTES);
	assert_lost(1, 2 * PAGE_BYTES, end);
	assert_int_equal(t.dev.lost_bytes, end - PAGE_BYTES);
	assert_int_equal(t.dev.written, PAGES - 31);
	static unsigned char got[PAGE_BYTES];
	assert_int_equal(pread(t.node.file->fd, got, PAGE_BYTES, PAGE_BYTES), PAGE_BYTES);
	assert_memory_equal(got, t.want + PAGE_BYTES, PAGE_BYTES);
}

/* No room: told at once, kept, tried again, without a rush and without harm to others. */
static void what_has_no_room_is_kept(void **state)
{
	write_all(FAULT_FULL);
	assert_int_equal(flusher_sync_node(&t.flusher, &t.node), -ENOSPC);
	assert_int_equal(t.node.err, ENOSPC);
	assert_int_equal(t.node.nr_dirty, PAGES);
	assert_true(t.dev.parked);
	unsigned tries = t.engine->submitted;
	uint32_t told = t.node.err_seq;
	domain_lock(&t.dom);
	t.dev.bg_pages = 0; /* all is to be written at once */
	domain_unlock(&t.dom);
	for (uint64_t i = 0; i < 10; i++) {
		write_page(&t.other, i);
		usleep(20000);
		wait_until_clean(&t.other);
	}
	assert_int_equal(t.engine->submitted, tries + 10);
	assert_int_equal(t.node.err_seq, told);
	/* Who asks again sees that it is still so. */
	assert_int_equal(flusher_sync_node(&t.flusher, &t.node), -ENOSPC);
	assert_true(node_is_parked(&t.node));
	assert_int_equal(t.node.err_seq, told);
	assert_int_equal(flusher_sync(&t.flusher), -ENOSPC);
	set_fault(FAULT_NONE);
	assert_int_equal(flusher_sync_node(&t.flusher, &t.node), 0);
	assert_false(t.node.full);
	assert_int_equal(t.node.nr_dirty + t.node.nr_writeback, 0);
	assert_int_equal(t.dev.errors, 0);
	assert_int_equal(t.dev.written, PAGES + 10);
	assert_int_equal(flusher_sync(&t.flusher), 0);
}

static void at_the_end_what_has_no_room_is_lost(void **state)
{
	write_all(FAULT_FULL);
	flusher_drain(&t.flusher);
	assert_int_equal(t.node.nr_dirty + t.node.nr_writeback, 0);
	assert_int_equal(t.dev.lost_bytes, BYTES);
	assert_int_equal(t.flusher.lost.nr_ranges, 1);
	assert_lost(0, 0, BYTES);
	assert_true(t.dev.errors > 0);
}

/* Room that comes while the end waits for it is used. */
static void *make_room_soon(void *arg)
{
	usleep(300000);
	set_fault(FAULT_NONE);
	return NULL;
}

static void room_made_at_the_end_is_used(void **state)
{
	pthread_t thread;

	write_all(FAULT_FULL);
	assert_int_equal(pthread_create(&thread, NULL, make_room_soon, NULL), 0);
	flusher_drain(&t.flusher);
	pthread_join(thread, NULL);
	assert_int_equal(t.dev.errors, 0);
	assert_int_equal(t.dev.written, PAGES);
}

/* The device is gone: nothing is tried any more, all is named, nobody waits. */
static void a_device_that_is_gone_takes_all_along(void **state)
{
	domain_lock(&t.dom);
	/* The kernel does not know it, however often it is asked. */
	snprintf(t.store.device_path, sizeof(t.store.device_path), "/dev/none");
	t.store.device = makedev(4000, 4000);
	t.dev.health = DEVICE_GONE;
	t.dev.error = ENODEV;
	domain_unlock(&t.dom);
	for (uint64_t i = 0; i < 4; i++)
		write_page(&t.node, i == 3 ? 7 : i);
	domain_lock(&t.dom);
	t.node.cut_pending = t.node.times_pending = true;
	node_update_unclean(&t.node);
	domain_unlock(&t.dom);
	flusher_sync_node(&t.flusher, &t.node);
	assert_int_equal(t.engine->submitted, 0);
	assert_false(node_is_unclean(&t.node));
	assert_int_equal(t.node.err, EIO);
	assert_int_equal(t.dev.lost_bytes, 4 * PAGE_BYTES);
	assert_int_equal(t.flusher.lost.nr_ranges, 2);
	assert_lost(0, 0, 3 * PAGE_BYTES);
	assert_lost(1, 7 * PAGE_BYTES, 8 * PAGE_BYTES);
	flusher_drain(&t.flusher);
}

static void ranges_that_touch_are_one(void **state)
{
	struct lost *l = &t.flusher.lost;
	static const uint64_t pieces[][2] = {{8, 9}, {4, 5}, {0, 1}, {6, 8}, {20, 30}, {5, 6}};

	for (unsigned i = 0; i < sizeof(pieces) / sizeof(*pieces); i++)
		lost_add(l, 1, "/file", pieces[i][0], pieces[i][1], 0);
	assert_int_equal(l->nr_ranges, 3);
	assert_lost(0, 0, 1);
	assert_lost(1, 4, 9);
	assert_lost(2, 20, 30);
	lost_add(l, 1, "/file", 1, 25, 0);
	assert_int_equal(l->nr_ranges, 1);
	assert_lost(0, 0, 30);
	lost_add(l, 2, "a\nb/file", 0, 0, 0);
	assert_int_equal(l->nr_files, 2);
	assert_string_equal(lost_name(l, 2), "a?b/file");
	/* One line a second for a file. */
	assert_true(lost_add(l, 3, "/file3", 0, 1, 1000000));
	assert_false(lost_add(l, 3, "/file3", 2, 3, 1900000));
	assert_true(lost_add(l, 3, "/file3", 4, 5, 2000000));
	/* No more than so many ranges: then too much is named, not too little. */
	uint64_t last = 0;
	for (uint64_t i = 100; i < 100 + LOST_RANGES_MOST + 10; i++) {
		last = 2 * i + 1;
		lost_add(l, 1, "/file", 2 * i, last, 0);
	}
	assert_int_equal(l->nr_ranges, LOST_RANGES_MOST);
	lost_add(l, 3, "/file3", 1000, 1001, 0);
	assert_int_equal(l->nr_ranges, LOST_RANGES_MOST);
	assert_lost(LOST_RANGES_MOST - 4, last - 1 - 2 * 14, last);
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
		cmocka_unit_test_setup_teardown(only_the_newest_is_lost, setup, teardown),
		cmocka_unit_test_setup_teardown(what_has_no_room_is_kept, setup, teardown),
		cmocka_unit_test_setup_teardown(
			at_the_end_what_has_no_room_is_lost, setup, teardown),
		cmocka_unit_test_setup_teardown(room_made_at_the_end_is_used, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_device_that_is_gone_takes_all_along, setup, teardown),
		cmocka_unit_test_setup_teardown(ranges_that_touch_are_one, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
