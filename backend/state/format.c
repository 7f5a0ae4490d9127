#include "backend/state/format.h"

#include <stdbool.h>
#include <string.h>

static const char magic[8] = "pacefs\n\1";

enum { MOST_FILES = 1 << 24 }; /* more than fit into any memory; only for messages */

/* FNV-1a: against accidents, not against forgers, who would be root. */
static uint32_t checksum(const void *data, size_t bytes)
{
	const unsigned char *at = data;
	uint32_t h = 2166136261u;

	for (size_t i = 0; i < bytes; i++)
		h = (h ^ at[i]) * 16777619u;
	return h;
}

uint32_t state_header_check(const struct state_header *h)
{
	return checksum(h, offsetof(struct state_header, check));
}

/* What is not in use of handle and name does not count, so that nobody has to clear it. */
uint32_t state_who_check(const struct state_who *who)
{
	uint32_t parts[3] = {
		checksum(who, offsetof(struct state_who, handle)),
		checksum(who->handle, who->handle_bytes),
		checksum(who->name, strnlen(who->name, STATE_NAME_MAX)),
	};

	return checksum(parts, sizeof(parts));
}

void state_header_init(struct state_header *ret_header, uint64_t fsid, uint64_t root_ino)
{
	struct state_header h = {
		.version = STATE_VERSION,
		.nr_records = STATE_RECORDS,
		.fsid = fsid,
		.root_ino = root_ino,
	};

	memcpy(h.magic, magic, sizeof(magic));
	h.check = state_header_check(&h);
	*ret_header = h;
}

static bool header_is_good(const struct state_header *h)
{
	return memcmp(h->magic, magic, sizeof(magic)) == 0 && h->version == STATE_VERSION &&
		h->nr_records == STATE_RECORDS && h->check == state_header_check(h);
}

/* Relative, and no way up. */
static bool name_is_good(const char *name)
{
	if (!memchr(name, '\0', STATE_NAME_MAX) || name[0] == '/')
		return false;
	for (const char *at = name; at; at = strchr(at, '/')) {
		at += *at == '/';
		if (strncmp(at, "..", 2) == 0 && (at[2] == '/' || at[2] == '\0'))
			return false;
	}
	return true;
}

static bool record_is_good(const struct state_record *r)
{
	const uint64_t most = INT64_MAX; /* of a file, in bytes */

	return r->used == 1 && r->who.handle_bytes <= STATE_HANDLE_MAX &&
		name_is_good(r->who.name) && r->check == state_who_check(&r->who) &&
		r->pages <= most / 4096 && r->size <= most && r->extended_to <= most &&
		r->written <= most;
}

unsigned state_parse(const void *data, size_t bytes, struct state_header *ret_header,
	struct state_record *ret_records, unsigned max, unsigned *ret_more,
	unsigned *ret_damaged)
{
	const unsigned char *at = data;
	unsigned nr = 0;

	memset(ret_header, 0, sizeof(*ret_header));
	*ret_more = *ret_damaged = 0;
	if (bytes < sizeof(*ret_header)) {
		*ret_damaged = bytes != 0;
		return 0;
	}
	memcpy(ret_header, at, sizeof(*ret_header));
	if (!header_is_good(ret_header)) {
		*ret_damaged = 1;
		return 0;
	}
	*ret_more = ret_header->nr_more < MOST_FILES ? ret_header->nr_more : MOST_FILES;
	bytes -= sizeof(*ret_header);
	at += sizeof(*ret_header);
	for (unsigned i = 0; i < STATE_RECORDS && bytes >= sizeof(struct state_record); i++) {
		struct state_record r;
		memcpy(&r, at, sizeof(r));
		at += sizeof(r);
		bytes -= sizeof(r);
		if (!r.used)
			continue;
		if (!record_is_good(&r))
			++*ret_damaged;
		else if (nr == max)
			++*ret_more;
		else
			ret_records[nr++] = r;
	}
	return nr;
}
