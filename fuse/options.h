/* options.h - the command line of a mount, also as mount(8) gives it to its helper.
 *
 *   pacefs SOURCE MOUNTPOINT [-o a,b=c] [-f] [-d]
 *   mount.fuse.pacefs SOURCE MOUNTPOINT [-sfnv] [-o a,b=c]   (there -f means: only pretend)
 *
 * Every setting of settings.h is an option. Options that belong to fstab and systemd are
 * accepted and ignored; anything else unknown is refused with the nearest name.
 */
#ifndef PACEFS_FUSE_OPTIONS_H
#define PACEFS_FUSE_OPTIONS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "fuse/settings.h"

#define OPTIONS_CACHE_LEAST (4ull << 20)
#define OPTIONS_MAX_WRITE_LEAST 4096
#define OPTIONS_MAX_WRITE_MOST (1u << 20)

enum io_engine { IO_ENGINE_URING, IO_ENGINE_SYNC };

struct options {
	char source[PATH_MAX];	/* absolute when it exists, else as typed; never resolved
				    * further, because it is what people see in findmnt */
	const char *mountpoint; /* as typed, points into argv; see mount_resolve() */
	bool foreground;	/* -f */
	bool debug;		/* -d, implies foreground */
	bool fake;		/* mount(8) wants everything but the mount */
	bool raw;		/* serve the block device itself as one file */
	bool allow_other;	/* default: as root */
	bool read_only;
	bool flush_on_close; /* close(2) waits until the file is written */
	enum io_engine io_engine;
	uint64_t cache_bytes; /* the default, or what was asked for */
	uint32_t max_write;   /* bytes, 0 = by the device's speed */
	char kernel_options
		[256]; /* generic mount flags in their order: "noatime,nodev" or "" */
	struct settings settings; /* defaults with the options over them, checked */
};

/* What the caller does next. */
enum options_verdict {
	OPTIONS_RUN,	 /* mount */
	OPTIONS_DONE,	 /* help or version was printed: exit 0 */
	OPTIONS_REFUSED, /* one line was printed: exit 1 */
};

/* argv may be permuted. *ret_options is set only for OPTIONS_RUN. */
enum options_verdict options_parse(int argc, char **argv, struct options *ret_options);

/* min(RAM/16, 256 MiB), whole pages */
uint64_t options_default_cache_bytes(void);

#endif
