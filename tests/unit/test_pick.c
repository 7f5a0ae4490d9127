/* test_pick.c - backend/flush/pick.h: which file comes next, on lists and counters alone. */
#include "backend/flush/pick.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

enum { NODES = 8, CHUNK = 10 };
#define NEVER UINT64_MAX

static struct {
	struct domain dom;
	struct device dev;
	struct node nodes[NODES];
	struct flush_pick pick;
	struct flush_sizes sizes;
} t;

static int setup(void **state)
{
	memset(&t, 0, sizeof(t));
	t.dev.dom = &t.dom;
	t.sizes = (struct flush_sizes){
		.request_pages = 4, .slice_pages = CHUNK, .inflight_bytes = 1u << 20};
	for (unsigned i = 0; i < NODES; i++) {
		node_init(&t.nodes[i], &t.dev, 100 + i, 0);
		t.nodes[i].refs = 1;
	}
	return 0;
}

/* As the cache does it. */
static void dirty(unsigned i, uint64_t pages, uint64_t now_us)
{
	struct node *n = &t.nodes[i];

	t.dev.nr_dirty += pages;
	n->nr_dirty += pages;
	if (n->place == NODE_CLEAN) {
		n->dirtied_when_us = now_us;
		node_move(n, NODE_ON_DIRTY);
	}
	node_update_unclean(n);
}

/* One request of the picked node is written at once; 'a' + its number, or '-'. */
static char step(uint64_t cutoff_us)
{
	struct node *n = flush_pick(&t.pick, &t.dev, &t.sizes, cutoff_us);

	if (!n)
		return '-';
	uint64_t pages =
		n->nr_dirty < t.sizes.request_pages ? n->nr_dirty : t.sizes.request_pages;
	flush_pick_took(&t.pick, n, n->flush_index, pages);
	n->nr_dirty -= pages;
	t.dev.nr_dirty -= pages;
	if (n->nr_dirty == 0)
		node_move(n, NODE_CLEAN);
	node_update_unclean(n);
	return (char)('a' + (n - t.nodes));
}

/* The files in the order in which the next requests take them. */
static const char *steps(unsigned nr, uint64_t cutoff_us)
{
	static char order[64];
	unsigned i;

	for (i = 0; i < nr; i++)
		order[i] = step(cutoff_us);
	order[i] = '\0';
	return order;
}

static void place(const uint64_t *positions, unsigned nr)
{
	t.dev.seeks = true;
	for (unsigned i = 0; i < nr; i++)
		t.nodes[i].position = positions[i];
}

static void oldest_first(void **state)
{
	dirty(2, 1, 10);
	dirty(0, 1, 20);
	dirty(1, 1, 30);
	assert_string_equal(steps(4, NEVER), "cab-");
}

static void places_count_only_where_it_seeks(void **state)
{
	place((uint64_t[]){300, 200, 100}, 3);
	t.dev.seeks = false;
	for (unsigned i = 0; i < 3; i++)
		dirty(i, 1, 10 + i);
	assert_string_equal(steps(4, NEVER), "abc-");
}

static void a_used_up_slice_lets_the_others_come(void **state)
{
	dirty(0, 3 * CHUNK, 1);
	dirty(1, 1, 2);
	dirty(2, 1, 3);
	/* 4 + 4 + 4 pages pass 10. */
	assert_string_equal(steps(6, NEVER), "aaabca");
	assert_int_equal(t.nodes[0].flush_index, 16);
	assert_string_equal(steps(5, NEVER), "aaaa-");
}

static void who_is_not_done_comes_before_who_is_new(void **state)
{
	dirty(0, 2 * CHUNK, 1);
	dirty(1, 1, 2);
	assert_string_equal(steps(1, NEVER), "a");
	dirty(2, 1, 3);
	assert_string_equal(steps(6, NEVER), "aabaac");
}

static void nothing_dirtied_after_the_cutoff(void **state)
{
	place((uint64_t[]){100, 200, 300}, 3);
	dirty(2, 1, 10);
	dirty(1, 1, 20);
	dirty(0, 1, 21);
	assert_string_equal(steps(3, 20), "bc-");
	assert_string_equal(steps(2, 21), "a-");
}

static void disk_order_from_the_lowest(void **state)
{
	place((uint64_t[]){300, 100, 400, 200}, 4);
	for (unsigned i = 0; i < 4; i++)
		dirty(i, 1, 10 + i);
	assert_string_equal(steps(5, NEVER), "bdac-");
}

static void the_next_round_goes_on_upwards_and_wraps(void **state)
{
	place((uint64_t[]){100, 200, 300, 400}, 4);
	dirty(1, 1, 1);
	assert_string_equal(steps(1, NEVER), "b");
	for (unsigned i = 0; i < 4; i++)
		dirty(i, 1, 10 - i);
	assert_string_equal(steps(5, NEVER), "bcda-");
}

