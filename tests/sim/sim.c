#include "tests/sim/model.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define S_US 1e6
enum { RECOUNT_EVERY = 1000 };
#define MOST_DRAIN_US 86400000000ull

void sim_no_memory(struct sim *sim)
{
	sim->over = sim->no_memory = true;
}

static void arm(struct sim *sim, struct sim_timer *t, uint64_t at_us)
{
	if (!sim_arm(&sim->events, t, at_us))
		sim_no_memory(sim);
}

static uint64_t us_of(double s)
{
	return (uint64_t)(s * S_US + 0.5);
}

/* ---- the pacer's thread ---- */

/* Its timer follows what it waits for. */
void sim_pacer_arm(struct sim *sim)
{
	uint64_t next = pacer_next_us(&sim->pacer);

	if (next < sim->now_us)
		next = sim->now_us;
	if (next < sim->pacer_timer.at_us)
		arm(sim, &sim->pacer_timer, next);
}

void sim_pacer_wake(struct sim *sim)
{
	if (sim->pacer.nr_queued && sim->pacer_timer.at_us > sim->now_us)
		arm(sim, &sim->pacer_timer, sim->now_us);
}

static void pacer_event(struct sim *sim)
{
	struct held *ready = NULL;
	uint64_t next = pacer_step(&sim->pacer, sim->now_us, &ready);

	if (next <= sim->now_us)
		sim_broken(sim,
			"the pacer wants to be called at %" PRIu64 " us, it is %" PRIu64, next,
			sim->now_us);
	sim->pacer_timer.at_us = SIM_NEVER;
	arm(sim, &sim->pacer_timer, next);
	sim_answer(sim, ready);
}

/* ---- actions ---- */

static void begin_sync(struct sim *sim)
{
	struct sim_result *r = sim->result;

	if (r->nr_syncs == SIM_ACTIONS)
		return;
	struct sim_sync_result *s = &r->syncs[r->nr_syncs++];
	*s = (struct sim_sync_result){
		.at_us = sim->now_us,
		.took_us = SIM_NEVER,
		.dirty = sim->dom.nr_dirty,
		.in_flight = sim->dom.nr_writeback,
	};
	sim->sync_running = true;
	for (unsigned i = 0; i < sim->nr_devices; i++) {
		struct sim_device *d = &sim->device[i];
		s->written -= d->dev.written;
		for (struct node *n = d->dev.unclean; n; n = n->unclean_next)
			sim_file_tag((struct sim_file *)(void *)n, true);
		sim_flusher_kick(d);
	}
	sim_sync_done(sim);
}

void sim_sync_done(struct sim *sim)
{
	struct sim_sync_result *s = &sim->result->syncs[sim->result->nr_syncs - 1];

	for (unsigned i = 0; i < sim->nr_devices; i++)
		if (sim->device[i].sync_left)
			return;
	s->took_us = sim->now_us - s->at_us;
	for (unsigned i = 0; i < sim->nr_devices; i++)
		s->written += sim->device[i].dev.written;
	sim->sync_running = false;
	if (sim->nr_sync_waiting) {
		sim->nr_sync_waiting--;
		begin_sync(sim);
	}
}

static void truncate_files(struct sim *sim, struct sim_device *d, uint64_t most)
{
	struct node *next;

	for (struct node *n = d->dev.unclean; n && most; n = next) {
		next = n->unclean_next; /* it may leave the list */
		most -= sim_file_drop((struct sim_file *)(void *)n, most);
	}
	if (d->sync_left == 0 && sim->sync_running)
		sim_sync_done(sim);
	sim_files_reap(sim);
	sim_pacer_wake(sim);
}

static void settings_changed(struct sim *sim)
{
	pacer_settings_changed(&sim->pacer, sim->now_us);
	sim_pacer_wake(sim);
}

static void set_limit(struct sim *sim, uint64_t bytes)
{
	struct domain_settings *s = &sim->pacer.settings;

	s->dirty_bytes = bytes;
	if (!s->background_chosen || s->dirty_background_bytes >= bytes)
		s->dirty_background_bytes = bytes / 2;
	settings_changed(sim);
}

static void act(struct sim *sim, const struct sim_action *a)
{
	struct domain_settings *s = &sim->pacer.settings;

	switch (a->kind) {
	case SIM_SET_LIMIT:
		set_limit(sim, a->value);
		break;
	case SIM_SET_BACKGROUND:
		s->dirty_background_bytes = a->value;
		s->background_chosen = true;
		settings_changed(sim);
		break;
	case SIM_SET_LAW:
		s->law = a->law;
		settings_changed(sim);
		break;
	case SIM_SET_DEVICE:
		sim->device[a->device].pd.settings = a->settings;
		settings_changed(sim);
		break;
	case SIM_SYNC:
		if (sim->sync_running)
			sim->nr_sync_waiting++;
		else
			begin_sync(sim);
		break;
	case SIM_TRUNCATE:
		truncate_files(sim, &sim->device[a->device], a->value);
		break;
	}
}

