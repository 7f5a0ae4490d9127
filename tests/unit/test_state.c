/* test_state.c - the state file: what is in it while nodes change, and that nothing that may be in
 * it is believed too far. */
#include "backend/state/state.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

static struct {
	struct domain dom;
	struct device dev;
	struct state state;
	int fd, dir;
	struct state_header header;
	struct state_record records[STATE_RECORDS];
	unsigned more, damaged;
} t;

static bool describe(const struct node *node, struct state_who *ret_who)
{
	ret_who->ino = node->nodeid;
	strcpy(ret_who->name, "some/file");
	return false;
}

static int setup(void **unused)
{
	struct state_source src = {.path = "test", .root_fd = open("/tmp", O_RDONLY)};

	memset(&t, 0, sizeof(t));
	t.dir = src.root_fd;
	t.fd = memfd_create("state", 0);
	assert_int_equal(domain_init(&t.dom, 1024, 4096), 0);
	assert_int_equal(device_init(&t.dev, &t.dom, 0, "test"), 0);
	assert_int_equal(state_start(&t.state, dup(t.fd), &src, describe), 0);
	t.dom.state = &t.state;
	return 0;
}

static int teardown(void **unused)
{
	t.dom.state = NULL;
	state_finish(&t.state);
	device_finish(&t.dev);
	domain_finish(&t.dom);
	close(t.fd);
	close(t.dir);
	return 0;
}

static unsigned parse(void)
{
	static char data[STATE_FILE_BYTES];
	ssize_t n = pread(t.fd, data, sizeof(data), 0);

	return state_parse(
		data, (size_t)n, &t.header, t.records, STATE_RECORDS, &t.more, &t.damaged);
}

static void clean(struct node *node)
{
	cache_drop(node);
	assert_null(node->record);
}

static void counters_follow_the_node(void **unused)
{
	struct node node;

	assert_int_equal(parse(), 0);
	node_init(&node, &t.dev, 42, 0);
	node_get(&node);
	assert_int_equal(cache_write(&node, 100, "x", 1, 1), 1);
	assert_int_equal(parse(), 1);
	assert_int_equal(t.records[0].pages, 1);
	assert_int_equal(t.records[0].size, 101);
	assert_int_equal(t.records[0].who.ino, 42);
	assert_string_equal(t.records[0].who.name, "some/file");
	/* No new page, but a longer file. */
	assert_int_equal(cache_write(&node, 200, "x", 1, 1), 0);
	assert_int_equal(cache_write(&node, 5 * PAGE_BYTES, "x", 1, 1), 1);
	assert_int_equal(parse(), 1);
	assert_int_equal(t.records[0].pages, 2);
	assert_int_equal(t.records[0].size, 5 * PAGE_BYTES + 1);
	uint32_t frame = cache_begin_writeback(&node, 0);
	assert_int_equal(parse(), 1);
	assert_int_equal(t.records[0].pages, 2); /* on its way is not there */
	cache_end_writeback(&node, 0, frame, 0, 2);
	assert_int_equal(parse(), 1);
	assert_int_equal(t.records[0].pages, 1);
	node.cut_pending = true;
	cache_truncate(&node, 10, 3);
	assert_int_equal(parse(), 1);
	assert_int_equal(t.records[0].pages, 0);
	assert_int_equal(t.records[0].cut, 1);
	node.cut_pending = false;
	node_update_unclean(&node);
	assert_int_equal(parse(), 0);
	clean(&node);
}

static void what_is_lengthened_and_written(void **unused)
{
	struct node node;

	node_init(&node, &t.dev, 42, 0);
	node_get(&node);
	assert_int_equal(cache_write(&node, 0, "x", 1, 1), 1);
	struct state_record *r = node.record;
	state_extending(&node, 1000, 9000);
	assert_int_equal(r->extended_from, 1000);
	assert_int_equal(r->extended_to, 9000);
	assert_int_equal(r->written, 1000);
	state_extended(&node, 9000);
	assert_int_equal(r->extended_from, 9000);
	state_written(&node, 3000, 4000, false); /* out of order: no lower bound */
	assert_int_equal(r->written, 1000);
	state_written(&node, 500, 3000, false);
	assert_int_equal(r->written, 3000);
	/* Further on from where it ended: what is known stays known. */
	state_extending(&node, 9000, 12000);
	assert_int_equal(r->written, 3000);
	state_extended(&node, 12000);
	/* From elsewhere: the user has made it longer meanwhile. */
	state_extending(&node, 20000, 30000);
	assert_int_equal(r->written, 20000);
	state_written(&node, 20000, 21000, true);
	assert_int_equal(r->extended_to, 0); /* a hole is no sign any more */
	clean(&node);
}

