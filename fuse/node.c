#include "fuse/node.h"

#include "fuse/inside.h"
#include "fuse/ops.h"
#include "fuse/pacefs.h"
#include "fuse/raw.h"
#include "util/clock.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <utlist.h>

enum {
	FILEID_INO32_GEN_TYPE = 1,
	FILEID_INO32_GEN_BYTES = 8,
	MOST_FDS =
		8192, /* opening one again costs microseconds: more than a hot set is waste */
	WHOLE_MOST = 4096, /* nodes, busy or not, before idle ones are made records: 3 MB */
	TRIES = 4,	   /* of the oldest, for each one that is too many */
	RECENT_S = 2,	   /* longer than our change times can be ahead of the source's */
};

struct handle {
	struct file_handle head;
	unsigned char room[HANDLE_MAX];
};

struct identity {
	uint64_t nodeid;
	int type;
	unsigned bytes;
	unsigned char handle[HANDLE_MAX];
};

static uint64_t hash64(const void *data, size_t bytes, uint64_t seed)
{
	/* FNV-1a with a final mix (the finalizer of splitmix64). */
	const unsigned char *at = data;
	uint64_t h = 14695981039346656037ull ^ seed;

	for (size_t i = 0; i < bytes; i++)
		h = (h ^ at[i]) * 1099511628211ull;
	h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
	h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
	return h ^ (h >> 31);
}

static bool is_ino32_gen(int type, unsigned bytes)
{
	return type == FILEID_INO32_GEN_TYPE && bytes == FILEID_INO32_GEN_BYTES;
}

static int read_handle(int path_fd, struct identity *id)
{
	struct handle h = {.head.handle_bytes = HANDLE_MAX};
	int mount_id;

	if (name_to_handle_at(path_fd, "", &h.head, &mount_id, AT_EMPTY_PATH) < 0)
		return -errno;
	id->type = h.head.handle_type;
	id->bytes = h.head.handle_bytes;
	memcpy(id->handle, h.head.f_handle, id->bytes);
	return 0;
}

/* 0 or -errno. A file has one identity all the time: where handles are to be had, an error that
 * may pass must not give it another one. */
static int identify(
	const struct pacefs *p, int path_fd, const struct stat *st, struct identity *ret_id)
{
	struct identity id = {0};
	int ret = p->handles ? read_handle(path_fd, &id) : -EOPNOTSUPP;

	/* EOVERFLOW: this one's is too long. */
	if (ret < 0 && ret != -EOPNOTSUPP && ret != -EOVERFLOW)
		return ret;
	if (ret == 0) {
		if (is_ino32_gen(id.type, id.bytes)) {
			uint32_t ino, gen;
			memcpy(&ino, id.handle, sizeof(ino));
			memcpy(&gen, id.handle + sizeof(ino), sizeof(gen));
			id.nodeid = (uint64_t)gen << 32 | ino;
		} else {
			id.nodeid = hash64(id.handle, id.bytes, (uint64_t)(unsigned)id.type);
		}
	} else {
		uint64_t key[2] = {st->st_dev, st->st_ino};
		id.bytes = 0;
		id.nodeid = hash64(key, sizeof(key), 0);
	}
	if (id.nodeid < NODEID_FIRST)
		id.nodeid += NODEID_FIRST;
	*ret_id = id;
	return 0;
}

static bool same_file(const struct fnode *fn, const struct identity *id, const struct stat *st)
{
	if (id->bytes)
		return fn->handle_type == id->type && fn->handle_bytes == id->bytes &&
			memcmp(fn->handle, id->handle, id->bytes) == 0;
	return fn->dev == st->st_dev && fn->ino == st->st_ino;
}

struct fnode *fnode_find(struct pacefs *p, uint64_t nodeid)
{
	struct fnode *fn;

	HASH_FIND(hh, p->nodes, &nodeid, sizeof(nodeid), fn);
	return fn;
}

static bool can_reopen(const struct fnode *fn)
{
	return fn->handle_bytes || fn->name;
}

/* One that is not to be found again: the kernel is told ESTALE and looks by another name. Who has
 * it open does not. */
static bool can_close(const struct fnode *fn)
{
	return can_reopen(fn) || (!fn->node.file_users && !node_is_unclean(&fn->node));
}

