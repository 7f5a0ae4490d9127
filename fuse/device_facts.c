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

/* sysfs: directory of a disk or of a partition, whose queue is its disk's. */
static bool disk_seeks(const char *sysfs)
{
	static const char *const places[] = {"queue/rotational", "../queue/rotational"};
	char name[4096 + 32];

	for (int i = 0; i < 2; i++) {
		snprintf(name, sizeof(name), "%.4095s/%s", sysfs, places[i]);
		FILE *f = fopen(name, "re");
		if (!f)
			continue;
		int c = fgetc(f);
		fclose(f);
		return c != '0';
	}
	return true;
}

void device_facts_read(dev_t dev, const char *path, struct device_facts *ret_facts)
{
	char link[64], *real;

	memset(ret_facts, 0, sizeof(*ret_facts));
	ret_facts->seeks = true;
	if (major(dev) == 0)
		dev = device_of_mount(dev, path);
	snprintf(link, sizeof(link), "/sys/dev/block/%u:%u", major(dev), minor(dev));
	real = realpath(link, NULL);
	if (!real)
		return;
	ret_facts->block = true;
	ret_facts->seeks = disk_seeks(real);
	const char *base = strrchr(real, '/');
	snprintf(
		ret_facts->name, sizeof(ret_facts->name), "/dev/%.200s", base ? base + 1 : "?");
	free(real);
}

double device_facts_prior(const struct device_facts *facts)
{
	return facts->block ? 4e6 : 50e6;
}
