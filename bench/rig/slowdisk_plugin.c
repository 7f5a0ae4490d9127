/* slowdisk_plugin.c - nbdkit plugin: a disk in RAM with one head, an exact rate and
 * faults.
 *
 *   nbdkit -U SOCKET slowdisk.so size=1G rate=10000000 [seekmin=1 seekmax=15 rot=4]
 *          [ctl=FILE] [log=FILE] [record=FILE]
 *
 * rate     bytes per second, read or written; 0 = no limit. There is no burst: a request
 *          is answered when all before it and its own bytes have passed the head.
 * seekmin, seekmax, rot
 *          milliseconds; a request that starts further than near from where the last one
 *          ended costs seekmin + (seekmax - seekmin) * sqrt(distance / size) + rot
 * near     distance without seek cost. 4 MiB, because one big write arrives here in
 *          pieces and out of order (with 0 a sequential stream pays seeks)
 * stall    1: requests wait until it is 0 again
 * weio, reio, feio, enospc
 *          1: writes, reads, flushes fail with EIO; writes fail with ENOSPC;
 *          weio=2: only the next write
 * vanish   1: everything fails with EIO, requests under way too
 * ctl      a file with lines "key=value" of the above (not size). It is read again before
 *          the next request whenever it has changed; the last line of a key counts.
 * log      a file that gets one line per request:
 *          arrived_us done_us kind offset length error
 *          in microseconds of CLOCK_MONOTONIC; kind is read, write, trim or flush; error
 *          is an errno number or 0.
 * record   a file that gets every write, trim and flush that succeeded, with its data: struct
 *          record below, then length bytes if it is a write. What the disk holds after a power
 *          cut can be made from it: whatever was done before the last flush arrived, and any part
 *          of what came later.
 */
#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

#define NS_PER_S 1000000000ll
#define STALL_POLL_NS 10000000l

enum knob {
	SIZE,
	RATE,
	NEAR, /* up to here: bytes */
	SEEKMIN,
	SEEKMAX,
	ROT,
	STALL,
	WEIO,
	REIO,
	FEIO,
	NOSPC,
	VANISH,
	NR_KNOBS
};

static const char *const knob_names[NR_KNOBS] = {"size", "rate", "near", "seekmin", "seekmax",
	"rot", "stall", "weio", "reio", "feio", "enospc", "vanish"};

enum kind { READ, WRITE, TRIM, FLUSH };

/* Host byte order; times of CLOCK_MONOTONIC. */
struct record {
	int64_t arrived_ns, done_ns;
	uint64_t offset;
	uint32_t length, kind;
};

static const char *const kind_names[] = {"read", "write", "trim", "flush"};

/* lock guards the knobs, the head and the log. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static double knobs[NR_KNOBS] = {[SIZE] = 1 << 30, [NEAR] = 4 << 20};
static int64_t head_free_ns; /* when the head has done all that arrived so far */
static double head_offset;   /* where it will stand then */
static FILE *log_file;

static char *ctl_path;
static struct stat ctl_seen;
static char *log_path;
static char *record_path;
static int record_fd = -1;
static int disk_fd = -1;

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * NS_PER_S + ts.tv_nsec;
}

static int set_knob(const char *name, const char *text)
{
	int knob = 0;

	while (knob < NR_KNOBS && strcmp(name, knob_names[knob]) != 0)
		knob++;
	if (knob == NR_KNOBS) {
		nbdkit_error("unknown parameter %s", name);
		return -1;
	}
	char *end = NULL;
	double value = knob <= NEAR ? (double)nbdkit_parse_size(text) : strtod(text, &end);
	if (value < 0 || !isfinite(value) || (end && (end == text || *end))) {
		nbdkit_error("%s=%s is not a number >= 0", name, text);
		return -1;
	}
	knobs[knob] = value;
	return 0;
}

