#include "fuse/commands.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "fuse/lock.h"
#include "fuse/mount.h"
#include "fuse/processes.h"
#include "fuse/settings.h"
#include "fuse/stats_text.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/parse.h"

#define PREFIX "user.pacefs."

enum {
	VALUE_SIZE = 65536 + 1, /* the kernel's largest xattr and a NUL */
	POLL_FIRST_MS = 10,
	POLL_MOST_MS = 200,
	PROGRESS_EVERY_S = 1,
	WRITERS_SHOWN = 4, /* status is one line */
	SILENT_WORTH_SAYING_S = 2,
};

/* What a command line was taken apart into. */
struct arguments {
	const char *command;
	const char *mnt;
	int nr_words; /* after MNT */
	char **words;
	bool json;
};

/* ---- the mount's xattrs ---- */

static int explain(const char *mnt, int error)
{
	switch (error) {
	case -ENODATA:
	case -EOPNOTSUPP:
		log_error("%s is not a pacefs mount: findmnt -t "
			  "fuseblk.pacefs,fuse.pacefs lists "
			  "them",
			mnt);
		break;
	case -ENOTCONN:
	case -ECONNABORTED:
		log_error("the pacefs daemon of %s is gone: umount -l %s, then mount "
			  "again (what "
			  "was not written is lost; see the log)",
			mnt, mnt);
		break;
	case -EACCES:
	case -EPERM:
		log_error("%s: permission denied: ask as root, or as the one who mounted "
			  "it",
			mnt);
		break;
	default:
		log_error("%s: %s", mnt, strerror(-error));
	}
	return error;
}

/* The xattr PREFIX + name as text in value (VALUE_SIZE bytes). Silent. */
static int fetch(const char *mnt, const char *name, char *value)
{
	char full[128];

	snprintf(full, sizeof(full), "%s%s", PREFIX, name);
	ssize_t n = getxattr(mnt, full, value, VALUE_SIZE - 1);
	if (n < 0)
		return -errno;
	value[n] = '\0';
	return 0;
}

static int store(const char *mnt, const char *name, const char *value)
{
	char full[128];

	snprintf(full, sizeof(full), "%s%s", PREFIX, name);
	return setxattr(mnt, full, value, strlen(value), 0) < 0 ? -errno : 0;
}

/* One buffer: a command is one thread and reads the text before it fetches the next. */
static int fetch_stats(const char *mnt, const char **ret_text)
{
	static char text[VALUE_SIZE];
	int r = fetch(mnt, "stats", text);

	/* Root may not look into a user's mount; its owner may. */
	if (r == -EACCES && mount_become_owner(mnt) == 0)
		r = fetch(mnt, "stats", text);

	*ret_text = r < 0 ? "" : text;
	return r;
}

/* ---- words for people ---- */

/* Into one of a few buffers in turn, enough for one printf. */
static const char *bytes_text(double bytes)
{
	static char texts[8][32];
	static unsigned int turn;
	char *text = texts[turn++ % 8];
	const size_t size = sizeof(texts[0]);

	if (bytes < 1e3)
		snprintf(text, size, "%.0f B", bytes);
	else if (bytes < 1e5)
		snprintf(text, size, "%.0f kB", bytes / 1e3);
	else if (bytes < 1e9)
		snprintf(text, size, "%.1f MB", bytes / 1e6);
	else
		snprintf(text, size, "%.1f GB", bytes / 1e9);
	return text;
}

static double unwritten_bytes(const char *stats)
{
	return stats_number(stats, "dirty_bytes") + stats_number(stats, "writeback_bytes");
}

/* Time to write bytes, rounded up to whole seconds; 0 when no speed is known. */
static double whole_seconds(const char *stats, double bytes)
{
	double speed = stats_number(stats, "write_bandwidth");

	return speed > 0 ? (double)(uint64_t)(bytes / speed) + 1 : 0;
}

static double silent_seconds(const char *stats)
{
	return stats_number(stats, "silent_us") / 1e6;
}

