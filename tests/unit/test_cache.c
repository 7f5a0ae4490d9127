/* test_cache.c - backend/cache/cache.h: scenarios, and random operations of a writer, a reader and a
 * flusher (all of them in this thread) against a copy in memory. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "backend/cache/cache.h"

enum { FILE_BYTES = 24 * PAGE_BYTES, MAX_IOS = 6, STEPS = 40000 };

/* What the flusher has in flight */
struct io {
	bool used, fill;
	uint64_t index, seq;
	uint32_t frame;
	unsigned bytes;
	unsigned char bounce[PAGE_BYTES];
};

static struct {
	struct domain dom;
	struct device dev;
	struct node node;
	unsigned char source[FILE_BYTES], want[FILE_BYTES];
	uint64_t source_size;
	bool cut_pending;
	uint64_t cut_size;
	struct io ios[MAX_IOS];
} t;

static uint64_t rng;

static uint64_t below(uint64_t n)
{
	rng = rng * 6364136223846793005ull + 1442695040888963407ull;
	return (rng >> 33) % n;
}

static int setup(void **state)
{
	memset(&t, 0, sizeof(t));
	assert_int_equal(domain_init(&t.dom, ARENA_SEGMENT_FRAMES, ARENA_SEGMENT_FRAMES), 0);
	assert_int_equal(device_init(&t.dev, &t.dom, 1, "test"), 0);
	node_init(&t.node, &t.dev, 77, 0);
	node_get(&t.node);
	return 0;
}

static int teardown(void **state)
{
	cache_drop(&t.node);
	assert_int_equal(t.node.nr_dirty, 0);
	assert_int_equal(t.dom.nr_dirty, 0);
	device_finish(&t.dev);
	domain_finish(&t.dom);
	return 0;
}

static void put(uint64_t offset, const char *text)
{
	assert_true(cache_write(&t.node, offset, text, (unsigned)strlen(text), 1) >= 0);
}

static void assert_reads(uint64_t offset, const char *text)
{
	struct cache_pin pins[4];
	char got[64] = "";
	bool whole;

	unsigned n = cache_read_begin(&t.node, offset, strlen(text), pins, 4, &whole);
	cache_read_end(&t.node, offset, strlen(text), got, pins, n);
	assert_string_equal(got, text);
}

/* ---- scenarios ---- */

static void a_sync_does_not_wait_for_what_is_written_later(void **state)
{
	put(0, "one");
	cache_tag_node(&t.node);
	uint32_t frame = cache_begin_writeback(&t.node, 0);
	put(0, "two");
	assert_int_equal(t.node.nr_tagged, 1);
	cache_end_writeback(&t.node, 0, frame, 0, 2);
	assert_int_equal(t.node.nr_tagged, 0);
	assert_int_equal(t.dev.nr_tagged, 0);
	assert_int_equal(t.node.nr_dirty, 1);
	assert_reads(0, "two");
}

static void unless_the_write_has_to_be_done_again(void **state)
{
	put(0, "one");
	cache_tag_node(&t.node);
	uint32_t frame = cache_begin_writeback(&t.node, 0);
	put(0, "two");
	cache_redirty(&t.node, 0, frame, 2);
	assert_int_equal(t.node.nr_tagged, 1);
	frame = cache_begin_writeback(&t.node, 0);
	cache_end_writeback(&t.node, 0, frame, 0, 3);
	assert_int_equal(t.node.nr_tagged, 0);
}

static void untagged_is_what_is_not_in_flight(void **state)
{
	put(0, "one");
	put(PAGE_BYTES, "two");
	cache_tag_node(&t.node);
	uint32_t frame = cache_begin_writeback(&t.node, 0);
	cache_untag_node(&t.node);
	assert_int_equal(t.node.nr_tagged, 1);
	cache_end_writeback(&t.node, 0, frame, 0, 2);
	assert_int_equal(t.node.nr_tagged, 0);
	assert_int_equal(t.node.nr_dirty, 1);
}

static void rewritten_while_dirty_it_stays_tagged(void **state)
{
	uint32_t frame;
	bool adopted;

	put(0, "one");
	cache_tag_node(&t.node);
	assert_int_equal(cache_alloc(&t.dom, 1, &frame), 1);
	memcpy(arena_data(&t.dom.arena, frame), "two", 4);
	assert_int_equal(cache_adopt(&t.node, 0, frame, PAGE_BYTES, 1, &adopted), 0);
	assert_true(adopted);
	assert_int_equal(t.node.nr_tagged, 1);
	frame = cache_begin_writeback(&t.node, 0);
	cache_end_writeback(&t.node, 0, frame, 0, 3);
	assert_int_equal(t.node.nr_tagged, 0);
}

