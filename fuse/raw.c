#include "fuse/raw.h"

#include "fuse/ops.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static const char *raw_name(const struct pacefs *p)
{
	const char *slash = strrchr(p->options.source, '/');

	return slash && slash[1] ? slash + 1 : p->options.source;
}

int raw_nodes_init(struct pacefs *p)
{
	struct stat dir = {.st_mode = S_IFDIR | 0755};
	struct stat file = {
		.st_mode = S_IFREG | 0600, .st_size = (off_t)p->backing.store.raw_size};
	int fd = fcntl(p->backing.store.root_fd, F_DUPFD_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	domain_lock(&p->dom);
	struct fnode *fn;
	if (p->raw_at_root) {
		fn = p->root = fnode_create_plain(p, NODEID_ROOT, fd, &file);
	} else {
		p->root = fnode_create_plain(p, NODEID_ROOT, -1, &dir);
		fn = p->root ? fnode_create_plain(p, NODEID_RAW, fd, &file) : NULL;
	}
	domain_unlock(&p->dom);
	return fn ? 0 : -ENOMEM;
}

int raw_stat(struct pacefs *p, struct fnode *fn, struct stat *ret_stat)
{
	struct stat st;

	if (fstat(p->backing.store.root_fd, &st) < 0)
		return -errno;
	bool is_dir = S_ISDIR(fn->type);
	st.st_mode = is_dir ? S_IFDIR | 0755 : S_IFREG | (st.st_mode & 0777);
	st.st_ino = fn->node.nodeid;
	st.st_nlink = is_dir ? 2 : 1;
	st.st_rdev = 0;
	st.st_size = is_dir ? 0 : (off_t)p->backing.store.raw_size;
	st.st_blksize = PAGE_BYTES;
	/* All of a device is there; what an image has allocated is its own matter. */
	st.st_blocks = st.st_size / 512;
	domain_lock(&p->dom);
	if (node_is_unclean(&fn->node)) {
		st.st_mtim = fn->node.mtime;
		st.st_ctim = fn->node.ctime;
	}
	fn->node.times_shown = true;
	domain_unlock(&p->dom);
	*ret_stat = st;
	return 0;
}

int raw_entry(struct pacefs *p, const char *name, struct fuse_entry_param *ret_entry)
{
	struct fuse_entry_param e = {
		.ino = NODEID_RAW,
		.attr_timeout = ops_attr_timeout(),
		.entry_timeout = ops_attr_timeout(),
	};

	if (p->raw_at_root || strcmp(name, raw_name(p)) != 0)
		return -ENOENT;
	domain_lock(&p->dom);
	struct fnode *fn = fnode_find(p, NODEID_RAW);
	fnode_looked_up(fn);
	domain_unlock(&p->dom);
	int ret = raw_stat(p, fn, &e.attr);
	if (ret == 0)
		*ret_entry = e;
	return ret;
}

size_t raw_readdir(fuse_req_t req, char *buf, size_t size, off_t off, bool plus)
{
	struct pacefs *p = pacefs_of(req);
	const char *names[] = {".", "..", raw_name(p)};
	const uint64_t inos[] = {NODEID_ROOT, NODEID_ROOT, NODEID_RAW};
	size_t used = 0;

	for (; off < 3; off++) {
		struct fuse_entry_param e = {
			/* ino 0: not looked up by this */
			.attr.st_ino = inos[off],
			.attr.st_mode = off < 2 ? S_IFDIR : S_IFREG,
		};
		size_t n = plus ? fuse_add_direntry_plus(
					  req, buf + used, size - used, names[off], &e, off + 1)
				: fuse_add_direntry(req, buf + used, size - used, names[off],
					  &e.attr, off + 1);
		if (n > size - used)
			break;
		used += n;
	}
	return used;
}