static void arm_action(struct sim *sim)
{
	const struct sim_config *c = sim->config;

	if (sim->next_action < c->nr_actions)
		arm(sim, &sim->action_timer, us_of(c->actions[sim->next_action].at_s));
}

/* ---- begin and end ---- */

static void sample_event(struct sim *sim)
{
	const struct sim_config *c = sim->config;

	if (!sim->measuring && !sim->stopped && sim->now_us >= us_of(c->warmup_s))
		sim_stats_begin(sim);
	sim_stats_sample(sim);
	if (!sim->stopped)
		arm(sim, &sim->sample_timer, sim->now_us + SIM_SAMPLE_US);
}

/* The time is over: all go home. With drain what they left is written first. */
static void stop_event(struct sim *sim)
{
	sim_stats_end(sim);
	sim->stopped = true;
	sim->stopped_us = sim->now_us;
	if (!sim->config->drain) {
		sim->over = true;
		return;
	}
	for (unsigned i = 0; i < sim->nr_devices; i++) {
		sim->device[i].dev.drain = true;
		sim_flusher_kick(&sim->device[i]);
	}
	for (unsigned i = 0; i < sim->nr_slots; i++) {
		struct sim_writer *w = sim->writers[i];
		if (w->file && !w->writing && !w->syncing)
			arm(sim, &w->timer, sim->now_us);
	}
}

static void end_early(struct sim *sim)
{
	if (!sim->stopped)
		sim_stats_end(sim);
	sim->over = true;
}

static void check_drained(struct sim *sim)
{
	if (sim->stopped && sim->now_us > sim->stopped_us + MOST_DRAIN_US)
		sim_broken(sim, "a day after the end %" PRIu64 " pages are still dirty",
			sim->dom.nr_dirty + sim->dom.nr_writeback);
	if (!sim->stopped || sim->nr_alive || sim->dom.nr_dirty || sim->dom.nr_writeback)
		return;
	sim->result->drained_us = (double)(sim->now_us - sim->stopped_us);
	sim->over = true;
}

static void dispatch(struct sim *sim, struct sim_timer *t)
{
	struct sim_device *d = t->owner;

	switch (t->event) {
	case SIM_EV_WRITER:
		sim_writer_event(t->owner);
		break;
	case SIM_EV_PACER:
		pacer_event(sim);
		break;
	case SIM_EV_FLUSHER:
		sim_flusher_step(d, NULL);
		break;
	case SIM_EV_DEVICE: {
		struct sim_io *done = sim_device_served(d);
		if (done)
			sim_flusher_step(d, done);
		break;
	}
	case SIM_EV_SPAWN:
		sim_spawn(sim, t->id);
		break;
	case SIM_EV_ACTION:
		act(sim, &sim->config->actions[sim->next_action++]);
		arm_action(sim);
		break;
	case SIM_EV_SAMPLE:
		sample_event(sim);
		break;
	case SIM_EV_STOP:
		stop_event(sim);
		break;
	}
}

/* FNV-1a over words; the low bits of the product are mixed back. */
static void hash_word(uint64_t *hash, uint64_t word)
{
	*hash = (*hash ^ word) * 0x100000001b3ull;
	*hash ^= *hash >> 32;
}

static void hash_event(struct sim *sim, enum sim_event event, unsigned id)
{
	uint64_t *hash = &sim->result->hash, written = 0;

	for (unsigned i = 0; i < sim->nr_devices; i++)
		written += sim->device[i].dev.written;
	hash_word(hash, sim->now_us);
	hash_word(hash, (uint64_t)event << 32 | id);
	hash_word(hash, sim->dom.nr_dirty);
	hash_word(hash, sim->dom.nr_writeback);
	hash_word(hash, written);
	hash_word(hash, (uint64_t)sim->pacer.nr_heap << 32 | sim->pacer.nr_queued);
}

static void loop(struct sim *sim)
{
	struct sim_result *r = sim->result;

	while (!sim->over) {
		struct sim_timer *t = sim_next(&sim->events);
		if (!t) {
			sim_broken(sim, "nothing is due any more");
			return;
		}
		enum sim_event event = t->event;
		uint64_t at_us = t->at_us;
		unsigned id = t->id;
		t->at_us = SIM_NEVER;
		if (at_us < sim->now_us)
			sim_broken(sim, "time goes back: %" PRIu64 " after %" PRIu64, at_us,
				sim->now_us);
		sim_stats_advance(sim, at_us);
		sim->now_us = at_us;
		dispatch(sim, t);
		hash_event(sim, event, id);
		sim_check(sim);
		if (++r->events % RECOUNT_EVERY == 0)
			sim_recount(sim);
		if (r->events == sim->config->max_events)
			end_early(sim);
		check_drained(sim);
	}
	sim_recount(sim);
}

/* ---- set up and take down ---- */

