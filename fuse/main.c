/* main.c - the program: commands, or one mount from start to verdict. */
#include "fuse/bdi.h"
#include "fuse/commands.h"
#include "fuse/control.h"
#include "fuse/crash.h"
#include "fuse/device_facts.h"
#include "fuse/memory.h"
#include "fuse/node.h"
#include "fuse/ops.h"
#include "fuse/pacefs.h"
#include "fuse/session.h"
#include "fuse/signals.h"
#include "fuse/umount_helper.h"
#include "util/log.h"
#include "util/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static struct pacefs pacefs;
static char mountpoint[PATH_MAX];

/* ---- source ---- */

/* A mistyped command looks like a source that does not exist. */
static const char *nearest_command(const char *source)
{
	const char *slash = strrchr(source, '/');

	return parse_nearest(slash ? slash + 1 : source, commands_names());
}

static int open_source(struct pacefs *p, struct stat *st)
{
	const char *source = p->options.source;
	int flags = O_CLOEXEC | (p->options.raw ? O_RDWR : O_PATH);

	if (stat(source, st) < 0) {
		int ret = -errno;
		const char *command = nearest_command(source);
		log_error("%s: %s; the source must be an existing directory%s%s%s", source,
			strerror(-ret),
			p->options.raw ? ", or with -o raw a device or file" : "",
			command ? "; or was the command meant: " : "", command ? command : "");
		return ret;
	}
	if (p->options.raw && !S_ISBLK(st->st_mode) && !S_ISREG(st->st_mode)) {
		log_error("%s: -o raw needs a block device or an image file", source);
		return -EINVAL;
	}
	if (!p->options.raw && !S_ISDIR(st->st_mode)) {
		log_error(
			"%s is not a directory; mount it first and give its mountpoint, or use "
			"-o raw to show it as one file",
			source);
		return -ENOTDIR;
	}
	if (p->options.raw && p->options.read_only)
		flags = O_CLOEXEC | O_RDONLY;
	int fd = open(source, flags);
	if (fd < 0) {
		int ret = -errno;
		log_error("%s: cannot be opened: %s", source, strerror(-ret));
		return ret;
	}
	return fd;
}

static int prepare_backing(struct pacefs *p, int source_fd, const struct stat *st)
{
	struct backing *b = &p->backing;
	struct device_facts facts;
	struct store_engine *engine;
	dev_t dev = S_ISBLK(st->st_mode) ? st->st_rdev : st->st_dev;

	device_facts_read(dev, p->options.source, &facts);
	b->pacing.prior_bw = device_facts_prior(&facts) / PAGE_BYTES;
	pthread_mutex_init(&b->space.through_lock, NULL);
	b->pacing.settings = p->options.settings.device;
	/* 128 KiB keeps pauses and locks short on a slow device; what is no block device at all
	 * is memory or a network and takes the largest requests. */
	if (p->options.max_write == 0)
		p->options.max_write = facts.block ? 128 * 1024 : 1024 * 1024;
	int ret = device_init(
		&b->dev, &p->dom, dev, facts.block ? facts.name : p->options.source);
	b->dev.seeks = facts.seeks;
	if (ret == 0)
		ret = p->options.raw
			? store_raw_init(&b->store, source_fd, p->options.read_only)
			: store_tree_init(&b->store, source_fd, p->options.read_only);
	if (ret < 0)
		return ret;
	store_watch_device(&b->store, facts.block ? facts.name : "");
	ret = -ENOSYS;
	if (p->options.io_engine == IO_ENGINE_URING) {
		ret = store_uring_create(FLUSH_DEPTH, b->dev.kick_fd, &engine);
		if (ret < 0)
			log_warn("io_uring is not to be had (%s): plain system calls instead",
				strerror(-ret));
	}
	if (ret < 0)
		ret = store_sync_create(b->dev.kick_fd, &engine);
	return ret < 0 ? ret : flusher_start(&b->flusher, &b->dev, &b->store, engine);
}

/* ---- process ---- */

/* The daemon is in the way by which memory becomes free: it must not be made to wait for that,
 * nor be the first to be killed. */
static void protect_process(void)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	/* The caller's limit is its own matter; ours must not end the daemon. */
	struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
	setrlimit(RLIMIT_FSIZE, &none);
	signal(SIGXFSZ, SIG_IGN);
	memory_protect();
}

