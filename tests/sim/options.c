/* Options and SPECs as they are typed. */
#include "tests/sim/config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers ---- */

/* Factor of the suffix, or 0. */
static double factor_of(const char *suffix, enum unit unit)
{
	static const char letters[] = "KMGT";
	bool time = unit == UNIT_S || unit == UNIT_MS;
	double second = unit == UNIT_MS ? 1e3 : 1;

	if (!*suffix)
		return 1;
	if (time)
		return !strcmp(suffix, "us")	? second / 1e6
			: !strcmp(suffix, "ms") ? second / 1e3
			: !strcmp(suffix, "s")	? second
			: !strcmp(suffix, "m")	? second * 60
						: 0;
	if (unit == UNIT_NONE)
		return 0;
	char letter = *suffix >= 'a' ? (char)(*suffix - 'a' + 'A') : *suffix;
	const char *at = strchr(letters, letter);
	if (!at)
		return 0;
	suffix++;
	if (*suffix == 'i')
		suffix++;
	if (*suffix == 'B')
		suffix++;
	return *suffix ? 0 : ldexp(1, 10 * (int)(at - letters + 1));
}

static bool parse_number(const char *text, enum unit unit, double *ret)
{
	size_t digits = strspn(text, "0123456789.");
	char number[32], *end;

	if (digits && (text[digits] == 'e' || text[digits] == 'E'))
		digits += 1 + strspn(text + digits + 1, "0123456789+-");
	if (digits == 0 || digits >= sizeof(number) || *text == '.')
		return false;
	memcpy(number, text, digits);
	number[digits] = '\0';
	double value = strtod(number, &end);
	double factor = factor_of(text + digits, unit);
	if (*end || factor == 0 || !isfinite(value))
		return false;
	*ret = value * factor;
	return true;
}

/* value within least..most, or a complaint that names all of it. */
static int number(struct complaint *c, const char *name, const char *text, enum unit unit,
	double least, double most, double *ret)
{
	double value;

	if (!parse_number(text, unit, &value))
		return complain(c, "%s: '%s' is not a number%s%s", name, text,
			unit == UNIT_NONE ? "" : " of", unit_names[unit]);
	if (value < least || value > most)
		return complain(c, "%s: %s is not within %.10g..%.10g%s", name, text, least,
			most, unit_names[unit]);
	*ret = value;
	return 0;
}

static const struct field *find(const struct field_list *list, const char *name)
{
	for (size_t i = 0; i < list->nr; i++)
		if (!strcmp(list->fields[i].name, name))
			return &list->fields[i];
	return NULL;
}

static int assign(struct complaint *c, const struct field *f, void *base, const char *text)
{
	double value;

	if (f->type == FIELD_BOOL && !text)
		text = "1";
	if (!text || !*text)
		return complain(c, "%s wants a value", f->name);
	if (number(c, f->name, text, f->unit, f->zero ? 0 : f->least, f->most, &value))
		return -EINVAL;
	if (value < f->least && value != 0)
		return complain(c, "%s: %s is not within %.10g..%.10g%s", f->name, text,
			f->least, f->most, unit_names[f->unit]);
	if (f->type != FIELD_DOUBLE && value != floor(value))
		return complain(c, "%s: %s is no whole number", f->name, text);
	field_put(f, base, value);
	return 0;
}

/* ---- SPECs ---- */

/* The next part between commas, in place; NULL at the end. */
static char *next_part(char **text)
{
	return strsep(text, ",");
}

static char *split(char *part, char at)
{
	char *found = part ? strchr(part, at) : NULL;

	if (!found)
		return NULL;
	*found = '\0';
	return found + 1;
}

