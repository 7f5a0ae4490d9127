/* device_facts.h - what can be known of a device before anything is written to it. */
#ifndef PACEFS_FUSE_DEVICE_FACTS_H
#define PACEFS_FUSE_DEVICE_FACTS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct device_facts {
	char name[256]; /* /dev/sdb1, or "" when it is no block device */
	bool block;	/* a block device at all (not tmpfs, network, FUSE) */
};

/* dev: st_dev of path, or st_rdev of a raw device. path: where to look in the mount table when the
 * filesystem has no device number of its own; read before anything is mounted over it. Nothing
 * known is no error. */
void device_facts_read(dev_t dev, const char *path, struct device_facts *ret_facts);

/* Bandwidth believed at first, bytes/s. Low on purpose for every block device: a stick does not
 * always say that it is one, writing early is harmless, and the first fifth of a second of
 * writing corrects it. Late is not harmless: 64 MB dirty at once are a minute of an old stick. */
double device_facts_prior(const struct device_facts *facts);

#endif
