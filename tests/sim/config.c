#include "tests/sim/config.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

int complain(struct complaint *c, const char *format, ...)
{
	char text[256];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (!c->any)
		snprintf(c->message, c->size, "%s%s%s", c->where, *c->where ? ": " : "", text);
	c->any = true;
	return -EINVAL;
}

const char *const unit_names[] = {
	[UNIT_NONE] = "",
	[UNIT_BYTES] = " bytes (4096, 64K, 100M)",
	[UNIT_RATE] = " bytes/s (512K, 50M)",
	[UNIT_S] = " s (250us, 20ms, 5s, 2m)",
	[UNIT_MS] = " ms (250us, 20ms, 5s)",
};

/* ---- the fields ---- */

#define CONFIG(name_, member, ...)                                                             \
	{                                                                                      \
		name_, offsetof(struct sim_config, member), __VA_ARGS__                        \
	}
#define DEVICE(name_, member, ...)                                                             \
	{                                                                                      \
		name_, offsetof(struct sim_device_spec, member), __VA_ARGS__                   \
	}
#define WRITER(name_, member, ...)                                                             \
	{                                                                                      \
		name_, offsetof(struct sim_writer_spec, member), __VA_ARGS__                   \
	}
#define U64 FIELD_U64
#define REAL FIELD_DOUBLE
#define UNSIGNED FIELD_UNSIGNED
#define BOOL FIELD_BOOL

/* name, member, type, unit, least, most, 0 allowed too */
static const struct field config_fields[] = {
	CONFIG("limit", limit_bytes, U64, UNIT_BYTES, 1, SIM_PAGES_2_40, true),
	CONFIG("background", background_bytes, U64, UNIT_BYTES, 1, SIM_PAGES_2_40, true),
	CONFIG("writers", greedy_each, U64, UNIT_NONE, 1, SIM_WRITERS, true),
	CONFIG("request", request_bytes, U64, UNIT_BYTES, 4096, 1048576, false),
	CONFIG("seconds", seconds, REAL, UNIT_S, 0.001, SIM_TIME_MOST, false),
	CONFIG("warmup", warmup_s, REAL, UNIT_S, 0, SIM_TIME_MOST, false),
	CONFIG("expire", expire_centisecs, U64, UNIT_NONE, 1, 360000, false),
	CONFIG("writeback", writeback_centisecs, U64, UNIT_NONE, 1, 360000, true),
	CONFIG("copy", copy_bytes_per_s, REAL, UNIT_RATE, 1024, SIM_RATE_MOST, false),
	CONFIG("syscall", request_us, REAL, UNIT_NONE, 0.1, 1e6, false),
	CONFIG("drain", drain, BOOL, UNIT_NONE, 0, 1, true),
};

static const struct field device_fields[] = {
	DEVICE("overhead", overhead_us, REAL, UNIT_NONE, 0, 1e6, false),
	DEVICE("noise", noise, REAL, UNIT_NONE, 0, 2, true),
	DEVICE("noise_ms", noise_ms, REAL, UNIT_MS, 1, 60000, false),
	DEVICE("noise_rho", noise_rho, REAL, UNIT_NONE, 0, 0.999, false),
	DEVICE("burst", burst, UNSIGNED, UNIT_NONE, 1, 64, true),
	DEVICE("rot", rotation_ms, REAL, UNIT_MS, 0, 1000, true),
	DEVICE("near", near_bytes, REAL, UNIT_BYTES, 0, SIM_PAGES_2_40, false),
	DEVICE("size", disk_bytes, REAL, UNIT_BYTES, 1048576, SIM_PAGES_2_40, false),
	DEVICE("cache", cache_bytes, REAL, UNIT_BYTES, 4096, SIM_PAGES_2_40, true),
	DEVICE("cache_speed", cache_bytes_per_s, REAL, UNIT_RATE, SIM_RATE_LEAST, SIM_RATE_MOST,
		false),
	DEVICE("prior", prior_bytes_per_s, REAL, UNIT_RATE, SIM_RATE_LEAST, SIM_RATE_MOST,
		false),
	DEVICE("max_bytes", settings.max_bytes, U64, UNIT_BYTES, 4096, SIM_PAGES_2_40, true),
	DEVICE("min_ratio", settings.min_ratio, U64, UNIT_NONE, 0, 100, true),
	DEVICE("max_ratio", settings.max_ratio, U64, UNIT_NONE, 1, 100, false),
	DEVICE("dirty_centisecs", settings.dirty_centisecs, U64, UNIT_NONE, 1, 360000, true),
	DEVICE("dirty_background_centisecs", settings.dirty_background_centisecs, U64,
		UNIT_NONE, 1, 360000, true),
	DEVICE("strict", settings.strict_limit, BOOL, UNIT_NONE, 0, 1, true),
};