static void copy_specs(struct sim *sim)
{
	const struct sim_config *c = sim->config;

	for (unsigned i = 0; i < c->nr_writers; i++)
		sim->spec[sim->nr_specs++] = c->writers[i];
	for (unsigned i = 0; i < c->nr_devices && c->greedy_each; i++)
		sim->spec[sim->nr_specs++] = (struct sim_writer_spec){
			.kind = SIM_GREEDY,
			.count = (unsigned)c->greedy_each,
			.request_bytes = c->request_bytes,
			.device = i,
		};
}

static bool make_writers(struct sim *sim)
{
	size_t lasting = 0;

	for (unsigned i = 0; i < sim->nr_specs; i++)
		lasting += sim->spec[i].kind == SIM_SHORT ? 0 : sim->spec[i].count;
	sim->result->nr_specs = sim->nr_specs;
	sim->result->writers = calloc(lasting + 1, sizeof(*sim->result->writers));
	sim->writers = calloc(SIM_WRITERS, sizeof(struct sim_writer *));
	return sim->result->writers && sim->writers;
}

static void make_pacer(struct sim *sim)
{
	const struct sim_config *c = sim->config;
	uint64_t background = c->background_bytes ? c->background_bytes : c->limit_bytes / 2;
	struct domain_settings settings = {
		.dirty_bytes = c->limit_bytes,
		.dirty_background_bytes = background,
		.background_chosen = c->background_bytes != 0,
		.dirty_expire_centisecs = c->expire_centisecs,
		.dirty_writeback_centisecs = c->writeback_centisecs,
		.law = c->law,
	};

	/* Memory is no limit here. */
	sim->dom.cache_frames = sim->dom.arena.max_frames = UINT32_MAX;
	pacer_init(&sim->pacer, &sim->dom, &sim_pacer_ops, &settings, 0);
	for (unsigned i = 0; i < c->nr_devices; i++) {
		struct sim_device *d = &sim->device[i];
		sim_device_init(sim, d, i);
		d->result = &sim->result->device[i];
		d->result->first_submit_us = SIM_NEVER;
		sim_flusher_init(d);
		d->pd.settings = d->spec->settings;
		d->pd.prior_bw = d->spec->prior_bytes_per_s / SIM_PAGE;
		pacer_add_device(&sim->pacer, &d->pd, &d->dev, 0);
		sim->nr_devices++;
		arm(sim, &d->flusher_timer, 0);
	}
}

static void arm_first(struct sim *sim)
{
	const struct sim_config *c = sim->config;

	sim_timer_init(&sim->pacer_timer, SIM_EV_PACER, 0, NULL);
	sim_timer_init(&sim->action_timer, SIM_EV_ACTION, 0, NULL);
	sim_timer_init(&sim->sample_timer, SIM_EV_SAMPLE, 0, NULL);
	sim_timer_init(&sim->stop_timer, SIM_EV_STOP, 0, NULL);
	arm(sim, &sim->pacer_timer, 0);
	arm(sim, &sim->sample_timer, 0);
	arm(sim, &sim->stop_timer, us_of(c->seconds));
	arm_action(sim);
	for (unsigned i = 0; i < sim->nr_specs; i++) {
		sim_timer_init(&sim->spawn_timer[i], SIM_EV_SPAWN, i, NULL);
		sim->spawn_due_us[i] = sim->spec[i].from_s * S_US;
		arm(sim, &sim->spawn_timer[i], us_of(sim->spec[i].from_s));
	}
}

static void take_down(struct sim *sim)
{
	for (unsigned i = 0; i < sim->nr_slots; i++)
		free(sim->writers[i]);
	free(sim->writers);
	while (sim->all_files) {
		struct sim_file *f = sim->all_files;
		sim->all_files = f->all;
		free(f);
	}
	for (unsigned i = 0; i < sim->nr_devices; i++)
		free(sim->device[i].pool);
	pacer_finish(&sim->pacer);
	free(sim->events.heap);
}

int sim_run(const struct sim_config *c, struct sim_result *ret)
{
	struct sim *sim = calloc(1, sizeof(*sim));

	memset(ret, 0, sizeof(*ret));
	if (!sim)
		return -ENOMEM;
	sim->config = c;
	sim->result = ret;
	sim->random = sim_random_make(c->seed, 0);
	ret->hash = 0xcbf29ce484222325ull;
	ret->nr_devices = c->nr_devices;
	copy_specs(sim);
	if (!make_writers(sim))
		sim_no_memory(sim);
	make_pacer(sim);
	if (c->csv)
		sim_csv_header(c->csv);
	arm_first(sim);
	loop(sim);
	ret->seconds = (double)sim->now_us / S_US;
	bool no_memory = sim->no_memory;
	take_down(sim);
	free(sim);
	return no_memory ? -ENOMEM : ret->broken ? -EILSEQ : 0;
}

void sim_result_free(struct sim_result *r)
{
	free(r->writers);
	r->writers = NULL;
}