static void fd_list_add(struct pacefs *p, struct fnode *fn)
{
	if (fn->fd < 0 || fn->fd_pins)
		return;
	DL_APPEND2(p->fds_head, fn, fd_prev, fd_next);
	p->nr_fds++;
}

static void fd_list_remove(struct pacefs *p, struct fnode *fn)
{
	if (fn->fd < 0 || fn->fd_pins)
		return;
	DL_DELETE2(p->fds_head, fn, fd_prev, fd_next);
	p->nr_fds--;
}

/* With the lock: takes a surplus descriptor off its node; the caller closes it. */
static int take_surplus_fd(struct pacefs *p, unsigned most)
{
	for (unsigned i = 0; i < TRIES && p->nr_fds > most; i++) {
		struct fnode *fn = p->fds_head;
		int fd = fn->fd;
		fd_list_remove(p, fn);
		if (can_close(fn)) {
			fn->fd = -1;
			return fd;
		}
		fd_list_add(p, fn);
	}
	return -1;
}

static void close_surplus(struct pacefs *p, unsigned most)
{
	int fd;

	do {
		domain_lock(&p->dom);
		fd = take_surplus_fd(p, most);
		domain_unlock(&p->dom);
		if (fd >= 0)
			close(fd);
	} while (fd >= 0);
}

void nodes_close_idle(struct pacefs *p)
{
	close_surplus(p, 0);
}

static struct fnode *fnode_create(
	struct pacefs *p, const struct identity *id, int path_fd, const struct stat *st)
{
	struct fnode *fn = calloc(1, sizeof(*fn));

	if (!fn)
		return NULL;
	node_init(&fn->node, &p->backing.dev, id->nodeid,
		S_ISREG(st->st_mode) ? (uint64_t)st->st_size : 0);
	fn->dev = st->st_dev;
	fn->ino = st->st_ino;
	fn->type = st->st_mode & S_IFMT;
	fn->fd = path_fd;
	fn->handle_type = id->type;
	fn->handle_bytes = id->bytes;
	memcpy(fn->handle, id->handle, id->bytes);
	node_below_is(&fn->node, st->st_mtim); /* the kernel has nothing of it yet */
	HASH_ADD(hh, p->nodes, node.nodeid, sizeof(fn->node.nodeid), fn);
	if (!hash_added(fn)) {
		free(fn);
		return NULL;
	}
	fd_list_add(p, fn);
	DL_APPEND2(p->whole_nodes, fn, whole_prev, whole_next);
	p->nr_whole++;
	return fn;
}

static void leave_whole(struct pacefs *p, struct fnode *fn)
{
	DL_DELETE2(p->whole_nodes, fn, whole_prev, whole_next);
	p->nr_whole--;
}

static void used_now(struct pacefs *p, struct fnode *fn)
{
	if (fn == p->root || !fn->whole_prev)
		return; /* stays */
	DL_DELETE2(p->whole_nodes, fn, whole_prev, whole_next);
	DL_APPEND2(p->whole_nodes, fn, whole_prev, whole_next);
}

struct fnode *fnode_create_plain(
	struct pacefs *p, uint64_t nodeid, int path_fd, const struct stat *st)
{
	struct identity id = {.nodeid = nodeid};
	struct fnode *fn = fnode_create(p, &id, path_fd, st);

	if (fn) {
		node_get(&fn->node);
		leave_whole(p, fn);
		fn->whole_prev = NULL;
	}
	return fn;
}

/* ---- records of nodes ---- */

/* What the kernel's pages of it are of. */
static uint64_t seen_hash(struct timespec mtime, uint64_t size)
{
	uint64_t key[3] = {(uint64_t)mtime.tv_sec, (uint64_t)mtime.tv_nsec, size};

	return hash64(key, sizeof(key), 0) | 1;
}

/* A change time that we gave out may be ahead of the source's by a moment. */
static bool is_recent(const struct node *node)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME_COARSE, &now);
	return node->ctime.tv_sec - now.tv_sec <= RECENT_S &&
		now.tv_sec - node->ctime.tv_sec <= RECENT_S;
}

