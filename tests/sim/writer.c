#include "tests/sim/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define S_US 1e6

enum { ENDED_PID = -1 }; /* of struct writer: it will not come back */

static const struct sim_writer *const_of(const struct held *h)
{
	return (const struct sim_writer *)(const void *)h;
}

static struct sim_writer *writer_of(struct held *h)
{
	return (struct sim_writer *)(void *)h;
}

static struct sim_device *device_of(struct device *dev)
{
	return (struct sim_device *)(void *)((char *)dev - offsetof(struct sim_device, dev));
}

/* ---- what the pacer asks for ---- */

static double count_new(struct held *h)
{
	uint64_t pages = (h->bytes - h->done) / SIM_PAGE;

	return (double)sim_file_count_new(writer_of(h)->file, pages);
}

static bool take(struct held *h, double room, uint64_t now_us)
{
	struct sim_writer *w = writer_of(h);
	uint64_t pages = (h->bytes - h->done) / SIM_PAGE;
	uint64_t fresh = sim_file_count_new(w->file, pages);

	if (room < (double)fresh) {
		/* New pages come last: those of a hot file that are dirty need no room. */
		uint64_t fit = room >= 1 ? (uint64_t)room : 0;
		pages -= fresh - fit;
		fresh = fit;
	}
	if (pages == 0)
		return h->bytes == h->done;
	sim_check_take(w, fresh);
	sim_file_dirty(w->file, fresh, now_us);
	h->done += pages * SIM_PAGE;
	h->new_pages += fresh;
	sim_stats_taken(w, pages * SIM_PAGE);
	return h->done == h->bytes;
}

static void queued(struct held *h, uint64_t now_us)
{
}

static void settled(struct held *h, uint64_t now_us)
{
	struct sim_writer *w = writer_of(h);
	uint64_t wait_us = now_us - h->queued_us;

	if (!h->queued_us || !w->sim->measuring)
		return;
	sim_histogram_add(&w->sim->result->queue_wait, wait_us);
	sim_histogram_add(&w->device->result->queue_wait, wait_us);
}

static void watch(struct held *h)
{
}

static bool is_killed(struct held *h)
{
	return false;
}

static bool has_ended(const struct writer *w)
{
	return w->pid == ENDED_PID;
}

static void kick(struct device *dev)
{
	sim_flusher_kick(device_of(dev));
}

static void judged(
	const struct held *h, const struct throttle_sample *s, const struct throttle_verdict *v)
{
	const struct sim_writer *w = const_of(h);
	struct sim *sim = w->sim;

	sim_check_verdict(sim, w->device, s, v);
	sim_stats_verdict(sim->writers[w->slot], v);
}

