/* test_pacer.c - admission and held replies, around counters instead of pages: who is let in when,
 * who is answered when, and with what, also when a request is killed, fails or is forced. The
 * verdicts are the real law's; each test runs under both.
 */
#include "fuse/held.h"
#include "fuse/pacer.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <utlist.h>

enum {
	START_US = 100000000,
	MS_US = 1000,
	PAGE = THROTTLE_PAGE_SIZE,
	NR_DEVICES = 4,
	MOST_REQUESTS = 64,
};

struct request {
	struct held held;
	bool is_shared, killed;
	uint64_t fails_at; /* take() has no memory for this page; UINT64_MAX: never */
	unsigned nr_queued, nr_settled, nr_watched, nr_answered;
	uint64_t answered_us;
};

static enum throttle_law law;
static struct domain dom;
static struct device dev[NR_DEVICES];
static struct pacer_device pd[NR_DEVICES];
static struct pacer pacer;
static struct request requests[MOST_REQUESTS];
static unsigned nr_requests, nr_kicks;
static uint64_t now_us;

/* ---- what the pacer needs done ---- */

static struct request *request_of(struct held *h)
{
	return (struct request *)(void *)h;
}

static double count_new(struct held *h)
{
	return (double)(h->bytes - h->done) / PAGE;
}

static void dirty(unsigned d, uint64_t nr_pages)
{
	dom.nr_dirty += nr_pages;
	dev[d].nr_dirty += nr_pages;
	dev[d].dirtied += nr_pages;
}

static bool take(struct held *h, double room, uint64_t at_us)
{
	struct request *r = request_of(h);

	h->shared = r->is_shared;
	for (; h->done < h->bytes && room >= 1; room--) {
		if (h->new_pages == r->fails_at) {
			h->error = ENOMEM;
			break;
		}
		dirty((unsigned)(h->pd - pd), 1);
		h->done += PAGE;
		h->new_pages++;
	}
	return h->done == h->bytes || h->error;
}

static void queued(struct held *h, uint64_t at_us)
{
	request_of(h)->nr_queued++;
}

static void settled(struct held *h, uint64_t at_us)
{
	request_of(h)->nr_settled++;
}

static void watch(struct held *h)
{
	request_of(h)->nr_watched++;
}

static bool is_killed(struct held *h)
{
	return request_of(h)->killed;
}

static bool has_ended(const struct writer *w)
{
	return false;
}

static void kick(struct device *d)
{
	nr_kicks++;
}

static void judged(
	const struct held *h, const struct throttle_sample *s, const struct throttle_verdict *v)
{
}

static const struct pacer_ops ops = {
	.count_new = count_new,
	.take = take,
	.queued = queued,
	.settled = settled,
	.watch = watch,
	.is_killed = is_killed,
	.has_ended = has_ended,
	.kick = kick,
	.judged = judged,
};

/* ---- a world ---- */

/* Devices of so many pages/s that have earned equal parts of the budget, and nothing dirty. */
static void begin(unsigned nr_devices, uint64_t limit_pages, double bw)
{
	struct domain_settings settings = {
		.dirty_bytes = limit_pages * PAGE,
		.dirty_background_bytes = limit_pages / 2 * PAGE,
		.background_chosen = true,
		.dirty_expire_centisecs = 3000,
		.law = law,
	};

	now_us = START_US;
	nr_requests = nr_kicks = 0;
	dom = (struct domain){.cache_frames = UINT32_MAX, .arena = {.max_frames = UINT32_MAX}};
	pacer_init(&pacer, &dom, &ops, &settings, now_us);
	for (unsigned i = 0; i < nr_devices; i++) {
		dev[i] = (struct device){.dom = &dom};
		pd[i] = (struct pacer_device){.prior_bw = bw, .settings = {.max_ratio = 100}};
		pacer_add_device(&pacer, &pd[i], &dev[i], now_us);
		throttle_completed(&pacer.throttle, &pd[i].throttle, 1e6, 1, now_us);
	}
}

static int teardown(void **state)
{
	pacer_finish(&pacer);
	return 0;
}

static struct request *request(unsigned d, uint64_t writer, uint64_t nr_pages)
{
	struct request *r = &requests[nr_requests++];
	struct writer_key key = {.id = writer, .kind = WRITER_GROUP};