static int parse_step(struct complaint *c, struct sim_device_spec *d, char *value)
{
	char *at = split(value, '@');
	struct sim_step step;

	if (!at)
		return complain(c, "step=SPEED@TIME, as step=20M@30s");
	if (d->nr_steps == SIM_STEPS)
		return complain(c, "more than %d steps", SIM_STEPS);
	if (number(c, "step", value, UNIT_RATE, SIM_RATE_LEAST, SIM_RATE_MOST,
		    &step.bytes_per_s) ||
		number(c, "step", at, UNIT_S, 0, SIM_TIME_MOST, &step.at_s))
		return -EINVAL;
	d->steps[d->nr_steps++] = step;
	return 0;
}

static int parse_stall(struct complaint *c, struct sim_device_spec *d, char *value)
{
	char *at = split(value, '@'), *every = split(at, '/');

	if (!at)
		return complain(c, "stall=LENGTH@TIME[/EVERY], as stall=5s@40s");
	if (number(c, "stall", value, UNIT_S, 0.001, SIM_TIME_MOST, &d->stall_s) ||
		number(c, "stall", at, UNIT_S, 0, SIM_TIME_MOST, &d->stall_at_s))
		return -EINVAL;
	d->stall_every_s = 0;
	return every
		? number(c, "stall", every, UNIT_S, 0.001, SIM_TIME_MOST, &d->stall_every_s)
		: 0;
}

static int parse_seek(struct complaint *c, struct sim_device_spec *d, char *value)
{
	char *most = strstr(value, "..");

	if (!most)
		return complain(c, "seek=LEAST..MOST, as seek=1..15ms");
	*most = '\0';
	most += 2;
	if (number(c, "seek", value, UNIT_MS, 0, 10000, &d->seek_min_ms) ||
		number(c, "seek", most, UNIT_MS, 0.001, 10000, &d->seek_max_ms))
		return -EINVAL;
	return 0;
}

static int parse_smr(struct complaint *c, struct sim_device_spec *d, char *value)
{
	char *pause = split(value, '/');

	if (!pause)
		return complain(c, "smr=BYTES/PAUSE, as smr=256M/2s");
	if (number(c, "smr", value, UNIT_BYTES, 1048576, SIM_PAGES_2_40, &d->zone_bytes) ||
		number(c, "smr", pause, UNIT_S, 0.001, 3600, &d->zone_pause_s))
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
	char *value = split(part, '=');
	const struct field *f = find(&sim_device_fields, part);

	if (f)
		return assign(c, f, d, value);
	for (size_t i = 0; i < SIM_NR(device_parsers); i++) {
		if (strcmp(part, device_parsers[i].name))
			continue;
		if (!value)
			return complain(c, "%s wants a value", part);
		return device_parsers[i].parse(c, d, value);
	}
	return complain(c, "there is no '%s' of a device", part);
}

static int parse_device(struct complaint *c, struct sim_device_spec *d, char *text)
{
	char *part = next_part(&text);

	if (number(c, "speed", part, UNIT_RATE, SIM_RATE_LEAST, SIM_RATE_MOST, &d->bytes_per_s))
		return -EINVAL;
	while ((part = next_part(&text)))
		if (parse_device_part(c, d, part))
			return -EINVAL;
	return 0;
}

static int parse_bursty(struct complaint *c, struct sim_writer_spec *w, char *value)
{
	char *off = split(value, '/');

	w->kind = SIM_BURSTY;
	if (!off)
		return complain(c, "bursty=ON/OFF, as bursty=1s/4s");
	return number(c, "bursty", value, UNIT_S, 0.001, SIM_TIME_MOST, &w->on_s) ||
			number(c, "bursty", off, UNIT_S, 0.001, SIM_TIME_MOST, &w->off_s)
		? -EINVAL
		: 0;
}

static int parse_short(struct complaint *c, struct sim_writer_spec *w, char *value)
{
	char *size = split(value, '/');
	double bytes;

	w->kind = SIM_SHORT;
	if (!size)
		return complain(c, "short=PER_SECOND/SIZE, as short=1000/124K");
	if (number(c, "short", value, UNIT_NONE, 0.001, 100000, &w->per_s) ||
		number(c, "short", size, UNIT_BYTES, 4096, SIM_PAGES_2_40, &bytes))
		return -EINVAL;
	w->total_bytes = (uint64_t)bytes;
	return 0;
}

