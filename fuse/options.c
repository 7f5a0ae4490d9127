#include "fuse/options.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuse/commands.h"
#include "fuse/memory.h"
#include "fuse/mount.h"
#include "util/log.h"
#include "util/parse.h"

#ifndef PACEFS_VERSION
#define PACEFS_VERSION "0.1.0"
#endif

enum { MESSAGE_SIZE = 256, NAMES_MAX = 128, OPTION_LENGTH_MAX = 4096 };

/* A string here is a line on the screen. */
/* clang-format off */
static const char usage_text[] =
	"pacefs SOURCE MOUNTPOINT [-o OPTION[=VALUE],...] [-f] [-d]\n"
	"  SOURCE is a directory (it may be the mountpoint itself) or, with -o raw, a\n"
	"  block device or an image file.\n"
	"  -f foreground, -d debug messages, -h --help, -V --version\n"
	"\n"
	"When it starts to write, and where it stops accepting (per device):\n"
	"  dirty_background_centisecs=100   start when this much time of writing is waiting\n"
	"  dirty_centisecs=200              accept at most this much; bounds umount and sync\n"
	"  max_bytes=64M                    accept at most this much, whatever the speed\n"
	"  min_ratio=0 max_ratio=100        percent of the budget promised, and allowed\n"
	"  strict_limit=0                   1: hold to the device's share from the start\n"
	"The budget of all devices together (of each pair the last one set counts):\n"
	"  dirty_ratio=50 | dirty_bytes=SIZE                          limit, percent of the cache\n"
	"  dirty_background_ratio=25 | dirty_background_bytes=SIZE    start writing above\n"
	"  dirty_expire_centisecs=3000      write what is older\n"
	"  dirty_writeback_centisecs=500    look for old data this often, 0 = never\n"
	"  law=pace|linux                   how writers are paced\n"
	"Only at mount:\n"
	"  cache_size=SIZE   memory for data, default RAM/16 up to 256M\n"
	"  max_write=SIZE    largest request, 4K..1M, default by the device's speed\n"
	"  io=cached         io_engine=uring|sync      flush (close waits for the data)\n"
	"  raw (device or image as one file)            allow_other (default as root)\n"
	"  ro noatime nodiratime nosuid nodev noexec sync dirsync ... as for any mount\n"
	"\n"
	"On a live mount (pacefs COMMAND --help):\n"
	"  status MNT            one line: speed, backlog, writers, is it safe\n"
	"  stats MNT [--json]    all counters\n"
	"  flush MNT [--json]    wait until all is written; exit 0 only then\n"
	"  umount MNT            the same, then unmount\n"
	"  get MNT [NAME]        read settings\n"
	"  set MNT NAME VALUE    change one\n";
/* clang-format on */

/* Accepted and ignored: they are meant for mount(8), systemd or libfuse's helper. */
static const char *const ignored_words[] = {"defaults", "auto", "noauto", "user", "nouser",
	"users", "nousers", "owner", "group", "fail", "nofail", "_netdev",
	"default_permissions", NULL};
static const char *const ignored_prefixes[] = {
	"x-", "X-", "comment=", "user=", "fsname=", "subtype=", NULL};

/* The words that this file gives a meaning to. */
static const char *const own_words[] = {
	"raw", "allow_other", "cache_size", "max_write", "io", "io_engine", "flush", NULL};
/* For the nearest match only: mount_is_kernel_option() decides. */
static const char *const kernel_words[] = {"ro", "rw", "nosuid", "nodev", "noexec", "noatime",
	"nodiratime", "relatime", "strictatime", "lazytime", "sync", "dirsync", NULL};

uint64_t options_default_cache_bytes(void)
{
	/* A sixteenth: what a small router can spare; 256 MiB: two seconds of any disk
	 * that wants pacing. */
	const uint64_t most = 256ull << 20;
	uint64_t bytes = memory_machine_bytes() / 16;

	if (bytes < OPTIONS_CACHE_LEAST)
		return OPTIONS_CACHE_LEAST;
	return bytes < most ? bytes : most;
}

static bool is_in(const char *word, const char *const *list)
{
	for (; *list; list++)
		if (strcmp(word, *list) == 0)
			return true;
	return false;
}

static bool is_ignored(const char *option)
{
	for (const char *const *prefix = ignored_prefixes; *prefix; prefix++)
		if (strncmp(option, *prefix, strlen(*prefix)) == 0)
			return true;
	return is_in(option, ignored_words);
}

static size_t append_names(const char **all, size_t nr, const char *const *list)
{
	while (*list && nr + 1 < NAMES_MAX)
		all[nr++] = *list++;
	all[nr] = NULL;
	return nr;
}

