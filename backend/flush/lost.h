/* lost.h - what was accepted and could not be brought to the source, by file, for the verdict.
 *
 * Ranges of a file that touch are one. Memory is taken when something is lost, never on the way of
 * a write that succeeds; where there is none, or beyond LOST_RANGES_MOST, the nearest range grows
 * over the gap: too much is named rather than too little.
 *
 * Lock: the domain's, for all but lost_log().
 */
#ifndef PACEFS_BACKEND_FLUSH_LOST_H
#define PACEFS_BACKEND_FLUSH_LOST_H

#include <stdbool.h>
#include <stdint.h>

#define LOST_NAME_MOST 700	  /* characters, the last ones: a log line has 1024 */
#define LOST_RANGES_MOST 65536u	  /* 1 MiB: every other page of 512 MiB */
#define LOST_FILES_MOST 16384u	  /* some MiB of names; further ones are in the log only */
#define LOST_SAY_EVERY_US 1000000 /* one line about a file; the verdict has everything */

struct lost_range {
	uint64_t from, to;
};

struct lost_file; /* lost.c */

struct lost {
	struct lost_file *files; /* hash by nodeid, in the order in which they were hit */
	unsigned nr_files, nr_ranges;
	unsigned nr_more; /* losses of files that found no room here */
};

/* The name is known already: it need not be found. */
bool lost_knows(const struct lost *l, uint64_t nodeid);
/* Bytes [from, to) of a file, or with from == to only what else there is to say of it (its size,
 * its time, its sync). True when a line about it is due now; *ret_name is valid under the lock. */
bool lost_add(struct lost *l, uint64_t nodeid, const char *name, uint64_t from, uint64_t to,
	uint64_t now_us);
/* The name it is known by, or "". */
const char *lost_name(const struct lost *l, uint64_t nodeid);
/* All ranges in turn, until it returns false. Start with *at = 0. */
bool lost_next(const struct lost *l, unsigned *at, const char **ret_name,
	struct lost_range *ret_range);
/* The verdict's lines: each file with its ranges. Nothing more may be lost meanwhile. */
void lost_log(const struct lost *l);
void lost_finish(struct lost *l);

#endif
