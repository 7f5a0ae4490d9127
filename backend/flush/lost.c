#include "backend/flush/lost.h"

#include "util/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* Without memory an entry is not added, and the program goes on. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

struct lost_file {
	uint64_t nodeid;
	struct lost_range *ranges; /* ascending, none touches another */
	unsigned nr, room;
	bool other;	  /* size, time or sync */
	uint64_t said_us; /* last line about it */
	UT_hash_handle hh;
	char name[];
};

static struct lost_file *find(const struct lost *l, uint64_t nodeid)
{
	struct lost_file *f = NULL;

	HASH_FIND(hh, l->files, &nodeid, sizeof(nodeid), f);
	return f;
}

bool lost_knows(const struct lost *l, uint64_t nodeid)
{
	return find(l, nodeid) != NULL;
}

const char *lost_name(const struct lost *l, uint64_t nodeid)
{
	const struct lost_file *f = find(l, nodeid);

	return f ? f->name : "";
}

static struct lost_file *create(struct lost *l, uint64_t nodeid, const char *name)
{
	size_t length = strlen(name);

	if (l->nr_files == LOST_FILES_MOST)
		return NULL;
	if (length > LOST_NAME_MOST)
		name += length - LOST_NAME_MOST;
	struct lost_file *f = calloc(1, sizeof(*f) + strlen(name) + 1);
	if (!f)
		return NULL;
	f->nodeid = nodeid;
	memcpy(f->name, name, strlen(name) + 1);
	/* Lines of logs and statistics are lines. */
	for (char *c = f->name; *c; c++)
		if ((unsigned char)*c < 0x20)
			*c = '?';
	HASH_ADD(hh, l->files, nodeid, sizeof(f->nodeid), f);
	if (!f->hh.tbl) {
		free(f);
		return NULL;
	}
	l->nr_files++;
	return f;
}

/* The first range that ends at or after from. */
static unsigned first_touching(const struct lost_file *f, uint64_t from)
{
	unsigned low = 0, high = f->nr;

	while (low < high) {
		unsigned middle = low + (high - low) / 2;
		if (f->ranges[middle].to < from)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool make_room(struct lost *l, struct lost_file *f)
{
	if (f->nr < f->room)
		return l->nr_ranges < LOST_RANGES_MOST;
	unsigned room = f->room ? 2 * f->room : 4;
	struct lost_range *more = l->nr_ranges < LOST_RANGES_MOST
		? realloc(f->ranges, room * sizeof(*more))
		: NULL;
	if (!more)
		return false;
	f->ranges = more;
	f->room = room;
	return true;
}

/* False: there is no room for it at all. */
static bool add_range(struct lost *l, struct lost_file *f, uint64_t from, uint64_t to)
{
	unsigned i = first_touching(f, from), last = i;

	while (last < f->nr && f->ranges[last].from <= to)
		last++;
	if (last == i && make_room(l, f)) {
		memmove(f->ranges + i + 1, f->ranges + i, (f->nr - i) * sizeof(*f->ranges));
		f->ranges[i] = (struct lost_range){from, to};
		f->nr++;
		l->nr_ranges++;
		return true;
	}
	if (f->nr == 0)
		return false;
	if (last == i) { /* no room: a neighbour grows over the gap */
		i -= i == f->nr;
		last = i + 1;
	}
	struct lost_range *r = &f->ranges[i];
	if (f->ranges[last - 1].to > to)
		to = f->ranges[last - 1].to;
	r->from = from < r->from ? from : r->from;
	r->to = to;
	memmove(r + 1, f->ranges + last, (f->nr - last) * sizeof(*r));
	f->nr -= last - i - 1;
	l->nr_ranges -= last - i - 1;
	return true;
}

bool lost_add(struct lost *l, uint64_t nodeid, const char *name, uint64_t from, uint64_t to,
	uint64_t now_us)
{
	struct lost_file *f = find(l, nodeid);

	if (!f)
		f = create(l, nodeid, name);
	if (f && from == to)
		f->other = true;
	if (!f || (from < to && !add_range(l, f, from, to))) {
		l->nr_more++;
		return true; /* then the log at least has it */
	}
	if (f->said_us && now_us - f->said_us < LOST_SAY_EVERY_US)
		return false;
	f->said_us = now_us;
	return true;
}

bool lost_next(
	const struct lost *l, unsigned *at, const char **ret_name, struct lost_range *ret_range)
{
	unsigned skip = *at;

	for (const struct lost_file *f = l->files; f; f = f->hh.next) {
		if (skip >= f->nr) {
			skip -= f->nr;
			continue;
		}
		*ret_name = f->name;
		*ret_range = f->ranges[skip];
		++*at;
		return true;
	}
	return false;
}

static void log_file(const struct lost_file *f)
{
	enum { RANGES_A_LINE = 6 }; /* 40 characters each, beside the name */
	char text[RANGES_A_LINE * 44];
	uint64_t bytes = 0;

	for (unsigned i = 0; i < f->nr; i++)
		bytes += f->ranges[i].to - f->ranges[i].from;
	for (unsigned i = 0; i < f->nr;) {
		size_t used = 0;
		for (unsigned n = 0; n < RANGES_A_LINE && i < f->nr; n++, i++)
			used += (size_t)snprintf(text + used, sizeof(text) - used,
				"%s0x%" PRIx64 "-0x%" PRIx64, n ? ", " : "", f->ranges[i].from,
				f->ranges[i].to);
		log_error("not written: %s: bytes %s (%.1f MB in all)", f->name, text,
			(double)bytes / 1e6);
	}
	if (f->other)
		log_error("not written: %s: its size, its time or its last sync", f->name);
}

void lost_log(const struct lost *l)
{
	for (const struct lost_file *f = l->files; f; f = f->hh.next)
		log_file(f);
	if (l->nr_more)
		log_error("not written: and %u pieces of further files, named when they were "
			  "lost",
			l->nr_more);
}

void lost_finish(struct lost *l)
{
	struct lost_file *f, *next;

	HASH_ITER (hh, l->files, f, next) {
		HASH_DEL(l->files, f);
		free(f->ranges);
		free(f);
	}
	*l = (struct lost){0};
}
