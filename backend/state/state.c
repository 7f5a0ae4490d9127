#include "backend/state/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

static uint64_t fsid_of(int fd)
{
	struct statfs sf;
	uint64_t id = 0;

	if (fstatfs(fd, &sf) == 0)
		memcpy(&id, &sf.f_fsid, sizeof(id));
	return id;
}

int state_start(struct state *s, int fd, const struct state_source *src,
	bool (*describe)(const struct node *node, struct state_who *ret_who))
{
	struct stat st;

	memset(s, 0, sizeof(*s));
	if (fstat(src->root_fd, &st) < 0)
		return -errno;
	/* With room of its own now: a page that the tmpfs cannot give later would be SIGBUS. */
	if (ftruncate(fd, 0) < 0 || fallocate(fd, 0, 0, (off_t)STATE_FILE_BYTES) < 0)
		return -errno;
	s->free = malloc(STATE_RECORDS * sizeof(*s->free));
	void *map = mmap(NULL, STATE_FILE_BYTES, PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_POPULATE, fd, 0);
	if (!s->free || map == MAP_FAILED) {
		int ret = -ENOMEM;
		if (map != MAP_FAILED)
			munmap(map, STATE_FILE_BYTES);
		free(s->free);
		s->free = NULL;
		return ret;
	}
	mlock(map, STATE_FILE_BYTES); /* as far as the user may */
	for (uint32_t i = 0; i < STATE_RECORDS; i++)
		s->free[i] = STATE_RECORDS - 1 - i;
	s->nr_free = STATE_RECORDS;
	s->records = (struct state_record *)((char *)map + sizeof(struct state_header));
	s->describe = describe;
	s->header = map;
	state_header_init(s->header, fsid_of(src->root_fd), st.st_ino);
	close(fd);
	return 0;
}

void state_finish(struct state *s)
{
	if (!s->header)
		return;
	munmap(s->header, STATE_FILE_BYTES);
	free(s->free);
	memset(s, 0, sizeof(*s));
}

static void describe(struct state *s, struct node *node)
{
	struct state_record *r = node->record;

	/* Not in use meanwhile: a half-written name must not be believed. */
	__atomic_store_n(&r->used, 0, __ATOMIC_SEQ_CST);
	memset(&r->who, 0, sizeof(r->who));
	r->gone = s->describe(node, &r->who);
	r->check = state_who_check(&r->who);
	__atomic_store_n(&r->used, 1, __ATOMIC_SEQ_CST);
}

void state_claim(struct state *s, struct node *node)
{
	if (!s || !s->header)
		return;
	if (s->nr_free == 0) {
		s->header->nr_more++;
		return;
	}
	node->record = &s->records[s->free[--s->nr_free]];
	node->record->extended_from = node->record->extended_to = node->record->written = 0;
	state_update(node);
	describe(s, node);
}

void state_release(struct state *s, struct node *node)
{
	struct state_record *r = node->record;

	if (!s || !s->header)
		return;
	if (!r) {
		s->header->nr_more--;
		return;
	}
	__atomic_store_n(&r->used, 0, __ATOMIC_SEQ_CST);
	node->record = NULL;
	s->free[s->nr_free++] = (uint32_t)(r - s->records);
}

void state_renamed(struct state *s, struct node *node)
{
	if (node->record)
		describe(s, node);
}

void state_extending(struct node *node, uint64_t from, uint64_t to)
{
	struct state_record *r = node->record;

	if (!r)
		return;
	/* Not ahead of itself: whatever is there already is not for us to judge. */
	if (r->extended_to != from)
		r->written = from;
	r->extended_from = from;
	__atomic_store_n(&r->extended_to, to, __ATOMIC_SEQ_CST);
}

void state_extended(struct node *node, uint64_t size)
{
	struct state_record *r = node->record;

	if (r)
		r->extended_from = r->extended_to = size;
}
