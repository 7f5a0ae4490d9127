/* settings.h - the knobs: names, ranges, values. One table serves mount options and xattrs.
 *
 * Pure data and text, no lock: the caller guards the structs. Names carry no prefix here;
 * as an xattr each is "user.pacefs." + name.
 */
#ifndef PACEFS_FUSE_SETTINGS_H
#define PACEFS_FUSE_SETTINGS_H

#include "throttle/throttle.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Per device (a backing st_dev, or the raw device itself). */
struct device_settings {
	uint64_t dirty_background_centisecs; /* 0 = off, else 10..360000 */
	uint64_t dirty_centisecs;	     /* hard limit in time; 0 = off, else 10..360000 */
	bool limit_chosen;  /* false: it stays at twice the background or more */
	uint64_t max_bytes; /* hard limit in bytes; 0 = none, else >= 64 KiB */
	uint64_t min_ratio; /* percent 0..100, <= max_ratio */
	uint64_t max_ratio; /* percent 1..100 */
	bool strict_limit;
};

/* Daemon-wide. Of each bytes/ratio pair setting one zeroes the other, as in vm.dirty_*: exactly
 * one of the two is not 0. Until a background was chosen by name it is half of the limit. */
struct domain_settings {
	uint64_t dirty_bytes;		    /* 0 or >= 64 KiB */
	uint64_t dirty_ratio;		    /* percent of the cache, 1..100, or 0 */
	uint64_t dirty_background_bytes;    /* 0 or >= 4096 */
	uint64_t dirty_background_ratio;    /* 1..100, or 0 */
	bool background_chosen;		    /* false: the background follows the limit */
	uint64_t dirty_expire_centisecs;    /* 1..360000 */
	uint64_t dirty_writeback_centisecs; /* 0 = no periodic writeback */
	enum throttle_law law;
};

struct settings {
	struct device_settings device;
	struct domain_settings domain;
};

/* The defaults, each with its reason in settings.c. */
void settings_init(struct settings *s);

/* Set one by name. value is text (a size such as 64M where the unit is bytes).
 * cache_bytes: size of the cache, to compare ratio and byte limits with each other; 0 when
 * it is not known, then only like is compared with like.
 * Returns 0; -ENODATA for an unknown name; -EINVAL for a bad value or an impossible
 * combination (background >= limit), with one line naming value, range and unit in message.
 * On failure *s is unchanged. */
int settings_set(struct settings *s, const char *name, const char *value, uint64_t cache_bytes,
	char *message, size_t message_size);

/* The two halves of settings_set(), for a command line, where the order of a pair must not
 * matter: assign every option first, check the whole once at the end. Returns and message
 * as above; settings_assign() looks at name and value only. */
int settings_assign(struct settings *s, const char *name, const char *value, char *message,
	size_t message_size);
int settings_check(
	const struct settings *s, uint64_t cache_bytes, char *message, size_t message_size);

/* Whoever has only read the values cannot know which were chosen. What differs from the one
 * that would follow must have been. */
void settings_infer_chosen(struct settings *s);

/* The value as plain text (bytes, centiseconds, percent, 0/1, name) in text.
 * Returns its length, or -ENODATA for an unknown name. */
int settings_get(const struct settings *s, const char *name, char *text, size_t text_size);

/* NULL-terminated, all writable names; also for "nearest match" and for listing. */
const char *const *settings_names(void);

/* true if name is one of the device's settings (false: daemon-wide). */
bool settings_is_per_device(const char *name);

#endif