/* References that a record can stand for. */
static uint32_t kept_by_others(const struct fnode *fn)
{
	return (uint32_t)(fn->nlookup != 0) + (uint32_t)(fn->children != 0);
}

/* Nothing but the kernel's knowledge keeps it, and all that must be kept fits in a record. */
static bool is_idle(const struct fnode *fn)
{
	const struct node *node = &fn->node;

	return node->refs == kept_by_others(fn) && node->refs && !fn->unlinked &&
		!fn->fd_pins && can_reopen(fn) && !node->file && !node->file_users &&
		!node->nr_pages && !(node->err_seq && !node->err_seen) &&
		!node_is_unclean(node) && !is_recent(node);
}

static struct known *make_record(const struct fnode *fn)
{
	size_t name_bytes = fn->name ? strlen(fn->name) + 1 : 0;
	size_t tail =
		fn->handle_bytes ? fn->handle_bytes : sizeof(struct known_place) + name_bytes;
	struct known *k = malloc(sizeof(*k) + tail);
	bool seen = fn->node.below_known && !fn->kernel_stale;

	if (!k)
		return NULL;
	*k = (struct known){
		.nodeid = fn->node.nodeid,
		.nlookup = fn->nlookup,
		.seen = seen ? seen_hash(fn->node.below_mtime, fn->node.size) : 0,
		.children = fn->children,
		.handle_type = fn->handle_type,
		.handle_bytes = (uint16_t)fn->handle_bytes,
		.name_bytes = (uint16_t)name_bytes,
	};
	if (fn->handle_bytes) {
		memcpy(k->tail, fn->handle, fn->handle_bytes);
		return k;
	}
	struct known_place place = {.dev = fn->dev, .ino = fn->ino, .parent = fn->parent};
	memcpy(k->tail, &place, sizeof(place));
	memcpy(k->tail + sizeof(place), fn->name, name_bytes);
	return k;
}

/* With the lock: the oldest idle node becomes a record; the caller frees what is left of it. */
static struct fnode *take_idle(struct pacefs *p)
{
	for (unsigned i = 0; i < TRIES && p->nr_whole > WHOLE_MOST; i++) {
		struct fnode *fn = p->whole_nodes;
		struct known *k = is_idle(fn) ? make_record(fn) : NULL;
		if (k && known_add(&p->known, k) == 0) {
			HASH_DEL(p->nodes, fn);
			fd_list_remove(p, fn);
			leave_whole(p, fn);
			return fn;
		}
		free(k);
		used_now(p, fn);
	}
	return NULL;
}

static void nodes_trim(struct pacefs *p)
{
	struct fnode *fn;

	do {
		domain_lock(&p->dom);
		fn = take_idle(p);
		domain_unlock(&p->dom);
		if (fn && fn->fd >= 0)
			close(fn->fd);
		if (fn)
			free(fn->name);
		free(fn);
	} while (fn);
}

static bool known_is(const struct known *k, const struct identity *id, const struct stat *st)
{
	if (k->handle_bytes || id->bytes)
		return k->handle_type == id->type && k->handle_bytes == id->bytes &&
			memcmp(k->tail, id->handle, id->bytes) == 0;
	struct known_place place = known_place_of(k);
	return place.dev == st->st_dev && place.ino == st->st_ino;
}

/* A record becomes the node again that was just made for it. */
static void take_over(
	struct pacefs *p, struct fnode *fn, struct known *k, const struct stat *st)
{
	fn->nlookup = k->nlookup;
	fn->children = k->children;
	fn->node.refs += kept_by_others(fn);
	if (k->name_bytes) {
		fn->parent = known_place_of(k).parent;
		fn->name = strdup(known_name(k));
		if (!fn->name)
			place_leave(p, fn->parent);
	}
	if (S_ISREG(st->st_mode) && k->seen != seen_hash(st->st_mtim, (uint64_t)st->st_size)) {
		fn->kernel_stale = true;
		fn->node.dev->foreign_changes += k->seen != 0;
	}
	known_remove(&p->known, k);
	free(k);
}

/* Of this file: the node, or else the record if there is one. Two files of one hash: the later one
 * takes the next free number. */
