/* test_settings.c - the table of knobs: values, ranges, messages, pairs. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "fuse/settings.h"

#define CACHE (256ull << 20)

static struct settings s;
static char message[256];

static int setup(void **state)
{
	settings_init(&s);
	message[0] = '\0';
	return 0;
}

static int set(const char *name, const char *value)
{
	return settings_set(&s, name, value, CACHE, message, sizeof(message));
}

static void assert_reads(const char *name, const char *want)
{
	char text[64];

	assert_int_equal(settings_get(&s, name, text, sizeof(text)), strlen(want));
	assert_string_equal(text, want);
}

static void assert_refused(const char *name, const char *value)
{
	struct settings before = s;

	message[0] = '\0';
	assert_int_equal(set(name, value), -EINVAL);
	assert_memory_equal(&before, &s, sizeof(s));
	assert_non_null(strstr(message, name));
	assert_non_null(strstr(message, "rejected: need "));
	assert_null(strchr(message, '\n'));
}

static void test_defaults_are_allowed_and_read_back(void **state)
{
	assert_int_equal(settings_check(&s, CACHE, message, sizeof(message)), 0);
	assert_reads("dirty_background_centisecs", "100");
	assert_reads("dirty_centisecs", "200");
	assert_reads("max_bytes", "67108864");
	assert_reads("min_ratio", "0");
	assert_reads("max_ratio", "100");
	assert_reads("strict_limit", "0");
	assert_reads("dirty_bytes", "0");
	assert_reads("dirty_ratio", "50");
	assert_reads("dirty_background_bytes", "0");
	assert_reads("dirty_background_ratio", "25");
	assert_reads("dirty_expire_centisecs", "3000");
	assert_reads("dirty_writeback_centisecs", "500");
	assert_reads("law", "pace");
}

static void test_every_name_is_known_and_takes_its_own_value(void **state)
{
	size_t nr = 0;
	size_t nr_per_device = 0;

	for (const char *const *name = settings_names(); *name; name++, nr++) {
		char text[64];

		assert_true(settings_get(&s, *name, text, sizeof(text)) > 0);
		/* The zero half of a bytes/ratio pair is shown but cannot be asked for.
		 */
		if (strcmp(*name, "dirty_bytes") && strcmp(*name, "dirty_background_bytes"))
			assert_int_equal(set(*name, text), 0);
		nr_per_device += settings_is_per_device(*name);
	}
	assert_int_equal(nr, 13);
	assert_int_equal(nr_per_device, 6);
	assert_false(settings_is_per_device("nonsense"));
}

static void test_unknown_name(void **state)
{
	char text[8];

	assert_int_equal(set("dirty_bites", "1M"), -ENODATA);
	assert_non_null(strstr(message, "dirty_bites"));
	assert_int_equal(settings_get(&s, "dirty_bites", text, sizeof(text)), -ENODATA);
}

static void test_ranges_and_units(void **state)
{
	assert_int_equal(set("dirty_background_centisecs", "10"), 0);
	assert_int_equal(set("dirty_background_centisecs", "0"), 0);
	assert_int_equal(set("dirty_centisecs", "360000"), 0);
	assert_refused("dirty_background_centisecs", "abc");
	assert_string_equal(message,
		"dirty_background_centisecs=abc rejected: need 0 or "
		"10..360000 centiseconds");
	assert_refused("dirty_background_centisecs", "9");
	assert_refused("dirty_centisecs", "360001");
	assert_refused("dirty_centisecs", "-1");
	assert_refused("dirty_centisecs", "");
	assert_refused("dirty_centisecs", "200 ");
	assert_refused("dirty_expire_centisecs", "0");
	assert_int_equal(set("dirty_writeback_centisecs", "0"), 0);
	assert_refused("max_ratio", "0");
	assert_refused("max_ratio", "101");
	assert_refused("strict_limit", "2");
	assert_int_equal(set("strict_limit", "1"), 0);
	assert_reads("strict_limit", "1");
}

static void test_sizes(void **state)
{
	assert_int_equal(set("max_bytes", "16M"), 0);
	assert_reads("max_bytes", "16777216");
	assert_int_equal(set("max_bytes", "0"), 0);
	assert_int_equal(set("max_bytes", "64K"), 0);
	assert_refused("max_bytes", "65535");
	assert_refused("max_bytes", "1.5M");
	assert_refused("dirty_bytes", "0");
	assert_refused("dirty_bytes", "32K");
	assert_refused("dirty_bytes", "9223372036854775808");
}

static void test_setting_one_of_a_pair_zeroes_the_other(void **state)
{
	assert_int_equal(set("dirty_bytes", "128M"), 0);
	assert_reads("dirty_ratio", "0");
	assert_int_equal(set("dirty_background_bytes", "32M"), 0);
	assert_reads("dirty_background_ratio", "0");
	assert_int_equal(set("dirty_ratio", "40"), 0);
	assert_reads("dirty_bytes", "0");
	assert_reads("dirty_background_bytes", "33554432");
	assert_int_equal(set("dirty_background_ratio", "10"), 0);
	assert_reads("dirty_background_bytes", "0");
}

static void test_background_follows_the_limit_until_chosen(void **state)
{
	assert_int_equal(set("dirty_bytes", "1M"), 0);
	assert_reads("dirty_background_bytes", "524288");
	assert_reads("dirty_background_ratio", "0");
	assert_int_equal(set("dirty_ratio", "1"), 0);
	assert_reads("dirty_background_ratio", "1");
	assert_int_equal(set("dirty_ratio", "30"), 0);
	assert_reads("dirty_background_ratio", "15");
	assert_int_equal(set("dirty_background_ratio", "5"), 0);
	assert_int_equal(set("dirty_ratio", "60"), 0);
	assert_reads("dirty_background_ratio", "5");
}

