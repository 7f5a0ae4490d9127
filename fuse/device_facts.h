/* device_facts.h - what can be known of a device before anything is written to it. */
#ifndef PACEFS_FUSE_DEVICE_FACTS_H
#define PACEFS_FUSE_DEVICE_FACTS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct device_facts {
	char name[256]; /* /dev/sdb1, or "" when it is no block device */
	bool block;	/* a block device at all (not tmpfs, network, FUSE) */
	bool seeks;	/* time is lost by going from file to file: see below */
};

/* seeks is what the kernel says of the whole disk (queue/rotational; device mapper and RAID pass it
 * on), and yes where nobody knows: what is called unknown may be a disk behind a network or a
 * FUSE file system. A wrong no costs up to a third of a disk that many write to; a wrong yes
 * changes nothing but the order in which files are written. USB sticks say yes as a rule, and
 * that is right: they too are faster with longer runs of one file. */

/* dev: st_dev of path, or st_rdev of a raw device. path: where to look in the mount table when the
 * filesystem has no device number of its own; read before anything is mounted over it. Nothing
 * known is no error. */
void device_facts_read(dev_t dev, const char *path, struct device_facts *ret_facts);

/* Bandwidth believed at first, bytes/s. Low on purpose for every block device: a stick does not
 * always say that it is one, writing early is harmless, and the first fifth of a second of
 * writing corrects it. Late is not harmless: 64 MB dirty at once are a minute of an old stick. */
double device_facts_prior(const struct device_facts *facts);

#endif
