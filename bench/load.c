/* load.c - N processes that write, and one line about what they got. See usage(). */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <linux/futex.h>
#include <limits.h>

#include "bench/latency.h"
#include "util/parse.h"

#define REGION_BYTES (1ull << 30) /* each writer's part of the file with --same */

struct options {
	const char *dir;
	const char *device;
	uint64_t writers;
	uint64_t request_bytes;
	uint64_t rate_bytes_per_s;
	uint64_t bytes;	     /* per writer; 0: write for warm_s + run_s */
	uint64_t wrap_bytes; /* write the same so many bytes over and over; 0: never */
	double warm_s;
	double run_s;
	bool same;
	bool fsync;
	bool each;
};

/* What one writer leaves for the parent; written by the writer only. */
struct result {
	uint64_t window_bytes; /* of the writes that ended in the measured window */
	uint64_t bytes;
	double wrote_s; /* when the last write ended */
	double durable_s;
	double fsync_s;
	int error;
	struct latency latency; /* of every write that ended after the warm-up */
};

/* Shared with the writers. begin_s is set once (release) when all are ready. */
struct board {
	_Atomic uint64_t ready;
	_Atomic double begin_s;
	_Atomic uint32_t begun; /* futex */
	struct result results[];
};

struct sums {
	double bytes;
	double window_bytes;
	double rate, rate_squared, min_rate, max_rate;
	double wrote_s, durable_s, fsync_s;
	unsigned starved, failed;
	int error;
	struct latency latency;
};

static void usage(FILE *out)
{
	fputs("usage: load [options] DIR\n"
	      "  -n, --writers N      processes, each writing its own file (1)\n"
	      "  -b, --request SIZE   bytes per write() (4K)\n"
	      "  -w, --warm S         seconds before measuring (4)\n"
	      "  -t, --run S          seconds measured (16)\n"
	      "  -r, --rate SIZE      most bytes/s of each writer (no limit)\n"
	      "  -B, --bytes SIZE     instead of a time: each writer writes this and "
	      "fsyncs\n"
	      "  -W, --wrap SIZE      start over at the beginning of the file after this\n"
	      "  -s, --same           one file, each writer in its own 1G region\n"
	      "  -f, --fsync          fsync at the end\n"
	      "  -e, --each           each_bytes=: what each writer wrote in the measured "
	      "time\n"
	      "  -d, --device NAME    count sectors of /sys/block/NAME too (a loop5)\n"
	      "prints one line of name=value; MB is 10^6 bytes, latencies are of "
	      "write()\n",
		out);
}

static uint64_t size_arg(const char *text)
{
	uint64_t value;

	if (parse_size(text, &value) < 0)
		errx(2, "'%s' is not a size like 4096, 64K or 1M", text);
	return value;
}

static double seconds_arg(const char *text)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= 0 && value < 1e6))
		errx(2, "'%s' is not a number of seconds", text);
	return value;
}

static struct options parse_options(int argc, char **argv)
{
	static const struct option longs[] = {{"writers", required_argument, NULL, 'n'},
		{"request", required_argument, NULL, 'b'},
		{"warm", required_argument, NULL, 'w'}, {"run", required_argument, NULL, 't'},
		{"rate", required_argument, NULL, 'r'}, {"bytes", required_argument, NULL, 'B'},
		{"wrap", required_argument, NULL, 'W'}, {"same", no_argument, NULL, 's'},
		{"fsync", no_argument, NULL, 'f'}, {"each", no_argument, NULL, 'e'},
		{"device", required_argument, NULL, 'd'}, {"help", no_argument, NULL, 'h'},
		{0}};
	struct options o = {.writers = 1, .request_bytes = 4096, .warm_s = 4, .run_s = 16};
	int c;

	while ((c = getopt_long(argc, argv, "n:b:w:t:r:B:W:sfed:h", longs, NULL)) != -1) {
		switch (c) {
		case 'n':
			o.writers = size_arg(optarg);
			break;
		case 'b':
			o.request_bytes = size_arg(optarg);
			break;
		case 'w':
			o.warm_s = seconds_arg(optarg);
			break;
		case 't':
			o.run_s = seconds_arg(optarg);
			break;
		case 'r':
			o.rate_bytes_per_s = size_arg(optarg);
			break;
		case 'B':
			o.bytes = size_arg(optarg);
			break;
		case 'W':
			o.wrap_bytes = size_arg(optarg);
			break;
		case 's':
			o.same = true;
			break;
		case 'f':
			o.fsync = true;
			break;
		case 'e':
			o.each = true;
			break;
		case 'd':
			o.device = optarg;
			break;
		default:
			usage(c == 'h' ? stdout : stderr);
			exit(c == 'h' ? 0 : 2);
		}
	}
	if (optind != argc - 1 || o.writers == 0 || o.writers > 10000 || o.request_bytes == 0) {
		usage(stderr);
		exit(2);
	}
	o.dir = argv[optind];
	if (o.bytes > 0) {
		o.warm_s = 0;
		o.run_s = INFINITY;
		o.fsync = true;
	}
	return o;
}

