#include "fuse/known.h"

#include "fuse/node.h"
#include "fuse/pacefs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	FIRST_BUCKETS = 1024, /* a power of two, as room is all the time */
	DEPTH_MOST = 1 << 16, /* of directories: more is a ring, by changes of others */
	PLACE_ATTEMPTS = 8,   /* renames on the way; then the kernel looks again by itself */
};

/* ---- the table ---- */

static size_t bucket_of(const struct known_table *t, uint64_t nodeid)
{
	/* Inode numbers follow each other: spread by a multiplicative hash. */
	uint64_t h = nodeid * 0x9e3779b97f4a7c15ull;
	h ^= h >> 32;
	size_t i = h & (t->room - 1);
	/* Not split off yet: its entries are in the lower half. */
	return i < t->nr_buckets ? i : i - t->room / 2;
}

struct known *known_find(const struct known_table *t, uint64_t nodeid)
{
	struct known *k = t->room ? t->buckets[bucket_of(t, nodeid)] : NULL;

	while (k && k->nodeid != nodeid)
		k = k->next;
	return k;
}

static int make_room(struct known_table *t, size_t room)
{
	struct known **buckets = realloc(t->buckets, room * sizeof(struct known *));

	if (!buckets)
		return -ENOMEM;
	t->buckets = buckets;
	t->room = room;
	return 0;
}

static void split_one(struct known_table *t)
{
	if (t->nr_buckets == t->room && make_room(t, t->room * 2) < 0)
		return; /* longer chains, then */
	struct known **low = &t->buckets[t->nr_buckets - t->room / 2];
	struct known *k = *low;
	size_t new = t->nr_buckets++;

	*low = t->buckets[new] = NULL;
	while (k) {
		struct known *next = k->next;
		struct known **head = &t->buckets[bucket_of(t, k->nodeid)];
		k->next = *head;
		*head = k;
		k = next;
	}
}

int known_add(struct known_table *t, struct known *k)
{
	if (!t->room) {
		if (make_room(t, FIRST_BUCKETS) < 0)
			return -ENOMEM;
		memset(t->buckets, 0, FIRST_BUCKETS * sizeof(struct known *));
		t->nr_buckets = FIRST_BUCKETS;
	}
	if (t->nr >= t->nr_buckets)
		split_one(t);
	struct known **head = &t->buckets[bucket_of(t, k->nodeid)];
	k->next = *head;
	*head = k;
	t->nr++;
	return 0;
}

void known_remove(struct known_table *t, struct known *k)
{
	struct known **at = &t->buckets[bucket_of(t, k->nodeid)];

	while (*at != k)
		at = &(*at)->next;
	*at = k->next;
	t->nr--;
}

void known_finish(struct known_table *t)
{
	for (size_t i = 0; i < t->nr_buckets; i++) {
		struct known *next;
		for (struct known *k = t->buckets[i]; k; k = next) {
			next = k->next;
			free(k);
		}
	}
	free(t->buckets);
	*t = (struct known_table){0};
}

struct known_place known_place_of(const struct known *k)
{
	struct known_place place;

	memcpy(&place, k->tail, sizeof(place));
	return place;
}

const char *known_name(const struct known *k)
{
	return (const char *)k->tail + offsetof(struct known_place, name);
}

/* ---- places ---- */

void place_leave(struct pacefs *p, uint64_t parent)
{
	while (parent) {
		struct fnode *fn = fnode_find(p, parent);
		struct known *k = fn ? NULL : known_find(&p->known, parent);
		parent = 0;
		if (fn && --fn->children == 0)
			node_put(&fn->node);
		if (k && --k->children == 0 && k->nlookup == 0) {
			if (k->name_bytes)
				parent = known_place_of(k).parent;
			known_remove(&p->known, k);
			free(k);
		}
	}
}

static void place_clear(struct pacefs *p, struct fnode *fn)
{
	if (!fn->name)
		return;
	free(fn->name);
	fn->name = NULL;
	place_leave(p, fn->parent);
}

void place_set(struct pacefs *p, struct fnode *fn, const struct place *at)
{
	struct fnode *dir = fnode_find(p, at->parent);

	if (fn->handle_bytes || fn == p->root || fn->unlinked || !dir || fn == dir)
		return;
	/* Something was renamed or deleted since that name was seen. */
	if (fn->name && at->moves != p->moves)
		return;
	if (fn->name && fn->parent == at->parent && strcmp(fn->name, at->name) == 0)
		return;
	char *name = strdup(at->name);
	if (!name)
		return;
	if (dir->children++ == 0)
		node_get(&dir->node);
	place_clear(p, fn);
	fn->parent = at->parent;
	fn->name = name;
}

