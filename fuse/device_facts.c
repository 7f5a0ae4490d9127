#include "fuse/device_facts.h"

#include <fcntl.h>
#include <libmount.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* btrfs and others show a number of their own as st_dev: the mount table names the device. */
static dev_t device_of_mount(dev_t dev, const char *path)
{
	struct libmnt_table *table = mnt_new_table_from_file("/proc/self/mountinfo");
	struct libmnt_cache *cache = mnt_new_cache();
	struct stat st;

	if (table && cache) {
		char *target = mnt_get_mountpoint(path);
		struct libmnt_fs *fs =
			target ? mnt_table_find_target(table, target, MNT_ITER_BACKWARD) : NULL;
		const char *source = fs ? mnt_fs_get_srcpath(fs) : NULL;
		if (source && stat(source, &st) == 0 && S_ISBLK(st.st_mode))
			dev = st.st_rdev;
		free(target);
	}
	mnt_unref_cache(cache);
	mnt_unref_table(table);
	return dev;
}

void device_facts_read(dev_t dev, const char *path, struct device_facts *ret_facts)
{
	char link[64], *real;

	memset(ret_facts, 0, sizeof(*ret_facts));
	if (major(dev) == 0)
		dev = device_of_mount(dev, path);
	snprintf(link, sizeof(link), "/sys/dev/block/%u:%u", major(dev), minor(dev));
	real = realpath(link, NULL);
	if (!real)
		return;
	ret_facts->block = true;
	const char *base = strrchr(real, '/');
	snprintf(
		ret_facts->name, sizeof(ret_facts->name), "/dev/%.200s", base ? base + 1 : "?");
	free(real);
}

double device_facts_prior(const struct device_facts *facts)
{
	return facts->block ? 4e6 : 50e6;
}