/* In the parent: its exit status says whether the mount answers. In the child: -1 or the
 * descriptor for the byte that says so. */
static int to_background(void)
{
	int ends[2];
	char ok = 1;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	pid_t pid = fork();
	if (pid < 0)
		return -errno;
	if (pid > 0) {
		close(ends[1]);
		ssize_t n;
		do {
			n = read(ends[0], &ok, 1);
		} while (n < 0 && errno == EINTR);
		_exit(n == 1 && ok == 0 ? 0 : 1);
	}
	close(ends[0]);
	setsid();
	return ends[1];
}

static void leave_terminal(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	log_to_syslog();
	if (null < 0)
		return;
	for (int fd = 0; fd <= 2; fd++)
		dup2(null, fd);
	close(null);
	if (chdir("/") < 0)
		log_debug("chdir: %s", strerror(errno));
}

/* ---- life ---- */

static int verdict(struct pacefs *p)
{
	const struct device *dev = &p->backing.dev;
	const struct lost *lost = &p->backing.flusher.lost;

	if (dev->errors == 0) {
		log_info("%s: safe to remove: all data written (%.1f MB), 0 errors",
			p->options.source, (double)dev->written * PAGE_BYTES / 1e6);
		return 0;
	}
	lost_log(lost);
	log_error("%s: not everything is on the disk: %" PRIu64 " errors, %" PRIu64
		  " bytes in %u files (%u ranges) not written, %.1f MB written",
		p->options.source, dev->errors, dev->lost_bytes, lost->nr_files,
		lost->nr_ranges, (double)dev->written * PAGE_BYTES / 1e6);
	return 1;
}

static const char *seconds_text(uint64_t centisecs, char *text, size_t size)
{
	snprintf(text, size, centisecs ? "%.2f s" : "off", (double)centisecs / 100);
	return text;
}

static void describe_start(const struct pacefs *p)
{
	const struct device_settings *s = &p->backing.pacing.settings;
	char background[32], limit[32];

	log_info("%s on %s, background %s, limit %s, at most %.0f MB (speed not yet measured, "
		 "assuming %.0f MB/s)",
		p->options.source, p->mount.mountpoint,
		seconds_text(s->dirty_background_centisecs, background, sizeof(background)),
		seconds_text(s->dirty_centisecs, limit, sizeof(limit)),
		pacer_limit(&p->pacer, &p->backing.pacing) * PAGE_BYTES / 1e6,
		p->backing.pacing.prior_bw * PAGE_BYTES / 1e6);
}

int pacefs_sync(struct pacefs *p)
{
	domain_lock(&p->dom);
	bool ended = p->ended;
	p->nr_syncing += !ended;
	domain_unlock(&p->dom);
	if (ended)
		return 0;
	int ret = flusher_sync(&p->backing.flusher);
	domain_lock(&p->dom);
	p->nr_syncing--;
	pthread_cond_broadcast(&p->dom.progress);
	domain_unlock(&p->dom);
	return ret;
}

/* Nobody new comes once it has ended; those who are at it still need the flusher. */
static void wait_for_syncing(struct pacefs *p)
{
	domain_lock(&p->dom);
	while (p->nr_syncing)
		pthread_cond_wait(&p->dom.progress, &p->dom.lock);
	domain_unlock(&p->dom);
}

void pacefs_end(struct pacefs *p)
{
	domain_lock(&p->dom);
	bool ended = p->ended;
	p->ended = true;
	domain_unlock(&p->dom);
	if (ended)
		return;
	flusher_drain(&p->backing.flusher);
	wait_for_syncing(p);
	p->status = verdict(p);
	if (p->status)
		lock_leave_verdict();
	mount_destroy(&p->mount, false);
	flusher_stop(&p->backing.flusher);
	crash_finish(p);
	nodes_close(p);
	store_finish(&p->backing.store);
	lock_release(&p->lock);
}