	assert_true(nr_requests <= MOST_REQUESTS);
	*r = (struct request){
		.fails_at = UINT64_MAX,
		.held = {.pd = &pd[d], .bytes = nr_pages * PAGE},
	};
	r->held.writer = writers_get(&pd[d].writers, &key, now_us);
	assert_non_null(r->held.writer);
	return r;
}

/* The same of a writer that has written before, but little: a small one. */
static struct request *small_request(unsigned d, uint64_t writer, uint64_t nr_pages)
{
	struct request *r = request(d, writer, nr_pages);

	r->held.writer->bytes = 1;
	return r;
}

static void answer(struct held *ready)
{
	struct held *h, *next;

	DL_FOREACH_SAFE (ready, h, next) {
		struct request *r = request_of(h);
		r->nr_answered++;
		r->answered_us = now_us;
		assert_int_equal(r->nr_settled, 1);
	}
}

static void submit(struct request *r)
{
	struct held *ready = NULL;

	pacer_submit(&pacer, &r->held, now_us, &ready);
	answer(ready);
}

static void step(void)
{
	struct held *ready = NULL;
	uint64_t next_us = pacer_step(&pacer, now_us, &ready);

	assert_true(next_us > now_us);
	assert_true(next_us == pacer_next_us(&pacer));
	answer(ready);
}

static void step_at(uint64_t us)
{
	now_us = us;
	step();
}

static void complete(unsigned d, uint64_t nr_pages)
{
	assert_true(dev[d].nr_dirty >= nr_pages);
	dom.nr_dirty -= nr_pages;
	dev[d].nr_dirty -= nr_pages;
	dev[d].written += nr_pages;
}

static uint64_t pages_of(const struct request *r)
{
	return r->held.done / PAGE;
}

static void assert_waits(const struct request *r)
{
	assert_int_equal(r->nr_queued, 1);
	assert_int_equal(r->nr_settled, 0);
	assert_int_equal(r->nr_answered, 0);
}

/* So many pages, and this error, and it is gone without a trace. */
static void assert_answered(const struct request *r, uint64_t nr_pages, int error)
{
	assert_int_equal(r->nr_answered, 1);
	assert_int_equal(pages_of(r), nr_pages);
	assert_int_equal(r->held.error, error);
	assert_int_equal(r->held.writer->held, 0);
	assert_true(r->nr_watched <= 1);
}

static void assert_idle(void)
{
	assert_true(pacer_is_idle(&pacer));
	for (unsigned i = 0; i < pacer.nr_devices; i++) {
		assert_int_equal(pd[i].nr_queued, 0);
		assert_int_equal(dev[i].nr_blocked, 0);
		assert_null(pd[i].queue);
		assert_null(pd[i].small_queue);
	}
}

/* ---- let in, queued, held ---- */

static void test_freerun(void **state)
{
	begin(1, 2048, 25600);
	struct request *r = request(0, 1, 16);
	submit(r);
	assert_answered(r, 16, 0);
	assert_int_equal(r->nr_queued, 0);
	assert_idle();
}

static void test_waits_for_room(void **state)
{
	begin(1, 2048, 25600);
	dirty(0, 2043);
	struct request *r = request(0, 1, 16);
	submit(r);
	assert_waits(r);
	assert_int_equal(pages_of(r), 5); /* what fitted */
	assert_int_equal(dom.nr_dirty, 2048);
	assert_int_equal(dev[0].nr_blocked, 1);
	assert_int_equal(r->nr_watched, 1);
	step_at(START_US + MS_US);
	assert_int_equal(pages_of(r), 5);
	complete(0, 11);
	step();
	assert_int_equal(pages_of(r), 16);
	assert_int_equal(r->nr_settled, 1);
	assert_int_equal(dev[0].nr_blocked, 0);
	assert_int_equal(pacer.counters.over_limit_pages, 0);
}

/* Of a device of 500 pages/s, up to the setpoint: one pause does not pay for them. */
static struct request *held_again(uint64_t nr_pages)
{
	begin(1, 2048, 500);
	dirty(0, 1792 - nr_pages);
	struct request *r = request(0, 1, nr_pages);
	submit(r);
	return r;
}

