#include "tests/sim/model.h"

#include <math.h>

#define S_US 1e6

/* ---- nominal speed, over time ---- */

/* End of the interval of noise that t_us lies in; the factor is drawn on the way there. */
static double noise_until(struct sim_speed *s, double t_us)
{
	const struct sim_device_spec *spec = s->spec;
	double length_us = spec->noise_ms * 1e3;
	uint64_t interval;

	if (!(spec->noise > 0)) {
		s->factor = 1;
		return INFINITY;
	}
	interval = (uint64_t)(t_us / length_us) + 1;
	if ((double)interval * length_us <= t_us) /* rounded */
		interval++;
	for (; s->interval < interval; s->interval++) {
		double fresh = sim_random_normal(&s->random);
		double rho = s->interval ? spec->noise_rho : 0;
		s->z = rho * s->z + sqrt(1 - rho * rho) * fresh;
	}
	/* mean 1 */
	s->factor = exp(spec->noise * s->z - spec->noise * spec->noise / 2);
	return (double)interval * length_us;
}

/* Is t_us within a stall, and until when is that so? */
static bool stalled(const struct sim_device_spec *spec, double t_us, double *ret_until)
{
	double begin = spec->stall_at_s * S_US, length = spec->stall_s * S_US;
	double every = spec->stall_every_s * S_US;

	*ret_until = INFINITY;
	if (!(length > 0))
		return false;
	if (every > 0 && t_us > begin)
		begin += floor((t_us - begin) / every) * every;
	while (every > 0 && t_us >= begin + every) /* rounded */
		begin += every;
	if (t_us < begin) {
		*ret_until = begin;
		return false;
	}
	if (t_us < begin + length) {
		*ret_until = begin + length;
		return true;
	}
	*ret_until = every > 0 ? begin + every : INFINITY;
	return false;
}

/* Bytes per us from t_us on, and until when it is so. */
static double speed_at(struct sim_speed *s, double t_us, double *ret_until)
{
	const struct sim_device_spec *spec = s->spec;
	double rate = spec->bytes_per_s, until, noise_end = noise_until(s, t_us);
	bool stall = stalled(spec, t_us, &until);

	for (unsigned i = 0; i < spec->nr_steps; i++) {
		if (t_us < spec->steps[i].at_s * S_US) {
			until = fmin(until, spec->steps[i].at_s * S_US);
			break;
		}
		rate = spec->steps[i].bytes_per_s;
	}
	*ret_until = fmin(until, noise_end);
	return stall ? 0 : rate * s->factor / S_US;
}

/* When so many bytes are through that begin at t_us. */
static double time_for(struct sim_speed *s, double t_us, double bytes)
{
	double until;

	while (bytes > 0) {
		double rate = speed_at(s, t_us, &until);
		double part = rate * (until - t_us);
		if (rate > 0 && !(part < bytes))
			return t_us + bytes / rate;
		bytes -= rate > 0 ? part : 0;
		t_us = until;
	}
	return t_us;
}

static double bytes_between(struct sim_speed *s, double from_us, double to_us)
{
	double bytes = 0, until;

	while (from_us < to_us) {
		double rate = speed_at(s, from_us, &until);
		double end = fmin(until, to_us);
		bytes += rate * (end - from_us);
		from_us = end;
	}
	return bytes;
}

void sim_device_possible(struct sim_device *d, uint64_t now_us)
{
	d->possible_bytes += bytes_between(&d->possible, d->possible_us, (double)now_us);
	d->possible_us = (double)now_us;
}

/* ---- service of one request ---- */

static double seek_us(struct sim_device *d, uint64_t from)
{
	const struct sim_device_spec *spec = d->spec;
	double distance = fabs((double)from - (double)d->head);

	if (!(spec->seek_max_ms > 0) || distance <= spec->near_bytes)
		return 0;
	d->nr_seeks++;
	double part = fmin(distance / spec->disk_bytes, 1);
	return (spec->seek_min_ms + (spec->seek_max_ms - spec->seek_min_ms) * sqrt(part) +
		       spec->rotation_ms) *
		1e3;
}

