/* The arena's own frames and those it lends: what is given back to the system, and when. */
#include "backend/cache/arena.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

enum { SEGMENT = ARENA_SEGMENT_FRAMES, OWN = 2 * SEGMENT, MOST = 4 * SEGMENT };

static struct arena a;
static uint32_t frames[MOST];

static int setup(void **state)
{
	assert_int_equal(arena_create(&a, OWN - 1, MOST), 0); /* rounded up */
	return 0;
}

static int teardown(void **state)
{
	arena_destroy(&a);
	return 0;
}

static uint64_t memfd_bytes(void)
{
	struct stat st;

	assert_int_equal(fstat(a.memfd, &st), 0);
	return (uint64_t)st.st_blocks * 512;
}

static void grow_to(uint32_t nr_frames)
{
	while (a.nr_frames < nr_frames)
		assert_int_equal(arena_grow(&a), 0);
}

static void own_frames_first_and_no_others(void **state)
{
	grow_to(MOST);
	assert_int_equal(arena_grow(&a), -ENOSPC);
	assert_int_equal(arena_alloc(&a, MOST, frames), OWN);
	for (unsigned i = 0; i < OWN; i++)
		assert_false(arena_is_lent(&a, frames[i]));
	assert_int_equal(arena_alloc(&a, 1, frames), 0);
	assert_int_equal(arena_borrow(&a, 3, frames), 3);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(frames[i], OWN + i);
	assert_int_equal(a.nr_free_lent, MOST - OWN - 3);
	arena_free(&a, OWN + 1);
	assert_int_equal(arena_borrow(&a, 1, frames), 1);
	assert_int_equal(frames[0], OWN + 1); /* the lowest */
	assert_int_equal(arena_borrow(&a, MOST, frames), MOST - OWN - 3);
	assert_int_equal(arena_borrow(&a, 1, frames), 0);
}

static void only_a_free_last_segment_goes(void **state)
{
	grow_to(MOST);
	assert_int_equal(arena_borrow(&a, SEGMENT + 1, frames), SEGMENT + 1);
	for (unsigned i = 0; i < SEGMENT + 1; i++)
		memset(arena_data(&a, frames[i]), 1, PAGE_BYTES);
	assert_true(memfd_bytes() >= (uint64_t)SEGMENT * PAGE_BYTES);
	arena_trim(&a);
	arena_trim(&a);
	assert_int_equal(a.nr_frames, MOST); /* one frame of it is in use */
	arena_free(&a, frames[SEGMENT]);
	arena_trim(&a);
	assert_int_equal(a.nr_frames, MOST - SEGMENT);
	arena_trim(&a);
	assert_int_equal(a.nr_frames, MOST - SEGMENT); /* the one before is in use */
	for (unsigned i = 0; i < SEGMENT; i++)
		arena_free(&a, frames[i]);
	arena_trim(&a);
	assert_int_equal(a.nr_frames, OWN);
	assert_int_equal(a.nr_free_lent, 0);
	assert_true(memfd_bytes() < (uint64_t)SEGMENT * PAGE_BYTES);
	arena_trim(&a);
	assert_int_equal(a.nr_frames, OWN); /* never the cache's own */
}

static void what_is_lent_all_the_time_stays(void **state)
{
	grow_to(MOST);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(arena_borrow(&a, 1, frames), 1);
		arena_free(&a, frames[0]);
		arena_trim(&a);
		assert_int_equal(a.nr_frames, MOST);
	}
}

/* What comes back after a trim is zeroed memory and works as before. */
static void grown_again_after_a_trim(void **state)
{
	grow_to(OWN + SEGMENT);
	assert_int_equal(arena_borrow(&a, 1, frames), 1);
	memset(arena_data(&a, frames[0]), 1, PAGE_BYTES);
	arena_free(&a, frames[0]);
	arena_trim(&a);
	arena_trim(&a);
	assert_int_equal(a.nr_frames, OWN);
	grow_to(OWN + SEGMENT);
	assert_int_equal(arena_borrow(&a, 1, frames), 1);
	assert_int_equal(frames[0], OWN);
	assert_int_equal(arena_data(&a, frames[0])[0], 0);
	arena_free(&a, frames[0]);
}

#define test(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(own_frames_first_and_no_others),
		test(only_a_free_last_segment_goes),
		test(what_is_lent_all_the_time_stays),
		test(grown_again_after_a_trim),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