static uint64_t sectors_written(const char *device)
{
	char path[PATH_MAX];
	uint64_t sectors = 0;

	if (!device)
		return 0;
	snprintf(path, sizeof(path), "/sys/block/%s/stat", device);
	FILE *f = fopen(path, "re");
	if (!f || fscanf(f, "%*u %*u %*u %*u %*u %*u %" SCNu64, &sectors) != 1)
		errx(1, "cannot read %s", path);
	fclose(f);
	return sectors;
}

/* ---- a writer ---- */

static int open_target(const struct options *o, uint64_t writer)
{
	char path[PATH_MAX];
	int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (o->same ? 0 : O_TRUNC);

	if (o->same)
		snprintf(path, sizeof(path), "%s/same", o->dir);
	else
		snprintf(path, sizeof(path), "%s/w%" PRIu64, o->dir, writer);
	return open(path, flags, 0644);
}

/* A writer that is late may catch up by one request, not more. */
static double pace(double due_s, double period_s)
{
	double now = seconds_now();

	if (due_s > now)
		sleep_until(due_s);
	return fmax(due_s, now - period_s) + period_s;
}

static int write_all(
	const struct options *o, struct result *r, int fd, off_t start, double begin_s)
{
	double warm_s = begin_s + o->warm_s;
	double end_s = warm_s + o->run_s;
	double period_s = o->rate_bytes_per_s
		? (double)o->request_bytes / (double)o->rate_bytes_per_s
		: 0;
	double due_s = begin_s;
	int error = 0;
	char *buf = malloc(o->request_bytes);

	if (!buf)
		return ENOMEM;
	memset(buf, 'a' + (int)(start % 26), o->request_bytes);
	r->wrote_s = begin_s;
	while (r->wrote_s < end_s && (o->bytes == 0 || r->bytes < o->bytes)) {
		size_t size = o->request_bytes;

		if (o->bytes > 0 && o->bytes - r->bytes < size)
			size = o->bytes - r->bytes;
		if (period_s > 0)
			due_s = pace(due_s, period_s);
		double before = seconds_now();
		if (before >= end_s)
			break;
		uint64_t at = o->wrap_bytes ? r->bytes % o->wrap_bytes : r->bytes;
		ssize_t n = pwrite(fd, buf, size, start + (off_t)at);
		if (n < 0) {
			error = errno;
			break;
		}
		r->wrote_s = seconds_now();
		r->bytes += (uint64_t)n;
		if (r->wrote_s <= warm_s)
			continue;
		latency_add(&r->latency, r->wrote_s - before);
		if (r->wrote_s <= end_s)
			r->window_bytes += (uint64_t)n;
	}
	free(buf);
	return error;
}

static void run_writer(const struct options *o, struct board *board, uint64_t writer)
{
	struct result *r = &board->results[writer];
	off_t start = o->same ? (off_t)(writer * REGION_BYTES) : 0;
	int fd = open_target(o, writer);

	if (fd < 0)
		r->error = errno;
	atomic_fetch_add(&board->ready, 1);
	/* A futex, not a short sleep: a thousand writers that look twice in a millisecond keep
	 * both CPUs from everything else. */
	while (atomic_load(&board->begun) == 0)
		syscall(SYS_futex, &board->begun, FUTEX_WAIT, 0, NULL, NULL, 0);
	double begin_s = atomic_load(&board->begin_s);
	if (fd < 0)
		return;
	r->error = write_all(o, r, fd, start, begin_s);
	double before = seconds_now();
	if (o->fsync && fsync(fd) < 0 && !r->error)
		r->error = errno;
	r->durable_s = seconds_now();
	r->fsync_s = r->durable_s - before;
	if (close(fd) < 0 && !r->error)
		r->error = errno;
}

/* ---- the parent ---- */

