#include "fuse/control.h"

#include "fuse/bdi.h"
#include "fuse/memory.h"
#include "fuse/node.h"
#include "fuse/ops.h"
#include "util/clock.h"
#include "util/log.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <utlist.h>

/* Figures, besides the settings. flush is the only one that can be set. */
static const char *const figures[] = {"write_bandwidth", "dirty", "writeback",
	"dirty_ratelimit", "pos_ratio", "writers", "stats", "flush", NULL};

bool control_is_name(fuse_ino_t parent, const char *name)
{
	return parent == NODEID_ROOT && strcmp(name, CONTROL_NAME) == 0;
}

bool control_is_master(uid_t uid)
{
	return uid == 0 || uid == geteuid();
}

bool control_is_xattr(const char *name)
{
	return strncmp(name, CONTROL_PREFIX, strlen(CONTROL_PREFIX)) == 0;
}

void control_stat(struct pacefs *p, struct stat *ret_stat)
{
	struct stat st = {
		.st_ino = NODEID_CONTROL,
		.st_mode = S_IFREG | 0644,
		.st_nlink = 1,
		.st_uid = geteuid(),
		.st_gid = getegid(),
		.st_blksize = PAGE_BYTES,
	};

	*ret_stat = st;
}

void control_entry(struct pacefs *p, struct fuse_entry_param *ret_entry)
{
	*ret_entry = (struct fuse_entry_param){
		.ino = NODEID_CONTROL,
		.attr_timeout = ops_attr_timeout(),
		.entry_timeout = ops_attr_timeout(),
	};
	control_stat(p, &ret_entry->attr);
}

/* ---- text ---- */

struct text {
	char *at;
	size_t left;
};

