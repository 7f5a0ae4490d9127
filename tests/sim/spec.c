/* The SPECs of devices, writers and actions as they are typed. */
#include "tests/sim/config.h"

#include <errno.h>
#include <string.h>

/* The next part between commas, in place; NULL at the end. */
static char *next_part(char **text)
{
	return strsep(text, ",");
}

char *spec_split(char *part, char at)
{
	char *found = part ? strchr(part, at) : NULL;

	if (!found)
		return NULL;
	*found = '\0';
	return found + 1;
}

static int parse_step(struct complaint *c, struct sim_device_spec *d, char *value)
{
	char *at = spec_split(value, '@');
	struct sim_step step;

	if (!at)
		return complain(c, "step=SPEED@TIME, as step=20M@30s");
	if (d->nr_steps == SIM_STEPS)
		return complain(c, "more than %d steps", SIM_STEPS);
	if (spec_number(c, "step", value, UNIT_RATE, SIM_RATE_LEAST, SIM_RATE_MOST,
		    &step.bytes_per_s) ||
		spec_number(c, "step", at, UNIT_S, 0, SIM_TIME_MOST, &step.at_s))
		return -EINVAL;
	d->steps[d->nr_steps++] = step;
	return 0;
}

static int parse_stall(struct complaint *c, struct sim_device_spec *d, char *value)
{
	char *at = spec_split(value, '@'), *every = spec_split(at, '/');

	if (!at)
		return complain(c, "stall=LENGTH@TIME[/EVERY], as stall=5s@40s");
	if (spec_number(c, "stall", value, UNIT_S, 0.001, SIM_TIME_MOST, &d->stall_s) ||
		spec_number(c, "stall", at, UNIT_S, 0, SIM_TIME_MOST, &d->stall_at_s))
		return -EINVAL;
	d->stall_every_s = 0;
	return every ? spec_number(c, "stall", every, UNIT_S, 0.001, SIM_TIME_MOST,
			       &d->stall_every_s)
		     : 0;
}

static int parse_seek(struct complaint *c, struct sim_device_spec *d, char *value)
{
	char *most = strstr(value, "..");

	if (!most)
		return complain(c, "seek=LEAST..MOST, as seek=1..15ms");
	*most = '\0';
	most += 2;
	if (spec_number(c, "seek", value, UNIT_MS, 0, 10000, &d->seek_min_ms) ||
		spec_number(c, "seek", most, UNIT_MS, 0.001, 10000, &d->seek_max_ms))
		return -EINVAL;
	return 0;
}

static int parse_smr(struct complaint *c, struct sim_device_spec *d, char *value)
{
	char *pause = spec_split(value, '/');

	if (!pause)
		return complain(c, "smr=BYTES/PAUSE, as smr=256M/2s");
	if (spec_number(c, "smr", value, UNIT_BYTES, 1048576, SIM_PAGES_2_40, &d->zone_bytes) ||
		spec_number(c, "smr", pause, UNIT_S, 0.001, 3600, &d->zone_pause_s))
		return -EINVAL;
	return 0;
}

static const struct {
	const char *name;
	int (*parse)(struct complaint *c, struct sim_device_spec *d, char *value);
} device_parsers[] = {
	{"step", parse_step},
	{"stall", parse_stall},
	{"seek", parse_seek},
	{"smr", parse_smr},
};

static int parse_device_part(struct complaint *c, struct sim_device_spec *d, char *part)
{
	char *value = spec_split(part, '=');
	const struct field *f = field_find(&sim_device_fields, part);

	if (f)
		return field_assign(c, f, d, value);
	for (size_t i = 0; i < SIM_NR(device_parsers); i++) {
		if (strcmp(part, device_parsers[i].name))
			continue;
		if (!value)
			return complain(c, "%s wants a value", part);
		return device_parsers[i].parse(c, d, value);
	}
	return complain(c, "there is no '%s' of a device", part);
}

int spec_parse_device(struct complaint *c, struct sim_device_spec *d, char *text)
{
	char *part = next_part(&text);

	if (spec_number(c, "speed", part, UNIT_RATE, SIM_RATE_LEAST, SIM_RATE_MOST,
		    &d->bytes_per_s))
		return -EINVAL;
	while ((part = next_part(&text)))
		if (parse_device_part(c, d, part))
			return -EINVAL;
	return 0;
}

static int parse_bursty(struct complaint *c, struct sim_writer_spec *w, char *value)
{
	char *off = spec_split(value, '/');

	w->kind = SIM_BURSTY;
	if (!off)
		return complain(c, "bursty=ON/OFF, as bursty=1s/4s");
	return spec_number(c, "bursty", value, UNIT_S, 0.001, SIM_TIME_MOST, &w->on_s) ||
			spec_number(c, "bursty", off, UNIT_S, 0.001, SIM_TIME_MOST, &w->off_s)
		? -EINVAL
		: 0;
}

static int parse_short(struct complaint *c, struct sim_writer_spec *w, char *value)
{
	char *size = spec_split(value, '/');
	double bytes;

	w->kind = SIM_SHORT;
	if (!size)
		return complain(c, "short=PER_SECOND/SIZE, as short=1000/124K");
	if (spec_number(c, "short", value, UNIT_NONE, 0.001, 100000, &w->per_s) ||
		spec_number(c, "short", size, UNIT_BYTES, 4096, SIM_PAGES_2_40, &bytes))
		return -EINVAL;
	w->total_bytes = (uint64_t)bytes;
	return 0;
}