static void a_page_that_goes_while_it_is_read_keeps_its_valid_bytes(void **state)
{
	struct cache_pin pins[2];
	char got[8] = "........";
	bool whole;

	put(0, "ab");
	put(4, "ef"); /* two pieces: a bitmap */
	unsigned n = cache_read_begin(&t.node, 0, 8, pins, 2, &whole);
	assert_false(whole);
	cache_drop(&t.node);
	cache_read_end(&t.node, 0, 8, got, pins, n);
	assert_memory_equal(got, "ab..ef..", 8);
	assert_int_equal(t.dom.arena.frames[pins[0].frame].state, FRAME_FREE);
}

static void a_write_never_fails_for_lack_of_room_while_there_are_clean_pages(void **state)
{
	uint32_t *frames = calloc(ARENA_SEGMENT_FRAMES, sizeof(*frames));
	bool adopted;

	/* All memory: one dirty page, the others clean */
	put(5, "x");
	unsigned n = cache_alloc(&t.dom, ARENA_SEGMENT_FRAMES, frames);
	assert_int_equal(n, ARENA_SEGMENT_FRAMES - 1);
	for (unsigned i = 0; i < n; i++) {
		assert_int_equal(
			cache_adopt(&t.node, 1 + i, frames[i], PAGE_BYTES, 1, &adopted), 1);
		uint32_t frame = cache_begin_writeback(&t.node, 1 + i);
		cache_end_writeback(&t.node, 1 + i, frame, 0, 2);
	}
	assert_int_equal(t.dom.arena.nr_free, 0);
	put(100, "y");
	assert_reads(5, "x");
	assert_reads(100, "y");
	assert_int_equal(t.dom.dirty_met_evicting, 0);
	free(frames);
}

/* All of the cache dirty, and a limit larger than it. */
static void lent_frames_are_not_kept_clean(void **state)
{
	uint32_t *frames = calloc(ARENA_SEGMENT_FRAMES, sizeof(*frames));
	uint32_t lent;
	bool adopted;

	domain_finish(&t.dom);
	assert_int_equal(
		domain_init(&t.dom, ARENA_SEGMENT_FRAMES, 2 * ARENA_SEGMENT_FRAMES), 0);
	assert_int_equal(
		cache_alloc(&t.dom, ARENA_SEGMENT_FRAMES, frames), ARENA_SEGMENT_FRAMES);
	assert_int_equal(t.dom.arena.nr_frames, ARENA_SEGMENT_FRAMES);
	assert_int_equal(cache_alloc(&t.dom, 1, &lent), 1);
	assert_true(arena_is_lent(&t.dom.arena, lent));
	assert_int_equal(cache_adopt(&t.node, 0, lent, PAGE_BYTES, 1, &adopted), 1);
	assert_int_equal(cache_adopt(&t.node, 1, frames[0], PAGE_BYTES, 1, &adopted), 1);
	for (uint64_t i = 0; i < 2; i++)
		cache_end_writeback(&t.node, i, cache_begin_writeback(&t.node, i), 0, 2);
	assert_int_equal(t.dom.nr_clean, 1);
	assert_int_equal(mapping_get(&t.node.map, 0), FRAME_NONE);
	assert_int_equal(mapping_get(&t.node.map, 1), frames[0]);
	/* Nothing was lent since, and the memory goes back. */
	arena_trim(&t.dom.arena);
	assert_int_equal(t.dom.arena.nr_frames, 2 * ARENA_SEGMENT_FRAMES);
	arena_trim(&t.dom.arena);
	assert_int_equal(t.dom.arena.nr_frames, ARENA_SEGMENT_FRAMES);
	for (unsigned i = 1; i < ARENA_SEGMENT_FRAMES; i++)
		cache_free_held(&t.dom, frames[i]);
	free(frames);
}

/* Each in a part of the tree of its own: after some the tree is as large as it may be. */
static void lone_pages_are_not_kept_clean(void **state)
{
	enum { LONE = 400 };
	uint64_t most = (uint64_t)ARENA_SEGMENT_FRAMES * PAGE_BYTES / CACHE_MAP_PART;

	for (uint64_t i = 0; i < LONE; i++) {
		put(i << 30, "x");
		cache_end_writeback(
			&t.node, i << 18, cache_begin_writeback(&t.node, i << 18), 0, 2);
	}
	assert_in_range(t.dom.map_bytes, most / 2, most + 4096);
	assert_in_range(t.dom.nr_clean, 10, LONE / 2);
	cache_drop(&t.node);
	assert_int_equal(t.dom.map_bytes, 0);
}

