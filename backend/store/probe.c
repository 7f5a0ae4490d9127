/* probe.c - is the device still there? A failed write may be the write's fault; a device that is
 * pulled has no name, no size, or answers nothing at all. */
#include "backend/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { PROBE_BYTES = 4096 }; /* a multiple of every sector size */

/* One read at its start, or one in its middle: a bad sector is not a missing device. */
static bool reads(int fd, uint64_t size)
{
	void *buf = aligned_alloc(PROBE_BYTES, PROBE_BYTES);
	bool ok = !buf || pread(fd, buf, PROBE_BYTES, 0) > 0 ||
		pread(fd, buf, PROBE_BYTES, (off_t)(size / 2 / PROBE_BYTES * PROBE_BYTES)) > 0;

	free(buf);
	return ok;
}

static enum store_presence ask(const struct store *st)
{
	struct stat sb;
	uint64_t size = 0;

	int fd = open(st->device_path, O_RDONLY | O_DIRECT | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0) /* for others than root it is: they may not look */
		return errno == EACCES || errno == EPERM || errno == EMFILE ||
				errno == ENFILE || errno == ENOMEM
			? STORE_UNKNOWN
			: STORE_GONE;
	/* Something else may have its name by now. */
	bool there = fstat(fd, &sb) == 0 && S_ISBLK(sb.st_mode) && sb.st_rdev == st->device &&
		ioctl(fd, BLKGETSIZE64, &size) == 0 && size > 0 &&
		(!st->raw || size >= st->raw_size) && reads(fd, size);
	close(fd);
	return there ? STORE_THERE : STORE_GONE;
}

static enum store_presence ask_kernel(const struct store *st)
{
	char path[64];

	snprintf(path, sizeof(path), "/sys/dev/block/%u:%u", major(st->device),
		minor(st->device));
	return access(path, F_OK) == 0 ? STORE_THERE
		: errno == ENOENT      ? STORE_GONE
				       : STORE_UNKNOWN;
}

enum store_presence store_look_for_device(const struct store *st)
{
	if (!st->device_path[0])
		return STORE_UNKNOWN;
	enum store_presence kernel = ask_kernel(st);
	if (kernel == STORE_GONE || !st->device_read)
		return kernel;
	return ask(st);
}

void store_watch_device(struct store *st, const char *path)
{
	struct stat sb;

	st->device_path[0] = '\0';
	if (!path[0] || stat(path, &sb) < 0 || !S_ISBLK(sb.st_mode))
		return;
	/* Filesystems such as btrfs have numbers of their own. */
	st->device = sb.st_rdev;
	if (ask_kernel(st) != STORE_THERE)
		return;
	snprintf(st->device_path, sizeof(st->device_path), "%s", path);
	st->device_read = ask(st) == STORE_THERE;
}