static int refuse_unknown(const char *name)
{
	const char *all[NAMES_MAX];
	size_t nr = append_names(all, 0, settings_names());

	nr = append_names(all, nr, own_words);
	nr = append_names(all, nr, kernel_words);
	append_names(all, nr, ignored_words);
	const char *nearest = parse_nearest(name, all);
	if (nearest)
		log_error("unknown option %s: did you mean %s?", name, nearest);
	else
		log_error("unknown option %s: see pacefs --help", name);
	return -EINVAL;
}

static int take_cache_size(struct options *o, const char *value)
{
	if (parse_size(value, &o->cache_bytes) < 0 || o->cache_bytes < OPTIONS_CACHE_LEAST) {
		log_error("cache_size=%s rejected: need at least %llu bytes (64M works "
			  "too)",
			value, OPTIONS_CACHE_LEAST);
		return -EINVAL;
	}
	return 0;
}

static int take_max_write(struct options *o, const char *value)
{
	uint64_t bytes;

	if (parse_size(value, &bytes) < 0 || bytes < OPTIONS_MAX_WRITE_LEAST ||
		bytes > OPTIONS_MAX_WRITE_MOST || (bytes & (bytes - 1))) {
		log_error("max_write=%s rejected: need a power of two, 4K..1M bytes", value);
		return -EINVAL;
	}
	o->max_write = (uint32_t)bytes;
	return 0;
}

static int take_io(const char *value)
{
	if (strcmp(value, "cached") == 0)
		return 0;
	if (strcmp(value, "direct") == 0)
		log_error("io=direct rejected: not supported yet, need cached");
	else
		log_error("io=%s rejected: need cached", value);
	return -EINVAL;
}

static int take_io_engine(struct options *o, const char *value)
{
	if (strcmp(value, "uring") == 0) {
		o->io_engine = IO_ENGINE_URING;
	} else if (strcmp(value, "sync") == 0) {
		o->io_engine = IO_ENGINE_SYNC;
	} else {
		log_error("io_engine=%s rejected: need uring or sync", value);
		return -EINVAL;
	}
	return 0;
}

static int need_value(const char *name, const char *value)
{
	if (value)
		return 0;
	log_error("option %s needs a value: %s=...", name, name);
	return -EINVAL;
}

static int need_none(const char *name, const char *value)
{
	if (!value)
		return 0;
	log_error("option %s takes no value, but has %s", name, value);
	return -EINVAL;
}

static int take_own(struct options *o, const char *name, const char *value)
{
	bool *flag = NULL;

	if (strcmp(name, "raw") == 0)
		flag = &o->raw;
	else if (strcmp(name, "allow_other") == 0)
		flag = &o->allow_other;
	else if (strcmp(name, "flush") == 0)
		flag = &o->flush_on_close;
	int r = flag ? need_none(name, value) : need_value(name, value);
	if (r < 0)
		return r;
	if (flag)
		*flag = true;
	else if (strcmp(name, "cache_size") == 0)
		r = take_cache_size(o, value);
	else if (strcmp(name, "max_write") == 0)
		r = take_max_write(o, value);
	else if (strcmp(name, "io") == 0)
		r = take_io(value);
	else
		r = take_io_engine(o, value);
	return r;
}

static int take_setting(struct options *o, const char *name, const char *value)
{
	char message[MESSAGE_SIZE];
	bool is_switch = strcmp(name, "strict_limit") == 0;
	int r = is_switch ? 0 : need_value(name, value);

	if (r < 0)
		return r;
	r = settings_assign(&o->settings, name, value ? value : "1", message, sizeof(message));
	if (r < 0)
		log_error("%s", message);
	return r;
}

static int take_kernel_option(struct options *o, const char *name)
{
	size_t used = strlen(o->kernel_options);
	int n = snprintf(o->kernel_options + used, sizeof(o->kernel_options) - used, "%s%s",
		used ? "," : "", name);

	if (n < 0 || (size_t)n >= sizeof(o->kernel_options) - used) {
		log_error("too many mount flags at %s", name);
		return -E2BIG;
	}
	if (strcmp(name, "ro") == 0)
		o->read_only = true;
	else if (strcmp(name, "rw") == 0)
		o->read_only = false;
	return 0;
}

/* One "name" or "name=value"; the text is cut at the '='. */
static int take_option(struct options *o, char *option, bool sloppy)
{
	if (is_ignored(option))
		return 0;
	char *value = strchr(option, '=');
	if (value)
		*value++ = '\0';
	if (is_in(option, settings_names()))
		return take_setting(o, option, value);
	if (is_in(option, own_words))
		return take_own(o, option, value);
	if (!value && mount_is_kernel_option(option))
		return take_kernel_option(o, option);
	if (strcmp(option, "remount") == 0) {
		log_error("remount changes nothing here: use pacefs set %s NAME VALUE",
			o->mountpoint ? o->mountpoint : "MOUNTPOINT");
		return -EINVAL;
	}
	return sloppy ? 0 : refuse_unknown(option);
}