static const struct field writer_fields[] = {
	WRITER("dev", device, UNSIGNED, UNIT_NONE, 0, SIM_DEVICES - 1, true),
	WRITER("total", total_bytes, U64, UNIT_BYTES, 4096, SIM_PAGES_2_40, true),
	WRITER("from", from_s, REAL, UNIT_S, 0, SIM_TIME_MOST, true),
	WRITER("to", to_s, REAL, UNIT_S, 0, SIM_TIME_MOST, true),
	WRITER("fsync", fsync_s, REAL, UNIT_S, 0.001, SIM_TIME_MOST, true),
	WRITER("shared", shared, BOOL, UNIT_NONE, 0, 1, true),
};

const struct field_list sim_config_fields = {config_fields, SIM_NR(config_fields)};
const struct field_list sim_device_fields = {device_fields, SIM_NR(device_fields)};
const struct field_list sim_writer_fields = {writer_fields, SIM_NR(writer_fields)};

double field_get(const struct field *f, const void *base)
{
	const void *at = (const char *)base + f->offset;

	switch (f->type) {
	case FIELD_DOUBLE:
		return *(const double *)at;
	case FIELD_U64:
		return (double)*(const uint64_t *)at;
	case FIELD_UNSIGNED:
		return *(const unsigned *)at;
	case FIELD_BOOL:
		return *(const bool *)at;
	}
	return 0;
}

void field_put(const struct field *f, void *base, double value)
{
	void *at = (char *)base + f->offset;

	switch (f->type) {
	case FIELD_DOUBLE:
		*(double *)at = value;
		break;
	case FIELD_U64:
		*(uint64_t *)at = (uint64_t)value;
		break;
	case FIELD_UNSIGNED:
		*(unsigned *)at = (unsigned)value;
		break;
	case FIELD_BOOL:
		*(bool *)at = value != 0;
		break;
	}
}

/* ---- defaults ---- */

const struct sim_device_spec sim_device_default = {
	.bytes_per_s = 50.0 * 1048576,
	.overhead_us = 50,
	.noise_ms = 100,
	.noise_rho = 0.8,
	.cache_bytes_per_s = 500.0 * 1048576,
	.near_bytes = 4194304, /* a drive's own reordering hides that much */
	.disk_bytes = 500.0 * 1073741824,
	.prior_bytes_per_s = THROTTLE_INIT_BW * THROTTLE_PAGE_SIZE,
	.settings = {.max_ratio = 100},
};

const struct sim_writer_spec sim_writer_default = {
	.count = 1,
	.request_bytes = 4096,
};

void sim_config_init(struct sim_config *c)
{
	*c = (struct sim_config){
		.seed = 1,
		.law = THROTTLE_PACE,
		.seconds = 60,
		.warmup_s = 20,
		.limit_bytes = 100ull << 20,
		.expire_centisecs = 3000,
		.writeback_centisecs = 500,
		/* What one CPU copies, and a system call with its way through FUSE. */
		.copy_bytes_per_s = 1000.0 * 1048576,
		.request_us = 5,
		.request_bytes = 4096,
		.nr_devices = 1,
		.devices_are_default = true,
	};
	c->devices[0] = sim_device_default;
}

/* ---- checks ---- */

static void check_fields(struct complaint *c, const struct field_list *list, const void *base)
{
	for (size_t i = 0; i < list->nr; i++) {
		const struct field *f = &list->fields[i];
		double value = field_get(f, base);
		if (f->zero && value == 0)
			continue;
		if (!(value >= f->least && value <= f->most))
			complain(c, "%s: %.10g is not within %.10g..%.10g%s", f->name, value,
				f->least, f->most, unit_names[f->unit]);
	}
}