static void one_round_for_all(void **state)
{
	place((uint64_t[]){100, 200, 300, 400}, 4);
	for (unsigned i = 0; i < 3; i++)
		dirty(i, 1, 10 + i);
	assert_string_equal(steps(1, NEVER), "a");
	/* Dirty again, and new above the head: both come when all of this round have been. */
	dirty(0, 1, 20);
	dirty(3, 1, 21);
	assert_string_equal(steps(2, NEVER), "bc");
	dirty(2, 1, 22);
	assert_string_equal(steps(4, NEVER), "cda-");
}

/* Files that are dirty all the time, however fast, get the same number of slices. */
static void nobody_waits_longer_than_a_round(void **state)
{
	unsigned got[NODES] = {0}, last[NODES] = {0}, seed = 1;

	t.dev.seeks = true;
	for (unsigned i = 0; i < NODES; i++)
		dirty(i, 1, 0);
	for (unsigned i = 1; i <= 1000 * NODES; i++) {
		unsigned n = (unsigned)(step(NEVER) - 'a');
		assert_true(n < NODES);
		assert_true(i - last[n] < 2 * NODES);
		last[n] = i;
		got[n]++;
		seed = seed * 1103515245 + 12345;
		t.nodes[n].position = seed >> 16 & 0x3ff; /* as it grows elsewhere */
		dirty(n, 1, i);
	}
	for (unsigned i = 0; i < NODES; i++)
		assert_int_equal(got[i], 1000);
}

static void slices_are_four_times_as_large_where_it_seeks(void **state)
{
	place((uint64_t[]){100, 200}, 2);
	t.sizes.request_pages = CHUNK;
	dirty(0, 6 * CHUNK, 1);
	dirty(1, 1, 2);
	assert_string_equal(steps(8, NEVER), "aaaabaa-");
}

static void a_slice_ends_with_the_file(void **state)
{
	place((uint64_t[]){100, 200}, 2);
	dirty(0, 5, 1);
	dirty(1, 5, 2);
	assert_string_equal(steps(5, NEVER), "aabb-");
	assert_ptr_equal(t.dev.aged, NULL);
}

/* What was left of the last slice of the round before is no part of the next one. */
static void each_round_has_whole_slices(void **state)
{
	t.sizes.request_pages = CHUNK;
	dirty(0, CHUNK, 1);
	assert_string_equal(steps(1, NEVER), "a"); /* its slice is used up, and it is clean */
	dirty(0, CHUNK, 2);
	dirty(1, CHUNK, 3);
	assert_string_equal(steps(3, NEVER), "ab-");
}

static void a_cut_is_waited_for(void **state)
{
	for (int seeks = 0; seeks < 2; seeks++) {
		setup(NULL);
		t.dev.seeks = seeks;
		for (unsigned i = 0; i < 3; i++)
			dirty(i, 1, i);
		t.nodes[0].cut_pending = true;
		assert_string_equal(steps(3, NEVER), "bc-");
		dirty(1, 1, 9); /* and nobody waits for it but itself */
		assert_string_equal(steps(2, NEVER), "b-");
		t.nodes[0].cut_pending = false;
		assert_string_equal(steps(2, NEVER), "a-");
	}
}

static void enough_in_flight_is_enough(void **state)
{
	for (int seeks = 0; seeks < 2; seeks++) {
		setup(NULL);
		t.dev.seeks = seeks;
		dirty(0, 1, 0);
		dirty(1, 1, 1);
		t.nodes[0].inflight_bytes = t.sizes.inflight_bytes;
		assert_string_equal(steps(2, NEVER), "b-");
		dirty(1, 1, 9); /* for the next round */
		assert_string_equal(steps(1, NEVER), "-");
		t.nodes[0].inflight_bytes--;
		assert_string_equal(steps(3, NEVER), "ab-");
	}
}

static void passed_over_comes_in_the_next_round(void **state)
{
	for (unsigned i = 0; i < 3; i++)
		dirty(i, 2 * CHUNK, i);
	struct node *n = flush_pick(&t.pick, &t.dev, &t.sizes, NEVER);
	assert_ptr_equal(n, &t.nodes[0]);
	assert_true(flush_pick_pass(&t.pick, n));
	assert_string_equal(steps(7, NEVER), "bbbccca");
	/* The last one: there is nobody else to take. */
	n = flush_pick(&t.pick, &t.dev, &t.sizes, NEVER);
	while (t.dev.io->next)
		node_move(t.dev.io->next, NODE_ON_MORE_IO);
	assert_false(flush_pick_pass(&t.pick, n));
}

/* None of them can: one waits for what is in flight of it, the other for the source to be cut,
 * which needs the lock that the flusher holds while it picks. */
