/* device_facts.h - what can be known of a device before anything is written to it. */
#ifndef PACEFS_FUSE_DEVICE_FACTS_H
#define PACEFS_FUSE_DEVICE_FACTS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct device_facts {
	char name[256];      /* /dev/sdb1, or "" when it is no block device */
	bool block;          /* a block device at all (not tmpfs, network, FUSE) */
	bool slow;           /* rotational, USB or SD card */
};

void device_facts_read(dev_t dev, struct device_facts *ret_facts);

/* Bandwidth believed at first, bytes/s. Low on purpose: starting to write early is harmless,
 * late is not (64 MB dirty at once are a minute of an old stick). */
double device_facts_prior(const struct device_facts *facts);

#endif