static void test_held_until_the_deadline(void **state)
{
	struct request *r = held_again(128);

	assert_int_equal(r->nr_answered, 0);
	assert_true(r->held.again);
	assert_int_equal(r->nr_watched, 1);
	uint64_t first_us = r->held.deadline_us;
	assert_true(first_us > now_us && first_us <= now_us + THROTTLE_MAX_PAUSE_US);
	step_at(first_us - 1);
	assert_int_equal(r->nr_answered, 0);
	/* It is held on, and then it is over. */
	step_at(first_us);
	assert_int_equal(r->nr_answered, 0);
	assert_true(r->held.deadline_us > first_us);
	step_at(r->held.deadline_us - 1);
	assert_int_equal(r->nr_answered, 0);
	step_at(r->held.deadline_us);
	assert_answered(r, 128, 0);
	assert_int_equal(r->nr_watched, 1);
	assert_idle();
}

/* At the limit the rate is next to nothing, for ever perhaps: nobody is held on once the device
 * could have written its part, 500 ms here. */
static void test_held_for_its_share(void **state)
{
	struct request *r = held_again(250);

	dirty(0, 2048 - dom.nr_dirty);
	for (unsigned i = 0; i < 32 && !r->nr_answered; i++)
		step_at(r->held.deadline_us);
	assert_answered(r, 250, 0);
	assert_true(r->answered_us >= START_US + 500 * MS_US);
	assert_true(r->answered_us < START_US + 500 * MS_US + THROTTLE_MAX_PAUSE_US);
}

static void test_shared_file(void **state)
{
	begin(1, 2048, 500);
	dirty(0, 1792 - 128);
	struct request *r = request(0, 1, 128);
	r->is_shared = true;
	submit(r);
	assert_int_equal(r->nr_answered, 0);
	assert_false(r->held.again);
	assert_true(r->held.deadline_us <= now_us + PACER_SHARED_PAUSE_US);
	/* The rest of the pause is a debt. */
	assert_true(r->held.writer->throttle.paused_when_us > now_us + PACER_SHARED_PAUSE_US);
	step_at(now_us + PACER_SHARED_PAUSE_US);
	assert_answered(r, 128, 0);
}

static void test_heap(void **state)
{
	static struct held helds[50];
	uint64_t last_us = 0;

	begin(1, 2048, 500);
	for (unsigned i = 0; i < 50; i++) {
		helds[i].deadline_us = START_US + i * 37 % 50 / 2;
		assert_true(held_push(&pacer, &helds[i]));
	}
	for (unsigned i = 0; i < 50; i++) {
		const struct held *h = held_pop(&pacer);
		assert_true(h->deadline_us >= last_us);
		last_us = h->deadline_us;
		for (unsigned k = 0; k < pacer.nr_heap; k++)
			assert_int_equal(pacer.heap[k]->heap_slot, k);
	}
	assert_true(pacer_is_idle(&pacer));
}

/* ---- killed ---- */

static void killed_while_queued(bool small)
{
	begin(1, 2048, 25600);
	dirty(0, 2048);
	step();
	now_us += 30 * MS_US;
	uint64_t look_us = now_us + PACER_LOOK_US; /* no tick is due then */
	struct request *r = small ? small_request(0, 1, 16) : request(0, 1, 16);
	submit(r);
	assert_waits(r);
	assert_int_equal(r->held.small, small);
	r->held.interrupted = r->killed = true;
	step_at(look_us - 1);
	assert_waits(r);
	assert_true(pacer_next_us(&pacer) == look_us);
	/* A signal that it handles itself. */
	r->killed = false;
	step_at(look_us);
	assert_waits(r);
	r->killed = true;
	look_us += PACER_LOOK_US;
	step_at(look_us - 1);
	assert_waits(r);
	step_at(look_us);
	assert_answered(r, 0, EINTR);
	assert_int_equal(dom.nr_dirty, 2048);
	assert_idle();
}

static void test_killed_while_queued(void **state)
{
	killed_while_queued(false);
	pacer_finish(&pacer);
	killed_while_queued(true);
}

/* What was let in stays, and it is told: a short count. */
static void test_killed_in_part(void **state)
{
	begin(1, 2048, 500);
	dirty(0, 1900);
	struct request *r = request(0, 1, 256);
	submit(r);
	assert_waits(r);
	r->held.interrupted = r->killed = true;
	step_at(START_US + PACER_LOOK_US);
	assert_answered(r, 148, EINTR);
	assert_int_equal(dom.nr_dirty, 2048);
	assert_int_equal(pacer.counters.pauses, 0); /* it has waited enough */
	assert_idle();
}