static void an_error_is_heard_of_and_the_page_is_gone(void **state)
{
	put(0, "lost");
	cache_tag_node(&t.node);
	uint32_t frame = cache_begin_writeback(&t.node, 0);
	cache_end_writeback(&t.node, 0, frame, 5, 2);
	assert_int_equal(t.node.nr_tagged, 0);
	assert_int_equal(t.node.nr_pages, 0);
	assert_int_equal(t.dom.nr_clean, 0);
}

static void assert_rounds(uint32_t step_ns, time_t sec, long nsec)
{
	struct timespec t0 = {1000000001, 987654321};

	t.dev.time_step_ns = step_ns;
	t0 = node_round_time(&t.node, t0);
	assert_int_equal(t0.tv_sec, sec);
	assert_int_equal(t0.tv_nsec, nsec);
}

static void times_are_on_the_grid_of_the_source(void **state)
{
	assert_rounds(0, 1000000001, 987654321);
	assert_rounds(1, 1000000001, 987654321);
	assert_rounds(100, 1000000001, 987654300);
	assert_rounds(10000000, 1000000001, 980000000);
	assert_rounds(1000000000, 1000000001, 0);
	assert_rounds(2000000000, 1000000000, 0);
}

static int64_t touched(void)
{
	node_touch(&t.node);
	assert_memory_equal(&t.node.mtime, &t.node.ctime, sizeof(t.node.mtime));
	return t.node.ctime.tv_sec * 1000000000ll + t.node.ctime.tv_nsec;
}

static void stamps_that_were_seen_are_passed(void **state)
{
	t.dev.time_step_ns = 100;
	int64_t last = touched();
	/* As seen of a source whose clock is a moment ahead. */
	t.node.ctime.tv_sec += t.node.ctime.tv_nsec >= 500000000;
	t.node.ctime.tv_nsec = (t.node.ctime.tv_nsec + 500000000) % 1000000000;
	last += 500000000;
	assert_int_equal(
		touched(), last); /* not seen: not passed, but never before it either */
	for (int i = 0; i < 1000; i++) {
		t.node.times_shown = true;
		int64_t now = touched();
		assert_int_equal(now, last + 100);
		last = now;
	}
	/* Whole seconds cannot be passed within one. */
	t.dev.time_step_ns = 1000000000;
	t.node.ctime.tv_nsec = 0;
	last = touched();
	t.node.times_shown = true;
	assert_true(touched() <= last + 1000000000);
	/* Nor is the date of a clock that was set back kept. */
	t.node.ctime.tv_sec += 3600;
	assert_true(touched() <= last + 1000000000);
	t.node.times_pending = false;
	node_update_unclean(&t.node);
}

static void submit_at(uint64_t index);
static void complete_one(struct io *io);

static void bytes_read_before_a_cut_do_not_come_back(void **state)
{
	unsigned char got[64];
	struct cache_pin pins[2];
	bool whole;

	memset(t.source, 'A', PAGE_BYTES);
	t.source_size = t.node.size = PAGE_BYTES;
	put(10, "xyz");
	submit_at(0); /* reads what is missing of the page */
	assert_true(t.ios[0].fill);
	assert_int_equal(cache_truncate(&t.node, 12, 1), 0);
	put(PAGE_BYTES + 5, "far"); /* what was cut off is a hole now */
	complete_one(&t.ios[0]);
	memset(t.source + 12, 0, PAGE_BYTES - 12);
	t.source_size = 12;
	for (int filled = 0; filled < 2; filled++) {
		unsigned n = cache_read_begin(&t.node, 0, 64, pins, 2, &whole);
		memcpy(got, t.source, 64);
		cache_read_end(&t.node, 0, 64, got, pins, n);
		assert_memory_equal(got, "AAAAAAAAAAxy\0\0\0\0", 16);
		submit_at(0);
		complete_one(&t.ios[0]);
	}
}

/* ---- random operations ---- */

static bool in_flight(uint64_t index)
{
	for (unsigned i = 0; i < MAX_IOS; i++)
		if (t.ios[i].used && t.ios[i].index == index)
			return true;
	return false;
}

static bool anything_in_flight(void)
{
	for (unsigned i = 0; i < MAX_IOS; i++)
		if (t.ios[i].used)
			return true;
	return false;
}