static void passing_comes_to_an_end(void **state)
{
	enum { DIRTY = 3, MOST = 2 * DIRTY };

	for (unsigned i = 0; i < DIRTY; i++)
		dirty(i, 2 * CHUNK, i);
	t.nodes[2].cut_pending = true;
	for (int collects = 0; collects < 3; collects++) {
		unsigned passes = 0, seen[DIRTY] = {0};
		struct node *n;
		do {
			n = flush_pick(&t.pick, &t.dev, &t.sizes, NEVER);
			if (n)
				seen[n - t.nodes]++;
		} while (n && flush_pick_pass(&t.pick, n) && ++passes < MOST);
		assert_in_range(passes, 1, MOST - 1);
		assert_true(seen[0] && seen[1] && !seen[2]);
	}
	/* One that can ends it: the next time all are asked again. */
	assert_string_equal(steps(1, NEVER), "a");
}

/* ---- somebody waits ---- */

static const char *tagged_steps(unsigned nr)
{
	static char order[64];

	for (unsigned i = 0; i < nr; i++) {
		struct node *n = flush_pick_tagged(&t.pick, &t.dev, &t.sizes);
		order[i] = n ? (char)('a' + (n - t.nodes)) : '-';
		order[i + 1] = '\0';
		if (n && --n->nr_tagged == 0) {
			n->nr_dirty = 0;
			node_move(n, NODE_CLEAN);
			node_update_unclean(n);
		}
	}
	return order;
}

static void only_what_is_waited_for(void **state)
{
	place((uint64_t[]){400, 300, 200, 100}, 4);
	t.dev.seeks = false;
	for (unsigned i = 0; i < 4; i++)
		dirty(i, 2, i);
	t.nodes[3].nr_tagged = t.nodes[1].nr_tagged = 2;
	assert_string_equal(tagged_steps(5), "bbdd-");
	t.nodes[0].nr_tagged = t.nodes[2].nr_tagged = 1;
	t.nodes[0].cut_pending = true;
	assert_string_equal(tagged_steps(2), "c-");
}

static void what_is_waited_for_in_disk_order(void **state)
{
	place((uint64_t[]){400, 300, 200, 100}, 4);
	for (unsigned i = 0; i < 4; i++) {
		dirty(i, 2, i);
		t.nodes[i].nr_tagged = 2;
	}
	t.pick.head = 250;
	assert_string_equal(tagged_steps(1), "b");
	t.nodes[2].position = 260; /* has been passed */
	assert_string_equal(tagged_steps(8), "baaddcc-");
}

/* ---- what the plan is made from ---- */

static void the_oldest_is_found_in_any_order(void **state)
{
	place((uint64_t[]){300, 200, 100}, 3);
	assert_true(flush_pick_view(&t.dev, false, 9).oldest_dirtied_us == FLUSH_NEVER_US);
	dirty(0, 2 * FLUSH_SEEK_SLICES * CHUNK, 10);
	dirty(1, 1, 20);
	dirty(2, 1, 30);
	assert_int_equal(flush_pick_view(&t.dev, false, 40).oldest_dirtied_us, 10);
	/* The youngest lies lowest: the io list begins with it. */
	assert_string_equal(steps(2, NEVER), "cb");
	assert_int_equal(flush_pick_view(&t.dev, false, 40).oldest_dirtied_us, 10);
	/* Its slice used up, others are on lists that come before. */
	while (t.nodes[0].slice_pages || t.nodes[0].place == NODE_ON_DIRTY)
		assert_int_equal(step(NEVER), 'a');
	node_move(&t.nodes[0], NODE_ON_MORE_IO);
	dirty(1, 1, 50);
	node_move(&t.nodes[1], NODE_ON_IO);
	assert_int_equal(flush_pick_view(&t.dev, false, 60).oldest_dirtied_us, 10);
	node_move(&t.nodes[0], NODE_CLEAN);
	assert_int_equal(flush_pick_view(&t.dev, false, 60).oldest_dirtied_us, 50);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, setup)
	const struct CMUnitTest tests[] = {
		TEST(oldest_first),
		TEST(places_count_only_where_it_seeks),
		TEST(a_used_up_slice_lets_the_others_come),
		TEST(who_is_not_done_comes_before_who_is_new),
		TEST(nothing_dirtied_after_the_cutoff),
		TEST(disk_order_from_the_lowest),
		TEST(the_next_round_goes_on_upwards_and_wraps),
		TEST(one_round_for_all),
		TEST(nobody_waits_longer_than_a_round),
		TEST(slices_are_four_times_as_large_where_it_seeks),
		TEST(a_slice_ends_with_the_file),
		TEST(each_round_has_whole_slices),
		TEST(a_cut_is_waited_for),
		TEST(enough_in_flight_is_enough),
		TEST(passed_over_comes_in_the_next_round),
		TEST(passing_comes_to_an_end),
		TEST(only_what_is_waited_for),
		TEST(what_is_waited_for_in_disk_order),
		TEST(the_oldest_is_found_in_any_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
