/* test_flusher.c - the flusher with an engine that does what disks and kernels do at times: short
 * writes, "again", an error once, an error for good (the file below is a real one); and what it
 * submits first, with an engine that does nothing. */
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

enum fault { FAULT_NONE, FAULT_SHORT, FAULT_AGAIN, FAULT_ONCE, FAULT_ALWAYS };

struct faulty_engine {
	struct store_engine base;
	int kick_fd;
	enum fault fault;
	unsigned submitted;
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

/* ---- who comes first: no threads, and a request completes when the test says so ---- */

enum { NODES = 3, FRAMES = 4096 };

static struct {
	struct domain dom;
	struct device dev;
	struct store store;
	struct flusher flusher;
	struct store_file files[NODES];
	struct node nodes[NODES];
	struct store_engine engine;
	struct store_io *ios[FLUSH_DEPTH]; /* in flight */
	unsigned nr;
	char log[256]; /* "a0 b7": pages 0 of node a and 7 of b (capital: a read), in order */
	uint64_t now_us, took_us, wait_us;
} s;

static const char *name_of(const struct store_io *io)
{
	static char name[32];
	const struct flush_io *f = (const struct flush_io *)io;

	snprintf(name, sizeof(name), "%c%llu",
		(io->op == STORE_READ ? 'A' : 'a') + (int)(f->node - s.nodes),
		(unsigned long long)f->index);
	return name;
}

static int holding_submit(struct store_engine *engine, struct store_io *io)
{
	size_t at = strlen(s.log);

	snprintf(s.log + at, sizeof(s.log) - at, "%s%s", at ? " " : "", name_of(io));
	s.ios[s.nr++] = io;
	return 0;
}

static void holding_destroy(struct store_engine *engine)
{
}

static const struct store_engine_ops holding_ops = {
	.name = "holding",
	.submit = holding_submit,
	.add_memory = faulty_add_memory,
	.destroy = holding_destroy,
};

static int setup_steps(void **state)
{
	memset(&s, 0, sizeof(s));
	s.now_us = 1000000;
	s.took_us = 40000; /* as the window means it */
	assert_int_equal(domain_init(&s.dom, FRAMES, FRAMES), 0);
	assert_int_equal(device_init(&s.dev, &s.dom, 1, "test"), 0);
	s.dev.limit_pages = FRAMES;
	s.dev.bytes_per_s = 50e6;
	s.engine.ops = &holding_ops;
	for (unsigned i = 0; i < NODES; i++) {
		s.files[i] = (struct store_file){.store = &s.store,
			.fd = -1,
			.fd_direct = -1,
			.direct = true,
			.align = PAGE_BYTES,
			.probed = true,
			.writable = true};
		node_init(&s.nodes[i], &s.dev, 100 + i, 0);
		s.nodes[i].refs = s.nodes[i].file_users = 1;
		s.nodes[i].file = &s.files[i];
	}
	return flusher_init(&s.flusher, &s.dev, &s.store, &s.engine);
}

static int teardown_steps(void **state)
{
	for (unsigned i = 0; i < NODES; i++)
		cache_drop(&s.nodes[i]);
	assert_int_equal(s.dom.nr_dirty, 0);
	assert_int_equal(s.dev.nr_tagged_dirty, 0);
	flusher_finish(&s.flusher);
	device_finish(&s.dev);
	domain_finish(&s.dom);
	return 0;
}

static void anew(void)
{
	teardown_steps(NULL);
	setup_steps(NULL);
}

static struct node *node_of(char name)
{
	return &s.nodes[name - 'a'];
}

static void dirty(char name, uint64_t page, unsigned bytes)
{
	assert_true(cache_write(node_of(name), page * PAGE_BYTES, NULL, bytes, s.now_us) >= 0);
}

static void dirty_pages(char name, uint64_t from, uint64_t to)
{
	for (uint64_t i = from; i < to; i++)
		dirty(name, i, PAGE_BYTES);
}

static void begin_fsync(char name)
{
	cache_tag_node(node_of(name));
}

static void anything_is_a_reason(void)
{
	s.dev.bg_pages = 0;
}

/* What is submitted now. */
static const char *submitted(struct store_io *done)
{
	s.log[0] = '\0';
	s.wait_us = flusher_step(&s.flusher, &done, done != NULL, s.now_us);
	return s.log;
}

/* ... because this one has completed. */
static const char *submitted_after(const char *name)
{
	for (unsigned i = 0; i < s.nr; i++) {
		struct store_io *io = s.ios[i];
		if (strcmp(name_of(io), name) != 0)
			continue;
		memmove(&s.ios[i], &s.ios[i + 1], (--s.nr - i) * sizeof(io));
		s.now_us += s.took_us;
		io->result = io->op == STORE_RANGE_SYNC ? 0 : (int)io->bytes;
		return submitted(io);
	}
	fail_msg("%s is not in flight", name);
	return NULL;
}

static void a_sync_does_not_wait_for_another_ones_requests(void **state)
{
	for (int seeks = 0; seeks < 2; seeks++) {
		anew();
		s.dev.seeks = seeks;
		dirty('a', 0, PAGE_BYTES);
		begin_fsync('a');
		assert_string_equal(submitted(NULL), "a0");
		dirty('a', 1, PAGE_BYTES); /* newer: no part of that fsync */
		dirty('b', 0, PAGE_BYTES);
		dirty('c', 0, PAGE_BYTES);
		begin_fsync('b');
		assert_string_equal(submitted(NULL), "b0");
		/* Only what is in flight is waited for: the device is the others'. */
		anything_is_a_reason();
		assert_string_equal(submitted(NULL), "a1 c0");
		assert_int_equal(s.dev.nr_tagged, 2);
		assert_string_equal(submitted_after("a0"), "");
		assert_int_equal(s.nodes[0].nr_tagged, 0);
		submitted_after("b0");
		assert_int_equal(s.dev.nr_tagged, 0);
	}
}

static void a_sync_is_first_as_soon_as_there_is_room(void **state)
{
	anything_is_a_reason();
	dirty_pages('c', 0, 200);
	assert_string_equal(submitted(NULL), "c0 c32");
	dirty('b', 0, PAGE_BYTES);
	begin_fsync('b');
	assert_string_equal(submitted(NULL), "");
	assert_string_equal(submitted_after("c0"), "b0 c64");
}

/* An fsync waits for more than its pages: for the journal below, behind what is in flight. */
static void while_somebody_waits_others_have_half_the_window(void **state)
{
	anything_is_a_reason();
	s.dev.nr_syncing = 1;
	dirty_pages('c', 0, 200);
	dirty_pages('b', 0, 40);
	s.took_us = 20000;
	assert_string_equal(submitted(NULL), "c0 c16");
	begin_fsync('b'); /* it has all of it */
	assert_string_equal(submitted(NULL), "b0");
	assert_string_equal(submitted_after("c0"), "b32");
	s.dev.nr_syncing = 0;
	assert_string_equal(submitted_after("b0"), "c32 c64");
}

/* ... and the window is found out in half of it too, by how long the whole would take. */
static void the_window_grows_in_half_of_it_too(void **state)
{
	static const struct {
		unsigned syncing;
		bool tagged;
		uint64_t took_us;
		unsigned grows;
	} cases[] = {
		{0, false, 20000, 2},
		{1, true, 20000, 2},
		{1, false, 20000, 1},
		{1, false, 14000, 2},
	};

	for (unsigned i = 0; i < 4; i++) {
		anew();
		uint64_t bytes = s.flusher.window.bytes;
		anything_is_a_reason();
		s.dev.nr_syncing = cases[i].syncing;
		dirty_pages('c', 0, 200);
		if (cases[i].tagged)
			begin_fsync('c');
		submitted(NULL);
		s.took_us = cases[i].took_us;
		submitted_after("c0");
		assert_int_equal(s.flusher.window.bytes, cases[i].grows * bytes);
	}
}

/* A page written again while an fsync's write of it is in flight, and a second fsync. */
static void a_page_that_must_go_twice_lets_others_go_meanwhile(void **state)
{
	dirty('a', 0, PAGE_BYTES);
	begin_fsync('a');
	assert_string_equal(submitted(NULL), "a0");
	dirty('a', 0, PAGE_BYTES);
	s.dev.colour = 1;
	begin_fsync('a');
	dirty('a', 1, PAGE_BYTES);
	dirty('b', 0, PAGE_BYTES);
	begin_fsync('b');
	dirty('c', 0, PAGE_BYTES);
	assert_string_equal(submitted(NULL), "b0");
	anything_is_a_reason();
	assert_string_equal(submitted(NULL), "c0");
	assert_int_equal(s.dev.nr_coloured[0], 1);
	assert_string_equal(submitted_after("a0"), "a0 a1");
	assert_int_equal(s.dev.nr_coloured[0], 0);
	submitted_after("b0");
	assert_int_equal(s.dev.nr_coloured[1], 1);
	submitted_after("a0");
	assert_int_equal(s.dev.nr_coloured[1], 0);
	assert_int_equal(s.nodes[0].nr_tagged, 0);
}

/* It goes buffered, and so waits for the direct ones in flight: there must not be more of them. */
static void the_end_of_a_file_is_not_kept_waiting_by_its_other_pages(void **state)
{
	anything_is_a_reason();
	dirty('a', 0, PAGE_BYTES);
	assert_string_equal(submitted(NULL), "a0");
	dirty('a', 5, 100);
	begin_fsync('a');
	dirty_pages('a', 2, 4);
	dirty('b', 0, PAGE_BYTES);
	assert_string_equal(submitted(NULL), "b0");
	assert_string_equal(submitted_after("a0"), "a5");
	dirty('b', 1, PAGE_BYTES);
	assert_string_equal(submitted(NULL), "b1");
	assert_string_equal(submitted_after("a5"), "a5"); /* down to the device */
	assert_string_equal(submitted_after("a5"), "a2");
}

static void without_memory_others_make_room_for_a_sync(void **state)
{
	static uint32_t frames[FRAMES];

	for (char other = 'a'; other < 'c'; other++) {
		anew();
		node_of('a')->size = PAGE_BYTES; /* of which all but a byte is below */
		dirty('a', 0, 1);
		begin_fsync('a');
		dirty(other, 1, PAGE_BYTES);
		unsigned n = cache_alloc(&s.dom, FRAMES, frames);
		assert_int_equal(n, FRAMES - 2);
		const char *name = other == 'a' ? "a1" : "b1";
		assert_string_equal(submitted(NULL), name);
		assert_string_equal(submitted_after(name), "A0");
		assert_string_equal(submitted_after("A0"), "a0");
		submitted_after("a0");
		assert_int_equal(s.dev.nr_tagged, 0);
		while (n)
			cache_free_held(&s.dom, frames[--n]);
	}
}

static void without_memory_it_looks_again_soon(void **state)
{
	static uint32_t frames[FRAMES];

	node_of('a')->size = PAGE_BYTES;
	dirty('a', 0, 1);
	assert_string_equal(submitted(NULL), "");
	assert_int_equal(s.wait_us, 1000000);
	begin_fsync('a');
	unsigned n = cache_alloc(&s.dom, FRAMES, frames);
	assert_string_equal(submitted(NULL), "");
	assert_true(s.wait_us < 100000);
	while (n)
		cache_free_held(&s.dom, frames[--n]);
	assert_string_equal(submitted(NULL), "A0");
}

int main(void)
{
#define STEPS(name) cmocka_unit_test_setup_teardown(name, setup_steps, teardown_steps)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(plain, setup, teardown),
		cmocka_unit_test_setup_teardown(
			short_writes_go_on_where_they_stopped, setup, teardown),
		cmocka_unit_test_setup_teardown(again_is_asked_again, setup, teardown),
		cmocka_unit_test_setup_teardown(one_error_is_retried, setup, teardown),
		cmocka_unit_test_setup_teardown(an_error_for_good_is_told, setup, teardown),
		STEPS(a_sync_does_not_wait_for_another_ones_requests),
		STEPS(a_sync_is_first_as_soon_as_there_is_room),
		STEPS(while_somebody_waits_others_have_half_the_window),
		STEPS(the_window_grows_in_half_of_it_too),
		STEPS(a_page_that_must_go_twice_lets_others_go_meanwhile),
		STEPS(the_end_of_a_file_is_not_kept_waiting_by_its_other_pages),
		STEPS(without_memory_others_make_room_for_a_sync),
		STEPS(without_memory_it_looks_again_soon),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
