/* fuzz_sim.c - any configuration is refused or simulated, and nothing in between.
 *
 * The bytes of an input say what is changed in a configuration, by its texts or by its numbers,
 * possible values and impossible ones. What the check lets pass must run without a broken
 * invariant and without a figure that is none, and its printed command line must give the same
 * run again.
 */
#include "tests/fuzz/fuzz.h"

#include "tests/sim/config.h"
#include "tests/sim/sim.h"

#include <errno.h>
#include <string.h>

enum {
	CHANGES = 24,
	EVENTS_MOST = 3000, /* of one run: 3 us each with sanitizers */
	TEXT = 120,
};

/* ---- numbers ---- */

/* Within least..most, at the edges, or beyond. */
static double input_value(struct input *in, double least, double most)
{
	const double special[] = {0, least, most, least * 0.999 - 1e-9, most * 1.001, NAN,
		INFINITY, -1, SIM_PAGES_2_40, 0x1p63, 0.5, 1e-12, 1, 4096, 2 * 4096, 3 * 4096,
		4 * 4096, 5 * 4096, 6 * 4096, 7 * 4096, 8 * 4096};
	enum { NR = sizeof(special) / sizeof(special[0]) };
	uint8_t tag = input_byte(in);
	double part = (double)input_bytes(in, 2) / 65535, low = fmax(least, 1e-3);

	if (tag < NR)
		return special[tag];
	/* all magnitudes alike */
	double value = low * pow(fmax(most, low) / low, tag < 128 ? part / 3 : part);
	return tag & 1 ? value : floor(value);
}

static void change_field(struct input *in, const struct field_list *list, void *base)
{
	const struct field *f = &list->fields[input_below(in, (unsigned)list->nr)];
	double value = input_value(in, f->least, f->most);

	if (f->type != FIELD_DOUBLE) /* what fits in there */
		value = value > 0 ? fmin(value, f->type == FIELD_U64 ? 0x1p63 : UINT32_MAX) : 0;
	if (!strcmp(f->name, "request") || !strcmp(f->name, "total"))
		value = floor(value / 4096) * 4096;
	field_put(f, base, value);
}

/* What the lists do not have. */
static void change_device(struct input *in, struct sim_device_spec *d)
{
	switch (input_below(in, 5)) {
	case 0:
		d->bytes_per_s = input_value(in, SIM_RATE_LEAST, SIM_RATE_MOST);
		break;
	case 1:
		d->stall_at_s = input_value(in, 0, 1);
		d->stall_s = input_value(in, 0.001, 1);
		d->stall_every_s = input_value(in, 0.001, 10);
		break;
	case 2:
		d->seek_min_ms = input_value(in, 0, 10);
		d->seek_max_ms = input_value(in, 0.001, 10000);
		break;
	case 3:
		d->zone_bytes = input_value(in, 1048576, SIM_PAGES_2_40);
		d->zone_pause_s = input_value(in, 0.001, 3600);
		break;
	default:
		if (d->nr_steps == SIM_STEPS)
			break;
		d->steps[d->nr_steps].at_s = input_value(in, 0, 10);
		d->steps[d->nr_steps++].bytes_per_s =
			input_value(in, SIM_RATE_LEAST, SIM_RATE_MOST);
		break;
	}
}

static void change_writer(struct input *in, struct sim_writer_spec *w)
{
	switch (input_below(in, 6)) {
	case 0:
		w->kind = (enum sim_writer_kind)input_below(in, SIM_HOT + 2);
		w->total_bytes = 4096 * (1 + input_bytes(in, 1));
		w->bytes_per_s = input_value(in, SIM_RATE_LEAST, 1e9);
		w->on_s = w->off_s = input_value(in, 0.001, 1);
		w->per_s = input_value(in, 0.001, 10000);
		break;
	case 1:
		w->count = (unsigned)input_bytes(in, 1);
		break;
	case 2:
		w->count = (unsigned)input_bytes(in, 2);
		break;
	case 3:
		w->request_bytes = 4096 * input_bytes(in, 1);
		break;
	case 4:
		w->request_bytes = input_integer(in);
		break;
	default:
		w->device = input_below(in, SIM_DEVICES + 1);
		break;
	}
}

