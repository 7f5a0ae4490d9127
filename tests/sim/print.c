/* What is printed: a configuration as the command line that replays it, results, help. */
#include "tests/sim/config.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers that read back as they were ---- */

static const char *digits(double value, char text[32])
{
	for (int precision = 6; precision <= 17; precision++) {
		snprintf(text, 32, "%.*g", precision, value);
		if (strtod(text, NULL) == value)
			break;
	}
	return text;
}

static const char *with_unit(double value, enum unit unit, char text[32])
{
	static const char letters[] = "TGMK";
	size_t length;

	if (unit == UNIT_BYTES || unit == UNIT_RATE) {
		for (int i = 0; i < 4; i++) {
			double one = ldexp(1, 10 * (4 - i));
			if (value < one || value / one != floor(value / one))
				continue;
			digits(value / one, text);
			length = strlen(text);
			text[length] = letters[i];
			text[length + 1] = '\0';
			return text;
		}
	}
	digits(value, text);
	length = strlen(text);
	if (unit == UNIT_S)
		snprintf(text + length, 32 - length, "s");
	else if (unit == UNIT_MS)
		snprintf(text + length, 32 - length, "ms");
	return text;
}

static const char *rate(double value, char text[32])
{
	return with_unit(value, UNIT_RATE, text);
}

static const char *size(double value, char text[32])
{
	return with_unit(value, UNIT_BYTES, text);
}

static const char *seconds(double value, char text[32])
{
	return with_unit(value, UNIT_S, text);
}

/* Those that are not what they are by default. */
static void print_fields(FILE *out, const struct field_list *list, const void *base,
	const void *usual, const char *before)
{
	char text[32];

	for (size_t i = 0; i < list->nr; i++) {
		const struct field *f = &list->fields[i];
		double value = field_get(f, base);
		if (value == field_get(f, usual))
			continue;
		if (f->type == FIELD_BOOL && value == 1)
			fprintf(out, "%s%s", before, f->name);
		else
			fprintf(out, "%s%s=%s", before, f->name,
				with_unit(value, f->unit, text));
	}
}

/* ---- a configuration ---- */

static void print_device(FILE *out, const struct sim_device_spec *d)
{
	char a[32], b[32], c[32];

	fprintf(out, " --device=%s", rate(d->bytes_per_s, a));
	for (unsigned i = 0; i < d->nr_steps; i++)
		fprintf(out, ",step=%s@%s", rate(d->steps[i].bytes_per_s, a),
			seconds(d->steps[i].at_s, b));
	if (d->stall_s > 0) {
		fprintf(out, ",stall=%s@%s", seconds(d->stall_s, a), seconds(d->stall_at_s, b));
		if (d->stall_every_s > 0)
			fprintf(out, "/%s", seconds(d->stall_every_s, c));
	}
	if (d->seek_max_ms > 0)
		fprintf(out, ",seek=%s..%s", digits(d->seek_min_ms, a),
			with_unit(d->seek_max_ms, UNIT_MS, b));
	if (d->zone_bytes > 0)
		fprintf(out, ",smr=%s/%s", size(d->zone_bytes, a), seconds(d->zone_pause_s, b));
	print_fields(out, &sim_device_fields, d, &sim_device_default, ",");
}

static void print_writer(FILE *out, const struct sim_writer_spec *w)
{
	struct sim_writer_spec usual = sim_writer_default;
	char a[32], b[32];

	fprintf(out, " --writer=");
	if (w->count != 1)
		fprintf(out, "%ux", w->count);
	switch (w->kind) {
	case SIM_GREEDY:
		fprintf(out, "greedy");
		break;
	case SIM_PACED:
		fprintf(out, "paced=%s", rate(w->bytes_per_s, a));
		break;
	case SIM_BURSTY:
		fprintf(out, "bursty=%s/%s", seconds(w->on_s, a), seconds(w->off_s, b));
		break;
	case SIM_SHORT:
		fprintf(out, "short=%s/%s", digits(w->per_s, a),
			size((double)w->total_bytes, b));
		usual.total_bytes = w->total_bytes;
		break;
	case SIM_HOT:
		fprintf(out, "hot=%s/%s", size((double)w->total_bytes, a),
			rate(w->bytes_per_s, b));
		usual.total_bytes = w->total_bytes;
		break;
	}
	fprintf(out, ",%s", size((double)w->request_bytes, a));
	print_fields(out, &sim_writer_fields, w, &usual, ",");
}