static void read_ctl(void)
{
	char line[128];
	struct stat st;

	if (!ctl_path || stat(ctl_path, &st) < 0)
		return;
	if (st.st_size == ctl_seen.st_size && st.st_ino == ctl_seen.st_ino &&
		st.st_mtim.tv_sec == ctl_seen.st_mtim.tv_sec &&
		st.st_mtim.tv_nsec == ctl_seen.st_mtim.tv_nsec)
		return;
	FILE *f = fopen(ctl_path, "re");
	if (!f)
		return;
	ctl_seen = st;
	while (fgets(line, sizeof(line), f)) {
		char *value = strchr(line, '=');
		if (!value)
			continue;
		*value++ = '\0';
		value[strcspn(value, "\n")] = '\0';
		set_knob(line, value);
	}
	fclose(f);
}

static void sleep_until(int64_t when_ns)
{
	struct timespec ts = {when_ns / NS_PER_S, when_ns % NS_PER_S};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
		;
}

/* lock is held on entry and on return, not while waiting. */
static void wait_while_stalled(void)
{
	read_ctl();
	while (knobs[STALL] != 0) {
		pthread_mutex_unlock(&lock);
		sleep_until(now_ns() + STALL_POLL_NS);
		pthread_mutex_lock(&lock);
		read_ctl();
	}
}

static int fault_for(enum kind kind)
{
	if (knobs[VANISH] != 0)
		return EIO;
	if (kind == WRITE && knobs[WEIO] != 0) {
		if (knobs[WEIO] == 2)
			knobs[WEIO] = 0;
		return EIO;
	}
	if (kind == READ && knobs[REIO] != 0)
		return EIO;
	if (kind == FLUSH && knobs[FEIO] != 0)
		return EIO;
	if (kind == WRITE && knobs[NOSPC] != 0)
		return ENOSPC;
	return 0;
}

static double seek_ms(double offset)
{
	double distance = fabs(offset - head_offset);

	if (distance <= knobs[NEAR] || knobs[SEEKMAX] + knobs[ROT] <= 0)
		return 0;
	return knobs[SEEKMIN] +
		(knobs[SEEKMAX] - knobs[SEEKMIN]) * sqrt(distance / knobs[SIZE]) + knobs[ROT];
}

/* Move the head; returns when it will be done. */
static int64_t move_head(uint64_t offset, uint32_t length, int64_t now)
{
	double ns = seek_ms((double)offset) * 1e6;

	if (knobs[RATE] > 0)
		ns += length / knobs[RATE] * 1e9;
	head_free_ns = (head_free_ns > now ? head_free_ns : now) + (int64_t)ns;
	head_offset = (double)offset + length;
	return head_free_ns;
}

static void log_request(int64_t arrived, int64_t done, enum kind kind, uint64_t offset,
	uint32_t length, int err)
{
	if (log_file)
		fprintf(log_file, "%" PRId64 " %" PRId64 " %s %" PRIu64 " %u %d\n",
			arrived / 1000, done / 1000, kind_names[kind], offset, length, err);
}

/* Before the request is answered: what a flush that arrives later covers is there already. */
static int record_request(const struct record *r, const void *data, size_t bytes)
{
	struct iovec parts[2] = {{(void *)r, sizeof(*r)}, {(void *)data, bytes}};

	if (record_fd < 0)
		return 0;
	pthread_mutex_lock(&lock);
	ssize_t n = writev(record_fd, parts, 2);
	pthread_mutex_unlock(&lock);
	if (n == (ssize_t)(sizeof(*r) + bytes))
		return 0;
	nbdkit_error("%s: the record is not complete: %m", record_path);
	nbdkit_set_error(EIO);
	return -1;
}

/* Accept a request: wait out a stall, book the head's time, decide on a fault. Returns 0,
 * or -1 with the error given to nbdkit. The data are to be moved before
 * finish(ret_record), so that the copy costs no time of the disk's. */
static int begin(enum kind kind, uint64_t offset, uint32_t length, struct record *ret_record)
{
	int64_t arrived = now_ns();

	pthread_mutex_lock(&lock);
	wait_while_stalled();
	int64_t done = now_ns();
	int err = fault_for(kind);
	if (!err && (kind == READ || kind == WRITE))
		done = move_head(offset, length, done);
	log_request(arrived, done, kind, offset, length, err);
	pthread_mutex_unlock(&lock);
	if (err) {
		nbdkit_set_error(err);
		return -1;
	}
	*ret_record = (struct record){arrived, done, offset, length, (uint32_t)kind};
	return 0;
}