static void change_action(struct input *in, struct sim_config *c)
{
	struct sim_action *a = &c->actions[c->nr_actions];

	if (c->nr_actions == SIM_ACTIONS)
		return;
	a->kind = (enum sim_action_kind)input_below(in, SIM_TRUNCATE + 2);
	a->at_s = (c->nr_actions ? a[-1].at_s : 0) + input_value(in, 0, 1);
	a->value = input_byte(in) & 1 ? input_integer(in) : 4096 * input_bytes(in, 2);
	a->law = (enum throttle_law)input_below(in, THROTTLE_NR_LAWS + 1);
	a->device = input_below(in, c->nr_devices + 1);
	a->settings = sim_device_default.settings;
	if (a->kind == SIM_SET_DEVICE) {
		struct sim_device_spec d = sim_device_default;
		change_field(in, &sim_device_fields, &d);
		change_field(in, &sim_device_fields, &d);
		a->settings = d.settings;
	}
	c->nr_actions++;
}

/* The counts themselves: more than there is room for, but then nothing is there to be read. */
static void change_counts(struct input *in, struct sim_config *c)
{
	unsigned n = input_below(in, 4) ? input_below(in, 3) : (unsigned)input_bytes(in, 4);

	switch (input_below(in, 4)) {
	case 0:
		c->nr_devices = n;
		break;
	case 1:
		c->nr_writers = n;
		break;
	case 2:
		c->nr_actions = n;
		break;
	default:
		c->law = (enum throttle_law)n;
		break;
	}
}

/* ---- texts ---- */

/* NULL-terminated. */
static const char *const numbers[] = {"0", "1", "4K", "64KiB", "1MB", "100m", "2G", "1T", "0.5",
	"20ms", "1s", "2m", "1e6", "1e400", "0x10", "-1", "4095", "7.5", "4503599627370496",
	"18446744073709551616", "linux", "pace", "", "x", NULL};
static const char *const speeds[] = {"50M", "5M", "1", "1T", "0", "500M", NULL};
static const char *const of_device[] = {"step=20M@1s", "step=1@2ms", "step=2M",
	"stall=100ms@1s", "stall=100ms@1s/2s", "stall=1s@0/1s", "stall=1s", "seek=1..15ms",
	"seek=2..1", "seek=1", "smr=1M/1s", "smr=1M", "cache=16M", "burst=8", "burst=1.5",
	"noise=0.3", "overhead=0", "strict", "strict=0", "strict=", "max_bytes=64K",
	"min_ratio=50", "max_ratio=1", "dirty_centisecs=100", "dirty_background_centisecs=1",
	"size=1M", "near=0", "rot=8", "prior=1", "=", "step", "x=1", "", NULL};
static const char *const kinds[] = {"greedy", "10xgreedy", "0xgreedy", "99999xgreedy",
	"3xpaced=1M", "paced", "bursty=1s/20ms", "bursty=1s", "short=100/124K", "short=1",
	"hot=64K/10M", "hot=4K", "greedy=1", "x", NULL};
static const char *const of_writer[] = {"4K", "1M", "64K", "2M", "dev=1", "dev=99", "total=8M",
	"from=1s", "to=2s", "to=1ms", "fsync=10ms", "shared", "shared=2", "y=1", "", NULL};
static const char *const actions[] = {"1s limit=4096", "1s limit=0", "10ms limit=1G",
	"1s background=4M", "500ms law=linux", "500ms law=x", "500ms sync", "1s truncate=100",
	"1s truncate=1,dev=1", "1s truncate=1,dev=", "1s device=0", "1s device=77", "1s",
	"x sync", "1s x=1", "", NULL};

static const struct {
	const char *name;
	const char *const *first, *const *then;
} texts[] = {
	{"device", speeds, of_device},
	{"device", speeds, of_device},
	{"writer", kinds, of_writer},
	{"writer", kinds, of_writer},
	{"at", actions, of_device},
	{"limit", numbers, NULL},
	{"seconds", numbers, NULL},
	{"warmup", numbers, NULL},
	{"seed", numbers, NULL},
	{"law", numbers, NULL},
	{"drain", numbers, NULL},
	{"x", numbers, NULL},
};