static int parse_hot(struct complaint *c, struct sim_writer_spec *w, char *value)
{
	char *rate = spec_split(value, '/');
	double bytes;

	w->kind = SIM_HOT;
	if (!rate)
		return complain(c, "hot=SIZE/SPEED, as hot=64K/10M");
	if (spec_number(c, "hot", value, UNIT_BYTES, 4096, SIM_PAGES_2_40, &bytes) ||
		spec_number(c, "hot", rate, UNIT_RATE, SIM_RATE_LEAST, SIM_RATE_MOST,
			&w->bytes_per_s))
		return -EINVAL;
	w->total_bytes = (uint64_t)bytes;
	return 0;
}

static int parse_kind(struct complaint *c, struct sim_writer_spec *w, char *part)
{
	char *value = spec_split(part, '=');

	if (!strcmp(part, "greedy") && !value) {
		w->kind = SIM_GREEDY;
		return 0;
	}
	if (!value)
		value = (char *)(uintptr_t) "";
	if (!strcmp(part, "paced")) {
		w->kind = SIM_PACED;
		return spec_number(c, "paced", value, UNIT_RATE, SIM_RATE_LEAST, SIM_RATE_MOST,
			&w->bytes_per_s);
	}
	if (!strcmp(part, "bursty"))
		return parse_bursty(c, w, value);
	if (!strcmp(part, "short"))
		return parse_short(c, w, value);
	if (!strcmp(part, "hot"))
		return parse_hot(c, w, value);
	return complain(c,
		"'%s' is no kind of writer: greedy, paced=SPEED, bursty=ON/OFF, "
		"short=PER_SECOND/SIZE, hot=SIZE/SPEED",
		part);
}

static int parse_writer_part(struct complaint *c, struct sim_writer_spec *w, char *part)
{
	double bytes;

	if (*part >= '0' && *part <= '9') {
		if (spec_number(c, "request", part, UNIT_BYTES, 4096, 1048576, &bytes))
			return -EINVAL;
		w->request_bytes = (uint64_t)bytes;
		return 0;
	}
	char *value = spec_split(part, '=');
	const struct field *f = field_find(&sim_writer_fields, part);
	return f ? field_assign(c, f, w, value)
		 : complain(c, "there is no '%s' of a writer", part);
}

int spec_parse_writer(struct complaint *c, struct sim_writer_spec *w, char *text)
{
	char *part = next_part(&text);
	size_t digits = strspn(part, "0123456789");
	double count = 1;

	if (digits && part[digits] == 'x') {
		part[digits] = '\0';
		if (spec_number(c, "writers", part, UNIT_NONE, 1, SIM_WRITERS, &count))
			return -EINVAL;
		part += digits + 1;
	}
	w->count = (unsigned)count;
	if (parse_kind(c, w, part))
		return -EINVAL;
	while ((part = next_part(&text)))
		if (parse_writer_part(c, w, part))
			return -EINVAL;
	return 0;
}

/* ---- actions: "TIME NAME=VALUE" ---- */

/* "0,max_bytes=1M,strict": the device's settings from then on. */
static int parse_set_device(
	struct complaint *c, struct sim_config *config, struct sim_action *a, char *value)
{
	struct sim_device_spec d;
	double index;
	char *part = next_part(&value);

	a->kind = SIM_SET_DEVICE;
	if (spec_number(c, "device", part, UNIT_NONE, 0, SIM_DEVICES - 1, &index))
		return -EINVAL;
	a->device = (unsigned)index;
	d = a->device < config->nr_devices ? config->devices[a->device] : sim_device_default;
	while ((part = next_part(&value)))
		if (parse_device_part(c, &d, part))
			return -EINVAL;
	a->settings = d.settings;
	return 0;
}

static int parse_truncate(struct complaint *c, struct sim_action *a, char *value)
{
	char *pages = next_part(&value), *part;
	double number_of;

	a->kind = SIM_TRUNCATE;
	if (spec_number(c, "truncate", pages, UNIT_NONE, 1, 1e12, &number_of))
		return -EINVAL;
	a->value = (uint64_t)number_of;
	while ((part = next_part(&value))) {
		char *device = spec_split(part, '=');
		double index;
		if (strcmp(part, "dev") || !device)
			return complain(c, "truncate=PAGES[,dev=N]");
		if (spec_number(c, "dev", device, UNIT_NONE, 0, SIM_DEVICES - 1, &index))
			return -EINVAL;
		a->device = (unsigned)index;
	}
	return 0;
}

int spec_parse_action(
	struct complaint *c, struct sim_config *config, struct sim_action *a, char *text)
{
	char *what = spec_split(text, ' '), *value = spec_split(what, '=');
	double bytes;

	if (!what)
		return complain(c, "'TIME WHAT', as '30s limit=50M' or '30s sync'");
	if (spec_number(c, "time", text, UNIT_S, 0, SIM_TIME_MOST, &a->at_s))
		return -EINVAL;
	if (!strcmp(what, "sync") && !value) {
		a->kind = SIM_SYNC;
		return 0;
	}
	if (!value)
		value = (char *)(uintptr_t) "";
	if (!strcmp(what, "limit") || !strcmp(what, "background")) {
		a->kind = *what == 'l' ? SIM_SET_LIMIT : SIM_SET_BACKGROUND;
		if (spec_number(c, what, value, UNIT_BYTES, 1, SIM_PAGES_2_40, &bytes))
			return -EINVAL;
		a->value = (uint64_t)bytes;
		return 0;
	}
	if (!strcmp(what, "law")) {
		a->kind = SIM_SET_LAW;
		return throttle_law_by_name(value, &a->law)
			? 0
			: complain(c, "law: '%s' is none of linux, pace", value);
	}
	if (!strcmp(what, "device"))
		return parse_set_device(c, config, a, value);
	if (!strcmp(what, "truncate"))
		return parse_truncate(c, a, value);
	return complain(c,
		"'%s' is none of limit=SIZE, background=SIZE, law=LAW, sync, truncate=PAGES, "
		"device=N,SETTING...",
		what);
}
