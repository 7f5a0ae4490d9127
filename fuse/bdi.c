#include "fuse/bdi.h"

#include "util/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* In bytes; 0: unknown. */
static uint64_t kernel_dirty_limit(void)
{
	/* nr_dirty_threshold, in pages, is what max_ratio is a percentage of. */
	char line[128];
	uint64_t pages = 0;
	FILE *f = fopen("/proc/vmstat", "re");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "nr_dirty_threshold %" SCNu64, &pages) == 1)
			break;
	if (f)
		fclose(f);
	return pages * PAGE_BYTES;
}

static bool set(const struct mount *m, const char *knob, uint64_t value)
{
	char path[128], text[32];

	snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u%s/%s", major(m->dev), minor(m->dev),
		m->fuseblk ? "-fuseblk" : "", knob);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	int n = snprintf(text, sizeof(text), "%" PRIu64, value);
	bool done = write(fd, text, (size_t)n) == n;
	if (!done)
		log_debug("%s: %s", path, strerror(errno));
	close(fd);
	return done;
}

/* Percents are coarse: round up, 1 % at least. */
static void set_percent(const struct mount *m, uint64_t bytes)
{
	uint64_t whole = kernel_dirty_limit();
	uint64_t percent = whole ? (bytes * 100 + whole - 1) / whole : 1;

	set(m, "max_ratio", percent < 1 ? 1 : percent > 100 ? 100 : percent);
}

static uint64_t share_of_limit(struct pacefs *p)
{
	domain_lock(&p->dom);
	double pages = fmin(p->pacer.thresh, p->backing.pacing.cap_pages);
	domain_unlock(&p->dom);

	uint64_t limit = (uint64_t)fmax(pages, 1) * PAGE_BYTES;
	uint64_t least = limit / 2 < BDI_LEAST_BYTES ? limit / 2 : BDI_LEAST_BYTES;
	return limit / 8 > least ? limit / 8 : least;
}

static void bound(struct pacefs *p, uint64_t bytes)
{
	if (p->mount.dev && !set(&p->mount, "max_bytes", bytes))
		set_percent(&p->mount, bytes);
}

void bdi_bound(struct pacefs *p)
{
	bound(p, share_of_limit(p));
}

void bdi_follow(struct pacefs *p)
{
	uint64_t now = share_of_limit(p), then = p->bdi.bytes;

	if (now <= then + then / 8 && now >= then - then / 8)
		return;
	p->bdi.bytes = now;
	bound(p, now);
}