void place_lost(struct pacefs *p, struct fnode *fn, uint64_t parent, const char *name)
{
	if (fn->name && fn->parent == parent && strcmp(fn->name, name) == 0)
		place_clear(p, fn);
}

struct place place_at(struct pacefs *p, uint64_t parent, const char *name)
{
	return (struct place){.parent = parent, .name = name, .moves = p->moves};
}

void places_move_begin(struct pacefs *p)
{
	domain_lock(&p->dom);
	p->moves++;
	p->moving++;
	domain_unlock(&p->dom);
}

void places_move_end(struct pacefs *p)
{
	domain_lock(&p->dom);
	p->moves++;
	p->moving--;
	domain_unlock(&p->dom);
}

/* With the lock: the place of a node or record. False: it has none. */
static bool find_place(
	struct pacefs *p, uint64_t nodeid, uint64_t *ret_parent, const char **ret_name)
{
	const struct fnode *fn = fnode_find(p, nodeid);
	const struct known *k = fn ? NULL : known_find(&p->known, nodeid);

	if (fn && fn->name) {
		*ret_parent = fn->parent;
		*ret_name = fn->name;
	} else if (k && k->name_bytes) {
		*ret_parent = known_place_of(k).parent;
		*ret_name = known_name(k);
	} else {
		return false;
	}
	return true;
}

/* The way to a file from the nearest directory above that is open. */
struct way {
	struct fnode *anchor; /* referenced, its descriptor pinned */
	char **names;	      /* the last one first */
	size_t nr, room;
};

static void way_end(struct pacefs *p, struct way *way)
{
	for (size_t i = 0; i < way->nr; i++)
		free(way->names[i]);
	free(way->names);
	if (way->anchor) {
		fnode_fd_put(p, way->anchor);
		fnode_put(p, way->anchor);
	}
}

static int way_add(struct way *way, const char *name)
{
	if (way->nr == way->room) {
		size_t room = way->room ? way->room * 2 : 16;
		char **names = realloc(way->names, room * sizeof(char *));
		if (!names)
			return -ENOMEM;
		way->names = names;
		way->room = room;
	}
	way->names[way->nr] = strdup(name);
	return way->names[way->nr] ? (way->nr++, 0) : -ENOMEM;
}

/* With the lock. */
static int find_way(struct pacefs *p, uint64_t nodeid, struct way *way)
{
	for (;;) {
		uint64_t parent;
		const char *name;
		if (way->nr == DEPTH_MOST || !find_place(p, nodeid, &parent, &name))
			return -ESTALE;
		int ret = way_add(way, name);
		if (ret < 0)
			return ret;
		struct fnode *fn = fnode_find(p, parent);
		if (fn && fn->fd >= 0) {
			node_get(&fn->node);
			fnode_fd_pin(p, fn);
			way->anchor = fn;
			return 0;
		}
		nodeid = parent;
	}
}

/* Step by step: the whole may be longer than a path can be. */
static int follow(const struct way *way)
{
	int fd = -1;

	for (size_t i = way->nr; i-- > 0;) {
		int next = openat(fd < 0 ? way->anchor->fd : fd, way->names[i],
			O_PATH | O_NOFOLLOW | O_CLOEXEC);
		int err = errno;
		if (fd >= 0)
			close(fd);
		if (next < 0)
			return err == ENOENT || err == ENOTDIR ? -ESTALE : -err;
		fd = next;
	}
	return fd;
}

static int open_once(struct pacefs *p, uint64_t nodeid, dev_t dev, ino_t ino, bool *ret_moved)
{
	struct way way = {0};
	struct stat st;

	domain_lock(&p->dom);
	uint64_t moves = p->moves;
	int ret = find_way(p, nodeid, &way);
	domain_unlock(&p->dom);
	int fd = ret < 0 ? ret : follow(&way);
	if (fd >= 0) {
		ret = fstatat(fd, "", &st, AT_EMPTY_PATH) < 0 ? -errno : 0;
		if (ret == 0 && (st.st_dev != dev || st.st_ino != ino))
			ret = -ESTALE;
		if (ret < 0) {
			close(fd);
			fd = ret;
		}
	}
	way_end(p, &way);
	domain_lock(&p->dom);
	*ret_moved = moves != p->moves || p->moving;
	domain_unlock(&p->dom);
	return fd;
}

int place_open(struct pacefs *p, uint64_t nodeid, dev_t dev, ino_t ino)
{
	bool moved;
	int fd, tries = 0;

	do
		fd = open_once(p, nodeid, dev, ino, &moved);
	while (fd == -ESTALE && moved && ++tries < PLACE_ATTEMPTS);
	return fd;
}