static void test_killed_while_held(void **state)
{
	struct request *r = held_again(128);

	r->held.interrupted = r->killed = true;
	step_at(r->held.deadline_us - 1);
	assert_int_equal(r->nr_answered, 0);
	step_at(r->held.deadline_us);
	assert_answered(r, 128, 0); /* all of it was let in */
	assert_idle();
}

/* ---- the machine goes to sleep ---- */

/* Two of one writer, one half let in, and a small one: who is queued then is answered at once. */
static void test_sleep_answers_the_queued(void **state)
{
	begin(1, 2048, 25600);
	dirty(0, 1900);
	struct request *part = request(0, 1, 256), *behind = request(0, 1, 16);
	struct request *small = small_request(0, 2, 16);
	submit(part);
	submit(behind);
	submit(small);
	now_us += 10 * MS_US;
	pacer_sleep(&pacer, true, now_us);
	step();
	assert_answered(part, 148, EINTR);
	assert_answered(behind, 0, EINTR);
	assert_answered(small, 0, EINTR);
	assert_int_equal(dom.nr_dirty, 2048);
	assert_idle();
}

/* Who comes later waits a moment, so that nobody spins. */
static void test_while_asleep_waits_are_short(void **state)
{
	begin(1, 2048, 25600);
	dirty(0, 2048);
	pacer_sleep(&pacer, true, now_us);
	step();
	now_us += 10 * MS_US;
	struct request *r = request(0, 1, 16);
	submit(r);
	uint64_t end_us = now_us + PACER_SLEEP_WAIT_US;
	for (step_at(now_us); now_us < end_us - PACER_LOOK_US; step_at(pacer_next_us(&pacer)))
		assert_waits(r);
	for (; !r->nr_answered; step_at(pacer_next_us(&pacer)))
		assert_true(now_us <= end_us);
	assert_answered(r, 0, EINTR);
	assert_in_range(r->answered_us, end_us, end_us + PACER_LOOK_US);
	/* Awake: as ever. */
	pacer_sleep(&pacer, false, now_us);
	r = request(0, 1, 16);
	submit(r);
	for (end_us = now_us + 3 * PACER_SLEEP_WAIT_US; now_us < end_us;
		step_at(pacer_next_us(&pacer)))
		assert_waits(r);
	complete(0, 16);
	step();
	assert_int_equal(pages_of(r), 16);
}

static void test_asleep_held_for_one_pause(void **state)
{
	struct request *r = held_again(128);

	pacer_sleep(&pacer, true, now_us);
	step();
	assert_int_equal(r->nr_answered, 0);
	step_at(r->held.deadline_us);
	assert_answered(r, 128, 0);
	assert_idle();
}

/* ---- no memory ---- */

static void test_take_fails(void **state)
{
	begin(1, 2048, 25600);
	struct request *r = request(0, 1, 16);
	r->fails_at = 3;
	submit(r);
	assert_answered(r, 3, ENOMEM);
	assert_int_equal(dom.nr_dirty, 3);
	assert_idle();
}

static void test_take_fails_while_queued(void **state)
{
	begin(1, 2048, 25600);
	dirty(0, 2046);
	struct request *r = request(0, 1, 16), *other = request(0, 2, 4);
	r->fails_at = 3;
	submit(r);
	submit(other);
	assert_int_equal(pages_of(r), 2);
	for (unsigned i = 0; i < 10; i++) {
		complete(0, 1);
		step();
	}
	assert_int_equal(pages_of(r), 3);
	assert_int_equal(r->held.error, ENOMEM);
	assert_int_equal(r->nr_settled, 1);
	/* Who stood behind it is served. */
	assert_int_equal(pages_of(other), 4);
	step_at(START_US + THROTTLE_MAX_PAUSE_US);
	assert_answered(r, 3, ENOMEM);
}

/* ---- the end ---- */

static void test_stopping(void **state)
{
	struct request *held = held_again(128);
	uint64_t deadline_us = held->held.deadline_us;

	dirty(0, 2048 - dom.nr_dirty);
	for (unsigned i = 0; i < 6; i++)
		submit(i % 2 ? request(0, 2 + i, 128) : small_request(0, 2 + i, 8));
	assert_int_equal(pacer.nr_queued, 6);
	pacer.stopping = true;
	/* What they wait for are 408 pages; and then a pause at most. */
	uint64_t end_us = START_US + 260 * MS_US + THROTTLE_MAX_PAUSE_US;
	for (; !pacer_is_idle(&pacer) && now_us <= end_us; now_us += 10 * MS_US) {
		complete(0, 16);
		step();
	}
	for (unsigned i = 0; i < nr_requests; i++)
		assert_answered(&requests[i], requests[i].held.bytes / PAGE, 0);
	assert_true(held->answered_us <= deadline_us + 10 * MS_US); /* not held on */
	assert_idle();
}

