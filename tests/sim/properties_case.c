#include "tests/sim/properties.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- making one ---- */

struct sim_config case_new(const struct check *c, double bytes_per_s, double limit_bytes)
{
	struct sim_config config;

	memset(&config, 0, sizeof(config)); /* compared by its bytes */
	sim_config_init(&config);
	config.law = c->law;
	config.seed = c->seed;
	config.seconds = 70;
	config.warmup_s = 30;
	config.limit_bytes = (uint64_t)limit_bytes;
	config.background_bytes = 0;
	config.expire_centisecs = 3000;
	config.writeback_centisecs = 0;
	config.greedy_each = 0;
	config.nr_writers = config.nr_actions = 0;
	config.nr_devices = 1;
	config.devices[0].bytes_per_s = bytes_per_s;
	config.devices[0].overhead_us = 50;
	config.devices[0].settings = (struct device_settings){.max_ratio = 100};
	return config;
}

struct sim_device_spec *case_device(struct sim_config *config, double bytes_per_s)
{
	struct sim_device_spec *d = &config->devices[config->nr_devices++];

	*d = config->devices[0];
	d->bytes_per_s = bytes_per_s;
	return d;
}

struct sim_writer_spec *case_writers(struct sim_config *config, enum sim_writer_kind kind,
	unsigned count, double request_bytes)
{
	struct sim_writer_spec *w = &config->writers[config->nr_writers++];

	*w = (struct sim_writer_spec){
		.kind = kind,
		.count = count,
		.request_bytes = (uint64_t)request_bytes,
	};
	return w;
}

struct sim_action *case_action(
	struct sim_config *config, enum sim_action_kind kind, double at_s)
{
	struct sim_action *a = &config->actions[config->nr_actions++];

	*a = (struct sim_action){.kind = kind, .at_s = at_s};
	return a;
}

/* ---- running it ---- */

static void keep_point(const struct sim_sample *s, void *arg)
{
	struct run *r = arg;

	if (r->nr_points == r->room) {
		size_t room = r->room ? 2 * r->room : 1024;
		char *points = realloc(r->points, room * r->stride);
		if (!points)
			return;
		r->points = points;
		r->room = room;
	}
	memcpy(r->points + r->nr_points++ * r->stride, s, r->stride);
}

static size_t stride_for(unsigned nr_devices)
{
	return offsetof(struct sim_sample, device) +
		nr_devices * sizeof(struct sim_device_sample);
}

/* The first one is told; it comes with the command line that replays it. */
static void broke(struct check *c, const struct sim_config *config, const char *why)
{
	FILE *f;

	if (c->broken[0])
		return;
	f = fmemopen(c->broken, sizeof(c->broken), "w");
	if (!f) {
		snprintf(c->broken, sizeof(c->broken), "%s", why);
		return;
	}
	fprintf(f, "%s; replay: ", why);
	sim_config_print(config, f);
	fclose(f);
	c->broken[sizeof(c->broken) - 1] = 0;
	c->broken[strcspn(c->broken, "\n")] = 0;
}

static struct run *run_new(struct check *c, const struct sim_config *config)
{
	struct run *r = calloc(1, sizeof(*r));
	char message[256] = "";

	if (!r)
		abort();
	r->config = *config;
	r->stride = stride_for(config->nr_devices);
	r->config.on_sample = keep_point;
	r->config.arg = r;
	if (sim_config_check(&r->config, message, sizeof(message)) != 0)
		broke(c, config, message);
	else if (sim_run(&r->config, &r->result) != 0)
		broke(c, config, r->result.message);
	return r;
}

static void run_free(struct run *r)
{
	sim_result_free(&r->result);
	free(r->points);
	free(r);
}

const struct run *case_run(struct check *c, const struct sim_config *config)
{
	struct run *r = run_new(c, config);

	r->next = c->runs;
	c->runs = r;
	c->last = r;
	return r;
}

static void free_all(struct run **list)
{
	while (*list) {
		struct run *r = *list;
		*list = r->next;
		run_free(r);
	}
}

void case_forget(struct check *c)
{
	free_all(&c->runs);
}

/* ---- the runs that rows share ---- */

static struct run *steady;