static struct fnode *find_same(
	struct pacefs *p, struct identity *id, const struct stat *st, struct known **ret_known)
{
	*ret_known = NULL;
	if (p->root && same_file(p->root, id, st))
		return p->root;
	for (;; id->nodeid++) {
		struct fnode *fn = fnode_find(p, id->nodeid);
		if (fn && same_file(fn, id, st))
			return fn;
		struct known *k = fn ? NULL : known_find(&p->known, id->nodeid);
		if (k && known_is(k, id, st))
			*ret_known = k;
		if (!fn && (!k || *ret_known))
			return NULL;
	}
}

int fnode_from_fd(struct pacefs *p, int path_fd, const struct place *at, struct fnode **ret_fn,
	struct stat *ret_stat)
{
	struct known *k;
	struct fnode *fn;
	struct identity id;

	int ret = fstatat(path_fd, "", ret_stat, AT_EMPTY_PATH) < 0 ? -errno : 0;
	if (ret == 0)
		ret = identify(p, path_fd, ret_stat, &id);
	if (ret < 0) {
		close(path_fd);
		return ret;
	}
	domain_lock(&p->dom);
	fn = find_same(p, &id, ret_stat, &k);
	if (!fn) {
		fn = fnode_create(p, &id, path_fd, ret_stat);
		if (fn)
			path_fd = -1;
		if (fn && k)
			take_over(p, fn, k, ret_stat);
	} else {
		node_revive(&fn->node);
		used_now(p, fn);
		if (fn->fd < 0) {
			fn->fd = path_fd;
			fd_list_add(p, fn);
			path_fd = -1;
		}
	}
	if (fn)
		node_get(&fn->node);
	if (fn && at)
		place_set(p, fn, at);
	domain_unlock(&p->dom);
	if (path_fd >= 0)
		close(path_fd);
	close_surplus(p, p->max_fds);
	*ret_fn = fn;
	return fn ? 0 : -ENOMEM;
}

static int open_handle(const struct pacefs *p, int type, const void *bytes, unsigned nr_bytes)
{
	struct handle h = {.head.handle_bytes = nr_bytes, .head.handle_type = type};

	memcpy(h.head.f_handle, bytes, nr_bytes);
	int fd = open_by_handle_at(
		p->backing.store.sync_fd, &h.head, O_PATH | O_CLOEXEC | O_NOFOLLOW);
	return fd < 0 ? -errno : fd;
}

/* What it takes to open a file again. */
struct reopening {
	bool known;
	int type;
	unsigned bytes;
	unsigned char handle[HANDLE_MAX];
	dev_t dev;
	ino_t ino;
};

/* With the lock. */
static struct reopening reopening_of(struct pacefs *p, uint64_t nodeid)
{
	const struct fnode *fn = fnode_find(p, nodeid);
	const struct known *k = fn ? NULL : known_find(&p->known, nodeid);
	struct reopening r = {.known = fn || k};

	if (fn) {
		r.type = fn->handle_type;
		r.bytes = fn->handle_bytes;
		memcpy(r.handle, fn->handle, r.bytes);
		r.dev = fn->dev;
		r.ino = fn->ino;
	} else if (k && k->handle_bytes) {
		r.type = k->handle_type;
		r.bytes = k->handle_bytes;
		memcpy(r.handle, k->tail, r.bytes);
	} else if (k) {
		r.dev = known_place_of(k).dev;
		r.ino = known_place_of(k).ino;
	}
	return r;
}

static int open_again(struct pacefs *p, uint64_t nodeid, const struct reopening *r)
{
	return r->bytes ? open_handle(p, r->type, r->handle, r->bytes)
			: place_open(p, nodeid, r->dev, r->ino);
}

/* Not known any more (FORGET, restart): such a nodeid is itself the handle. */
static int open_nodeid(struct pacefs *p, uint64_t nodeid)
{
	if (nodeid < NODEID_FIRST || !p->handles ||
		!is_ino32_gen(p->root->handle_type, p->root->handle_bytes))
		return -ESTALE;
	uint32_t words[2] = {(uint32_t)nodeid, (uint32_t)(nodeid >> 32)};
	int fd = open_handle(p, FILEID_INO32_GEN_TYPE, words, sizeof(words));
	if (fd >= 0 && !p->whole && !inside_source(p->backing.store.sync_fd, fd)) {
		close(fd);
		return -ESTALE;
	}
	return fd;
}