static int parse_hot(struct complaint *c, struct sim_writer_spec *w, char *value)
{
	char *rate = split(value, '/');
	double bytes;

	w->kind = SIM_HOT;
	if (!rate)
		return complain(c, "hot=SIZE/SPEED, as hot=64K/10M");
	if (number(c, "hot", value, UNIT_BYTES, 4096, SIM_PAGES_2_40, &bytes) ||
		number(c, "hot", rate, UNIT_RATE, SIM_RATE_LEAST, SIM_RATE_MOST,
			&w->bytes_per_s))
		return -EINVAL;
	w->total_bytes = (uint64_t)bytes;
	return 0;
}

static int parse_kind(struct complaint *c, struct sim_writer_spec *w, char *part)
{
	char *value = split(part, '=');

	if (!strcmp(part, "greedy") && !value) {
		w->kind = SIM_GREEDY;
		return 0;
	}
	if (!value)
		value = (char *)(uintptr_t) "";
	if (!strcmp(part, "paced")) {
		w->kind = SIM_PACED;
		return number(c, "paced", value, UNIT_RATE, SIM_RATE_LEAST, SIM_RATE_MOST,
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
		if (number(c, "request", part, UNIT_BYTES, 4096, 1048576, &bytes))
			return -EINVAL;
		w->request_bytes = (uint64_t)bytes;
		return 0;
	}
	char *value = split(part, '=');
	const struct field *f = find(&sim_writer_fields, part);
	return f ? assign(c, f, w, value) : complain(c, "there is no '%s' of a writer", part);
}

static int parse_writer(struct complaint *c, struct sim_writer_spec *w, char *text)
{
	char *part = next_part(&text);
	size_t digits = strspn(part, "0123456789");
	double count = 1;

	if (digits && part[digits] == 'x') {
		part[digits] = '\0';
		if (number(c, "writers", part, UNIT_NONE, 1, SIM_WRITERS, &count))
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
	if (number(c, "device", part, UNIT_NONE, 0, SIM_DEVICES - 1, &index))
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
	if (number(c, "truncate", pages, UNIT_NONE, 1, 1e12, &number_of))
		return -EINVAL;
	a->value = (uint64_t)number_of;
	while ((part = next_part(&value))) {
		char *device = split(part, '=');
		double index;
		if (strcmp(part, "dev") || !device)
			return complain(c, "truncate=PAGES[,dev=N]");
		if (number(c, "dev", device, UNIT_NONE, 0, SIM_DEVICES - 1, &index))
			return -EINVAL;
		a->device = (unsigned)index;
	}
	return 0;
}

static int parse_action(
	struct complaint *c, struct sim_config *config, struct sim_action *a, char *text)
{
	char *what = split(text, ' '), *value = split(what, '=');
	double bytes;

	if (!what)
		return complain(c, "'TIME WHAT', as '30s limit=50M' or '30s sync'");
	if (number(c, "time", text, UNIT_S, 0, SIM_TIME_MOST, &a->at_s))
		return -EINVAL;
	if (!strcmp(what, "sync") && !value) {
		a->kind = SIM_SYNC;
		return 0;
	}
	if (!value)
		value = (char *)(uintptr_t) "";
	if (!strcmp(what, "limit") || !strcmp(what, "background")) {
		a->kind = *what == 'l' ? SIM_SET_LIMIT : SIM_SET_BACKGROUND;
		if (number(c, what, value, UNIT_BYTES, 1, SIM_PAGES_2_40, &bytes))
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

/* ---- the whole ---- */

static int add_device(struct complaint *c, struct sim_config *config, char *text)
{
	unsigned at = config->devices_are_default ? 0 : config->nr_devices;

	if (at == SIM_DEVICES)
		return complain(c, "more than %d devices", SIM_DEVICES);
	config->devices[at] = sim_device_default;
	config->nr_devices = at + 1;
	config->devices_are_default = false;
	return parse_device(c, &config->devices[at], text);
}

static int add_writer(struct complaint *c, struct sim_config *config, char *text)
{
	struct sim_writer_spec *w = &config->writers[config->nr_writers];

	if (config->nr_writers == SIM_SPECS)
		return complain(c, "more than %d writer SPECs", SIM_SPECS);
	config->nr_writers++;
	*w = sim_writer_default;
	return parse_writer(c, w, text);
}

/* Kept in order of time. */
static int add_action(struct complaint *c, struct sim_config *config, char *text)
{
	struct sim_action a = {0};
	unsigned at = config->nr_actions;

	if (at == SIM_ACTIONS)
		return complain(c, "more than %d actions", SIM_ACTIONS);
	if (parse_action(c, config, &a, text))
		return -EINVAL;
	for (; at && config->actions[at - 1].at_s > a.at_s; at--)
		config->actions[at] = config->actions[at - 1];
	config->actions[at] = a;
	config->nr_actions++;
	return 0;
}

static int set_seed(struct complaint *c, struct sim_config *config, const char *text)
{
	char *end;

	errno = 0;
	uint64_t seed = strtoull(text, &end, 0);
	if (errno || *end || end == text || *text == '-' || *text == '+' || *text == ' ')
		return complain(c, "'%s' is not within 0..2^64-1", text);
	config->seed = seed;
	return 0;
}

int sim_config_set(
	struct sim_config *c, const char *name, const char *value, char *message, size_t size)
{
	struct complaint complaint = {.message = message, .size = size};
	const struct field *f = find(&sim_config_fields, name);
	struct sim_config *copy = malloc(sizeof(*copy));
	char text[512];
	int ret = 0;

	if (!copy)
		return complain(&complaint, "no memory");
	*copy = *c;
	if (!f)
		snprintf(complaint.where, sizeof(complaint.where), "%s", name);
	if (snprintf(text, sizeof(text), "%s", value) >= (int)sizeof(text))
		ret = complain(&complaint, "longer than %zu characters", sizeof(text) - 1);
	else if (f)
		ret = assign(&complaint, f, copy, value);
	else if (!strcmp(name, "device"))
		ret = add_device(&complaint, copy, text);
	else if (!strcmp(name, "writer"))
		ret = add_writer(&complaint, copy, text);
	else if (!strcmp(name, "at"))
		ret = add_action(&complaint, copy, text);
	else if (!strcmp(name, "seed"))
		ret = set_seed(&complaint, copy, value);
	else if (!strcmp(name, "law") && !throttle_law_by_name(value, &copy->law))
		ret = complain(&complaint, "'%s' is none of linux, pace", value);
	else if (strcmp(name, "law"))
		ret = -ENOENT;
	if (ret == 0)
		*c = *copy;
	free(copy);
	return ret;
}

/* The next word of a command line, quotes taken away; NULL at the end. */
static const char *next_word(const char *line, char *word, size_t size)
{
	size_t length = 0;
	bool quoted = false;

	line += strspn(line, " \n");
	if (!*line)
		return NULL;
	for (; *line && (quoted || !strchr(" \n", *line)); line++) {
		if (*line == '\'')
			quoted = !quoted;
		else if (length + 1 < size)
			word[length++] = *line;
	}
	word[length] = '\0';
	return line;
}

int sim_config_parse(struct sim_config *c, const char *line, char *message, size_t size)
{
	char word[600];

	sim_config_init(c);
	line = next_word(line, word, sizeof(word));
	while (line && (line = next_word(line, word, sizeof(word)))) {
		char *value = split(word, '=');
		const char *name = word + strspn(word, "-");
		int ret = sim_config_set(c, name, value ? value : "1", message, size);
		if (ret == -ENOENT)
			snprintf(message, size, "there is no option --%s", name);
		if (ret < 0)
			return ret;
	}
	return 0;
}
