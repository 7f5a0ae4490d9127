/* format.h - the bytes of a state file, and the one function that reads them.
 *
 * A header, then nr_records records of fixed size. What says who (header, names, handles) is
 * written once and has a checksum; the counters change with every page and have none: whoever
 * acts on them must be right with any value. The file is read by the next start, whatever is in
 * it by then, so state_parse() takes arbitrary bytes. No lock, no system call, no memory.
 */
#ifndef PACEFS_BACKEND_STATE_FORMAT_H
#define PACEFS_BACKEND_STATE_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#define STATE_VERSION 1
#define STATE_RECORDS 2048 /* unclean files with a name of their own; 1 MiB of them */
#define STATE_HANDLE_MAX 64
#define STATE_NAME_MAX 376 /* longer ones keep their end */

struct state_header {
	char magic[8];
	uint32_t version, nr_records;
	uint64_t fsid; /* of the source's filesystem: a handle means nothing in another one */
	uint64_t root_ino; /* of the source */
	uint32_t check;	   /* of all above */
	uint32_t nr_more;  /* unclean files that found no record */
	char reserved[472];
};

struct state_record {
	uint32_t used;	/* set last, taken back first */
	uint32_t check; /* of who */
	struct state_who {
		uint64_t ino;
		int32_t handle_type;
		uint32_t handle_bytes; /* 0: the source gives no handles */
		unsigned char handle[STATE_HANDLE_MAX];
		char name[STATE_NAME_MAX]; /* relative to the source, as it was last known */
	} who;
	uint64_t pages; /* accepted and not below */
	uint64_t size;	/* as users see it */
	/* The file below was lengthened ahead of its pages: its size is between from and to.
	 * Everything before written is below, or was never to be written. */
	uint64_t extended_from, extended_to, written;
	uint32_t cut;  /* it was made shorter, and the source does not know yet */
	uint32_t gone; /* its last name is gone */
};

_Static_assert(sizeof(struct state_header) == 512, "format");
_Static_assert(sizeof(struct state_record) == 512, "format");

#define STATE_FILE_BYTES                                                                       \
	(sizeof(struct state_header) + STATE_RECORDS * sizeof(struct state_record))

uint32_t state_header_check(const struct state_header *h);
uint32_t state_who_check(const struct state_who *who);
void state_header_init(struct state_header *ret_header, uint64_t fsid, uint64_t root_ino);

/* The records in use, as they can be believed: names end and stay below the source, handles fit,
 * counters are within what a file can have. Returns how many of them were put into ret_records
 * (room for max); *ret_more counts those that have no record or no room, *ret_damaged those that
 * cannot be believed (the header: all of them, as one). Any bytes will do; data need not be
 * aligned. */
unsigned state_parse(const void *data, size_t bytes, struct state_header *ret_header,
	struct state_record *ret_records, unsigned max, unsigned *ret_more,
	unsigned *ret_damaged);

#endif