static const char *input_word(struct input *in, const char *const *list)
{
	unsigned n = 0;

	while (list[n])
		n++;
	return list[input_below(in, n)];
}

/* Up to TEXT characters as they come. */
static void input_literal(struct input *in, char literal[TEXT + 1])
{
	unsigned n = input_below(in, TEXT + 1);

	for (unsigned i = 0; i < n; i++)
		literal[i] = (char)input_byte(in);
	literal[n] = '\0';
}

static void change_by_text(struct input *in, struct sim_config *c)
{
	unsigned which = input_below(in, SIM_NR(texts)), parts = input_below(in, 6);
	char text[TEXT * 4] = "", literal[TEXT + 1], message[200] = "";
	size_t length = 0;

	for (unsigned i = 0; i <= parts; i++) {
		const char *const *list = i ? texts[which].then : texts[which].first;
		const char *word = literal;

		if (!list)
			break;
		if (i == 5)
			input_literal(in, literal);
		else
			word = input_word(in, list);
		length += (size_t)snprintf(
			text + length, sizeof(text) - length, "%s%s", i ? "," : "", word);
	}
	int ret = sim_config_set(c, texts[which].name, text, message, sizeof(message));
	CHECK(ret == 0 || ret == -EINVAL || ret == -ENOENT, "--%s=%s: %d", texts[which].name,
		text, ret);
	CHECK((ret == -EINVAL) == (message[0] != '\0'), "--%s=%s: '%s'", texts[which].name,
		text, message);
}

/* ---- a configuration ---- */

static void change(struct input *in, struct sim_config *c)
{
	uint8_t what = input_byte(in);
	struct sim_device_spec *d =
		&c->devices[(what >> 4) % (c->nr_devices ? c->nr_devices : 1)];
	struct sim_writer_spec *w =
		&c->writers[(what >> 4) % (c->nr_writers ? c->nr_writers : 1)];

	switch (what & 15) {
	case 0:
	case 1:
	case 2:
		change_field(in, &sim_config_fields, c);
		break;
	case 3:
	case 4:
		change_field(in, &sim_device_fields, d);
		break;
	case 5:
		change_field(in, &sim_writer_fields, w);
		break;
	case 6:
	case 7:
		change_device(in, d);
		break;
	case 8:
	case 9:
		change_writer(in, w);
		break;
	case 10:
		change_action(in, c);
		break;
	case 11:
		if (c->nr_devices < SIM_DEVICES)
			c->devices[c->nr_devices++] = sim_device_default;
		break;
	case 12:
		if (c->nr_writers < SIM_SPECS)
			c->writers[c->nr_writers++] = sim_writer_default;
		break;
	case 13:
		if (what >> 4 < 4)
			change_counts(in, c);
		break;
	default:
		change_by_text(in, c);
		break;
	}
}

static bool within_lists(const struct sim_config *c)
{
	return c->nr_devices <= SIM_DEVICES && c->nr_writers <= SIM_SPECS &&
		c->nr_actions <= SIM_ACTIONS;
}

/* ---- the run ---- */

static void check_figures(const struct sim_result *r, const char *line)
{
	const double figures[] = {r->seconds, r->throughput, r->jain, r->max_dirty_over_limit,
		r->max_dirty_over_thresh, r->mean_position, r->position_pp, r->ratelimit_error,
		r->idle, r->drained_us};

	for (size_t i = 0; i < SIM_NR(figures); i++)
		CHECK(isfinite(figures[i]), "figure %zu is %g: %s", i, figures[i], line);
	for (unsigned i = 0; i < r->nr_devices; i++) {
		const struct sim_device_result *d = &r->device[i];
		const double of[] = {d->throughput, d->bytes_per_s, d->idle, d->jain,
			d->mean_dirty, d->max_dirty, d->mean_ratelimit, d->ratelimit_cv,
			d->ratelimit_error, d->avg_error, d->first_submit_reclaimable};
		for (size_t k = 0; k < SIM_NR(of); k++)
			CHECK(isfinite(of[k]), "figure %zu of device %u is %g: %s", k, i, of[k],
				line);
	}
	CHECK(r->over_limit_pages == 0, "%llu pages above the limit: %s",
		(unsigned long long)r->over_limit_pages, line);
}