static void random_write(void)
{
	uint64_t offset = below(FILE_BYTES - 1);
	unsigned bytes = 1 + (unsigned)below(3 * PAGE_BYTES);

	if (below(3) == 0)
		offset &= ~(uint64_t)(PAGE_BYTES - 1);
	if (bytes > FILE_BYTES - offset)
		bytes = (unsigned)(FILE_BYTES - offset);
	for (unsigned i = 0; i < bytes; i++)
		t.want[offset + i] = (unsigned char)(below(255) + 1);
	while (bytes) {
		unsigned at = offset % PAGE_BYTES;
		unsigned piece = PAGE_BYTES - at < bytes ? PAGE_BYTES - at : bytes;
		uint32_t frame;
		bool adopted = false;
		if (at == 0 && cache_alloc(&t.dom, 1, &frame) == 1) {
			memcpy(arena_data(&t.dom.arena, frame), t.want + offset, piece);
			assert_true(cache_adopt(&t.node, offset / PAGE_BYTES, frame, piece, 1,
					    &adopted) >= 0);
			if (!adopted)
				cache_free_held(&t.dom, frame);
		} else {
			assert_true(
				cache_write(&t.node, offset, t.want + offset, piece, 1) >= 0);
		}
		offset += piece;
		bytes -= piece;
	}
}

/* The source is cut when nothing is in flight, and before anything else is, as node work does it. */
static void cut_source(void)
{
	if (!t.cut_pending || anything_in_flight())
		return;
	t.cut_pending = false;
	memset(t.source + t.cut_size, 0, FILE_BYTES - t.cut_size);
	if (t.source_size > t.cut_size)
		t.source_size = t.cut_size;
}

static void random_cut(void)
{
	uint64_t size = below(t.node.size + 1);

	assert_int_equal(cache_truncate(&t.node, size, 1), 0);
	memset(t.want + size, 0, FILE_BYTES - size);
	if (!t.cut_pending || size < t.cut_size)
		t.cut_size = size;
	t.cut_pending = true;
	cut_source();
}

static void random_punch(void)
{
	uint64_t from = below(FILE_BYTES), to = from + below(3 * PAGE_BYTES);

	if (to > t.node.size)
		to = t.node.size;
	if (from >= to || t.node.nr_dirty || anything_in_flight() || t.cut_pending)
		return;
	cache_invalidate(&t.node);
	memset(t.want + from, 0, to - from);
	memset(t.source + from, 0, to - from);
}

static void submit_io(struct io *io, uint64_t index)
{
	uint32_t frame = mapping_get(&t.node.map, index);
	io->used = true;
	io->index = index;
	io->fill = !cache_make_whole(&t.node, index, frame);
	if (io->fill) {
		io->seq = t.dom.arena.frames[frame].seq;
		t.dom.arena.frames[frame].flags |= FRAME_FILLING;
		memcpy(io->bounce, t.source + index * PAGE_BYTES, PAGE_BYTES);
		io->bytes = t.source_size > index * PAGE_BYTES
			? (unsigned)(t.source_size - index * PAGE_BYTES)
			: 0;
		io->bytes = io->bytes < PAGE_BYTES ? io->bytes : PAGE_BYTES;
		return;
	}
	io->frame = cache_begin_writeback(&t.node, index);
	uint64_t left = t.node.size - index * PAGE_BYTES;
	io->bytes = left < PAGE_BYTES ? (unsigned)left : PAGE_BYTES;
}

static void submit_at(uint64_t index)
{
	submit_io(&t.ios[0], index);
}

static void submit(void)
{
	struct io *io = &t.ios[below(MAX_IOS)];
	uint64_t index = mapping_next(&t.node.map, below(FILE_BYTES / PAGE_BYTES), true);

	if (!io->used && index != MAPPING_END && !in_flight(index) && !t.cut_pending)
		submit_io(io, index);
}

static void complete_one(struct io *io)
{
	if (!io->used)
		return;
	io->used = false;
	if (io->fill) {
		uint32_t frame = mapping_get(&t.node.map, io->index);
		struct frame *f = &t.dom.arena.frames[frame];
		if (frame != FRAME_NONE && f->state == FRAME_DIRTY &&
			f->flags & FRAME_FILLING && f->seq == io->seq)
			cache_fill(&t.node, io->index, frame, io->bounce, io->bytes);
		return;
	}
	if (below(10) == 0) {
		cache_redirty(&t.node, io->index, io->frame, 2);
		return;
	}
	memcpy(t.source + io->index * PAGE_BYTES, arena_data(&t.dom.arena, io->frame),
		io->bytes);
	if (t.source_size < io->index * PAGE_BYTES + io->bytes)
		t.source_size = io->index * PAGE_BYTES + io->bytes;
	cache_end_writeback(&t.node, io->index, io->frame, 0, 2);
}

static void complete(void)
{
	complete_one(&t.ios[below(MAX_IOS)]);
	cut_source();
}

