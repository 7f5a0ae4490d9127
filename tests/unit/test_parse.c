/* test_parse.c - util/parse.h: sizes, numbers and the nearest name. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>

#include "util/parse.h"

#define UNTOUCHED 77u

static void assert_size(const char *text, uint64_t expected)
{
	uint64_t bytes = UNTOUCHED;

	assert_int_equal(parse_size(text, &bytes), 0);
	assert_int_equal(bytes, expected);
}

static void assert_no_size(const char *text)
{
	uint64_t bytes = UNTOUCHED;

	assert_int_equal(parse_size(text, &bytes), -EINVAL);
	assert_int_equal(bytes, UNTOUCHED);
}

static void sizes_take_suffixes(void **state)
{
	assert_size("0", 0);
	assert_size("4096", 4096);
	assert_size("4096B", 4096);
	assert_size("64K", 64 << 10);
	assert_size("64k", 64 << 10);
	assert_size("64M", 64 << 20);
	assert_size("64MB", 64 << 20);
	assert_size("64MiB", 64 << 20);
	assert_size("2G", 2ull << 30);
	assert_size("1T", 1ull << 40);
}

static void sizes_refuse_the_rest(void **state)
{
	static const char *const bad[] = {"", "M", "B", "-1", "+1", " 1", "1 ", "1 M", "1.5M",
		"1X", "1MM", "1MiBx", "1iB", "1Mi5", "0x10", "K64", "1,000"};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_no_size(bad[i]);
}

static void sizes_stop_at_63_bits(void **state)
{
	assert_size("9223372036854775807", INT64_MAX);
	assert_no_size("9223372036854775808");
	assert_size("8388607T", 8388607ull << 40);
	assert_no_size("8388608T");
	assert_no_size("99999999999999999999999999");
}

static void numbers_are_plain_decimals(void **state)
{
	uint64_t value = UNTOUCHED;

	assert_int_equal(parse_uint("0", &value), 0);
	assert_int_equal(value, 0);
	assert_int_equal(parse_uint("007", &value), 0);
	assert_int_equal(value, 7);
	assert_int_equal(parse_uint("9223372036854775807", &value), 0);
	assert_int_equal(value, INT64_MAX);
}

static void numbers_refuse_the_rest(void **state)
{
	static const char *const bad[] = {
		"", "-1", "+1", " 1", "1 ", "1K", "0x10", "1.0", "9223372036854775808"};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		uint64_t value = UNTOUCHED;

		assert_int_equal(parse_uint(bad[i], &value), -EINVAL);
		assert_int_equal(value, UNTOUCHED);
	}
}

static const char *const names[] = {"dirty_bytes", "dirty_ratio", "max_bytes", NULL};

static void nearest_finds_a_mistyped_name(void **state)
{
	assert_string_equal(parse_nearest("dirty_byte", names), "dirty_bytes");
	assert_string_equal(parse_nearest("drity_ratio", names), "dirty_ratio");
	assert_string_equal(parse_nearest("max_byts", names), "max_bytes");
	assert_string_equal(parse_nearest("max_bytes", names), "max_bytes");
}

static void nearest_result_belongs_to_names(void **state)
{
	assert_ptr_equal(parse_nearest("max_byte", names), names[2]);
}

static void nearest_gives_up_on_strangers(void **state)
{
	static const char *const none[] = {NULL};

	assert_null(parse_nearest("completely_other", names));
	assert_null(parse_nearest("", names));
	assert_null(parse_nearest("max_bytes", none));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes_take_suffixes),
		cmocka_unit_test(sizes_refuse_the_rest),
		cmocka_unit_test(sizes_stop_at_63_bits),
		cmocka_unit_test(numbers_are_plain_decimals),
		cmocka_unit_test(numbers_refuse_the_rest),
		cmocka_unit_test(nearest_finds_a_mistyped_name),
		cmocka_unit_test(nearest_result_belongs_to_names),
		cmocka_unit_test(nearest_gives_up_on_strangers),
	};

	return cmocka_run_group_tests_name("parse", tests, NULL, NULL);
}
