/* fuzz_text.c - whatever reads text or a file that others wrote: options, values of settings,
 * statistics, /proc/PID/status, control groups, the state file of a daemon that was killed.
 *
 * The first byte of an input chooses the reader, the rest is what it reads. Besides not breaking,
 * each keeps what its header promises.
 */
#include "tests/fuzz/fuzz.h"

#include "backend/state/format.h"
#include "fuse/memory.h"
#include "fuse/options.h"
#include "fuse/settings.h"
#include "fuse/stats_text.h"
#include "util/log.h"
#include "util/parse.h"

/* Its readers of text are its own; the rest calls the end of the program. */
#include "fuse/caller.c" /* NOLINT */
int pacefs_main(int argc, char **argv);
#define main pacefs_main
#include "fuse/main.c" /* NOLINT */
#undef main

#include <getopt.h>
#include <sys/stat.h>

enum { TEXT_MOST = 4096 };

/* A string of its own size, so that reading beyond it is seen. Freed by the caller. */
static char *take_text(struct input *in)
{
	size_t left = (size_t)(in->end - in->at);
	const uint8_t *nul = left ? memchr(in->at, '\0', left) : NULL;
	size_t n = nul ? (size_t)(nul - in->at) : left;
	char *text = malloc(n + 1);

	memcpy(text, in->at, n);
	text[n] = '\0';
	in->at += n + (nul != NULL);
	return text;
}

/* ---- values ---- */

static void try_numbers(struct input *in)
{
	char *text = take_text(in);
	uint64_t value = 42;
	const char *nearest = parse_nearest(text, settings_names());

	CHECK(parse_uint(text, &value) == 0 || value == 42, "untouched");
	CHECK(value <= INT64_MAX, "uint %llu", (unsigned long long)value);
	value = 42;
	CHECK(parse_size(text, &value) == 0 || value == 42, "untouched");
	CHECK(value <= INT64_MAX, "size %llu", (unsigned long long)value);
	CHECK(!nearest || strlen(nearest) > 0, "nearest");
	log_make_printable(text);
	for (const char *at = text; *at; at++)
		CHECK((unsigned char)*at >= ' ' && *at != 0x7f, "printable");
	free(text);
}

/* What was set can be got, and set again. */
static void check_settings(struct settings *s, uint64_t cache)
{
	char message[512], text[256];

	CHECK(settings_check(s, cache, message, sizeof(message)) == 0, "%s", message);
	for (const char *const *name = settings_names(); *name; name++) {
		int n = settings_get(s, *name, text, sizeof(text));
		CHECK(n > 0 && (size_t)n < sizeof(text), "%s", *name);
	}
}

static void try_settings(struct input *in)
{
	struct settings s;
	char message[64]; /* shorter than some */
	const char *const *names = settings_names();
	size_t nr = 0;
	uint64_t cache = input_below(in, 4) * (64ull << 20);

	while (names[nr])
		nr++;
	settings_init(&s);
	for (int i = 0; i < 20 && in->at < in->end; i++) {
		uint8_t tag = input_byte(in);
		char *name = tag < 240 ? strdup(names[tag % nr]) : take_text(in);
		char *value = take_text(in);
		struct settings before = s;
		message[0] = '\0';
		if (settings_set(&s, name, value, cache, message, sizeof(message)) < 0) {
			CHECK(memcmp(&s, &before, sizeof(s)) == 0, "it changed by a refusal");
			CHECK(message[0], "no message");
		}
		check_settings(&s, cache);
		free(name);
		free(value);
	}
}

static void try_options(struct input *in)
{
	enum { WORDS = 12 };
	static struct options options;
	char *argv[WORDS + 2] = {strdup(input_below(in, 2) ? "pacefs" : "mount.fuse.pacefs")};
	char *words[WORDS];
	int argc = 1, nr = 0;

	while (argc <= WORDS && in->at < in->end)
		argv[argc++] = words[nr++] = take_text(in); /* argv is permuted */
	opterr = 0;
	if (options_parse(argc, argv, &options) == OPTIONS_RUN) {
		check_settings(&options.settings, options.cache_bytes);
		CHECK(options.cache_bytes >= OPTIONS_CACHE_LEAST, "cache");
		CHECK(options.max_write <= OPTIONS_MAX_WRITE_MOST, "max_write");
		CHECK(options.mountpoint, "mountpoint");
	}
	free(argv[0]);
	while (nr)
		free(words[--nr]);
}

/* ---- texts ---- */

static void try_stats(struct input *in)
{
	char *text = take_text(in), value[32];
	const char *at = text, *a, *b;
	struct stats_line line;

	stats_number(text, "errors");
	stats_text(text, "device", value, sizeof(value));
	while (stats_next(&at, &line)) {
		CHECK(at > text && at <= text + strlen(text), "it moves on");
		stats_split(line.value, &a, &b);
	}
	stats_json(text);
	stats_json_lost(text);
	free(text);
}

