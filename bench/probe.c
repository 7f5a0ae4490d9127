/* probe.c - the latency of one kind of operation beside whatever else goes on. See
 * usage(). */
#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/latency.h"

#define SMALL_BYTES 4096

/* One operation. before() and after() are not timed; each returns 0 or -1 with errno. All
 * work in the current directory. */
struct operation {
	const char *name;
	int (*before)(void);
	int (*timed)(void);
	int (*after)(void);
};

static char small[SMALL_BYTES];
static int probe_fd = -1; /* "probe", open for the whole run */

static int nothing(void)
{
	return 0;
}

static int do_stat(void)
{
	struct stat st;

	return stat("probe", &st);
}

static int do_ls(void)
{
	DIR *dir = opendir(".");

	if (!dir)
		return -1;
	do
		errno = 0;
	while (readdir(dir));
	int error = errno;
	closedir(dir);
	errno = error;
	return error ? -1 : 0;
}

static int do_mkdir(void)
{
	return mkdir("probe.dir", 0755) < 0 ? -1 : rmdir("probe.dir");
}

static int do_write(void)
{
	return pwrite(probe_fd, small, SMALL_BYTES, 0) == SMALL_BYTES ? 0 : -1;
}

static int do_append_fsync(void)
{
	off_t end = lseek(probe_fd, 0, SEEK_END);

	if (pwrite(probe_fd, small, SMALL_BYTES, end) != SMALL_BYTES)
		return -1;
	return fsync(probe_fd);
}

static int do_create(void)
{
	int fd = open("probe.new", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);

	return fd < 0 ? -1 : close(fd);
}

static int do_unlink(void)
{
	return unlink("probe.new");
}

static int make_file(void)
{
	int fd = open("probe.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	if (fd < 0)
		return -1;
	for (int i = 0; i < 16; i++)
		if (write(fd, small, SMALL_BYTES) != SMALL_BYTES)
			return -1;
	return close(fd);
}

static int do_truncate(void)
{
	return truncate("probe.new", 0);
}

static int do_rename(void)
{
	return rename("probe.new", "probe.old");
}

static const struct operation operations[] = {
	{"stat", nothing, do_stat, nothing},
	{"ls", nothing, do_ls, nothing},
	{"mkdir", nothing, do_mkdir, nothing},
	{"write", nothing, do_write, nothing},
	{"fsync", nothing, do_append_fsync, nothing},
	{"create", nothing, do_create, do_unlink},
	{"unlink", make_file, do_unlink, nothing},
	{"truncate", make_file, do_truncate, do_unlink},
	{"rename", make_file, do_rename, nothing},
};

#define NR_OPERATIONS (sizeof(operations) / sizeof(operations[0]))

static void usage(FILE *out)
{
	fputs("usage: probe [-i MS] [-t SECONDS] OPERATION DIR\n"
	      "  -i MS        one operation every so many milliseconds (50)\n"
	      "  -t SECONDS   for so long (10)\n"
	      "operations: stat, ls, mkdir (and rmdir), write (4 KiB over the same), "
	      "fsync\n"
	      "  (append 4 KiB and fsync), create, unlink, truncate, rename (over "
	      "another)\n"
	      "prints one line of name=value\n",
		out);
}

static const struct operation *find_operation(const char *name)
{
	for (size_t i = 0; i < NR_OPERATIONS; i++)
		if (strcmp(operations[i].name, name) == 0)
			return &operations[i];
	return NULL;
}

static double number_arg(const char *text)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value > 0 && value < 1e6))
		errx(2, "'%s' is not a number above 0", text);
	return value;
}

static void remove_files(void)
{
	close(probe_fd);
	unlink("probe");
	unlink("probe.new");
	unlink("probe.old");
	rmdir("probe.dir");
}

static int probe(const struct operation *op, double interval_s, double seconds)
{
	struct latency latency = {0};
	double end_s = seconds_now() + seconds;
	double due_s = seconds_now();
	unsigned failed = 0;
	int error = 0;

	while (due_s < end_s) {
		sleep_until(due_s);
		int status = op->before();
		double before = seconds_now();
		if (status == 0)
			status = op->timed();
		if (status < 0) {
			failed++;
			error = errno;
		} else {
			latency_add(&latency, seconds_now() - before);
		}
		op->after();
		due_s = fmax(due_s + interval_s, seconds_now());
	}
	printf("op=%s count=%" PRIu64
	       " p50_ms=%.3f p99_ms=%.3f max_ms=%.3f failed=%u error=%d\n",
		op->name, latency.count, latency_quantile_ms(&latency, 0.5),
		latency_quantile_ms(&latency, 0.99), latency.max_s * 1e3, failed, error);
	return failed > 0;
}

int main(int argc, char **argv)
{
	double interval_ms = 50;
	double seconds = 10;
	int c;

	while ((c = getopt(argc, argv, "i:t:h")) != -1) {
		switch (c) {
		case 'i':
			interval_ms = number_arg(optarg);
			break;
		case 't':
			seconds = number_arg(optarg);
			break;
		default:
			usage(c == 'h' ? stdout : stderr);
			return c == 'h' ? 0 : 2;
		}
	}
	const struct operation *op = optind == argc - 2 ? find_operation(argv[optind]) : NULL;
	if (!op) {
		usage(stderr);
		return 2;
	}
	if (chdir(argv[optind + 1]) < 0)
		err(1, "%s", argv[optind + 1]);
	probe_fd = open("probe", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	if (probe_fd < 0 || do_write() < 0)
		err(1, "%s/probe", argv[optind + 1]);
	int status = probe(op, interval_ms / 1e3, seconds);
	remove_files();
	return status;
}
