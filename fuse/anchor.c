#include "fuse/anchor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/loop.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum {
	/* never read or written; some tools dislike an empty device */
	ANCHOR_BYTES = 65536,
	ANCHOR_NAME_MAX = 200,
	BACKING_NAME_SIZE = NAME_MAX + 16,
	ANCHOR_TRIES = 100, /* names taken, or loop devices lost to somebody quicker */
};

/* "/mnt/usb" -> "mnt-usb"; what a shell or mountinfo would have to escape becomes "_". */
static void name_of_source(const char *source, char *name, size_t size)
{
	size_t length = strlen(source);
	size_t at = 0;

	while (*source == '/')
		source++, length--;
	/* Of a very long path the end says more than the beginning. */
	if (length > ANCHOR_NAME_MAX)
		source += length - ANCHOR_NAME_MAX;
	for (; *source && at + 1 < size; source++) {
		unsigned char c = (unsigned char)*source;

		if (c == '/')
			c = '-';
		else if (c <= ' ' || c == 0x7f || strchr("\\,'\"", c))
			c = '_';
		name[at++] = (char)c;
	}
	while (at > 0 && name[at - 1] == '-')
		at--;
	name[at] = '\0';
	if (at == 0 || name[0] == '.')
		snprintf(name, size, "root");
}

/* ".mnt-usb.anchor": what the backing file of a node is called while it has a name. */
static void name_of_backing(const char *name, char *backing, size_t size)
{
	snprintf(backing, size, ".%s.anchor", name);
}

/* Does the loop device dev serve the anchor called name? Its (unlinked) backing file
 * tells. */
static bool loop_serves(dev_t dev, const char *name)
{
	char path[96];
	char backing[BACKING_NAME_SIZE];
	char want[BACKING_NAME_SIZE + 16];
	char line[PATH_MAX] = "";

	snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/loop/backing_file", major(dev),
		minor(dev));
	FILE *file = fopen(path, "re");
	if (!file)
		return false;
	const char *base = fgets(line, sizeof(line), file) ? strrchr(line, '/') : NULL;
	fclose(file);
	name_of_backing(name, backing, sizeof(backing));
	snprintf(want, sizeof(want), "/%s (deleted)\n", backing);
	return base && strcmp(base, want) == 0;
}

/* A node is left over when its loop device is gone or serves somebody else by now. */
static bool node_is_stale(int dir, const char *name)
{
	struct stat st;

	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return false;
	return S_ISBLK(st.st_mode) && !loop_serves(st.st_rdev, name);
}

static void sweep(int dir)
{
	int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *entries = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *entry;

	if (!entries) {
		if (copy >= 0)
			close(copy);
		return;
	}
	while ((entry = readdir(entries)))
		if (node_is_stale(dir, entry->d_name))
			unlinkat(dir, entry->d_name, 0);
	closedir(entries);
}

/* A few pages of nothing, gone from the directory before anyone can stumble over it. */
static int create_backing(int dir, const char *name)
{
	char backing[BACKING_NAME_SIZE];

	name_of_backing(name, backing, sizeof(backing));
	unlinkat(dir, backing, 0); /* of a start that was killed right here */
	int fd = openat(dir, backing, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	int r = fd < 0 ? -errno : 0;
	if (fd >= 0)
		unlinkat(dir, backing, 0);
	if (fd >= 0 && ftruncate(fd, ANCHOR_BYTES) < 0) {
		r = -errno;
		close(fd);
	}
	return r < 0 ? r : fd;
}

static int open_free_loop(int control)
{
	char path[32];
	int number = ioctl(control, LOOP_CTL_GET_FREE);

	if (number < 0)
		return -errno;
	snprintf(path, sizeof(path), "/dev/loop%d", number);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

static int loop_over(int backing)
{
	struct loop_config config = {
		.fd = (__u32)backing,
		.block_size = ANCHOR_BLOCK_SIZE,
		.info.lo_flags = LO_FLAGS_AUTOCLEAR,
	};
	int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	int r = control < 0 ? -errno : -EBUSY;

	snprintf((char *)config.info.lo_file_name, sizeof(config.info.lo_file_name), "pacefs");
	/* Between "this one is free" and taking it somebody else may have taken it. */
	for (int i = 0; r == -EBUSY && i < ANCHOR_TRIES; i++) {
		int loop = open_free_loop(control);

		if (loop < 0) {
			r = loop;
		} else if (ioctl(loop, LOOP_CONFIGURE, &config) < 0) {
			r = -errno;
			close(loop);
		} else {
			r = loop;
		}
	}
	if (control >= 0)
		close(control);
	return r;
}

/* The loop device exists before its node: a node without one is always a left-over. */
static int create_named(int dir, const char *name, int *ret_loop)
{
	struct stat st;
	int backing = create_backing(dir, name);

	if (backing < 0)
		return backing;
	int loop = loop_over(backing);
	close(backing);
	if (loop < 0)
		return loop;
	int r = 0;
	if (fstat(loop, &st) < 0 || mknodat(dir, name, S_IFBLK | 0600, st.st_rdev) < 0)
		r = -errno;
	if (r < 0)
		close(loop);
	else
		*ret_loop = loop;
	return r;
}

static int create_unique(int dir, const char *name, struct anchor *ret_anchor)
{
	char unique[ANCHOR_NAME_MAX + 16];
	struct stat st;

	snprintf(unique, sizeof(unique), "%s", name);
	for (int i = 2; i < ANCHOR_TRIES; i++) {
		/* Do not spend a loop device on a name that is plainly taken. */
		bool taken = fstatat(dir, unique, &st, AT_SYMLINK_NOFOLLOW) == 0;
		int r = taken ? -EEXIST : create_named(dir, unique, &ret_anchor->fd);

		if (r == 0)
			snprintf(ret_anchor->node, sizeof(ret_anchor->node), "%s/%s",
				ANCHOR_DIR, unique);
		if (r != -EEXIST)
			return r;
		snprintf(unique, sizeof(unique), "%s.%d", name, i);
	}
	return -EEXIST;
}

static int open_anchor_dir(char *why, size_t why_size)
{
	struct statvfs fs;

	if (mkdir(ANCHOR_DIR, 0755) < 0 && errno != EEXIST)
		goto fail;
	int dir = open(ANCHOR_DIR, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		goto fail;
	if (fstatvfs(dir, &fs) == 0 && fs.f_flag & ST_NODEV) {
		close(dir);
		snprintf(why, why_size, "%s is on a mount with nodev", ANCHOR_DIR);
		return -EACCES;
	}
	return dir;
fail:;
	int r = -errno;
	snprintf(why, why_size, "%s cannot be used: %s", ANCHOR_DIR, strerror(-r));
	return r;
}

int anchor_create(const char *source, struct anchor *ret_anchor, char *why, size_t why_size)
{
	char name[ANCHOR_NAME_MAX + 1];
	struct anchor anchor = {.fd = -1};
	int dir = open_anchor_dir(why, why_size);

	if (dir < 0)
		return dir;
	sweep(dir);
	name_of_source(source, name, sizeof(name));
	int r = create_unique(dir, name, &anchor);
	close(dir);
	if (r < 0) {
		snprintf(why, why_size, "no loop device: %s", strerror(-r));
		return r;
	}
	*ret_anchor = anchor;
	return 0;
}

void anchor_remove_node(const char *node)
{
	if (node[0])
		unlink(node);
}