static void print_settings(FILE *out, const struct device_settings *settings)
{
	struct sim_device_spec d = sim_device_default, usual = sim_device_default;

	/* All of them: they are laid over what the device has. */
	d.settings = *settings;
	for (size_t i = 0; i < sim_device_fields.nr; i++) {
		const struct field *f = &sim_device_fields.fields[i];
		if (f->offset >= offsetof(struct sim_device_spec, settings))
			field_put(f, &usual, field_get(f, &d) == 0);
	}
	print_fields(out, &sim_device_fields, &d, &usual, ",");
}

static void print_action(FILE *out, const struct sim_action *a)
{
	char text[32];

	fprintf(out, " --at='%s ", seconds(a->at_s, text));
	switch (a->kind) {
	case SIM_SET_LIMIT:
		fprintf(out, "limit=%s", size((double)a->value, text));
		break;
	case SIM_SET_BACKGROUND:
		fprintf(out, "background=%s", size((double)a->value, text));
		break;
	case SIM_SET_LAW:
		fprintf(out, "law=%s", throttle_law_name(a->law));
		break;
	case SIM_SET_DEVICE:
		fprintf(out, "device=%u", a->device);
		print_settings(out, &a->settings);
		break;
	case SIM_SYNC:
		fprintf(out, "sync");
		break;
	case SIM_TRUNCATE:
		fprintf(out, "truncate=%" PRIu64, a->value);
		if (a->device)
			fprintf(out, ",dev=%u", a->device);
		break;
	}
	fprintf(out, "'");
}

void sim_config_print(const struct sim_config *c, FILE *out)
{
	struct sim_config *usual = malloc(sizeof(*usual));

	if (!usual)
		return;
	sim_config_init(usual);
	/* Always said, whatever is usual. */
	usual->limit_bytes = UINT64_MAX;
	usual->seconds = usual->warmup_s = -1;
	if (c->greedy_each)
		usual->request_bytes = 0;
	fprintf(out, "pacefs-sim --seed=%" PRIu64 " --law=%s", c->seed,
		throttle_law_name(c->law));
	print_fields(out, &sim_config_fields, c, usual, " --");
	free(usual);
	for (unsigned i = 0; i < c->nr_devices; i++)
		print_device(out, &c->devices[i]);
	for (unsigned i = 0; i < c->nr_writers; i++)
		print_writer(out, &c->writers[i]);
	for (unsigned i = 0; i < c->nr_actions; i++)
		print_action(out, &c->actions[i]);
	fprintf(out, "\n");
}

/* ---- results ---- */

static void print_device_result(const struct sim_result *r, unsigned i, FILE *out)
{
	const struct sim_device_result *d = &r->device[i];

	fprintf(out,
		"device=%u throughput=%.4f mib_per_s=%.2f idle=%.4f jain=%.4f mean_dirty=%.0f "
		"max_dirty=%.0f ratelimit=%.1f ratelimit_cv=%.3f ratelimit_error=%.3f "
		"avg_error=%.3f requests=%" PRIu64 " seeks=%" PRIu64 " pauses=%" PRIu64
		" pause_p50_ms=%.1f pause_max_ms=%.1f queue_wait_p99_ms=%.1f stalls=%" PRIu64
		"\n",
		i, d->throughput, d->bytes_per_s / 1048576, d->idle, d->jain, d->mean_dirty,
		d->max_dirty, d->mean_ratelimit, d->ratelimit_cv, d->ratelimit_error,
		d->avg_error, d->requests, d->seeks, d->pause.total,
		sim_percentile_ms(&d->pause, 0.5), (double)d->pause.max_us / 1e3,
		sim_percentile_ms(&d->queue_wait, 0.99), d->stalls);
}