struct fnode *fnode_get(struct pacefs *p, uint64_t nodeid)
{
	struct reopening r = {0};
	struct stat st;

	domain_lock(&p->dom);
	struct fnode *fn = fnode_find(p, nodeid);
	if (fn) {
		node_revive(&fn->node);
		node_get(&fn->node);
		used_now(p, fn);
	} else {
		r = reopening_of(p, nodeid);
	}
	domain_unlock(&p->dom);
	if (fn)
		return fn;
	int fd = r.known ? open_again(p, nodeid, &r) : open_nodeid(p, nodeid);
	int ret = fd < 0 ? fd : fnode_from_fd(p, fd, NULL, &fn, &st);
	if (ret == 0 && (fn->node.nodeid != nodeid || (!r.known && st.st_nlink == 0))) {
		fnode_put(p, fn);
		ret = -ESTALE;
	}
	errno = -ret;
	return ret < 0 ? NULL : fn;
}

void nodes_reap(struct pacefs *p)
{
	for (;;) {
		domain_lock(&p->dom);
		struct node *node = node_reap(&p->dom);
		struct fnode *fn = node ? fnode_of(node) : NULL;
		struct store_file *file = NULL;
		int fd = -1;
		if (fn) {
			fd_list_remove(p, fn);
			cache_drop(
				&fn->node); /* only clean pages: dirty ones hold a reference */
			HASH_DEL(p->nodes, fn);
			leave_whole(p, fn);
			if (fn->name)
				place_leave(p, fn->parent);
			file = fn->node.file;
			fd = fn->fd;
		}
		domain_unlock(&p->dom);
		if (!fn)
			return;
		store_file_close(file);
		if (fd >= 0)
			close(fd);
		if (fn->unlinked) {
			domain_lock(&p->dom);
			p->nr_unlinked--; /* only now its blocks are free */
			domain_unlock(&p->dom);
		}
		free(fn->name);
		free(fn);
	}
}

void fnode_put(struct pacefs *p, struct fnode *fn)
{
	domain_lock(&p->dom);
	node_put(&fn->node);
	bool dead = p->dom.dead != NULL;
	bool surplus = p->nr_whole > WHOLE_MOST;
	domain_unlock(&p->dom);
	if (dead)
		nodes_reap(p);
	if (surplus)
		nodes_trim(p);
}

void fnode_fd_pin(struct pacefs *p, struct fnode *fn)
{
	fd_list_remove(p, fn);
	fn->fd_pins++;
}

int fnode_fd_get(struct pacefs *p, struct fnode *fn)
{
	domain_lock(&p->dom);
	if (fn->fd < 0) {
		struct reopening r = reopening_of(p, fn->node.nodeid);
		domain_unlock(&p->dom);
		int fd = open_again(p, fn->node.nodeid, &r);
		if (fd < 0)
			return fd;
		domain_lock(&p->dom);
		if (fn->fd >= 0) {
			close(fd); /* another thread was faster; closing O_PATH does no I/O */
		} else {
			fn->fd = fd;
			fd_list_add(p, fn);
		}
	}
	fnode_fd_pin(p, fn);
	int fd = fn->fd;
	domain_unlock(&p->dom);
	return fd;
}

void fnode_fd_put(struct pacefs *p, struct fnode *fn)
{
	domain_lock(&p->dom);
	assert(fn->fd_pins);
	fn->fd_pins--;
	fd_list_add(p, fn);
	bool surplus = p->nr_fds > p->max_fds;
	domain_unlock(&p->dom);
	if (surplus)
		close_surplus(p, p->max_fds);
}

void fnode_looked_up(struct fnode *fn)
{
	if (fn->nlookup++ == 0)
		node_get(&fn->node);
}

void fnode_drop_if_dead(struct fnode *fn)
{
	struct node *node = &fn->node;

	if (!fn->unlinked || fn->nlookup || node->file_users)
		return;
	cache_drop(node);
	node->times_pending = false;
	node_update_unclean(node);
	flusher_work(&backing_of(node->dev)->flusher, node);
	domain_progress(node->dom);
}