static void test_limit_in_time_follows_the_background_until_chosen(void **state)
{
	assert_int_equal(set("dirty_background_centisecs", "200"), 0);
	assert_reads("dirty_centisecs", "400");
	assert_int_equal(set("dirty_background_centisecs", "50"), 0);
	assert_reads("dirty_centisecs", "200"); /* never below the default */
	assert_int_equal(set("dirty_background_centisecs", "180001"), 0);
	assert_reads("dirty_centisecs", "0"); /* twice of it is more than may be asked for */
	assert_int_equal(set("dirty_background_centisecs", "180000"), 0);
	assert_reads("dirty_centisecs", "360000");
	assert_int_equal(set("dirty_background_centisecs", "0"), 0);
	assert_reads("dirty_centisecs", "200");
	assert_int_equal(set("dirty_centisecs", "300"), 0);
	assert_int_equal(set("dirty_background_centisecs", "50"), 0);
	assert_reads("dirty_centisecs", "300");
	assert_refused("dirty_background_centisecs", "300");
	assert_reads("dirty_background_centisecs", "50");
}

static void test_what_was_chosen_is_told_by_the_values(void **state)
{
	assert_int_equal(set("dirty_background_centisecs", "150"), 0);
	assert_int_equal(set("dirty_bytes", "8M"), 0);
	s.device.limit_chosen = s.domain.background_chosen = true; /* as after reading all */
	settings_infer_chosen(&s);
	assert_false(s.device.limit_chosen);
	assert_false(s.domain.background_chosen);
	assert_int_equal(set("dirty_centisecs", "400"), 0);
	assert_int_equal(set("dirty_background_bytes", "1M"), 0);
	s.device.limit_chosen = s.domain.background_chosen = false;
	settings_infer_chosen(&s);
	assert_true(s.device.limit_chosen);
	assert_true(s.domain.background_chosen);
}

static void test_background_at_or_above_the_limit(void **state)
{
	assert_refused("dirty_centisecs", "100");
	assert_int_equal(set("dirty_centisecs", "200"), 0);
	assert_refused("dirty_background_centisecs", "200");
	assert_int_equal(set("dirty_centisecs", "0"), 0);
	assert_int_equal(set("dirty_background_centisecs", "5000"), 0);

	assert_refused("dirty_background_ratio", "50");
	assert_refused("dirty_background_bytes", "128M");
	assert_int_equal(set("dirty_background_bytes", "127M"), 0);
	assert_refused("dirty_bytes", "127M");
	assert_int_equal(set("dirty_background_ratio", "25"), 0);
	assert_refused("dirty_bytes", "64M");
	assert_int_equal(set("dirty_bytes", "65M"), 0);

	assert_int_equal(set("min_ratio", "20"), 0);
	assert_refused("max_ratio", "19");
}

static void test_unknown_cache_compares_like_with_like(void **state)
{
	assert_int_equal(
		settings_set(&s, "dirty_background_bytes", "900G", 0, message, sizeof(message)),
		0);
	assert_int_equal(
		settings_set(&s, "dirty_bytes", "900G", 0, message, sizeof(message)), -EINVAL);
}

static void test_order_of_a_command_line_does_not_matter(void **state)
{
	static const char *const line[][2] = {{"dirty_background_centisecs", "500"},
		{"dirty_centisecs", "1000"}, {"dirty_background_bytes", "200M"},
		{"dirty_bytes", "240M"}};
	enum { NR = sizeof(line) / sizeof(line[0]) };

	for (size_t first = 0; first < NR; first++) {
		settings_init(&s);
		for (size_t i = 0; i < NR; i++) {
			const char *const *option = line[(first + i) % NR];

			assert_int_equal(settings_assign(&s, option[0], option[1], message,
						 sizeof(message)),
				0);
		}
		assert_int_equal(settings_check(&s, CACHE, message, sizeof(message)), 0);
		assert_reads("dirty_background_bytes", "209715200");
	}
	assert_int_equal(
		settings_assign(&s, "dirty_centisecs", "100", message, sizeof(message)), 0);
	assert_int_equal(settings_check(&s, CACHE, message, sizeof(message)), -EINVAL);
}

static void test_laws(void **state)
{
	assert_int_equal(set("law", "pace"), 0);
	assert_reads("law", "pace");
	assert_int_equal(set("law", "linux"), 0);
	assert_reads("law", "linux");
	assert_refused("law", "windows");
	assert_string_equal(message, "law=windows rejected: need linux or pace");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_defaults_are_allowed_and_read_back, setup),
		cmocka_unit_test_setup(test_every_name_is_known_and_takes_its_own_value, setup),
		cmocka_unit_test_setup(test_unknown_name, setup),
		cmocka_unit_test_setup(test_ranges_and_units, setup),
		cmocka_unit_test_setup(test_sizes, setup),
		cmocka_unit_test_setup(test_setting_one_of_a_pair_zeroes_the_other, setup),
		cmocka_unit_test_setup(test_background_follows_the_limit_until_chosen, setup),
		cmocka_unit_test_setup(
			test_limit_in_time_follows_the_background_until_chosen, setup),
		cmocka_unit_test_setup(test_what_was_chosen_is_told_by_the_values, setup),
		cmocka_unit_test_setup(test_background_at_or_above_the_limit, setup),
		cmocka_unit_test_setup(test_unknown_cache_compares_like_with_like, setup),
		cmocka_unit_test_setup(test_order_of_a_command_line_does_not_matter, setup),
		cmocka_unit_test_setup(test_laws, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
