#include "fuse/device_facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static int read_flag(const char *dir, const char *name)
{
	char path[600];
	int value = -1;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	FILE *f = fopen(path, "re");
	if (f) {
		if (fscanf(f, "%d", &value) != 1)
			value = -1;
		fclose(f);
	}
	return value;
}

void device_facts_read(dev_t dev, struct device_facts *ret_facts)
{
	char link[64], where[512], *base;

	memset(ret_facts, 0, sizeof(*ret_facts));
	snprintf(link, sizeof(link), "/sys/dev/block/%u:%u", major(dev), minor(dev));
	char *real = realpath(link, NULL);
	if (!real)
		return;
	snprintf(where, sizeof(where), "%s", real);
	free(real);
	ret_facts->block = true;
	base = strrchr(where, '/');
	snprintf(ret_facts->name, sizeof(ret_facts->name), "/dev/%.200s", base ? base + 1 : "?");
	/* A partition has its queue in the disk above it. */
	int rotational = read_flag(where, "queue/rotational");
	if (rotational < 0)
		rotational = read_flag(where, "../queue/rotational");
	ret_facts->slow = rotational == 1 || strstr(where, "/usb") || strstr(where, "/mmc_host");
}

double device_facts_prior(const struct device_facts *facts)
{
	return facts->block && facts->slow ? 4e6 : 50e6;
}