static void check_samples(const struct sim_sample *s, void *arg)
{
	const double of[] = {s->dirty, s->reclaimable, s->thresh, s->bg_thresh, s->limit,
		s->freerun, s->setpoint};

	for (size_t i = 0; i < SIM_NR(of); i++)
		CHECK(of[i] >= 0 && isfinite(of[i]), "%zu of a sample is %g: %s", i, of[i],
			(const char *)arg);
}

/* Cuts off the next option: --NAME, --NAME=VALUE or --NAME='VALUE'. False at the end. */
static bool next_option(char **line, const char **name, const char **value)
{
	char *end = *line + strspn(*line, " \n");

	if (strncmp(end, "--", 2) != 0)
		return false;
	*name = end + 2;
	*value = "1";
	end += strcspn(end, "= \n");
	if (*end == '=') {
		*end++ = '\0';
		bool quoted = *end == '\'';
		end += quoted;
		*value = end;
		end += strcspn(end, quoted ? "'" : " \n");
	}
	*line = end + (*end != '\0');
	*end = '\0';
	return true;
}

/* A printed command line as a configuration. */
static void read_line(struct sim_config *c, char *line)
{
	const char *name, *value;
	char message[200];

	sim_config_init(c);
	line += strcspn(line, " ");
	while (next_option(&line, &name, &value)) {
		int ret = sim_config_set(c, name, value, message, sizeof(message));
		CHECK(ret == 0, "--%s=%s does not read back: %s", name, value, message);
	}
	CHECK(!line[strspn(line, " \n")], "what is %s", line);
}

static char *print_line(const struct sim_config *c)
{
	char *line = NULL;
	size_t size;
	FILE *out = open_memstream(&line, &size);

	CHECK(out, "no memory");
	sim_config_print(c, out);
	fclose(out);
	return line;
}

static uint64_t run(struct sim_config *c, char *line, bool with_csv)
{
	static struct sim_result result, *r = &result; /* large */
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	CHECK(out, "no memory");
	c->csv = with_csv ? out : NULL;
	c->on_sample = check_samples;
	c->arg = line;
	int ret = sim_run(c, r);
	CHECK(ret == 0, "%d, %s: %s", ret, r->message, line);
	CHECK(!r->broken, "%s: %s", r->message, line);
	check_figures(r, line);
	sim_result_print(c, r, out);
	fclose(out);
	CHECK(!strstr(text, "nan") && !strstr(text, "inf"), "%s: %s", text, line);
	free(text);
	sim_result_free(r);
	return r->hash;
}

/* The printed line gives the same line, and the same run. */
static void replay(const char *line, uint64_t max_events, uint64_t hash)
{
	struct sim_config *c = malloc(sizeof(*c));
	char *copy = strdup(line), *again;

	CHECK(c && copy, "no memory");
	read_line(c, copy);
	c->max_events = max_events;
	again = print_line(c);
	CHECK(!strcmp(line, again), "printed %sread back %s", line, again);
	uint64_t second = run(c, again, false);
	CHECK(second == hash, "another run: %s", line);
	free(again);
	free(copy);
	free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, data + size};
	struct sim_config *c = malloc(sizeof(*c));
	char message[200] = "";
	unsigned how = input_byte(&in);

	CHECK(c, "no memory");
	sim_config_init(c);
	/* most of them short, so that there are many */
	c->max_events = how & 3 ? EVENTS_MOST / 10 : EVENTS_MOST;
	c->seconds = 2;
	c->warmup_s = 0.1;
	c->limit_bytes = 4 << 20;
	c->greedy_each = input_below(&in, 4);
	c->request_bytes = 4096u << input_below(&in, 8);
	for (unsigned i = 0; i < CHANGES && in.at < in.end && within_lists(c); i++)
		change(&in, c);
	int ret = sim_config_check(c, message, sizeof(message));
	CHECK(ret == 0 || ret == -EINVAL, "%d", ret);
	CHECK((ret != 0) == (message[0] != '\0'), "%d: '%s'", ret, message);
	if (ret == 0) {
		char *line = print_line(c);
		uint64_t hash = run(c, line, how & 16);
		if ((how & 12) == 0)
			replay(line, c->max_events, hash);
		free(line);
	}
	free(c);
	return 0;
}