/* Shingled zones: after so many bytes the drive puts its house in order. */
static double zone_pause_us(struct sim_device *d, double bytes)
{
	const struct sim_device_spec *spec = d->spec;

	if (!(spec->zone_bytes > 0))
		return 0;
	d->zone_left -= bytes;
	if (d->zone_left > 0)
		return 0;
	d->zone_left += spec->zone_bytes;
	return spec->zone_pause_s * S_US;
}

/* Into the cache at its own speed, as soon as there is room. */
static double cached_until(struct sim_device *d, double start_us, double bytes)
{
	const struct sim_device_spec *spec = d->spec;
	struct sim_speed ahead;

	d->cached -= bytes_between(&d->speed, d->cached_us, start_us);
	d->cached = fmax(d->cached, 0);
	ahead = d->speed;
	double room_us = time_for(&ahead, start_us, d->cached + bytes - spec->cache_bytes);
	double end_us = fmax(room_us, start_us + bytes / spec->cache_bytes_per_s * S_US);
	d->cached += bytes - bytes_between(&d->speed, start_us, end_us);
	d->cached = fmax(d->cached, 0);
	d->cached_us = end_us;
	return end_us;
}

static double served_at(struct sim_device *d, const struct sim_io *io, double start_us)
{
	const struct sim_device_spec *spec = d->spec;
	uint64_t loop = io->file->loop_pages;
	uint64_t from = io->file->place + (loop ? io->index % loop : io->index) * SIM_PAGE;
	double bytes = (double)(io->nr_pages * SIM_PAGE);
	double fixed_us = spec->overhead_us + zone_pause_us(d, bytes);
	struct sim_speed here = d->speed;
	double until;

	/* What no law can do anything about does not count as possible. A cache hides it. */
	d->losing_bytes =
		spec->cache_bytes > 0 ? 0 : fixed_us * speed_at(&here, start_us, &until);
	start_us += fixed_us + seek_us(d, from);
	d->head = from + io->nr_pages * SIM_PAGE;
	d->nr_requests++;
	if (spec->cache_bytes > 0)
		return cached_until(d, start_us, bytes);
	return time_for(&d->speed, start_us, bytes);
}

static void serve_next(struct sim_device *d)
{
	struct sim *sim = d->sim;
	double now_us = (double)sim->now_us;
	/* The end of one service is the start of the next, to the fraction. */
	double start_us = now_us - d->free_us < 1 ? d->free_us : now_us;

	d->in_service = true;
	d->free_us = served_at(d, d->queue, start_us);
	if (!sim_arm(&sim->events, &d->timer, (uint64_t)ceil(d->free_us)))
		sim_no_memory(sim);
}

void sim_device_submit(struct sim_device *d, struct sim_io *io)
{
	io->next = NULL;
	*d->queue_tail = io;
	d->queue_tail = &io->next;
	if (!d->in_service)
		serve_next(d);
}

struct sim_io *sim_device_served(struct sim_device *d)
{
	struct sim_io *io = d->queue, *done = NULL;

	d->queue = io->next;
	if (!d->queue)
		d->queue_tail = &d->queue;
	io->next = NULL;
	*d->served_tail = io;
	d->served_tail = &io->next;
	d->nr_served++;
	d->lost_bytes += d->losing_bytes;
	d->in_service = false;
	if (d->queue)
		serve_next(d);
	if (d->nr_served >= d->spec->burst || !d->queue) {
		done = d->served;
		d->served = NULL;
		d->served_tail = &d->served;
		d->nr_served = 0;
	}
	return done;
}

void sim_device_init(struct sim *sim, struct sim_device *d, unsigned number)
{
	const struct sim_device_spec *spec = &sim->config->devices[number];
	struct sim_random noise = sim_random_make(sim->config->seed, 100 + number);

	d->sim = sim;
	d->number = number;
	d->spec = spec;
	d->dev.dom = &sim->dom;
	d->dev.bg_pages = d->dev.bg_time_pages = UINT64_MAX;
	d->dev.kick_fd = -1;
	d->dev.seeks = spec->seek_max_ms > 0;
	d->queue_tail = &d->queue;
	d->served_tail = &d->served;
	d->zone_left = spec->zone_bytes;
	d->speed = d->possible = (struct sim_speed){.spec = spec, .random = noise};
	sim_timer_init(&d->timer, SIM_EV_DEVICE, number, d);
}