static void add(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(struct text *t, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	int n = vsnprintf(t->at, t->left, fmt, ap);
	va_end(ap);
	if (n < 0 || (size_t)n >= t->left) {
		*t->at = '\0'; /* a line that does not fit is left out whole */
		return;
	}
	t->at += n;
	t->left -= (size_t)n;
}

static void add_u64(struct text *t, const char *key, uint64_t value)
{
	add(t, "%s: %" PRIu64 "\n", key, value);
}

static uint64_t kib(double pages)
{
	return pages <= 0 || pages > 1e15 ? 0 : (uint64_t)(pages * (PAGE_BYTES / 1024));
}

/* In the order and with the names of the kernel's debugfs bdi stats. */
static void add_kernel_names(struct text *t, struct pacefs *p)
{
	const struct backing *b = &p->backing;
	const struct device *dev = &b->dev;
	double bdi_thresh =
		pacer_device_thresholds(&p->pacer, &b->pacing, clock_now_us()).thresh;
	const struct node *n;
	uint64_t io = 0, more_io = 0;

	DL_COUNT(dev->io, n, io);
	DL_COUNT(dev->more_io, n, more_io);

	add(t, "BdiWriteback: %" PRIu64 " kB\n", kib((double)dev->nr_writeback));
	add(t, "BdiReclaimable: %" PRIu64 " kB\n", kib((double)dev->nr_dirty));
	add(t, "BdiDirtyThresh: %" PRIu64 " kB\n", kib(bdi_thresh));
	add(t, "DirtyThresh: %" PRIu64 " kB\n", kib(p->pacer.thresh));
	add(t, "BackgroundThresh: %" PRIu64 " kB\n", kib(p->pacer.bg_thresh));
	add(t, "BdiDirtied: %" PRIu64 " kB\n", kib((double)dev->dirtied));
	add(t, "BdiWritten: %" PRIu64 " kB\n", kib((double)dev->written));
	add(t, "BdiWriteBandwidth: %" PRIu64 " kBps\n",
		kib(b->pacing.throttle.avg_write_bandwidth));
	add_u64(t, "b_dirty", dev->nr_dirty_nodes - io - more_io);
	add_u64(t, "b_io", io);
	add_u64(t, "b_more_io", more_io);
	add_u64(t, "b_unclean", dev->nr_unclean);
}

static uint64_t silent_us(const struct device *dev, uint64_t now_us)
{
	uint64_t since = dev->busy.progress_us;

	if (!dev->busy.counted_us || now_us - since < US_PER_S)
		return 0;
	return now_us - since;
}

static void add_health(struct text *t, const struct device *dev, uint64_t now_us)
{
	static const char *const names[] = {
		[DEVICE_HEALTHY] = "healthy",
		[DEVICE_FAILING] = "failing",
		[DEVICE_GONE] = "gone",
	};

	add(t, "health: %s\n", names[dev->health]);
	add_u64(t, "error_us", dev->error_us ? now_us - dev->error_us : 0);
	add_u64(t, "parked", dev->parked);
}

static void add_amounts(struct text *t, struct pacefs *p, uint64_t now_us)
{
	const struct backing *b = &p->backing;
	const struct device *dev = &b->dev;
	double limit = pacer_limit(&p->pacer, &b->pacing);
	double bw = b->pacing.reference_bw;
	uint64_t bg = dev->bg_pages < dev->bg_time_pages ? dev->bg_pages : dev->bg_time_pages;

	add_u64(t, "dirty_bytes", dev->nr_dirty * PAGE_BYTES);
	add_u64(t, "writeback_bytes", dev->nr_writeback * PAGE_BYTES);
	add_u64(t, "limit_bytes", (uint64_t)limit * PAGE_BYTES);
	add_u64(t, "background_bytes", bg * PAGE_BYTES);
	add_u64(t, "limit_centisecs", (uint64_t)(limit / bw * 100));
	add_u64(t, "write_bandwidth", (uint64_t)(bw * PAGE_BYTES));
	add_u64(t, "bandwidth_measured", throttle_confidence(&b->pacing.throttle) >= 0.5);
	add_u64(t, "dirty_ratelimit",
		(uint64_t)(b->pacing.throttle.dirty_ratelimit * PAGE_BYTES));
	add(t, "pos_ratio: %.3f\n", b->pacing.verdict.pos_ratio);
	add_u64(t, "written_bytes", dev->written * PAGE_BYTES);
	add_u64(t, "direct_bytes", dev->direct_bytes);
	add_u64(t, "buffered_bytes", dev->buffered_bytes);
	add_u64(t, "fill_reads", dev->fill_reads);
	add_u64(t, "clean_bytes", p->dom.nr_clean * PAGE_BYTES);
	add_u64(t, "cache_bytes", (uint64_t)p->dom.arena.nr_frames * PAGE_BYTES);
	add_u64(t, "mapping_bytes", p->dom.map_bytes);
	add_u64(t, "silent_us", silent_us(dev, now_us));
	add_u64(t, "stalls", dev->busy.nr_stalls);
	add_health(t, dev, now_us);
	add_u64(t, "errors", dev->errors);
	add_u64(t, "lost_bytes", dev->lost_bytes);
	add_u64(t, "killed_lost_files", p->loss.files);
	add_u64(t, "killed_lost_bytes", p->loss.bytes);
	add_u64(t, "retries", dev->retries);
	add_u64(t, "foreign_changes", dev->foreign_changes);
	add_u64(t, "foreign_collisions", dev->foreign_collisions);
	add_u64(t, "dirty_met_evicting", p->dom.dirty_met_evicting);
}

static void add_pacing(struct text *t, struct pacefs *p, uint64_t now_us)
{
	const struct pacer_counters *c = &p->pacer.counters;
	unsigned paced = 0;

	for (const struct writer *w = p->backing.pacing.writers.table; w; w = w->hh.next)
		paced += w->paused_us && now_us - w->paused_us < US_PER_S;
	add_u64(t, "writers_paced", paced);
	add_u64(t, "writers_queued", p->pacer.nr_queued);
	add_u64(t, "held_replies", p->pacer.nr_heap + p->pacer.nr_queued);
	add_u64(t, "held_bytes", p->writes.held_pages * PAGE_BYTES);
	add_u64(t, "max_dirty_bytes", c->max_dirty_pages * PAGE_BYTES);
	add_u64(t, "over_limit_pages", c->over_limit_pages);
	add_u64(t, "mmap_bytes", c->forced_pages * PAGE_BYTES);
	add_u64(t, "pauses", c->pauses);
	add_u64(t, "pause_us", c->pause_us);
	add_u64(t, "max_pause_us", c->max_pause_us);
	add_u64(t, "max_held_us", p->writes.max_held_us);
	add(t, "pause_histogram_ms:");
	for (unsigned i = 0; i < 9; i++)
		add(t, " %" PRIu64, c->pause_histogram[i]);
	add(t, "\n");
	add_u64(t, "queued", c->queued);
	add_u64(t, "queue_us", c->queue_us);
	add_u64(t, "freerun", c->freerun);
	add_u64(t, "exempt", c->exempt);
	add_u64(t, "blocked", c->blocked);
	add_u64(t, "interrupts", p->writes.interrupts);
}

static void add_writers(struct text *t, struct pacefs *p, uid_t uid, uint64_t now_us)
{
	for (const struct writer *w = p->backing.pacing.writers.table; w; w = w->hh.next)
		if (now_us - w->last_us < US_PER_S && (w->uid == uid || control_is_master(uid)))
			add(t, "writer: %s %d %" PRIu64 "\n", w->comm[0] ? w->comm : "?",
				w->pid, (uint64_t)(w->throttle.rate * PAGE_BYTES));
}

/* A limit larger than the cache asks for more memory than that. */
static void add_memory(struct text *t, const struct pacefs *p, uint64_t resident)
{
	uint64_t cache = p->dom.cache_frames;

	if ((double)cache < pacer_domain_limit(&p->pacer))
		cache = (uint64_t)pacer_domain_limit(&p->pacer);
	add_u64(t, "memory_bytes", resident);
	add_u64(t, "memory_ceiling_bytes",
		memory_ceiling_bytes(cache * PAGE_BYTES, p->dom.nr_held * PAGE_BYTES));
}

/* Names are for those who may see all files. */
static void add_lost(struct text *t, const struct lost *lost, uid_t uid)
{
	enum { MOST = 1000 }; /* more would not fit */
	const char *name;
	struct lost_range range;

	add_u64(t, "lost_files", lost->nr_files);
	add_u64(t, "lost_ranges", lost->nr_ranges);
	for (unsigned at = 0; at < MOST && lost_next(lost, &at, &name, &range);)
		add(t, "lost: %s %" PRIu64 " %" PRIu64 "\n",
			control_is_master(uid) ? name : "?", range.from, range.to);
}

int control_stats(struct pacefs *p, uid_t uid, char *text, size_t size)
{
	struct text t = {.at = text, .left = size};
	uint64_t now = clock_now_us();
	uint64_t resident = memory_resident_bytes();

	text[0] = '\0';
	domain_lock(&p->dom);
	add_kernel_names(&t, p);
	add_amounts(&t, p, now);
	add_memory(&t, p, resident);
	add_pacing(&t, p, now);
	add_u64(&t, "fuseblk", p->mount.fuseblk);
	add(&t, "device: %s\n", p->backing.dev.name);
	add(&t, "source: %s\n", p->options.source);
	add(&t, "io: %s%s\n", p->backing.flusher.engine->ops->name,
		p->backing.store.buffered ? ", buffered" : "");
	add_u64(&t, "daemon_pid", (uint64_t)getpid());
	add_writers(&t, p, uid, now);
	add_lost(&t, &p->backing.flusher.lost, uid);
	domain_unlock(&p->dom);
	return (int)(t.at - text);
}

/* ---- flush ---- */

static void *flush_main(void *arg)
{
	struct pacefs *p = arg;

	domain_lock(&p->dom);
	while (p->flush_done < p->flush_started) {
		uint64_t target = p->flush_started;
		domain_unlock(&p->dom);
		int ret = pacefs_sync(p);
		domain_lock(&p->dom);
		p->flush_failed = ret < 0;
		p->flush_done = target;
	}
	p->flush_running = false;
	pthread_cond_broadcast(&p->dom.progress);
	domain_unlock(&p->dom);
	return NULL;
}

void control_stop(struct pacefs *p)
{
	domain_lock(&p->dom);
	while (p->flush_running)
		pthread_cond_wait(&p->dom.progress, &p->dom.lock);
	domain_unlock(&p->dom);
}

int control_flush(struct pacefs *p)
{
	pthread_t thread;
	int ret = 0;

	domain_lock(&p->dom);
	if (!p->flush_running)
		ret = pthread_create(&thread, NULL, flush_main, p);
	if (ret == 0) {
		if (!p->flush_running)
			pthread_detach(thread);
		p->flush_running = true;
		p->flush_started++;
	}
	domain_unlock(&p->dom);
	return -ret;
}

/* ---- get and set ---- */

static ssize_t get_figure(struct pacefs *p, const char *name, char *text, size_t size)
{
	const struct backing *b = &p->backing;
	double bw = b->pacing.reference_bw;
	uint64_t value;

	if (strcmp(name, "flush") == 0)
		return snprintf(text, size, "%" PRIu64 " %" PRIu64 " %" PRIu64,
			p->flush_started, p->flush_done,
			b->dev.errors + (p->flush_failed || b->dev.parked));
	if (strcmp(name, "pos_ratio") == 0)
		return snprintf(text, size, "%.3f", b->pacing.verdict.pos_ratio);
	if (strcmp(name, "write_bandwidth") == 0)
		value = (uint64_t)(bw * PAGE_BYTES);
	else if (strcmp(name, "dirty") == 0)
		value = b->dev.nr_dirty * PAGE_BYTES;
	else if (strcmp(name, "writeback") == 0)
		value = b->dev.nr_writeback * PAGE_BYTES;
	else if (strcmp(name, "dirty_ratelimit") == 0)
		value = (uint64_t)(b->pacing.throttle.dirty_ratelimit * PAGE_BYTES);
	else if (strcmp(name, "writers") == 0)
		value = b->dev.nr_dirty || p->backing.pacing.writers.table
			? b->pacing.summary.nr_active - (b->pacing.writers.table == NULL)
			: 0;
	else
		return -ENODATA;
	return snprintf(text, size, "%" PRIu64, value);
}

static struct settings gather(const struct pacefs *p)
{
	return (struct settings){
		.device = p->backing.pacing.settings, .domain = p->pacer.settings};
}

ssize_t control_get(struct pacefs *p, uid_t uid, const char *name, char *text, size_t size)
{
	name += strlen(CONTROL_PREFIX);
	if (strcmp(name, "stats") == 0)
		return control_stats(p, uid, text, size);
	domain_lock(&p->dom);
	struct settings s = gather(p);
	ssize_t n = settings_get(&s, name, text, size);
	if (n == -ENODATA)
		n = get_figure(p, name, text, size);
	domain_unlock(&p->dom);
	return n;
}

static bool is_figure(const char *name)
{
	for (const char *const *f = figures; *f; f++)
		if (strcmp(*f, name) == 0)
			return true;
	return false;
}

static int set_setting(struct pacefs *p, const char *name, const char *value)
{
	char message[512];

	domain_lock(&p->dom);
	struct settings s = gather(p);
	int ret = settings_set(&s, name, value, (uint64_t)p->dom.cache_frames * PAGE_BYTES,
		message, sizeof(message));
	if (ret == 0) {
		p->backing.pacing.settings = s.device;
		p->pacer.settings = s.domain;
		writes_settings_changed(p);
	}
	domain_unlock(&p->dom);
	if (ret < 0) {
		log_warn("%s", message);
		return -EINVAL;
	}
	writes_warn_of_clamp(p);
	bdi_bound(p);
	log_info("%s set to %s", name, value);
	return 0;
}

int control_set(fuse_req_t req, const char *name, const char *value, size_t size)
{
	struct pacefs *p = pacefs_of(req);
	uid_t uid = fuse_req_ctx(req)->uid;
	char text[64];

	name += strlen(CONTROL_PREFIX);
	if (!control_is_master(uid))
		return -EPERM;
	if (size >= sizeof(text)) {
		log_warn("%s rejected: need a value shorter than %zu characters", name,
			sizeof(text));
		return -EINVAL;
	}
	memcpy(text, value, size);
	text[size] = '\0';
	if (size && text[size - 1] == '\n')
		text[size - 1] = '\0';
	if (strcmp(name, "flush") == 0) {
		if (strcmp(text, "1") != 0) {
			log_warn("flush=%s rejected: need 1, which starts a flush", text);
			return -EINVAL;
		}
		return control_flush(p);
	}
	if (is_figure(name))
		return -EPERM;
	return set_setting(p, name, text);
}

static size_t list_one(const char *name, char *names, size_t size, size_t used)
{
	int n = snprintf(names + used, size - used, CONTROL_PREFIX "%s", name);

	return used + (size_t)n + 1;
}

ssize_t control_list(char *names, size_t size)
{
	size_t used = 0;

	for (const char *const *n = settings_names(); *n; n++)
		used = list_one(*n, names, size, used);
	for (const char *const *f = figures; *f; f++)
		used = list_one(*f, names, size, used);
	return (ssize_t)used;
}
