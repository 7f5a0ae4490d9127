/* test_mapping.c - backend/cache/mapping.h against a plain list. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "backend/cache/arena.h"
#include "backend/cache/mapping.h"

enum { NR = 300, STEPS = 60000 };

struct entry {
	uint64_t index;
	uint32_t frame; /* FRAME_NONE: not there */
	bool dirty;
};

static uint64_t rng = 42;

static uint64_t below(uint64_t n)
{
	rng = rng * 6364136223846793005ull + 1442695040888963407ull;
	return (rng >> 33) % n;
}

static uint64_t model_next(const struct entry *e, uint64_t from, bool dirty_only)
{
	uint64_t best = MAPPING_END;

	for (unsigned i = 0; i < NR; i++)
		if (e[i].frame != FRAME_NONE && e[i].index >= from && e[i].index < best &&
			(!dirty_only || e[i].dirty))
			best = e[i].index;
	return best;
}

static struct entry *pick(struct entry *e, bool there)
{
	for (unsigned tries = 0; tries < NR; tries++) {
		struct entry *one = &e[below(NR)];
		if ((one->frame != FRAME_NONE) == there)
			return one;
	}
	return NULL;
}

static void behaves_like_a_list(void **state)
{
	/* Near and far, at the borders of levels, up to the last page of the largest file */
	static const uint64_t bases[] = {0, 60, 4090, 262140, 1ull << 24, (1ull << 51) - 10};
	struct entry e[NR];
	struct mapping m = {0};

	for (unsigned i = 0; i < NR; i++)
		e[i] = (struct entry){bases[i % 6] + i / 6, FRAME_NONE, false};
	for (unsigned step = 0; step < STEPS; step++) {
		struct entry *one = &e[below(NR)];
		uint32_t old;
		switch (below(5)) {
		case 0:
		case 1:
			assert_int_equal(mapping_set(&m, one->index, step, &old), 0);
			assert_int_equal(old, one->frame);
			one->frame = step;
			break;
		case 2:
			assert_int_equal(mapping_remove(&m, one->index), one->frame);
			one->frame = FRAME_NONE;
			one->dirty = false;
			break;
		default:
			if ((one = pick(e, true))) {
				one->dirty = below(2);
				mapping_mark(&m, one->index, one->dirty);
			}
		}
		one = &e[below(NR)];
		assert_int_equal(mapping_get(&m, one->index), one->frame);
		uint64_t from = below(3) ? one->index + below(3) - 1 : 0;
		from = from == UINT64_MAX ? 0 : from;
		for (int dirty = 0; dirty < 2; dirty++)
			assert_int_equal(
				mapping_next(&m, from, dirty), model_next(e, from, dirty));
		if (step % 5000 == 0) { /* empty it now and then */
			for (unsigned i = 0; i < NR; i++) {
				mapping_remove(&m, e[i].index);
				e[i].frame = FRAME_NONE;
				e[i].dirty = false;
			}
			assert_null(m.root);
		}
	}
	for (unsigned i = 0; i < NR; i++)
		mapping_remove(&m, e[i].index);
	assert_null(m.root);
}

/* An empty root below a higher one was never found again. */
static void a_far_first_page_leaves_nothing_behind(void **state)
{
	struct mapping m = {0};
	uint32_t old;

	assert_int_equal(mapping_set(&m, 1ull << 40, 7, &old), 0);
	assert_int_equal(mapping_next(&m, 0, false), 1ull << 40);
	assert_int_equal(mapping_remove(&m, 1ull << 40), 7);
	assert_null(m.root);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(behaves_like_a_list),
		cmocka_unit_test(a_far_first_page_leaves_nothing_behind),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