void fnode_forget(struct pacefs *p, uint64_t nodeid, uint64_t nlookup)
{
	domain_lock(&p->dom);
	struct fnode *fn = fnode_find(p, nodeid);
	if (fn && fn->nlookup) {
		fn->nlookup -= nlookup < fn->nlookup ? nlookup : fn->nlookup;
		fnode_drop_if_dead(fn);
		if (fn->nlookup == 0)
			node_put(&fn->node);
	}
	struct known *k = fn ? NULL : known_find(&p->known, nodeid);
	if (k) {
		k->nlookup -= nlookup < k->nlookup ? nlookup : k->nlookup;
		if (k->nlookup == 0 && k->children == 0) {
			if (k->name_bytes)
				place_leave(p, known_place_of(k).parent);
			known_remove(&p->known, k);
			free(k);
		}
	}
	bool dead = p->dom.dead != NULL;
	domain_unlock(&p->dom);
	if (dead)
		nodes_reap(p);
}

bool fnode_is_foreign(const struct fnode *fn, const struct stat *st)
{
	const struct node *node = &fn->node;

	if (!S_ISREG(fn->type) || !node->below_known)
		return false;
	return !clock_same(&st->st_mtim, &node->below_mtime) ||
		(!backing_of(node->dev)->store.raw && (uint64_t)st->st_size != node->size);
}

void fnode_follow(struct fnode *fn, const struct stat *st)
{
	struct node *node = &fn->node;

	node->dev->foreign_changes += node->below_known;
	cache_invalidate(node);
	fn->kernel_stale = true;
	node_below_is(node, st->st_mtim);
	if (backing_of(node->dev)->store.raw)
		return;
	node->size = (uint64_t)st->st_size;
	if (node->file) {
		node->file->size_below = node->size;
		node->file->dense = st->st_blocks >= st->st_size / 512;
	}
}

void fnode_changed(struct pacefs *p, struct fnode *fn)
{
	domain_lock(&p->dom);
	/* Otherwise it is the source's that is shown. */
	if (node_is_unclean(&fn->node) || fn->node.below_ctime_ns)
		node_touch_ctime(&fn->node);
	domain_unlock(&p->dom);
}

/* That of a file that is written to is when that was accepted, not when it was brought below: by itself
 * it does not change (who archives a file takes that for a change), and never steps back, though
 * ours may be finer than those the source gives out a moment later. Of a clean file ours may be
 * later by that moment only, or the clock was set back. */
static bool ctime_is_ours(const struct node *node, const struct stat *st, bool unclean)
{
	int64_t source = clock_ns(&st->st_ctim), ahead = clock_ns(&node->ctime) - source;

	return unclean || (ahead > 0 && ahead < 1000000000) ||
		(node->below_ctime_ns && source == node->below_ctime_ns);
}

/* The kernel asks for the root before anything else, also for what only we need to answer. */
static int stat_source(struct pacefs *p, const struct fnode *fn, int fd, struct stat *ret_stat)
{
	int ret = fstatat(fd, "", ret_stat, AT_EMPTY_PATH) < 0 ? -errno : 0;

	if (fn != p->root)
		return ret;
	domain_lock(&p->dom);
	if (ret == 0) {
		p->root_stat = *ret_stat;
	} else if (ret == -EIO && p->root_stat.st_mode) {
		*ret_stat = p->root_stat;
		ret = 0;
	}
	domain_unlock(&p->dom);
	return ret;
}