static void more_files_than_records(void **unused)
{
	enum { MORE = 3, NR = STATE_RECORDS + MORE };
	struct node *nodes = calloc(NR, sizeof(*nodes));

	for (unsigned i = 0; i < NR; i++) {
		node_init(&nodes[i], &t.dev, i, 0);
		node_get(&nodes[i]);
		nodes[i].times_pending = true;
		node_update_unclean(&nodes[i]);
	}
	assert_int_equal(parse(), STATE_RECORDS);
	assert_int_equal(t.more, MORE);
	assert_int_equal(t.damaged, 0);
	for (unsigned i = 0; i < NR; i++) {
		nodes[i].times_pending = false;
		node_update_unclean(&nodes[i]);
	}
	assert_int_equal(parse(), 0);
	assert_int_equal(t.more, 0);
	free(nodes);
}

static struct state_record good_record(void)
{
	struct state_record r = {.used = 1, .pages = 1, .who = {.ino = 7, .name = "a"}};

	r.check = state_who_check(&r.who);
	return r;
}

static unsigned parse_one(struct state_record r, bool seal)
{
	struct {
		struct state_header header;
		struct state_record record;
	} file;

	if (seal && r.who.handle_bytes <= STATE_HANDLE_MAX)
		r.check = state_who_check(&r.who);
	state_header_init(&file.header, 1, 2);
	file.record = r;
	return state_parse(
		&file, sizeof(file), &t.header, t.records, STATE_RECORDS, &t.more, &t.damaged);
}

static void what_is_not_believed(void **unused)
{
	static const char *const names[] = {
		"/etc/passwd", "..", "../x", "a/../../x", "a/..", "a//../b"};
	struct state_record r = good_record();

	assert_int_equal(parse_one(r, false), 1);
	r.check++;
	assert_int_equal(parse_one(r, false), 0);
	assert_int_equal(t.damaged, 1);
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		r = good_record();
		strcpy(r.who.name, names[i]);
		assert_int_equal(parse_one(r, true), 0);
	}
	r = good_record();
	strcpy(r.who.name, "..a/b../...");
	assert_int_equal(parse_one(r, true), 1);
	memset(r.who.name, 'a', sizeof(r.who.name));
	assert_int_equal(parse_one(r, true), 0);
	r = good_record();
	r.who.handle_bytes = STATE_HANDLE_MAX + 1;
	assert_int_equal(parse_one(r, true), 0);
	r = good_record();
	r.size = UINT64_MAX;
	assert_int_equal(parse_one(r, true), 0);
}

/* Any bytes, cut anywhere: no crash, and nothing out of bounds (sanitizers). */
static void any_bytes(void **unused)
{
	enum { ROUNDS = 3000, SIZE = 4096 };
	unsigned char *data = malloc(SIZE);

	srand(1);
	for (unsigned round = 0; round < ROUNDS; round++) {
		size_t bytes = (size_t)(rand() % SIZE);
		struct state_record r = good_record();
		state_header_init((struct state_header *)data, 1, 2);
		for (size_t i = sizeof(struct state_header); i < SIZE; i++)
			data[i] = (unsigned char)rand();
		memcpy(data + sizeof(struct state_header), &r, sizeof(r));
		for (int i = rand() % 8; i > 0; i--)
			data[rand() % SIZE] ^= (unsigned char)rand();
		unsigned char *cut = malloc(bytes ? bytes : 1);
		memcpy(cut, data, bytes);
		unsigned nr =
			state_parse(cut, bytes, &t.header, t.records, 4, &t.more, &t.damaged);
		assert_true(nr <= 4);
		for (unsigned i = 0; i < nr; i++)
			assert_true(memchr(t.records[i].who.name, 0, STATE_NAME_MAX) != NULL);
		free(cut);
	}
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(counters_follow_the_node, setup, teardown),
		cmocka_unit_test_setup_teardown(
			what_is_lengthened_and_written, setup, teardown),
		cmocka_unit_test_setup_teardown(more_files_than_records, setup, teardown),
		cmocka_unit_test(what_is_not_believed),
		cmocka_unit_test(any_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