static void check_number(struct complaint *c, const char *name, double value, double least,
	double most, enum unit unit)
{
	if (!(value >= least && value <= most))
		complain(c, "%s: %.10g is not within %.10g..%.10g%s", name, value, least, most,
			unit_names[unit]);
}

static void check_rate(struct complaint *c, const char *name, double value)
{
	check_number(c, name, value, SIM_RATE_LEAST, SIM_RATE_MOST, UNIT_RATE);
}

static void check_time(struct complaint *c, const char *name, double value, double least)
{
	check_number(c, name, value, least, SIM_TIME_MOST, UNIT_S);
}

static void check_pages(struct complaint *c, const char *name, uint64_t bytes)
{
	if (bytes % THROTTLE_PAGE_SIZE)
		complain(c, "%s: %" PRIu64 " is not a multiple of %d bytes", name, bytes,
			THROTTLE_PAGE_SIZE);
}

static void check_device(struct complaint *c, const struct sim_device_spec *d)
{
	check_rate(c, "speed", d->bytes_per_s);
	check_fields(c, &sim_device_fields, d);
	check_number(c, "steps", d->nr_steps, 0, SIM_STEPS, UNIT_NONE);
	for (unsigned i = 0; i < d->nr_steps && i < SIM_STEPS; i++) {
		check_rate(c, "step", d->steps[i].bytes_per_s);
		check_time(c, "step", d->steps[i].at_s, i ? d->steps[i - 1].at_s : 0);
	}
	if (d->stall_s != 0) {
		check_time(c, "stall", d->stall_s, 0.001);
		check_time(c, "stall", d->stall_at_s, 0);
		if (d->stall_every_s != 0)
			check_time(c, "stall every", d->stall_every_s, 1.01 * d->stall_s);
	}
	if (d->seek_max_ms != 0) {
		check_number(c, "seek", d->seek_max_ms, 0.001, 10000, UNIT_MS);
		check_number(c, "seek", d->seek_min_ms, 0, d->seek_max_ms, UNIT_MS);
	}
	if (d->zone_bytes != 0) {
		check_number(c, "smr", d->zone_bytes, 1048576, SIM_PAGES_2_40, UNIT_BYTES);
		check_number(c, "smr pause", d->zone_pause_s, 0.001, 3600, UNIT_S);
	}
	if (d->cache_bytes != 0 && d->cache_bytes_per_s < d->bytes_per_s)
		complain(c, "cache_speed: %.10g is below the device's %.10g bytes/s",
			d->cache_bytes_per_s, d->bytes_per_s);
	if (d->settings.min_ratio > d->settings.max_ratio)
		complain(c, "min_ratio: %" PRIu64 " is above max_ratio, %" PRIu64 " percent",
			d->settings.min_ratio, d->settings.max_ratio);
}

static void check_writer(
	struct complaint *c, const struct sim_writer_spec *w, unsigned nr_devices)
{
	check_fields(c, &sim_writer_fields, w);
	check_number(c, "writers", w->count, 1, SIM_WRITERS, UNIT_NONE);
	check_number(c, "request", (double)w->request_bytes, 4096, 1048576, UNIT_BYTES);
	check_pages(c, "request", w->request_bytes);
	check_pages(c, "total", w->total_bytes);
	check_number(c, "dev", w->device, 0, nr_devices ? nr_devices - 1 : 0, UNIT_NONE);
	if (w->to_s != 0 && w->to_s <= w->from_s)
		complain(c, "to: %g s is not after from, %g s", w->to_s, w->from_s);
	switch (w->kind) {
	case SIM_GREEDY:
		break;
	case SIM_PACED:
		check_rate(c, "paced", w->bytes_per_s);
		break;
	case SIM_BURSTY:
		check_time(c, "bursty", w->on_s, 0.001);
		check_time(c, "bursty", w->off_s, 0.001);
		break;
	case SIM_SHORT:
		check_number(c, "short", w->per_s, 0.001, 100000, UNIT_NONE);
		if (!w->total_bytes)
			complain(c, "short: 0 bytes is not within 4096..2^52");
		break;
	case SIM_HOT:
		check_rate(c, "hot", w->bytes_per_s);
		if (w->total_bytes < w->request_bytes)
			complain(c, "hot: %" PRIu64 " bytes are less than one request",
				w->total_bytes);
		break;
	default:
		complain(c, "kind: %d is not within 0..%d", (int)w->kind, (int)SIM_HOT);
	}
}