int fnode_stat(struct pacefs *p, struct fnode *fn, struct stat *ret_stat)
{
	struct node *node = &fn->node;

	if (p->backing.store.raw)
		return raw_stat(p, fn, ret_stat);
	int fd = fnode_fd_get(p, fn);
	int ret = fd < 0 ? fd : 0;

	while (ret == 0) {
		domain_lock(&p->dom);
		struct node_look look = node_look_begin(node);
		domain_unlock(&p->dom);
		ret = stat_source(p, fn, fd, ret_stat);
		if (ret < 0)
			break;
		domain_lock(&p->dom);
		bool unclean = node_is_unclean(node);
		bool current = unclean || (look.clean && look.seq == node->unclean_seq);
		if (unclean) {
			uint64_t blocks =
				(node->nr_dirty + node->nr_writeback) * (PAGE_BYTES / 512);
			uint64_t most =
				(node->size + PAGE_BYTES - 1) / PAGE_BYTES * (PAGE_BYTES / 512);
			ret_stat->st_size = (off_t)node->size;
			ret_stat->st_mtim = node->mtime;
			/* Not 0 while unwritten: tar and cp would take the file for a hole. */
			blocks += (uint64_t)ret_stat->st_blocks;
			ret_stat->st_blocks = (blkcnt_t)(blocks < most ? blocks
					: (uint64_t)ret_stat->st_blocks < most
					? most
					: (uint64_t)ret_stat->st_blocks);
		} else if (node_look_holds(node, &look) && fnode_is_foreign(fn, ret_stat)) {
			fnode_follow(fn, ret_stat);
		} else if (current && S_ISREG(fn->type) && !node->inflight) {
			node->size = (uint64_t)ret_stat->st_size;
		}
		if (ctime_is_ours(node, ret_stat, unclean))
			ret_stat->st_ctim = node->ctime;
		node->ctime = ret_stat->st_ctim;
		node->times_shown = true;
		domain_unlock(&p->dom);
		/* It was written and became clean in between: what was read may be older. */
		if (current)
			break;
	}
	if (fd >= 0)
		fnode_fd_put(p, fn);
	return ret;
}

int nodes_init(struct pacefs *p, int root_fd)
{
	struct identity id = {0};
	struct stat st;

	open_table_init(&p->opens);
	if (p->backing.store.raw)
		return raw_nodes_init(p);
	/* Making a file from a handle needs CAP_DAC_READ_SEARCH; try it once for real. */
	if (read_handle(root_fd, &id) == 0) {
		int fd = open_handle(p, id.type, id.handle, id.bytes);
		p->handles = fd >= 0;
		if (fd >= 0)
			close(fd);
	}
	p->whole = inside_is_whole_filesystem(p->backing.store.sync_fd);
	int fd = fcntl(root_fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	int ret = fstatat(fd, "", &st, AT_EMPTY_PATH) < 0 ? -errno : 0;
	if (ret == 0)
		ret = identify(p, fd, &st, &id);
	if (ret < 0) {
		close(fd);
		return ret;
	}
	id.nodeid = NODEID_ROOT;
	domain_lock(&p->dom);
	p->root = fnode_create(p, &id, fd, &st);
	p->root_stat = st;
	if (p->root) {
		fd_list_remove(p, p->root);
		p->root->fd_pins++; /* never closed */
		leave_whole(p, p->root);
		node_get(&p->root->node);
	}
	domain_unlock(&p->dom);
	return p->root ? 0 : -ENOMEM;
}

void nodes_close(struct pacefs *p)
{
	struct fnode *fn, *next;

	/* Late FORGETs may free nodes meanwhile: so with the lock, although closing may take a
	 * while on a network. Nobody else wants it any more. */
	domain_lock(&p->dom);
	HASH_ITER (hh, p->nodes, fn, next) {
		fd_list_remove(p, fn);
		store_file_close(fn->node.file);
		fn->node.file = NULL;
		if (fn->fd >= 0)
			close(fn->fd);
		fn->fd = -1;
	}
	domain_unlock(&p->dom);
}

void nodes_finish(struct pacefs *p)
{
	struct fnode *fn, *next;

	/* umount -f and an aborted connection release nothing. */
	open_table_finish(&p->opens, ops_forsake);
	HASH_ITER (hh, p->nodes, fn, next) {
		cache_drop(&fn->node); /* nothing but clean pages: all was drained */
		HASH_DEL(p->nodes, fn);
		store_file_close(fn->node.file);
		if (fn->fd >= 0)
			close(fn->fd);
		free(fn->name);
		free(fn);
	}
	known_finish(&p->known);
}

void nodes_share_fds(struct pacefs *p)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur > UINT_MAX)
		files.rlim_cur = UINT_MAX;
	unsigned all = (unsigned)files.rlim_cur;
	/* A half for files, of which each takes up to two, a quarter for calls under way. */
	p->max_fds = all / 4 < MOST_FDS ? all / 4 : MOST_FDS;
	p->max_file_fds = all / 2;
}