/* ---- forced ---- */

static void test_forced(void **state)
{
	struct held *ready = NULL;

	begin(1, 2048, 25600);
	dirty(0, 2000);
	struct request *r = request(0, 1, 100);
	r->held.writer = NULL; /* the kernel's own */
	pacer_force(&pacer, &r->held, now_us, &ready);
	answer(ready);
	assert_int_equal(r->nr_answered, 1);
	assert_int_equal(pages_of(r), 100);
	assert_int_equal(dom.nr_dirty, 2100);
	assert_int_equal(pacer.counters.forced_pages, 100);
	assert_int_equal(pacer.counters.max_dirty_pages, 2100);
	assert_int_equal(pacer.counters.over_limit_pages, 0);
	assert_int_equal(pacer.counters.queued, 0);
	/* Others wait until it is below the limit again. */
	struct request *other = request(0, 2, 1);
	submit(other);
	complete(0, 52);
	step();
	assert_waits(other);
	complete(0, 1);
	step();
	assert_int_equal(pages_of(other), 1);
	assert_int_equal(pacer.counters.over_limit_pages, 0);
}

/* ---- in turn ---- */

/* Three devices with a queue each; what is freed is of a fourth one. */
static void fill_by_the_fourth(uint64_t each)
{
	begin(4, 4096, 25600);
	for (unsigned i = 0; i < 3; i++)
		dirty(i, each);
	dirty(3, 4096 - 3 * each);
	for (unsigned i = 0; i < 3; i++)
		submit(request(i, 1, 256));
	assert_int_equal(pacer.nr_queued, 3);
}

static void test_devices_in_turn(void **state)
{
	fill_by_the_fourth(100);
	for (unsigned i = 0; i < 30; i++) {
		complete(3, 1);
		step();
	}
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(pages_of(&requests[i]), 10);
	/* Also when room for two comes at once. */
	for (unsigned i = 0; i < 30; i++) {
		complete(3, 2);
		step();
	}
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(pages_of(&requests[i]), 30);
}

/* Who cannot take any does not keep the others from it. */
static void test_device_at_its_own_limit(void **state)
{
	fill_by_the_fourth(100);
	pd[0].settings.max_bytes = 100 * PAGE;
	pacer_settings_changed(&pacer, now_us);
	for (unsigned i = 0; i < 30; i++) {
		complete(3, 1);
		step();
	}
	assert_int_equal(pages_of(&requests[0]), 0);
	assert_int_equal(pages_of(&requests[1]), 15);
	assert_int_equal(pages_of(&requests[2]), 15);
	complete(0, 3); /* room for a slice each */
	step();
	assert_int_equal(pages_of(&requests[0]), 1);
}

/* So many pages of room at each completion, a slice is one of them. Those of few small requests
 * and those of large ones get the same. */
static void two_queues(unsigned nr_slices)
{
	uint64_t small = 0, other = 0;

	begin(1, 4096, 25600);
	dirty(0, 4096);
	for (unsigned i = 0; i < 5; i++)
		submit(request(0, 100 + i, 256));
	now_us++;
	for (unsigned i = 0; i < 5; i++)
		submit(small_request(0, 200 + i, 16));
	for (unsigned i = 0; i < 60; i += nr_slices) {
		complete(0, nr_slices);
		step();
	}
	for (unsigned i = 0; i < nr_requests; i++)
		*(requests[i].held.small ? &small : &other) += pages_of(&requests[i]);
	assert_int_equal(small + other, 60);
	assert_in_range(small, 29, 31);
	/* And in turn within each. */
	for (unsigned i = 0; i < nr_requests; i++)
		assert_in_range(pages_of(&requests[i]), 5, 7);
	assert_int_equal(pacer.counters.over_limit_pages, 0);
}

static void test_two_queues(void **state)
{
	for (unsigned nr_slices = 1; nr_slices <= 3; nr_slices++) {
		two_queues(nr_slices);
		pacer_finish(&pacer);
	}
}