static struct sums sum_up(const struct options *o, const struct board *board)
{
	struct sums s = {.min_rate = INFINITY};
	double begin_s = atomic_load(&board->begin_s);

	for (uint64_t i = 0; i < o->writers; i++) {
		const struct result *r = &board->results[i];
		double window_s = o->bytes > 0 ? r->wrote_s - begin_s : o->run_s;
		double rate = window_s > 0 ? (double)r->window_bytes / window_s : 0;

		s.bytes += (double)r->bytes;
		s.window_bytes += (double)r->window_bytes;
		s.rate += rate;
		s.rate_squared += rate * rate;
		s.min_rate = fmin(s.min_rate, rate);
		s.max_rate = fmax(s.max_rate, rate);
		s.wrote_s = fmax(s.wrote_s, r->wrote_s - begin_s);
		s.durable_s = fmax(s.durable_s, r->durable_s - begin_s);
		s.fsync_s = fmax(s.fsync_s, r->fsync_s);
		s.starved += r->window_bytes == 0;
		s.failed += r->error != 0;
		if (r->error)
			s.error = r->error;
		latency_merge(&s.latency, &r->latency);
	}
	return s;
}

static void print_each(const struct options *o, const struct board *board)
{
	for (uint64_t i = 0; i < o->writers; i++)
		printf("%s%" PRIu64, i ? "," : "each_bytes=", board->results[i].window_bytes);
	printf(" ");
}

static void print_line(const struct options *o, const struct board *board, const struct sums *s,
	double device_MBs)
{
	double seconds = o->bytes > 0 ? s->wrote_s : o->run_s;
	double jain = s->rate_squared > 0
		? s->rate * s->rate / ((double)o->writers * s->rate_squared)
		: 0;

	printf("writers=%" PRIu64 " request=%" PRIu64 " seconds=%.2f total_MBs=%.2f "
	       "min_MBs=%.3f max_MBs=%.3f jain=%.4f starved=%u writes=%" PRIu64 " ",
		o->writers, o->request_bytes, seconds,
		seconds > 0 ? s->window_bytes / seconds / 1e6 : 0, s->min_rate / 1e6,
		s->max_rate / 1e6, jain, s->starved, s->latency.count);
	printf("p50_ms=%.3f p99_ms=%.3f p999_ms=%.3f max_ms=%.3f ",
		latency_quantile_ms(&s->latency, 0.5), latency_quantile_ms(&s->latency, 0.99),
		latency_quantile_ms(&s->latency, 0.999), s->latency.max_s * 1e3);
	if (o->fsync)
		printf("fsync_s=%.2f durable_s=%.2f bytes=%.0f durable_MBs=%.2f ", s->fsync_s,
			s->durable_s, s->bytes, s->bytes / s->durable_s / 1e6);
	if (o->device)
		printf("device_MBs=%.2f ", device_MBs);
	if (o->each)
		print_each(o, board);
	printf("failed=%u error=%d\n", s->failed, s->error);
}

static void start_writers(const struct options *o, struct board *board)
{
	for (uint64_t i = 0; i < o->writers; i++) {
		pid_t pid = fork();

		if (pid < 0)
			err(1, "fork");
		if (pid == 0) {
			run_writer(o, board, i);
			_exit(board->results[i].error != 0);
		}
	}
	while (atomic_load(&board->ready) < o->writers)
		usleep(1000);
	atomic_store(&board->begin_s, seconds_now());
	atomic_store(&board->begun, 1);
	syscall(SYS_futex, &board->begun, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

int main(int argc, char **argv)
{
	struct options o = parse_options(argc, argv);
	struct board *board = mmap(NULL, sizeof(*board) + o.writers * sizeof(board->results[0]),
		PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (board == MAP_FAILED)
		err(1, "mmap");
	start_writers(&o, board);

	double from_s = atomic_load(&board->begin_s) + o.warm_s;
	sleep_until(from_s);
	uint64_t sectors = sectors_written(o.device);
	if (o.bytes == 0) {
		sleep_until(from_s + o.run_s);
		sectors = sectors_written(o.device) - sectors;
	}
	while (wait(NULL) > 0)
		;
	struct sums s = sum_up(&o, board);
	if (o.bytes > 0)
		sectors = sectors_written(o.device) - sectors;
	double window_s = o.bytes > 0 ? s.durable_s : o.run_s;
	print_line(&o, board, &s, (double)sectors * 512 / window_s / 1e6);
	return s.failed > 0;
}
