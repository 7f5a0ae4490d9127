/* node.h - node identity: which file a nodeid means, and the other way round.
 *
 * A nodeid is a pure function of what the source says the file is (its file handle), never a
 * counter or a pointer, so that it stays the same over FORGET, eviction and a restart:
 *   - a handle of 32-bit inode and 32-bit generation (ext4 and others): generation << 32 | inode,
 *     from which the handle can be made again;
 *   - other handles: a 64-bit hash of the handle, which this table resolves;
 *   - no handles: a hash of st_dev and st_ino, and the file is found again by a name it had
 *     (known.h); while it has none it stays open.
 * 1 is the root, 2 the hidden control file.
 *
 * Of the nodes that nobody uses but the kernel, which may know millions, the last ones stay whole;
 * of the others no more is kept than known.h says.
 *
 * Lock: the domain's, except where a function says that it drops or takes it.
 */
#ifndef PACEFS_FUSE_NODE_H
#define PACEFS_FUSE_NODE_H

#include "backend/cache/cache.h"
#include "fuse/known.h"

#include <stdatomic.h>
#include <sys/stat.h>
#include "util/hash.h"

#define NODEID_ROOT 1
#define NODEID_CONTROL 2
#define NODEID_RAW 3	/* the raw file, when the mountpoint is a directory */
#define NODEID_FIRST 16 /* smaller results of the function are moved up */
#define HANDLE_MAX 64

struct pacefs;

struct fnode {
	struct node node;		       /* first: node_of() */
	UT_hash_handle hh;		       /* by node.nodeid */
	uint64_t nlookup;		       /* references of the kernel */
	struct fnode *whole_prev, *whole_next; /* pacefs->whole_nodes */
	uint64_t parent;		       /* without a handle: its place (known.h) ... */
	char *name;			       /* ... or NULL: none */
	uint32_t children;		       /* files whose place is in it */
	dev_t dev;			       /* what the source calls it */
	ino_t ino;
	mode_t type;			 /* S_IFMT bits */
	int fd;				 /* O_PATH, or -1 when it can be made from the handle */
	unsigned fd_pins;		 /* not to be closed now */
	struct fnode *fd_prev, *fd_next; /* pacefs->fds while open and unpinned */
	int handle_type;
	unsigned handle_bytes; /* 0: no handle */
	unsigned char handle[HANDLE_MAX];
	bool unlinked; /* its last name is gone: no handle leads to it any more, so
				  * its descriptor stays pinned */
	atomic_bool no_suid, no_caps; /* nothing there that a write would take away; set with
				  * the lock, for privs_seq as it was before the look */
	uint32_t privs_seq;    /* times that something may have been given to it; the lock */
	uint32_t queued;       /* writes waiting for admission */
	uint32_t writers_open; /* open(2)s for writing ... */
	uint32_t mappers_open; /* ... and reading: shared mappings may be written to, and keep
				* their open(2) */
	bool kernel_stale; /* the kernel may have pages of before somebody changed the source */
};

static inline struct fnode *fnode_of(struct node *node)
{
	return (struct fnode *)node;
}

/* A node that is not looked up by file (raw), referenced for good. With the lock. */
struct fnode *fnode_create_plain(
	struct pacefs *p, uint64_t nodeid, int path_fd, const struct stat *st);

/* Look once whether the source gives handles; make the root node from root_fd. */
int nodes_init(struct pacefs *p, int root_fd);
/* How many descriptors are used for what, by the limit of this process. */
void nodes_share_fds(struct pacefs *p);
/* Close the descriptors that can be had again by handles: they keep the blocks of files that were
 * deleted behind us. Takes the lock. */
void nodes_close_idle(struct pacefs *p);
/* Close what they hold of the source. Takes the lock. */
void nodes_close(struct pacefs *p);
/* And all that is open still. */
void nodes_finish(struct pacefs *p);

/* The node of the file behind path_fd (O_PATH), made if it is new; its reference count grows by
 * one. path_fd is consumed in any case. at: where it was found, or NULL. *ret_stat: fstat of the
 * source. Takes the lock. */
int fnode_from_fd(struct pacefs *p, int path_fd, const struct place *at, struct fnode **ret_fn,
	struct stat *ret_stat);

/* The node a nodeid means, referenced, or NULL and errno. Makes it again if only a record is left
 * of it; or from the handle where nodeids hold one and the file is one of the source. Takes the
 * lock. */
struct fnode *fnode_get(struct pacefs *p, uint64_t nodeid);
/* Only if it is there whole (no system call). With the lock; takes no reference. */
struct fnode *fnode_find(struct pacefs *p, uint64_t nodeid);
/* Give the reference back, and free what nobody refers to. Takes the lock. */
void fnode_put(struct pacefs *p, struct fnode *fn);
/* Free nodes that died while the lock was held. Takes the lock. */
void nodes_reap(struct pacefs *p);

/* An O_PATH descriptor of the node, pinned until fnode_fd_put(). -errno (ESTALE). Takes the
 * lock. */
int fnode_fd_get(struct pacefs *p, struct fnode *fn);
/* The same of one that is open, with the lock. */
void fnode_fd_pin(struct pacefs *p, struct fnode *fn);
void fnode_fd_put(struct pacefs *p, struct fnode *fn);

/* A later request of the kernel may name it: nlookup + 1 with a reference. With the lock. */
void fnode_looked_up(struct fnode *fn);
/* When nobody can ever come to it again (no name, no open file, not known to the kernel), what
 * is not written need not be. With the lock. */
void fnode_drop_if_dead(struct fnode *fn);
/* FORGET. Takes the lock. */
void fnode_forget(struct pacefs *p, uint64_t nodeid, uint64_t nlookup);

/* Clean, and known below: does the source have another time or size? Then somebody else changed it.
 * With the lock, as the next. */
bool fnode_is_foreign(const struct fnode *fn, const struct stat *st);
/* What it has now is what the node has: cached pages go, and the kernel's will have to. */
void fnode_follow(struct fnode *fn, const struct stat *st);

/* Something of it beside its content was changed below: its change time moves, also while it is ours
 * that is shown. Takes the lock. */
void fnode_changed(struct pacefs *p, struct fnode *fn);

/* fstat of the source with what is ours over it while the node is unclean. Takes the lock. */
int fnode_stat(struct pacefs *p, struct fnode *fn, struct stat *ret_stat);

#endif