static void print_specs(const struct sim_result *r, FILE *out)
{
	for (unsigned i = 0; i < r->nr_specs; i++) {
		const struct sim_spec_result *s = &r->spec[i];
		fprintf(out,
			"spec=%u bytes=%" PRIu64 " requests=%" PRIu64 " pauses=%" PRIu64
			" begun=%" PRIu64 " ended=%" PRIu64
			" wait_p50_ms=%.1f wait_p99_ms=%.1f wait_max_ms=%.1f\n",
			i, s->bytes, s->requests, s->pauses, s->begun, s->ended,
			sim_percentile_ms(&s->wait, 0.5), sim_percentile_ms(&s->wait, 0.99),
			(double)s->wait.max_us / 1e3);
	}
}

static void print_syncs(const struct sim_result *r, FILE *out)
{
	for (unsigned i = 0; i < r->nr_syncs; i++) {
		const struct sim_sync_result *s = &r->syncs[i];
		bool ended = s->took_us != UINT64_MAX;
		fprintf(out,
			"sync=%u at_s=%.3f took_ms=%.1f dirty=%" PRIu64 " in_flight=%" PRIu64
			" written=%" PRIu64 "\n",
			i, (double)s->at_us / 1e6, ended ? (double)s->took_us / 1e3 : -1,
			s->dirty, s->in_flight, ended ? s->written : 0);
	}
}

void sim_result_print(const struct sim_config *c, const struct sim_result *r, FILE *out)
{
	double bytes_per_s = 0;

	for (unsigned i = 0; i < r->nr_devices; i++)
		bytes_per_s += r->device[i].bytes_per_s;
	if (r->nr_devices > 1)
		for (unsigned i = 0; i < r->nr_devices; i++)
			print_device_result(r, i, out);
	if (r->nr_specs > 1)
		print_specs(r, out);
	print_syncs(r, out);
	fprintf(out,
		"seed=%" PRIu64 " law=%s events=%" PRIu64 " hash=%016" PRIx64
		" throughput=%.4f mib_per_s=%.2f jain=%.4f max_dirty_over_limit=%.4f "
		"max_dirty_over_thresh=%.4f mean_position=%.3f position_pp=%.3f "
		"ratelimit_error=%.3f pauses=%" PRIu64 " pause_p50_ms=%.1f pause_p99_ms=%.1f "
		"pause_max_ms=%.1f short_pauses=%.4f blocked=%" PRIu64 " freerun=%" PRIu64
		" exempt=%" PRIu64 " queue_waits=%" PRIu64 " queue_wait_p99_ms=%.1f "
		"wait_p50_ms=%.1f wait_p99_ms=%.1f wait_max_ms=%.1f idle=%.4f",
		c->seed, throttle_law_name(c->law), r->events, r->hash, r->throughput,
		bytes_per_s / 1048576, r->jain, r->max_dirty_over_limit,
		r->max_dirty_over_thresh, r->mean_position, r->position_pp, r->ratelimit_error,
		r->pauses, sim_percentile_ms(&r->pause, 0.5),
		sim_percentile_ms(&r->pause, 0.99), (double)r->pause.max_us / 1e3,
		sim_share_below(&r->pause, 4000), r->blocked, r->freerun, r->exempt,
		r->queue_wait.total, sim_percentile_ms(&r->queue_wait, 0.99),
		sim_percentile_ms(&r->wait, 0.5), sim_percentile_ms(&r->wait, 0.99),
		(double)r->wait.max_us / 1e3, r->idle);
	if (c->drain)
		fprintf(out, " drained_ms=%.1f", r->drained_us / 1e3);
	fprintf(out, "\n");
}