/* ---- status, stats ---- */

static void print_writers(const char *stats)
{
	unsigned int paced = (unsigned int)stats_number(stats, "writers_paced");
	unsigned int queued = (unsigned int)stats_number(stats, "writers_queued");
	unsigned int shown = 0;
	struct stats_line line;
	const char *pid;
	const char *rate;

	printf(" | %u writer%s paced", paced, paced == 1 ? "" : "s");
	if (queued)
		printf(", %u queued", queued);
	while (stats_next(&stats, &line)) {
		if (strcmp(line.key, "writer") || !stats_split(line.value, &pid, &rate))
			continue;
		if (shown == WRITERS_SHOWN) {
			fputs(", ...", stdout);
			break;
		}
		printf("%s%s[%s] %s/s", shown++ ? ", " : " (", line.value, pid,
			bytes_text(strtod(rate, NULL)));
	}
	if (shown)
		putchar(')');
}

static void print_health(const char *stats)
{
	char health[16] = "";

	stats_text(stats, "health", health, sizeof(health));
	if (strcmp(health, "gone") == 0)
		fputs(" | device gone", stdout);
	else if (strcmp(health, "failing") == 0)
		printf(" | write-through since an error %.0f s ago",
			stats_number(stats, "error_us") / 1e6);
	if (stats_number(stats, "parked") > 0)
		fputs(" | no room on the device for what was accepted (tried again)", stdout);
}

static void print_errors(const char *stats)
{
	double errors = stats_number(stats, "errors");
	double lost = stats_number(stats, "lost_bytes");
	double silent = silent_seconds(stats);
	char device[256] = "the device";

	if (silent >= SILENT_WORTH_SAYING_S) {
		stats_text(stats, "device", device, sizeof(device));
		printf(" | no answer from %s for %.0f s (waiting%s)", device, silent,
			lost > 0 ? "" : "; nothing lost so far");
	}
	printf(" | %.0f error%s", errors, errors == 1.0 ? "" : "s");
	if (lost > 0)
		printf(", %s lost", bytes_text(lost));
}

/* Never "safe" alone: what is below is still mounted until umount. */
static void print_safety(const char *stats)
{
	double unwritten = unwritten_bytes(stats);
	double seconds = whole_seconds(stats, unwritten);

	fputs(" | safe to remove: ", stdout);
	if (stats_number(stats, "errors") > 0 || stats_number(stats, "lost_bytes") > 0)
		puts("no, not everything could be written (pacefs flush names it)");
	else if (unwritten <= 0)
		puts("after umount, nothing left to write");
	else if (silent_seconds(stats) >= SILENT_WORTH_SAYING_S || seconds <= 0)
		puts("not yet, nobody knows when");
	else
		printf("in about %.0f s, after umount\n", seconds);
}

static void print_limit(const char *stats)
{
	double centisecs = stats_number(stats, "limit_centisecs");

	if (centisecs > 0)
		printf(" | limit %.1f s", centisecs / 100);
	else
		printf(" | limit %s", bytes_text(stats_number(stats, "limit_bytes")));
}

static int run_status(const struct arguments *args)
{
	const char *stats;
	int r = fetch_stats(args->mnt, &stats);

	if (r < 0)
		return explain(args->mnt, r);
	double speed = stats_number(stats, "write_bandwidth");
	double unwritten = unwritten_bytes(stats);
	printf("%s/s %s | dirty %s", bytes_text(speed),
		stats_number(stats, "bandwidth_measured") > 0 ? "measured" : "assumed",
		bytes_text(unwritten));
	if (speed > 0 && unwritten > 0)
		printf(" = %.1f s", unwritten / speed);
	print_limit(stats);
	print_writers(stats);
	print_health(stats);
	print_errors(stats);
	print_safety(stats);
	return 0;
}

static int run_stats(const struct arguments *args)
{
	const char *stats;
	int r = fetch_stats(args->mnt, &stats);

	if (r < 0)
		return explain(args->mnt, r);
	if (args->json)
		stats_json(stats);
	else
		fputs(stats, stdout);
	return 0;
}

