#include "fuse/device_facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

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
}

double device_facts_prior(const struct device_facts *facts)
{
	return facts->block ? 4e6 : 50e6;
}