static void check_action(struct complaint *c, const struct sim_action *a, double not_before_s,
	const struct sim_config *config)
{
	check_time(c, "time", a->at_s, not_before_s);
	if ((unsigned)a->law >= THROTTLE_NR_LAWS)
		complain(c, "law: %d is not within 0..%d", (int)a->law, THROTTLE_NR_LAWS - 1);
	if ((unsigned)a->kind > SIM_TRUNCATE)
		complain(c, "kind: %d is not within 0..%d", (int)a->kind, (int)SIM_TRUNCATE);
	if (a->kind == SIM_SET_DEVICE || a->kind == SIM_TRUNCATE)
		check_number(c, "device", a->device, 0,
			config->nr_devices ? config->nr_devices - 1 : 0, UNIT_NONE);
	if (a->kind == SIM_SET_LIMIT || a->kind == SIM_SET_BACKGROUND)
		check_number(c, "value", (double)a->value, 1, SIM_PAGES_2_40, UNIT_BYTES);
	if (a->kind == SIM_TRUNCATE)
		check_number(c, "truncate", (double)a->value, 1, 1e12, UNIT_NONE);
	if (a->kind == SIM_SET_DEVICE) {
		struct sim_device_spec d = sim_device_default;
		d.settings = a->settings;
		check_device(c, &d);
	}
}

static void check_whole(struct complaint *c, const struct sim_config *config)
{
	uint64_t writers = config->greedy_each * config->nr_devices, min_ratio = 0;

	check_fields(c, &sim_config_fields, config);
	check_pages(c, "request", config->request_bytes);
	if ((unsigned)config->law >= THROTTLE_NR_LAWS)
		complain(c, "law: %d is not within 0..%d", (int)config->law,
			THROTTLE_NR_LAWS - 1);
	check_number(c, "devices", config->nr_devices, 1, SIM_DEVICES, UNIT_NONE);
	check_number(c, "writer SPECs", config->nr_writers, 0, SIM_SPECS, UNIT_NONE);
	check_number(c, "actions", config->nr_actions, 0, SIM_ACTIONS, UNIT_NONE);
	if (config->warmup_s >= config->seconds)
		complain(c, "warmup: %g s is not below the %g seconds of the run",
			config->warmup_s, config->seconds);
	if (config->background_bytes && config->background_bytes >= config->limit_bytes)
		complain(c,
			"background: %" PRIu64 " bytes is not below the limit of %" PRIu64
			" bytes",
			config->background_bytes, config->limit_bytes);
	if (c->any)
		return;
	for (unsigned i = 0; i < config->nr_writers; i++)
		writers += config->writers[i].kind == SIM_SHORT ? 0 : config->writers[i].count;
	if (writers > SIM_WRITERS)
		complain(c, "writers: %" PRIu64 " is not within 1..%d", writers, SIM_WRITERS);
	if (!writers && !config->nr_writers)
		complain(c, "writers: 0 is not within 1..%d (--writers N or --writer SPEC)",
			SIM_WRITERS);
	for (unsigned i = 0; i < config->nr_devices; i++)
		min_ratio += config->devices[i].settings.min_ratio;
	if (min_ratio > 100)
		complain(c,
			"min_ratio: the devices' sum of %" PRIu64
			" is not within 0..100 percent",
			min_ratio);
}

int sim_config_check(const struct sim_config *config, char *message, size_t size)
{
	struct complaint c = {.message = message, .size = size};

	check_whole(&c, config);
	if (c.any)
		return -EINVAL;
	for (unsigned i = 0; i < config->nr_devices; i++) {
		snprintf(c.where, sizeof(c.where), "device %u", i);
		check_device(&c, &config->devices[i]);
	}
	for (unsigned i = 0; i < config->nr_writers; i++) {
		snprintf(c.where, sizeof(c.where), "writer %u", i);
		check_writer(&c, &config->writers[i], config->nr_devices);
	}
	for (unsigned i = 0; i < config->nr_actions; i++) {
		snprintf(c.where, sizeof(c.where), "action %u", i);
		check_action(
			&c, &config->actions[i], i ? config->actions[i - 1].at_s : 0, config);
	}
	return c.any ? -EINVAL : 0;
}