static int take_list(struct options *o, const char *list, bool sloppy)
{
	char text[OPTION_LENGTH_MAX];
	char *rest = NULL;

	if (strlen(list) >= sizeof(text)) {
		log_error("option list longer than %d bytes", OPTION_LENGTH_MAX - 1);
		return -E2BIG;
	}
	snprintf(text, sizeof(text), "%s", list);
	for (char *option = strtok_r(text, ",", &rest); option;
		option = strtok_r(NULL, ",", &rest)) {
		int r = take_option(o, option, sloppy);
		if (r < 0)
			return r;
	}
	return 0;
}

/* A relative path would mean nothing to a reader of findmnt. */
static void set_source(struct options *o, const char *typed)
{
	char resolved[PATH_MAX];
	const char *shown = *typed != '/' && realpath(typed, resolved) ? resolved : typed;

	snprintf(o->source, sizeof(o->source), "%s", shown);
}

static int take_positional(struct options *o, int nr, char **words)
{
	if (nr == 1 && !strchr(words[0], '/')) {
		commands_refuse_unknown(words[0]);
		return -EINVAL;
	}
	if (nr != 2) {
		log_error("need SOURCE and MOUNTPOINT, got %d word%s: see pacefs --help", nr,
			nr == 1 ? "" : "s");
		return -EINVAL;
	}
	if (strlen(words[0]) >= PATH_MAX || strlen(words[1]) >= PATH_MAX) {
		log_error("path longer than %d bytes", PATH_MAX - 1);
		return -ENAMETOOLONG;
	}
	set_source(o, words[0]);
	o->mountpoint = words[1];
	return 0;
}

/* Collected first, so that -s counts wherever it stands. */
struct letters {
	const char *lists[64];
	size_t nr_lists;
	bool foreground_or_fake, debug, sloppy, help, version;
};

static int add_list(struct letters *l, const char *list)
{
	if (l->nr_lists == sizeof(l->lists) / sizeof(l->lists[0])) {
		log_error("more than %zu times -o", l->nr_lists);
		return -E2BIG;
	}
	l->lists[l->nr_lists++] = list;
	return 0;
}

static int take_letter(struct letters *l, int c)
{
	switch (c) {
	case 'o':
		return add_list(l, optarg);
	case 'f':
		l->foreground_or_fake = true;
		return 0;
	case 'd':
		l->debug = true;
		return 0;
	case 's':
		l->sloppy = true;
		return 0;
	case 'h':
		l->help = true;
		return 0;
	case 'V':
		l->version = true;
		return 0;
	case 't':
	case 'n':
	case 'v':
		return 0; /* mount(8)'s: type, no mtab, verbose */
	default:
		return -EINVAL; /* getopt has said what */
	}
}

static int scan_letters(int argc, char **argv, struct letters *l)
{
	static const struct option long_names[] = {
		{"help", no_argument, NULL, 'h'}, {"version", no_argument, NULL, 'V'}, {0}};
	int r = 0;
	int c;

	optind = 0; /* start anew, whoever used getopt before */
	while (r == 0 && (c = getopt_long(argc, argv, "o:t:fdsnvhV", long_names, NULL)) != -1)
		r = take_letter(l, c);
	return r;
}

/* mount(8) calls its helper by a name that begins with "mount."; its -f is not ours. */
static void apply_letters(struct options *o, const struct letters *l, const char *argv0)
{
	const char *slash = strrchr(argv0, '/');
	bool helper = strncmp(slash ? slash + 1 : argv0, "mount.", 6) == 0;

	o->fake = helper && l->foreground_or_fake;
	o->debug = l->debug;
	o->foreground = l->debug || (!helper && l->foreground_or_fake);
}

static int check_settings(const struct options *o)
{
	char message[MESSAGE_SIZE];
	int r = settings_check(&o->settings, o->cache_bytes, message, sizeof(message));

	if (r < 0)
		log_error("%s", message);
	return r;
}

static int take_all(struct options *o, const struct letters *l, int nr, char **words)
{
	int r = take_positional(o, nr, words);

	for (size_t i = 0; r == 0 && i < l->nr_lists; i++)
		r = take_list(o, l->lists[i], l->sloppy);
	return r < 0 ? r : check_settings(o);
}

enum options_verdict options_parse(int argc, char **argv, struct options *ret_options)
{
	struct options o = {
		.allow_other = geteuid() == 0, .cache_bytes = options_default_cache_bytes()};
	struct letters letters = {.sloppy = false};

	settings_init(&o.settings);
	if (scan_letters(argc, argv, &letters) < 0)
		return OPTIONS_REFUSED;
	apply_letters(&o, &letters, argv[0]);
	if (letters.help || letters.version) {
		fputs(letters.help ? usage_text : "pacefs " PACEFS_VERSION "\n", stdout);
		return OPTIONS_DONE;
	}
	if (take_all(&o, &letters, argc - optind, argv + optind) < 0)
		return OPTIONS_REFUSED;
	*ret_options = o;
	return OPTIONS_RUN;
}