static void random_read(void)
{
	static unsigned char got[FILE_BYTES];
	struct cache_pin pins[FILE_BYTES / PAGE_BYTES + 1];
	uint64_t offset = below(FILE_BYTES), bytes = 1 + below(5 * PAGE_BYTES);
	bool whole;

	if (offset + bytes > t.node.size)
		bytes = offset < t.node.size ? t.node.size - offset : 0;
	if (bytes == 0)
		return;
	while (t.cut_pending)
		complete();
	unsigned n = cache_read_begin(
		&t.node, offset, bytes, pins, FILE_BYTES / PAGE_BYTES + 1, &whole);
	memset(got, 0, bytes);
	if (!whole)
		memcpy(got, t.source + offset, bytes);
	/* What happens meanwhile does not matter to what was there before. */
	for (uint64_t i = below(4); i; i--)
		complete();
	cache_read_end(&t.node, offset, bytes, got, pins, n);
	assert_memory_equal(got, t.want + offset, bytes);
}

static void check_counts(void)
{
	uint64_t pages = 0, dirty = 0, writeback = 0, tagged = 0, clean = 0, orphans = 0;
	const struct frame *frames = t.dom.arena.frames;

	for (uint64_t i = mapping_next(&t.node.map, 0, false); i != MAPPING_END;
		i = mapping_next(&t.node.map, i + 1, false)) {
		const struct frame *f = &frames[mapping_get(&t.node.map, i)];
		pages++;
		dirty += f->state == FRAME_DIRTY;
		clean += f->state == FRAME_CLEAN;
		writeback += f->state == FRAME_WRITEBACK;
	}
	for (uint32_t i = 0; i < t.dom.arena.nr_frames; i++) {
		orphans += frames[i].state == FRAME_ORPHAN;
		tagged += frames[i].state != FRAME_FREE && frames[i].flags & FRAME_TAGGED;
	}
	assert_int_equal(t.node.nr_pages, pages);
	assert_int_equal(t.node.nr_dirty, dirty);
	assert_int_equal(t.dom.nr_dirty, dirty);
	assert_int_equal(t.dev.nr_dirty, dirty);
	assert_int_equal(t.dom.nr_clean, clean);
	assert_int_equal(t.node.nr_writeback, writeback + orphans);
	assert_int_equal(t.dom.nr_writeback, writeback + orphans);
	assert_int_equal(t.node.nr_tagged, tagged);
	assert_int_equal(t.dom.nr_held, 0);
	assert_int_equal(t.node.place != NODE_CLEAN, dirty > 0);
	assert_int_equal(t.node.on_unclean, dirty + writeback + orphans > 0);
	assert_int_equal(t.dom.dirty_met_evicting, 0);
}

static void random_operations(void **state)
{
	for (unsigned step = 0; step < STEPS; step++) {
		switch (below(16)) {
		case 0 ... 3:
			random_write();
			break;
		case 4 ... 7:
			submit();
			break;
		case 8 ... 11:
			complete();
			break;
		case 12 ... 13:
			random_read();
			break;
		case 14:
			if (below(2))
				random_cut();
			else
				random_punch();
			break;
		default:
			if (below(3) == 0)
				cache_tag_node(&t.node);
			else if (below(8) == 0)
				cache_invalidate(&t.node);
		}
		node_update_unclean(&t.node);
		if (step % 16 == 0)
			check_counts();
	}
	/* To the end: the source has it all, and a sync that has begun has ended. */
	while (t.node.nr_dirty || anything_in_flight() || t.cut_pending) {
		submit();
		complete();
	}
	assert_int_equal(t.node.nr_tagged, 0);
	assert_memory_equal(t.source, t.want, FILE_BYTES);
	node_update_unclean(&t.node);
	check_counts();
}

#define test(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(a_sync_does_not_wait_for_what_is_written_later),
		test(unless_the_write_has_to_be_done_again),
		test(untagged_is_what_is_not_in_flight),
		test(rewritten_while_dirty_it_stays_tagged),
		test(a_page_that_goes_while_it_is_read_keeps_its_valid_bytes),
		test(a_write_never_fails_for_lack_of_room_while_there_are_clean_pages),
		test(lent_frames_are_not_kept_clean),
		test(lone_pages_are_not_kept_clean),
		test(bytes_read_before_a_cut_do_not_come_back),
		test(times_are_on_the_grid_of_the_source),
		test(stamps_that_were_seen_are_passed),
		test(an_error_is_heard_of_and_the_page_is_gone),
		test(random_operations),
	};

	rng = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 0) : 1;
	print_message("SEED=%llu\n", (unsigned long long)rng);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