static int serve(struct pacefs *p, const struct mount_request *req)
{
	int ret = mount_create(req, &p->mount);
	if (ret < 0)
		return ret;
	ret = session_create(p, &pacefs_ops);
	if (ret < 0) {
		log_error("%s: libfuse cannot serve it: %s", p->options.source, strerror(-ret));
		mount_destroy(&p->mount, true);
		return ret;
	}
	ret = signals_start(p);
	if (ret < 0)
		log_warn("signals will not be heard: %s", strerror(-ret));
	bdi_bound(p);
	describe_start(p);
	if (!p->options.foreground)
		leave_terminal();
	ret = session_loop(p);
	if (ret < 0)
		log_error("%s: the connection broke: %s", p->options.source, strerror(-ret));
	/* umount -f, -l and an aborted connection send no DESTROY: what was accepted is written
	 * all the same. The source stays busy through our descriptors until then. */
	writes_stop(p);
	session_cut(p);
	pacefs_end(p);
	signals_stop(p);
	control_stop(p);
	session_destroy(p);
	mount_clear(&p->mount);
	return ret < 0 ? ret : p->status;
}

static uint32_t arena_frames(uint64_t cache_bytes)
{
	/* Address space, not memory: payloads of held requests and a limit raised later come on
	 * top of the cache. Half of the machine's memory is more than any limit may ask for. */
	uint64_t half = memory_machine_bytes() / PAGE_BYTES / 2;
	uint64_t want = cache_bytes / PAGE_BYTES * 2;

	if (want < half)
		want = half;
	if (want > UINT32_MAX / 16)
		want = UINT32_MAX / 16;
	return (uint32_t)want;
}

static int run(struct pacefs *p)
{
	struct mount_request req = {
		.source = p->options.source,
		.mountpoint = mountpoint,
		.read_only = p->options.read_only,
		.allow_other = p->options.allow_other,
		.kernel_options = p->options.kernel_options,
	};
	struct stat st, mst;

	int ret = mount_resolve(p->options.mountpoint, mountpoint, sizeof(mountpoint));
	if (ret < 0)
		return ret;
	int fd = open_source(p, &st);
	if (fd < 0)
		return fd;
	bool file = p->options.raw && stat(mountpoint, &mst) == 0 && S_ISREG(mst.st_mode);
	p->raw_at_root = file;
	req.root_mode = file ? S_IFREG : S_IFDIR;
	req.raw_block = p->options.raw && S_ISBLK(st.st_mode);
	p->ready_fd = -1;
	if (!p->options.foreground) {
		ret = to_background();
		if (ret < 0) {
			log_error("cannot go into the background: %s", strerror(-ret));
			return ret;
		}
		p->ready_fd = ret;
	}
	signals_block();
	protect_process();
	ret = mount_check(&req, fd, &p->lock);
	if (ret < 0)
		return ret;
	nodes_share_fds(p);
	p->dom.cache_frames = (uint32_t)(p->options.cache_bytes / PAGE_BYTES);
	ret = domain_init(&p->dom, p->dom.cache_frames, arena_frames(p->options.cache_bytes));
	if (ret == 0)
		ret = prepare_backing(p, fd, &st);
	if (ret == 0)
		ret = nodes_init(p, fd);
	if (ret == 0)
		crash_start(p, &st);
	if (ret == 0)
		ret = writes_start(p);
	if (ret < 0) {
		log_error("%s: cannot start: %s", p->options.source, strerror(-ret));
		return ret;
	}
	ret = serve(p, &req);
	crash_finish(p); /* a mount that never was has nothing to tell either */
	if (ret < 0)
		return ret;
	nodes_finish(p);
	device_finish(&p->backing.dev);
	domain_finish(&p->dom);
	return ret;
}

int main(int argc, char **argv)
{
	struct pacefs *p = &pacefs;

	/* By whatever name mount(8) and umount(8) have called it. */
	prctl(PR_SET_NAME, "pacefs", 0, 0, 0);
	if (argc > 0 && umount_helper_is(argv[0]))
		return umount_helper_main(argc, argv);
	if (argc > 1 && commands_is(argv[1]))
		return commands_main(argc, argv);
	switch (options_parse(argc, argv, &p->options)) {
	case OPTIONS_DONE:
		return 0;
	case OPTIONS_REFUSED:
		return 1;
	case OPTIONS_RUN:
		break;
	}
	p->is_root = geteuid() == 0;
	if (p->options.debug)
		log_set_level(LOG_LEVEL_DEBUG);
	return run(p) == 0 ? 0 : 1;
}