static int finish(const struct record *r)
{
	sleep_until(r->done_ns);
	pthread_mutex_lock(&lock);
	read_ctl();
	bool vanished = knobs[VANISH] != 0;
	pthread_mutex_unlock(&lock);
	if (vanished) {
		nbdkit_set_error(EIO);
		return -1;
	}
	return 0;
}

static int slowdisk_config(const char *key, const char *value)
{
	if (strcmp(key, "ctl") == 0) {
		ctl_path = nbdkit_absolute_path(value);
		return ctl_path ? 0 : -1;
	}
	if (strcmp(key, "log") == 0) {
		log_path = nbdkit_absolute_path(value);
		return log_path ? 0 : -1;
	}
	if (strcmp(key, "record") == 0) {
		record_path = nbdkit_absolute_path(value);
		return record_path ? 0 : -1;
	}
	return set_knob(key, value);
}

static int slowdisk_get_ready(void)
{
	disk_fd = memfd_create("slowdisk", MFD_CLOEXEC);
	if (disk_fd < 0 || ftruncate(disk_fd, (off_t)knobs[SIZE]) < 0) {
		nbdkit_error("cannot make the disk: %m");
		return -1;
	}
	if (record_path) {
		record_fd = open(
			record_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
		if (record_fd < 0) {
			nbdkit_error("%s: %m", record_path);
			return -1;
		}
	}
	if (log_path) {
		log_file = fopen(log_path, "ae");
		if (!log_file) {
			nbdkit_error("%s: %m", log_path);
			return -1;
		}
		setvbuf(log_file, NULL, _IOLBF, 0);
	}
	return 0;
}

static void slowdisk_unload(void)
{
	if (log_file)
		fclose(log_file);
	if (disk_fd >= 0)
		close(disk_fd);
	free(ctl_path);
	if (record_fd >= 0)
		close(record_fd);
	free(log_path);
	free(record_path);
}

static void *slowdisk_open(int readonly)
{
	return NBDKIT_HANDLE_NOT_NEEDED;
}

static int64_t slowdisk_get_size(void *handle)
{
	return (int64_t)knobs[SIZE];
}

static int slowdisk_can_multi_conn(void *handle)
{
	return 1;
}

static int slowdisk_pread(
	void *handle, void *buf, uint32_t count, uint64_t offset, uint32_t flags)
{
	struct record r;

	if (begin(READ, offset, count, &r) < 0)
		return -1;
	if (pread(disk_fd, buf, count, (off_t)offset) != (ssize_t)count)
		return -1;
	return finish(&r);
}

static int slowdisk_pwrite(
	void *handle, const void *buf, uint32_t count, uint64_t offset, uint32_t flags)
{
	struct record r;

	if (begin(WRITE, offset, count, &r) < 0)
		return -1;
	if (pwrite(disk_fd, buf, count, (off_t)offset) != (ssize_t)count ||
		record_request(&r, buf, count) < 0)
		return -1;
	return finish(&r);
}

static int slowdisk_trim(void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
	struct record r;

	if (begin(TRIM, offset, count, &r) < 0)
		return -1;
	if (fallocate(disk_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
		    count) < 0 ||
		record_request(&r, NULL, 0) < 0)
		return -1;
	return finish(&r);
}

static int slowdisk_flush(void *handle, uint32_t flags)
{
	struct record r;

	if (begin(FLUSH, 0, 0, &r) < 0 || record_request(&r, NULL, 0) < 0)
		return -1;
	return finish(&r);
}

static struct nbdkit_plugin plugin = {
	.name = "slowdisk",
	.config = slowdisk_config,
	.config_help =
		"size= rate= near= seekmin= seekmax= rot= stall= weio= reio= feio= enospc= "
		"vanish= ctl=FILE log=FILE record=FILE",
	.get_ready = slowdisk_get_ready,
	.unload = slowdisk_unload,
	.open = slowdisk_open,
	.get_size = slowdisk_get_size,
	.can_multi_conn = slowdisk_can_multi_conn,
	.pread = slowdisk_pread,
	.pwrite = slowdisk_pwrite,
	.trim = slowdisk_trim,
	.flush = slowdisk_flush,
};

NBDKIT_REGISTER_PLUGIN(plugin)