/* ---- flush ---- */

struct flush_state {
	uint64_t started;
	uint64_t done;
	uint64_t errors;
};

static int read_flush(const char *mnt, struct flush_state *state)
{
	static char text[VALUE_SIZE];
	int r = fetch(mnt, "flush", text);

	if (r < 0)
		return r;
	if (sscanf(text, "%" SCNu64 " %" SCNu64 " %" SCNu64, &state->started, &state->done,
		    &state->errors) != 3)
		return -EPROTO;
	return 0;
}

static void sleep_ms(long ms)
{
	struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

	nanosleep(&ts, NULL);
}

static void print_progress(const char *mnt)
{
	const char *stats;

	if (fetch_stats(mnt, &stats) < 0)
		return; /* the next look at the sequence tells why */
	double left = unwritten_bytes(stats);
	double seconds = whole_seconds(stats, left);
	double silent = silent_seconds(stats);
	if (silent >= SILENT_WORTH_SAYING_S)
		fprintf(stderr, "%s left, no answer from the device for %.0f s\n",
			bytes_text(left), silent);
	else if (seconds > 0)
		fprintf(stderr, "%s left, about %.0f s\n", bytes_text(left), seconds);
	else
		fprintf(stderr, "%s left\n", bytes_text(left));
}

static int wait_for_sequence(const char *mnt, uint64_t wanted, struct flush_state *state)
{
	uint64_t next_us = clock_now_us() + PROGRESS_EVERY_S * US_PER_S;
	long pause_ms = POLL_FIRST_MS;

	while (state->done < wanted) {
		sleep_ms(pause_ms);
		pause_ms = pause_ms * 2 < POLL_MOST_MS ? pause_ms * 2 : POLL_MOST_MS;
		int r = read_flush(mnt, state);
		if (r < 0)
			return r;
		if (state->done < wanted && clock_now_us() >= next_us) {
			print_progress(mnt);
			next_us += PROGRESS_EVERY_S * US_PER_S;
		}
	}
	return 0;
}

/* Everything dirty now is written, or has failed, when this returns 0. Explains what it
 * returns. */
static int flush_and_wait(const char *mnt, struct flush_state *state)
{
	const char *stats;
	int r = fetch_stats(mnt, &stats); /* to say "not a pacefs mount" and not "read-only" */

	if (r == 0)
		r = store(mnt, "flush", "1");
	if (r == 0)
		r = read_flush(mnt, state);
	/* Starting writes nothing and waits for nothing: a suspend or a Ctrl-C meets a
	 * process that sleeps, not one that hangs in a system call. */
	if (r == 0)
		r = wait_for_sequence(mnt, state->started, state);
	return r < 0 ? explain(mnt, r) : 0;
}

/* Returns how many ranges the mount names. */
static unsigned int name_lost(const char *stats)
{
	struct stats_line line;
	const char *from;
	const char *to;
	unsigned int nr = 0;

	while (stats_next(&stats, &line)) {
		if (strcmp(line.key, "lost") || !stats_split(line.value, &from, &to))
			continue;
		log_error("not written: %s, bytes %s to %s", line.value, from, to);
		nr++;
	}
	return nr;
}

static void report_errors(const char *stats, uint64_t errors)
{
	double lost = stats_number(stats, "lost_bytes");

	unsigned int named = name_lost(stats);
	double ranges = stats_number(stats, "lost_ranges");

	if (named == 0)
		log_error("the mount names no file; see the log of its daemon");
	else if (ranges > named)
		log_error("and %.0f ranges more: the log of its daemon names all",
			ranges - named);
	log_error("%" PRIu64 " error%s, %s not written", errors, errors == 1 ? "" : "s",
		lost > 0 ? bytes_text(lost) : "something was");
}