static void try_status(struct input *in)
{
	char *text = take_text(in);
	struct caller c = {0};

	signal_mask(text, "SigPnd:\t");
	signal_mask(text, "SigCgt:\t");
	parse_status(text, &c);
	CHECK(memchr(c.comm, '\0', sizeof(c.comm)), "comm ends");
	CHECK(c.tgid >= 0, "tgid %d", (int)c.tgid);
	free(text);
}

static void write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0, "%s", path);
}

static void try_groups(struct input *in)
{
	static char root[256], groups[300], mounts[300];
	char *text;

	if (!root[0]) {
		const char *tmp = getenv("TMPDIR");
		snprintf(root, sizeof(root), "%s/fuzz-text.XXXXXX", tmp ? tmp : "/tmp");
		CHECK(mkdtemp(root), "%s", root);
		snprintf(groups, sizeof(groups), "%s/proc", root);
		CHECK(mkdir(groups, 0700) == 0, "%s", groups);
		snprintf(groups, sizeof(groups), "%s/proc/self", root);
		CHECK(mkdir(groups, 0700) == 0, "%s", groups);
		snprintf(groups, sizeof(groups), "%s/proc/self/cgroup", root);
		snprintf(mounts, sizeof(mounts), "%s/proc/self/mountinfo", root);
	}
	text = take_text(in);
	write_file(groups, text);
	free(text);
	text = take_text(in);
	write_file(mounts, text);
	free(text);
	memory_group_limit(root);
}

/* ---- the state file ---- */

static void check_record(const struct state_record *r)
{
	CHECK(memchr(r->who.name, '\0', sizeof(r->who.name)), "a name ends");
	CHECK(r->who.name[0] != '/', "%s", r->who.name);
	CHECK(strncmp(r->who.name, "../", 3) != 0 && !strstr(r->who.name, "/../") &&
			strcmp(r->who.name, "..") != 0,
		"%s", r->who.name);
	CHECK(r->who.handle_bytes <= STATE_HANDLE_MAX, "handle");
	CHECK(r->size <= INT64_MAX && r->extended_to <= INT64_MAX, "sizes");
}

/* Half of them with sums that are right, or nothing else would be seen of them. */
static void try_state(struct input *in)
{
	enum { RECORDS = 3 };
	struct state_header head;
	struct state_record *found, *r;
	unsigned more, damaged;
	bool right = input_below(in, 2);
	size_t size = sizeof(head) + RECORDS * sizeof(*r);
	size_t cut = input_byte(in) < 240 ? 0 : input_bytes(in, 2) % size;
	unsigned char *file = calloc(1, size);

	state_header_init(&head, input_byte(in), input_byte(in));
	for (size_t n = input_below(in, 8); n; n--)
		((unsigned char *)&head)[input_bytes(in, 2) % sizeof(head)] = input_byte(in);
	if (right)
		head.check = state_header_check(&head);
	memcpy(file, &head, sizeof(head));
	r = (struct state_record *)(void *)(file + sizeof(head));
	for (int i = 0; i < RECORDS; i++, r++) {
		r->used = input_below(in, 3);
		for (size_t n = input_below(in, 80); n; n--)
			((unsigned char *)r)[8 + input_bytes(in, 2) % (sizeof(*r) - 8)] =
				input_byte(in);
		if (right && r->who.handle_bytes <= STATE_HANDLE_MAX)
			r->check = state_who_check(&r->who);
	}
	found = calloc(RECORDS, sizeof(*found));
	unsigned nr = state_parse(
		file, size - cut, &head, found, RECORDS - input_below(in, 2), &more, &damaged);
	CHECK(nr <= RECORDS, "%u records", nr);
	for (unsigned i = 0; i < nr; i++)
		check_record(&found[i]);
	free(found);
	free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static bool ready;
	struct input in = {.at = data, .end = data + size};

	if (!ready) {
		ready = true;
		log_set_level(LOG_LEVEL_NONE);
		CHECK(freopen("/dev/null", "w", stdout), "stdout"); /* JSON, help */
	}
	switch (input_below(&in, 8)) {
	case 0:
		try_numbers(&in);
		break;
	case 1:
	case 2:
		try_settings(&in);
		break;
	case 3:
		try_options(&in);
		break;
	case 4:
		try_stats(&in);
		break;
	case 5:
		try_status(&in);
		break;
	case 6:
		if (input_below(&in, 8) == 0) /* files: slow */
			try_groups(&in);
		break;
	default:
		try_state(&in);
	}
	return 0;
}
