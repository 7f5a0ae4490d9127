/* test_state.c - the state file: what is in it while nodes change, and that nothing that may be in
 * it is believed too far. */
#include "backend/state/state.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
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

/* ---- the next start ---- */

enum { DATA = 8192, LENGTHENED = 65536 };

static struct {
	char dir[32], file[48];
	struct state_source src;
	struct state_header header;
	struct state_record record;
} r;

/* A file with some data and zeroes nobody wrote, and the record that its daemon left. */
static int setup_recovery(void **unused)
{
	static const char data[DATA] = {1};
	struct statfs sf;
	struct stat st;
	uint64_t fsid;

	memset(&r, 0, sizeof(r));
	strcpy(r.dir, "/tmp/test_state.XXXXXX");
	assert_non_null(mkdtemp(r.dir));
	snprintf(r.file, sizeof(r.file), "%s/a", r.dir);
	int fd = open(r.file, O_RDWR | O_CREAT, 0600);
	assert_int_equal(write(fd, data, DATA), DATA);
	assert_int_equal(ftruncate(fd, LENGTHENED), 0);
	close(fd);
	r.src = (struct state_source){.path = "test", .root_fd = open(r.dir, O_RDONLY)};
	assert_int_equal(fstatfs(r.src.root_fd, &sf), 0);
	memcpy(&fsid, &sf.f_fsid, sizeof(fsid));
	assert_int_equal(fstat(r.src.root_fd, &st), 0);
	state_header_init(&r.header, fsid, st.st_ino);
	assert_int_equal(stat(r.file, &st), 0);
	r.record = (struct state_record){
		.used = 1,
		.who = {.ino = st.st_ino, .name = "a"},
		.pages = 3,
		.size = 1 << 20,
		.extended_from = LENGTHENED,
		.extended_to = LENGTHENED,
		.written = DATA / 2,
	};
	return 0;
}

static int teardown_recovery(void **unused)
{
	close(r.src.root_fd);
	unlink(r.file);
	rmdir(r.dir);
	return 0;
}

static off_t size_now(void)
{
	struct stat st;

	assert_int_equal(stat(r.file, &st), 0);
	return st.st_size;
}

/* Returns the size of the file afterwards. */
static off_t recover(struct state_loss *ret_loss)
{
	int fd = memfd_create("state", 0);

	r.record.check = state_who_check(&r.record.who);
	assert_int_equal(write(fd, &r.header, sizeof(r.header)), sizeof(r.header));
	assert_int_equal(write(fd, &r.record, sizeof(r.record)), sizeof(r.record));
	state_recover(fd, &r.src, ret_loss);
	close(fd);
	return size_now();
}

static void zeroes_are_cut_off(void **unused)
{
	struct state_loss loss;

	assert_int_equal(recover(&loss), DATA);
	assert_int_equal(loss.files, 1);
	assert_int_equal(loss.trimmed, 1);
	assert_int_equal(loss.bytes, 3 * PAGE_BYTES);
	/* And once more, as after a kill of this start: there is nothing to cut now. */
	assert_int_equal(recover(&loss), DATA);
	assert_int_equal(loss.trimmed, 0);
}

static void lengthening_was_under_way(void **unused)
{
	struct state_loss loss;

	r.record.extended_from = DATA;
	r.record.extended_to = 2 * LENGTHENED;
	assert_int_equal(recover(&loss), DATA);
}

static void what_is_not_cut_off(void **unused)
{
	const struct state_record good = r.record;
	const struct state_header head = r.header;
	struct state_loss loss;

	r.record.extended_from = r.record.extended_to = LENGTHENED - PAGE_BYTES;
	assert_int_equal(recover(&loss), LENGTHENED); /* it was made longer by somebody */
	r.record.extended_from = r.record.extended_to = LENGTHENED + PAGE_BYTES;
	assert_int_equal(recover(&loss), LENGTHENED); /* or shorter */
	r.record = good;
	r.record.extended_from = r.record.extended_to = 0;
	assert_int_equal(recover(&loss), LENGTHENED);
	r.record = good;
	r.record.written = LENGTHENED;
	assert_int_equal(recover(&loss), LENGTHENED);
	r.record = good;
	r.record.who.ino++; /* another file has the name now */
	assert_int_equal(recover(&loss), LENGTHENED);
	assert_int_equal(loss.files, 1);
	r.record = good;
	r.record.gone = 1;
	assert_int_equal(recover(&loss), LENGTHENED);
	assert_int_equal(loss.files, 0);
	r.record = good;
	r.src.read_only = true;
	assert_int_equal(recover(&loss), LENGTHENED);
	assert_int_equal(loss.files, 1);
	r.src.read_only = false;
	r.header.fsid++;
	r.header.check = state_header_check(&r.header);
	assert_int_equal(recover(&loss), LENGTHENED); /* another filesystem on the device */
	assert_int_equal(loss.files, 0);
	r.header = head;
	r.header.check++;
	assert_int_equal(recover(&loss), LENGTHENED);
	r.header = head;
	assert_int_equal(recover(&loss), DATA); /* all else was right */
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
		cmocka_unit_test_setup_teardown(
			zeroes_are_cut_off, setup_recovery, teardown_recovery),
		cmocka_unit_test_setup_teardown(
			lengthening_was_under_way, setup_recovery, teardown_recovery),
		cmocka_unit_test_setup_teardown(
			what_is_not_cut_off, setup_recovery, teardown_recovery),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