static int run_flush(const struct arguments *args)
{
	struct flush_state state;
	const char *stats;
	int r = flush_and_wait(args->mnt, &state);

	if (r < 0)
		return r;
	r = fetch_stats(args->mnt, &stats);
	if (r < 0)
		return explain(args->mnt, r);
	if (args->json) {
		printf("{\"dirty\":%.0f,\"errors\":%" PRIu64 ",\"all_written\":%s,",
			unwritten_bytes(stats), state.errors, state.errors ? "false" : "true");
		stats_json_lost(stats);
		puts("}");
	} else if (state.errors == 0) {
		puts("all data written, 0 errors");
	}
	if (state.errors)
		report_errors(stats, state.errors);
	return state.errors ? -EIO : 0;
}

/* ---- umount ---- */

static int report_busy(const char *mountpoint, pid_t daemon, uint64_t errors)
{
	if (processes_name_holders(mountpoint, daemon) == 0)
		log_error("no process found: a mount below it, a loop device, swap or an "
			  "NFS "
			  "export may hold it");
	log_error("%s is busy and stays mounted%s", mountpoint,
		errors ? "" : "; what was written before is on the disk");
	return -EBUSY;
}

static int verdict(const struct arguments *args, uint64_t errors, int daemon_status)
{
	bool safe = errors == 0 && daemon_status == 0;

	if (args->json)
		printf("{\"unmounted\":true,\"errors\":%" PRIu64 ",\"safe_to_remove\":%s}\n",
			errors, safe ? "true" : "false");
	else if (safe)
		puts("safe to remove: all data written, 0 errors");
	if (errors == 0 && daemon_status)
		log_error("the daemon ended with status %d: not everything may be "
			  "written, see its "
			  "log",
			daemon_status);
	return safe ? 0 : -EIO;
}

static int unmount_and_wait(
	const struct arguments *args, const char *mountpoint, bool *ret_unmounted)
{
	struct flush_state state;
	const char *stats;
	dev_t dev = 0;
	bool ended = true;
	int status = 0;
	int r = flush_and_wait(mountpoint, &state);

	if (r < 0)
		return r;
	r = fetch_stats(mountpoint, &stats);
	if (r < 0)
		return explain(mountpoint, r);
	pid_t pid = (pid_t)stats_number(stats, "daemon_pid");
	int daemon = processes_open_daemon(pid);
	mount_find(mountpoint, NULL, 0, &dev);
	r = mount_umount(mountpoint, false);
	if (r == 0 && daemon >= 0) {
		ended = processes_wait_end(daemon, dev);
		status = ended ? processes_exit_status(daemon) : 0;
		if (ended && lock_take_verdict(pid) && status == 0)
			status = 1;
	} else if (r == 0 && stats_number(stats, "fuseblk") <= 0) {
		log_warn("cannot see whether the daemon has ended: wait for it");
	}
	if (daemon >= 0)
		close(daemon);
	if (state.errors)
		report_errors(stats, state.errors);
	*ret_unmounted = r == 0;
	if (!ended)
		return -EBUSY;
	if (r == 0)
		return verdict(args, state.errors, status);
	/* fusermount3 does not tell why; being busy is by far the usual reason. */
	if (r == -EBUSY || (r == -EPERM && geteuid() != 0))
		return report_busy(mountpoint, pid, state.errors);
	log_error("cannot unmount %s: %s", mountpoint, strerror(-r));
	return r;
}

static int umount_mnt(const struct arguments *args, bool *ret_unmounted)
{
	char mountpoint[PATH_MAX];
	const char *stats;
	int r = fetch_stats(args->mnt, &stats);

	*ret_unmounted = false;
	if (r < 0)
		return explain(args->mnt, r);
	if (!realpath(args->mnt, mountpoint))
		return explain(args->mnt, -errno);
	if (!mount_find(mountpoint, NULL, 0, NULL)) {
		log_error("%s lies in a pacefs mount, but is not its mountpoint", args->mnt);
		return -EINVAL;
	}
	return unmount_and_wait(args, mountpoint, ret_unmounted);
}

static int run_umount(const struct arguments *args)
{
	bool unmounted;

	return umount_mnt(args, &unmounted);
}

