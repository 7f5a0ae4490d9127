/* What is no request is refused, whatever it says it is; and what is no handle is none. */
#include "fuse/open_table.h"
#include "fuse/request.h"

#include <errno.h>
#include <linux/fuse.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

/* ---- requests ---- */

struct request {
	_Alignas(8) unsigned char bytes[1024];
	size_t size;
};

static void begin(struct request *r, uint32_t opcode)
{
	struct fuse_in_header head = {.opcode = opcode};

	memset(r, 0, sizeof(*r));
	memcpy(r->bytes, &head, sizeof(head));
	r->size = sizeof(head);
}

static void add(struct request *r, const void *data, size_t size)
{
	memcpy(r->bytes + r->size, data, size);
	r->size += size;
	((struct fuse_in_header *)(void *)r->bytes)->len = (uint32_t)r->size;
}

/* In memory of its own size, so that a sanitizer sees a look beyond it. */
static int check(const struct request *r, size_t size)
{
	unsigned char *copy = malloc(size ? size : 1);

	memcpy(copy, r->bytes, size);
	if (size >= sizeof(struct fuse_in_header))
		((struct fuse_in_header *)(void *)copy)->len = (uint32_t)size;
	int ret = request_check(copy, size);
	free(copy);
	return ret;
}

/* It passes whole, and in no shorter form. */
static void assert_needs_all(const struct request *r)
{
	assert_int_equal(check(r, r->size), 0);
	for (size_t size = 0; size < r->size; size++)
		assert_true(check(r, size) < 0);
}

static void test_shapes(void **unused)
{
	struct fuse_read_in read = {.size = 4096};
	struct fuse_rename2_in rename = {.newdir = 1};
	struct fuse_setattr_in setattr = {.valid = FATTR_SIZE, .size = 5};
	struct fuse_batch_forget_in batch = {.count = 2};
	struct fuse_forget_one forgets[2] = {{.nodeid = 1}};
	struct fuse_write_in write = {.size = 3};
	struct request r;

	begin(&r, FUSE_LOOKUP);
	add(&r, "name", 5);
	assert_needs_all(&r);
	begin(&r, FUSE_READ);
	add(&r, &read, sizeof(read));
	assert_needs_all(&r);
	begin(&r, FUSE_RENAME2);
	add(&r, &rename, sizeof(rename));
	add(&r, "a\0b", 4);
	assert_needs_all(&r);
	begin(&r, FUSE_SETATTR);
	add(&r, &setattr, sizeof(setattr));
	assert_needs_all(&r);
	begin(&r, FUSE_BATCH_FORGET);
	add(&r, &batch, sizeof(batch));
	add(&r, forgets, sizeof(forgets));
	assert_needs_all(&r);
	begin(&r, FUSE_WRITE);
	add(&r, &write, sizeof(write));
	add(&r, "abc", 3);
	assert_needs_all(&r);
	add(&r, "d", 1); /* more than it says */
	assert_int_equal(check(&r, r.size), -EIO);
	begin(&r, FUSE_SETXATTR);
	add(&r, (uint32_t[]){3, 0}, 8);
	add(&r, "user.a", 7);
	add(&r, "abc", 3);
	assert_needs_all(&r);
}

static int check_name(uint32_t opcode, const char *name)
{
	struct request r;

	begin(&r, opcode);
	add(&r, name, strlen(name) + 1);
	return check(&r, r.size);
}

static void test_names(void **unused)
{
	static const char *const bad[] = {"", "/", "a/b", "/etc", "../a"};

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		assert_int_equal(check_name(FUSE_LOOKUP, bad[i]), -EINVAL);
		assert_int_equal(check_name(FUSE_UNLINK, bad[i]), -EINVAL);
	}
	assert_int_equal(check_name(FUSE_LOOKUP, ".."), 0); /* NFS asks */
	assert_int_equal(check_name(FUSE_LOOKUP, "."), 0);
	assert_int_equal(check_name(FUSE_RMDIR, ".."), -EINVAL);
	assert_int_equal(check_name(FUSE_UNLINK, "."), -EINVAL);
	assert_int_equal(check_name(FUSE_UNLINK, "..a"), 0);
}

static int check_read(uint32_t opcode, uint64_t offset, uint32_t size)
{
	struct fuse_read_in in = {.offset = offset, .size = size};
	struct request r;

	begin(&r, opcode);
	add(&r, &in, sizeof(in));
	return check(&r, r.size);
}

static void test_numbers(void **unused)
{
	struct request r;

	assert_int_equal(check_read(FUSE_READ, INT64_MAX - 1, 1), 0);
	assert_int_equal(check_read(FUSE_READ, INT64_MAX, 1), -EINVAL);
	assert_int_equal(check_read(FUSE_READ, UINT64_MAX, 0), -EINVAL);
	assert_int_equal(check_read(FUSE_READ, 0, REQUEST_DATA_MOST), 0);
	assert_int_equal(check_read(FUSE_READ, 0, REQUEST_DATA_MOST + 1), -EINVAL);
	assert_int_equal(check_read(FUSE_READDIR, INT64_MAX, 4096), 0); /* ext4's last */
	assert_int_equal(check_read(FUSE_READDIR, UINT64_MAX, 4096), -EINVAL);
	begin(&r, 7); /* nobody ever had it */
	add(&r, "", 0);
	assert_int_equal(check(&r, r.size), -ENOSYS);
	begin(&r, UINT32_MAX);
	add(&r, "", 0);
	assert_int_equal(check(&r, r.size), -ENOSYS);
	begin(&r, FUSE_STATFS);
	((struct fuse_in_header *)(void *)r.bytes)->len = 41;
	assert_int_equal(request_check(r.bytes, 40), -EIO);
}

/* ---- handles ---- */

static unsigned released;

static void count_release(void *object, enum open_kind kind)
{
	assert_int_equal(kind, object == &released ? OPEN_DIR : OPEN_FILE);
	released++;
}

static void test_handles(void **unused)
{
	enum { MANY = 3 * OPEN_CHUNK_SLOTS };
	static struct open_table t;
	static uint64_t fh[MANY];
	char object[MANY];

	open_table_init(&t);
	assert_null(open_table_get(&t, 0, OPEN_FILE));
	assert_null(open_table_get(&t, UINT64_MAX, OPEN_DIR));
	for (int i = 0; i < MANY; i++) {
		fh[i] = open_table_add(&t, &object[i], OPEN_FILE);
		assert_int_not_equal(fh[i], 0);
	}
	for (int i = 0; i < MANY; i++) {
		assert_ptr_equal(open_table_get(&t, fh[i], OPEN_FILE), &object[i]);
		assert_null(open_table_get(&t, fh[i], OPEN_DIR));
		assert_null(open_table_get(&t, fh[i] ^ 1, OPEN_DIR));
		assert_null(open_table_get(&t, fh[i] ^ 1ull << 32, OPEN_FILE));
	}
	/* A slot is used again, its handle is not. */
	assert_ptr_equal(open_table_remove(&t, fh[5], OPEN_FILE), &object[5]);
	assert_null(open_table_remove(&t, fh[5], OPEN_FILE));
	uint64_t again = open_table_add(&t, &released, OPEN_DIR);
	assert_null(open_table_get(&t, fh[5], OPEN_FILE));
	assert_ptr_equal(open_table_get(&t, again, OPEN_DIR), &released);
	open_table_finish(&t, count_release);
	assert_int_equal(released, MANY);
	assert_null(open_table_get(&t, again, OPEN_DIR));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shapes),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_handles),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