static bool is_steady(const struct run *r, const struct sim_config *config)
{
	return r->config.law == config->law && r->config.seed == config->seed &&
		r->config.writers[0].count == config->writers[0].count;
}

const struct run *case_steady(struct check *c, unsigned nr_writers)
{
	struct sim_config config = case_new(c, 100 * MIB, 400 * MIB);
	struct run *r;

	case_writers(&config, SIM_GREEDY, nr_writers, 64 * KIB);
	for (r = steady; r; r = r->next)
		if (is_steady(r, &config))
			break;
	if (!r) {
		r = run_new(c, &config);
		r->next = steady;
		steady = r;
	} else if (r->result.broken) {
		broke(c, &config, r->result.message);
	}
	c->last = r;
	return r;
}

void case_forget_steady(void)
{
	free_all(&steady);
}

/* ---- asking it ---- */

const struct sim_sample *point(const struct run *r, size_t i)
{
	return (const struct sim_sample *)(const void *)(r->points + i * r->stride);
}

static size_t index_at(const struct run *r, double s)
{
	size_t low = 0, high = r->nr_points;

	while (low < high) {
		size_t middle = (low + high) / 2;
		if ((double)point(r, middle)->now_us < s * 1e6 - 0.5)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

const struct sim_sample *point_at(const struct run *r, double s)
{
	static const struct sim_sample none;
	size_t i = index_at(r, s);

	if (!r->nr_points)
		return &none;
	return point(r, i < r->nr_points ? i : r->nr_points - 1);
}

double trace_max(const struct run *r, double from_s, double to_s, measure of)
{
	double max = NAN;

	for (size_t i = index_at(r, from_s), n = index_at(r, to_s); i < n; i++)
		max = fmax(max, of(r, point(r, i)));
	return max;
}

double trace_min(const struct run *r, double from_s, double to_s, measure of)
{
	double min = NAN;

	for (size_t i = index_at(r, from_s), n = index_at(r, to_s); i < n; i++)
		min = fmin(min, of(r, point(r, i)));
	return min;
}

double trace_mean(const struct run *r, double from_s, double to_s, measure of)
{
	size_t first = index_at(r, from_s), n = index_at(r, to_s);
	double sum = 0;

	for (size_t i = first; i < n; i++)
		sum += of(r, point(r, i));
	return sum / (double)(n - first);
}

double trace_worst_second(const struct run *r, double from_s, double to_s, measure of)
{
	double worst = NAN;

	for (double s = from_s; s + 1 <= to_s + 1e-6; s++)
		worst = fmax(worst, fabs(trace_mean(r, s, s + 1, of)));
	return worst;
}

double trace_settled(const struct run *r, double from_s, double to_s, measure of, double most)
{
	size_t first = index_at(r, from_s), i = index_at(r, to_s);

	if (i <= first)
		return NAN;
	if (!(fabs(of(r, point(r, i - 1))) <= most))
		return to_s - from_s;
	for (; i > first; i--)
		if (!(fabs(of(r, point(r, i - 1))) <= most))
			return (double)point(r, i)->now_us / 1e6 - from_s;
	return 0;
}

double trace_written(const struct run *r, unsigned device, double from_s, double to_s)
{
	const struct sim_sample *a = point_at(r, from_s), *b = point_at(r, to_s);
	double pages = (double)(b->device[device].written - a->device[device].written);

	return pages * PAGE / ((double)(b->now_us - a->now_us) / 1e6);
}

double rate_error(const struct run *r, const struct sim_sample *s)
{
	const struct sim_device_sample *d = &s->device[0];

	return d->dirty_ratelimit * fmax(d->nr_writers, 1) / d->avg_write_bandwidth - 1;
}

double dirty_over_limit(const struct run *r, const struct sim_sample *s)
{
	return s->dirty / s->limit;
}

double dirty_over_thresh(const struct run *r, const struct sim_sample *s)
{
	return s->dirty / s->thresh;
}

double avg_bandwidth(const struct run *r, const struct sim_sample *s)
{
	return s->device[0].avg_write_bandwidth;
}

double measured_s(const struct run *r)
{
	return r->config.seconds - r->config.warmup_s;
}

double spec_rate(const struct run *r, unsigned spec)
{
	return (double)r->result.spec[spec].bytes / measured_s(r);
}