int commands_umount(const char *mnt, bool *ret_unmounted)
{
	const struct arguments args = {.command = "umount", .mnt = mnt};
	int r = umount_mnt(&args, ret_unmounted);

	return fflush(stdout) != 0 ? -EIO : r;
}

/* ---- get, set ---- */

static int refuse_unknown_setting(const char *name)
{
	const char *nearest = parse_nearest(name, settings_names());

	if (nearest && strcmp(nearest, name) == 0)
		log_error(
			"the daemon there does not have %s: is it of an older version?", name);
	else if (nearest)
		log_error("no setting is named %s: did you mean %s?", name, nearest);
	else
		log_error("no setting is named %s: pacefs get MNT lists them", name);
	return -ENODATA;
}

static int get_all(const char *mnt)
{
	static char value[VALUE_SIZE];

	for (const char *const *name = settings_names(); *name; name++) {
		int r = fetch(mnt, *name, value);
		if (r == 0)
			printf("%s=%s\n", *name, value);
		else if (r != -ENODATA) /* an older daemon may not have it */
			return explain(mnt, r);
	}
	return 0;
}

static int run_get(const struct arguments *args)
{
	static char value[VALUE_SIZE];
	const char *stats;
	int r = fetch_stats(args->mnt, &stats);

	if (r < 0)
		return explain(args->mnt, r);
	if (args->nr_words == 0)
		return get_all(args->mnt);
	r = fetch(args->mnt, args->words[0], value);
	if (r == -ENODATA)
		return refuse_unknown_setting(args->words[0]);
	if (r < 0)
		return explain(args->mnt, r);
	puts(value);
	return 0;
}

/* The settings in force there, so that a pair is checked as the daemon will check it. */
static void load_settings(const char *mnt, struct settings *s)
{
	static char value[VALUE_SIZE];
	char message[256];

	settings_init(s);
	for (const char *const *name = settings_names(); *name; name++)
		/* The half of a pair that is not in use reads 0 and is refused: as it
		 * should. */
		if (fetch(mnt, *name, value) == 0)
			settings_assign(s, *name, value, message, sizeof(message));
	settings_infer_chosen(s);
}

static int set_one(const char *mnt, const char *name, const char *value)
{
	struct settings s;
	char message[256];

	load_settings(mnt, &s);
	int r = settings_set(&s, name, value, 0, message, sizeof(message));
	if (r == -ENODATA)
		return refuse_unknown_setting(name);
	if (r < 0) {
		log_error("%s", message);
		return r;
	}
	r = store(mnt, name, value);
	if (r == -EPERM || r == -EACCES)
		log_error(
			"%s=%s: only root and the owner of %s may change it", name, value, mnt);
	else if (r == -EINVAL)
		log_error("%s=%s rejected by the daemon: its log says why", name, value);
	else if (r < 0)
		explain(mnt, r);
	return r;
}

static int run_set(const struct arguments *args)
{
	const char *stats;
	int r = fetch_stats(args->mnt, &stats);

	if (r < 0)
		return explain(args->mnt, r);
	char *name = args->words[0];
	char *value = strchr(name, '=');
	if (value)
		*value++ = '\0';
	if ((value != NULL) == (args->nr_words == 2)) {
		log_error("need NAME VALUE or NAME=VALUE: see pacefs set --help");
		return -EINVAL;
	}
	return set_one(args->mnt, name, value ? value : args->words[1]);
}

/* ---- the table ---- */