const struct pacer_ops sim_pacer_ops = {
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

/* ---- one writer ---- */

static struct writer_key key_of(const struct sim_writer *w)
{
	return (struct writer_key){.id = w->id, .kind = WRITER_GROUP};
}

static double spec_end_us(const struct sim *sim, const struct sim_writer_spec *spec)
{
	return spec->to_s > 0 ? spec->to_s * S_US : INFINITY;
}

static bool is_over(const struct sim_writer *w)
{
	return w->left_bytes == 0 || w->sim->stopped ||
		(double)w->sim->now_us >= spec_end_us(w->sim, w->spec);
}

/* The time it needs for itself between a reply and the next request: the kernel's copy and the
 * system call, and no two alike. */
static double own_us(struct sim_writer *w)
{
	const struct sim_config *c = w->sim->config;
	double us = c->request_us + (double)w->spec->request_bytes / c->copy_bytes_per_s * S_US;

	return us * (0.9 + 0.2 * sim_random_uniform(&w->random));
}

/* When it wants to write next, not before at_us. */
static double next_wish_us(struct sim_writer *w, double at_us)
{
	const struct sim_writer_spec *spec = w->spec;
	double cycle = (spec->on_s + spec->off_s) * S_US, phase;

	switch (spec->kind) {
	case SIM_PACED:
	case SIM_HOT:
		w->due_us += (double)spec->request_bytes / spec->bytes_per_s * S_US;
		return fmax(at_us, w->due_us);
	case SIM_BURSTY:
		phase = fmod(at_us - (double)w->born_us, cycle);
		return phase < spec->on_s * S_US ? at_us : at_us - phase + cycle;
	case SIM_GREEDY:
	case SIM_SHORT:
		break;
	}
	return at_us;
}

static void arm(struct sim_writer *w, double at_us)
{
	if (!sim_arm(&w->sim->events, &w->timer, (uint64_t)ceil(at_us)))
		sim_no_memory(w->sim);
}

static void end_writer(struct sim_writer *w)
{
	struct sim *sim = w->sim;
	struct sim_spec_result *r = &sim->result->spec[w->spec_number];
	struct writer_key key = key_of(w);
	struct writer *paced;

	HASH_FIND(hh, w->device->pd.writers.table, &key, sizeof(key), paced);
	if (paced)
		paced->pid = ENDED_PID;
	if (w->result && !sim->stopped)
		w->result->whole = false;
	if (sim->measuring)
		r->ended++;
	sim_file_release(sim, w->file);
	sim_disarm(&sim->events, &w->timer);
	w->file = NULL;
	w->device->nr_writers--;
	sim->nr_alive--;
	w->next_free = sim->free_writers;
	sim->free_writers = w;
}

static void begin_fsync(struct sim_writer *w)
{
	double next = w->fsync_due_us + w->spec->fsync_s * S_US;

	w->fsync_due_us = fmax(next, (double)w->sim->now_us);
	w->fsync_us = w->sim->now_us;
	sim_file_tag(w->file, false);
	w->syncing = true;
	w->file->waiting = w;
	if (w->file->node.nr_tagged == 0)
		sim_writer_synced(w);
	else
		sim_flusher_kick(w->device);
}

void sim_writer_synced(struct sim_writer *w)
{
	uint64_t took_us = w->sim->now_us - w->fsync_us;

	w->syncing = false;
	w->file->waiting = NULL;
	if (w->sim->measuring && w->result) {
		w->result->fsyncs++;
		if (took_us > w->result->fsync_max_us)
			w->result->fsync_max_us = took_us;
	}
	w->since_us = w->sim->now_us;
	arm(w, next_wish_us(w, (double)w->sim->now_us));
}

static void request(struct sim_writer *w)
{
	struct sim *sim = w->sim;
	struct writer_key key = key_of(w);
	struct held *ready = NULL;
	uint64_t bytes = w->spec->request_bytes;

	if (bytes > w->left_bytes)
		bytes = w->left_bytes;
	w->held = (struct held){
		.pd = &w->device->pd,
		.writer = writers_get(&w->device->pd.writers, &key, sim->now_us),
		.bytes = bytes,
		.shared = w->spec->shared,
	};
	if (!w->held.writer) {
		sim_no_memory(sim);
		return;
	}
	w->writing = true;
	w->device->nr_writing++;
	if (w->spec->kind != SIM_GREEDY)
		w->since_us = sim->now_us;
	pacer_submit(&sim->pacer, &w->held, sim->now_us, &ready);
	sim_answer(sim, ready);
	sim_pacer_arm(sim);
}

void sim_writer_event(struct sim_writer *w)
{
	if (is_over(w))
		end_writer(w);
	else if (w->spec->fsync_s > 0 && (double)w->sim->now_us >= w->fsync_due_us)
		begin_fsync(w);
	else
		request(w);
}

static void count_reply(struct sim_writer *w)
{
	struct sim *sim = w->sim;
	uint64_t wait_us = sim->now_us - w->held.arrived_us;
	struct sim_spec_result *r = &sim->result->spec[w->spec_number];

	if (!sim->measuring)
		return;
	r->requests++;
	sim_histogram_add(&r->wait, wait_us);
	sim_histogram_add(&sim->result->wait, wait_us);
	if (!w->result)
		return;
	w->result->requests++;
	if (wait_us > w->result->wait_max_us)
		w->result->wait_max_us = wait_us;
}

static void answer(struct sim_writer *w)
{
	const struct held *h = &w->held;

	w->writing = false;
	w->device->nr_writing--;
	if (h->done != h->bytes || h->error)
		sim_broken(w->sim, "a request was answered with %llu of %llu bytes",
			(unsigned long long)h->done, (unsigned long long)h->bytes);
	if (h->deadline_us > w->sim->now_us)
		sim_broken(w->sim, "a reply was sent %llu us before its deadline",
			(unsigned long long)(h->deadline_us - w->sim->now_us));
	count_reply(w);
	if (w->left_bytes != SIM_NEVER)
		w->left_bytes -= h->bytes;
	double at_us = (double)w->sim->now_us + own_us(w);
	arm(w, is_over(w) ? at_us : next_wish_us(w, at_us));
}

void sim_answer(struct sim *sim, struct held *ready)
{
	struct held *h, *next;

	DL_FOREACH_SAFE (ready, h, next)
		answer(writer_of(h));
}

/* ---- they appear ---- */

static struct sim_writer *get_slot(struct sim *sim)
{
	struct sim_writer *w = sim->free_writers;

	if (w) {
		sim->free_writers = w->next_free;
		return w;
	}
	w = malloc(sizeof(*w));
	if (!w)
		return NULL;
	w->slot = sim->nr_slots;
	sim->writers[sim->nr_slots++] = w;
	return w;
}

static bool create(struct sim *sim, unsigned spec_number, struct sim_writer_result *result)
{
	const struct sim_writer_spec *spec = &sim->spec[spec_number];
	struct sim_device *d = &sim->device[spec->device];
	bool is_hot = spec->kind == SIM_HOT, is_finite = spec->total_bytes && !is_hot;

	if (sim->nr_alive == SIM_WRITERS)
		return true; /* the next one may find a place */
	struct sim_writer *w = get_slot(sim);
	if (!w)
		return false;
	*w = (struct sim_writer){
		.sim = sim,
		.spec = spec,
		.spec_number = spec_number,
		.slot = w->slot,
		.id = ++sim->next_id,
		.device = d,
		.random = sim_random_make(sim->config->seed, 1000 + sim->next_id),
		.born_us = sim->now_us,
		.left_bytes = is_finite ? spec->total_bytes : SIM_NEVER,
		.due_us = (double)sim->now_us,
		.fsync_due_us = (double)sim->now_us + spec->fsync_s * S_US,
		.since_us = sim->now_us,
		.result = result,
	};
	sim_timer_init(&w->timer, SIM_EV_WRITER, w->slot, w);
	w->file = sim_file_create(sim, d, is_hot ? spec->total_bytes / SIM_PAGE : 0);
	if (!w->file)
		return false;
	sim->nr_alive++;
	d->nr_writers++;
	sim->result->spec[spec_number].begun += sim->measuring;
	if (result)
		*result = (struct sim_writer_result){
			.spec = spec_number,
			.device = spec->device,
			.whole = !sim->measuring,
		};
	arm(w, (double)sim->now_us + own_us(w));
	return true;
}

void sim_spawn(struct sim *sim, unsigned number)
{
	const struct sim_writer_spec *spec = &sim->spec[number];
	struct sim_result *r = sim->result;
	bool ok = true;

	if (sim->stopped)
		return;
	if (spec->kind != SIM_SHORT) {
		for (unsigned i = 0; i < spec->count && ok; i++)
			ok = create(sim, number, &r->writers[r->nr_writers++]);
	} else if ((double)sim->now_us < spec_end_us(sim, spec)) {
		ok = create(sim, number, NULL);
		sim->spawn_due_us[number] += S_US / spec->per_s;
		ok = ok &&
			sim_arm(&sim->events, &sim->spawn_timer[number],
				(uint64_t)ceil(sim->spawn_due_us[number]));
	}
	if (!ok)
		sim_no_memory(sim);
}