/* A writer with many threads gets no more than one with a single one. */
static void test_writers_in_turn(void **state)
{
	begin(1, 4096, 25600);
	dirty(0, 4096);
	for (unsigned i = 0; i < 8; i++)
		submit(request(0, 1, 4));
	submit(request(0, 2, 256));
	submit(request(0, 3, 256));
	for (unsigned i = 0; i < 60; i++) {
		complete(0, 1);
		step();
	}
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(pages_of(&requests[i]), 4);
	for (unsigned i = 5; i < 8; i++)
		assert_int_equal(pages_of(&requests[i]), 0);
	assert_int_equal(pages_of(&requests[8]), 20);
	assert_int_equal(pages_of(&requests[9]), 20);
	/* One of those behind is killed, and then the one whose turn it is. */
	unsigned victims[] = {6, 5};
	for (unsigned i = 0; i < 2; i++) {
		struct request *r = &requests[victims[i]];
		r->killed = r->held.interrupted = true;
		step_at(now_us + PACER_LOOK_US);
		assert_int_equal(r->nr_answered, 1);
		assert_int_equal(r->held.error, EINTR);
	}
	for (unsigned i = 0; i < 12; i++) {
		complete(0, 1);
		step();
	}
	assert_int_equal(pages_of(&requests[7]), 4);
	assert_int_equal(requests[7].nr_settled, 1);
}

/* Small ones that have waited longer go first. */
static void test_small_first(void **state)
{
	begin(1, 4096, 25600);
	dirty(0, 4096);
	for (unsigned i = 0; i < 2; i++)
		submit(small_request(0, 200 + i, 4));
	now_us++;
	for (unsigned i = 0; i < 5; i++)
		submit(request(0, 100 + i, 256));
	for (unsigned i = 0; i < 8; i++) {
		complete(0, 1);
		step();
	}
	assert_int_equal(pages_of(&requests[0]), 4);
	assert_int_equal(pages_of(&requests[1]), 4);
}

/* ---- settings ---- */

static void test_larger_limit_admits(void **state)
{
	begin(1, 2048, 25600);
	dirty(0, 2048);
	struct request *r = request(0, 1, 256);
	submit(r);
	assert_waits(r);
	pacer.settings.dirty_bytes *= 4;
	pacer.settings.dirty_background_bytes *= 4;
	nr_kicks = 0;
	pacer_settings_changed(&pacer, now_us);
	assert_true(nr_kicks > 0);
	step();
	assert_answered(r, 256, 0); /* below freerun now */
	assert_idle();
}

static void test_lower_limit_holds(void **state)
{
	begin(1, 2048, 25600);
	dirty(0, 1000);
	pacer.settings.dirty_bytes /= 4;
	pacer.settings.dirty_background_bytes /= 4;
	pacer_settings_changed(&pacer, now_us);
	/* Down to what is dirty, at once. */
	assert_true(pacer_domain_limit(&pacer) == 1000);
	struct request *r = request(0, 1, 16);
	submit(r);
	assert_waits(r);
	assert_int_equal(dom.nr_dirty, 1000);
}

#define TEST(name) cmocka_unit_test_teardown(name, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_freerun),
		TEST(test_waits_for_room),
		TEST(test_held_until_the_deadline),
		TEST(test_held_for_its_share),
		TEST(test_shared_file),
		TEST(test_heap),
		TEST(test_killed_while_queued),
		TEST(test_killed_in_part),
		TEST(test_killed_while_held),
		TEST(test_sleep_answers_the_queued),
		TEST(test_while_asleep_waits_are_short),
		TEST(test_asleep_held_for_one_pause),
		TEST(test_take_fails),
		TEST(test_take_fails_while_queued),
		TEST(test_stopping),
		TEST(test_forced),
		TEST(test_devices_in_turn),
		TEST(test_device_at_its_own_limit),
		TEST(test_two_queues),
		TEST(test_writers_in_turn),
		TEST(test_small_first),
		TEST(test_larger_limit_admits),
		TEST(test_lower_limit_holds),
	};
	int failed = 0;

	for (unsigned i = 0; i < THROTTLE_NR_LAWS; i++) {
		law = (enum throttle_law)i;
		failed +=
			cmocka_run_group_tests_name(throttle_law_name(law), tests, NULL, NULL);
	}
	return failed;
}