/* clang-format off */
static const struct command {
	const char *name;
	int (*run)(const struct arguments *args);
	int least_words; /* after MNT */
	int most_words;
	bool json;
	const char *help;
} commands[] = {
	{"status", run_status, 0, 0, false,
		"pacefs status MNT\n"
		"  One line: measured speed, data not yet written and the time that takes, limit,\n"
		"  paced writers, errors, and when the disk may be removed.\n"},
	{"stats", run_stats, 0, 0, true,
		"pacefs stats MNT [--json]\n"
		"  All counters as \"Key: value\" lines, or as one JSON object. The Bdi... names\n"
		"  are the kernel's, in kB and kBps; the others are in bytes and bytes per second.\n"},
	{"flush", run_flush, 0, 0, true,
		"pacefs flush MNT [--json]\n"
		"  Waits until everything written so far is on the disk, with progress on stderr.\n"
		"  Exit 0 only when that is so without any error since the mount; else 1, and what\n"
		"  was not written is named. (--wait is accepted; it always waits.)\n"},
	{"umount", run_umount, 0, 0, true,
		"pacefs umount MNT [--json]\n"
		"  Writes everything with progress, unmounts, waits for the daemon to end, and says\n"
		"  whether the disk is safe to remove. Exit 0 only then. Names who holds a busy\n"
		"  mount, which then stays.\n"},
	{"get", run_get, 0, 1, false,
		"pacefs get MNT [NAME]\n"
		"  The value in force of one setting, or all as NAME=VALUE lines. On a path below\n"
		"  the mountpoint: the settings of the device that path is on.\n"},
	{"set", run_set, 1, 2, false,
		"pacefs set MNT NAME VALUE\n"
		"pacefs set MNT NAME=VALUE\n"
		"  Changes a setting until umount. Sizes may be 64K, 16M, 1G.\n"},
};
/* clang-format on */

enum { NR_COMMANDS = sizeof(commands) / sizeof(commands[0]) };

const char *const *commands_names(void)
{
	static const char *names[NR_COMMANDS + 1];

	for (size_t i = 0; i < NR_COMMANDS; i++)
		names[i] = commands[i].name;
	return names;
}

static const struct command *find_command(const char *word)
{
	for (size_t i = 0; i < NR_COMMANDS; i++)
		if (strcmp(commands[i].name, word) == 0)
			return &commands[i];
	return NULL;
}

bool commands_is(const char *word)
{
	return find_command(word) != NULL;
}

void commands_refuse_unknown(const char *word)
{
	const char *nearest = parse_nearest(word, commands_names());

	if (nearest)
		log_error("unknown command %s: did you mean %s?", word, nearest);
	else
		log_error("unknown command %s: see pacefs --help", word);
}

/* Moves the options out of argv; what stays is MNT and words. Negative when one is
 * unknown. */
static int take_options(const struct command *command, int argc, char **argv,
	struct arguments *args, bool *ret_help)
{
	int kept = 0;

	for (int i = 0; i < argc; i++) {
		const char *word = argv[i];

		/* A value such as "-1" is for settings_set() to refuse. */
		if (word[0] != '-' || isdigit((unsigned char)word[1])) {
			argv[kept++] = argv[i];
		} else if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
			*ret_help = true;
		} else if (command->json && strcmp(word, "--json") == 0) {
			args->json = true;
		} else if (command->run != run_flush || strcmp(word, "--wait") != 0) {
			log_error("%s: unknown option %s: see pacefs %s --help", command->name,
				word, command->name);
			return -EINVAL;
		}
	}
	return kept;
}

int commands_main(int argc, char **argv)
{
	const struct command *command = argc > 1 ? find_command(argv[1]) : NULL;
	bool help = false;

	if (!command) {
		commands_refuse_unknown(argc > 1 ? argv[1] : "");
		return 1;
	}
	struct arguments args = {.command = command->name};
	int nr = take_options(command, argc - 2, argv + 2, &args, &help);
	if (nr < 0)
		return 1;
	if (help) {
		fputs(command->help, stdout);
		return 0;
	}
	if (nr < 1 + command->least_words || nr > 1 + command->most_words) {
		log_error("%s: wrong number of words; the usage is:", command->name);
		fputs(command->help, stderr);
		return 1;
	}
	args.mnt = argv[2];
	args.nr_words = nr - 1;
	args.words = argv + 3;
	int r = command->run(&args);
	/* A script that asked must not read success from a full pipe. */
	if (fflush(stdout) != 0)
		return 1;
	return r < 0 ? 1 : 0;
}
