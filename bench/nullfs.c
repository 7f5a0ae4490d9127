/* nullfs.c - a filesystem that throws away what is written to it, on pacefs' own mount code,
 * receive loop and buffers: what writing through FUSE costs when nothing else is done.
 *
 *   nullfs MOUNTPOINT [MAX_WRITE]     MAX_WRITE: largest request in bytes, default 1 MiB
 *
 * Stays in the foreground until it is unmounted. Files live in one directory and have a name
 * and a size, no contents. Payload frames stay with the reader that received them.
 */
#include "fuse/ops.h"
#include "fuse/pacefs.h"
#include "fuse/session.h"
#include "util/log.h"
#include "util/parse.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	FILES_MOST = 4096,
	CACHE_FRAMES = 4096, /* enough for the payloads of all readers */
	ARENA_FRAMES = 65536,
	NAME_BYTES = 64,
};

struct file {
	char name[NAME_BYTES]; /* "": free */
	_Atomic uint64_t size;
};

static struct pacefs pacefs;
static char mountpoint[PATH_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the names */
static struct file files[FILES_MOST];

/* Called by the receive loop. */
void ops_thread_init(void)
{
}

/* NULL: the root, or nothing */
static struct file *file_of(fuse_ino_t ino)
{
	return ino >= NODEID_FIRST && ino < NODEID_FIRST + FILES_MOST
		? &files[ino - NODEID_FIRST]
		: NULL;
}

static fuse_ino_t ino_of(const struct file *f)
{
	return NODEID_FIRST + (fuse_ino_t)(f - files);
}

static struct stat stat_of(fuse_ino_t ino)
{
	struct file *f = file_of(ino);

	return (struct stat){
		.st_ino = ino,
		.st_mode = f ? S_IFREG | 0644 : S_IFDIR | 0755,
		.st_nlink = f ? 1 : 2,
		.st_size = f ? (off_t)atomic_load(&f->size) : 0,
		.st_blksize = PAGE_BYTES,
	};
}

static struct fuse_entry_param entry_of(fuse_ino_t ino)
{
	return (struct fuse_entry_param){
		.ino = ino,
		.attr = stat_of(ino),
		.attr_timeout = 1,
		.entry_timeout = 1,
	};
}

/* A free one for "". With the lock. */
static struct file *find(const char *name)
{
	for (struct file *f = files; f < files + FILES_MOST; f++)
		if (strcmp(f->name, name) == 0)
			return f;
	return NULL;
}

static void null_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	pthread_mutex_lock(&lock);
	struct file *f = find(name);
	pthread_mutex_unlock(&lock);
	if (!f || parent != NODEID_ROOT) {
		fuse_reply_err(req, ENOENT);
		return;
	}
	struct fuse_entry_param e = entry_of(ino_of(f));
	fuse_reply_entry(req, &e);
}

static void null_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	struct fuse_file_info *fi)
{
	struct file *f = NULL;

	if (strlen(name) >= NAME_BYTES) {
		fuse_reply_err(req, ENAMETOOLONG);
		return;
	}
	pthread_mutex_lock(&lock);
	f = find(name);
	if (!f && (f = find("")))
		snprintf(f->name, sizeof(f->name), "%s", name);
	pthread_mutex_unlock(&lock);
	if (!f) {
		fuse_reply_err(req, ENOSPC);
		return;
	}
	atomic_store(&f->size, 0);
	struct fuse_entry_param e = entry_of(ino_of(f));
	fuse_reply_create(req, &e, fi);
}

static void null_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	pthread_mutex_lock(&lock);
	struct file *f = find(name);
	if (f)
		f->name[0] = '\0';
	pthread_mutex_unlock(&lock);
	fuse_reply_err(req, f ? 0 : ENOENT);
}

static void null_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct file *f = file_of(ino);

	if (f && fi->flags & O_TRUNC)
		atomic_store(&f->size, 0);
	fuse_reply_open(req, fi);
}

static void null_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
	struct fuse_file_info *fi)
{
	struct file *f = file_of(ino);
	uint64_t end = (uint64_t)off + size;

	if (f && end > atomic_load(&f->size))
		atomic_store(&f->size, end);
	fuse_reply_write(req, size);
}

static void null_read(
	fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	fuse_reply_buf(req, NULL, 0);
}

static void null_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st = stat_of(ino);

	fuse_reply_attr(req, &st, 1);
}

static void null_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
	struct fuse_file_info *fi)
{
	struct file *f = file_of(ino);

	if (f && to_set & FUSE_SET_ATTR_SIZE)
		atomic_store(&f->size, (uint64_t)attr->st_size);
	null_getattr(req, ino, fi);
}

static void null_readdir(
	fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	char *buf = malloc(size);
	size_t used = 0;

	if (!buf) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	pthread_mutex_lock(&lock);
	for (off_t i = off; i < FILES_MOST; i++) {
		if (!files[i].name[0])
			continue;
		struct stat st = stat_of(ino_of(&files[i]));
		size_t n = fuse_add_direntry(
			req, buf + used, size - used, files[i].name, &st, i + 1);
		if (n > size - used)
			break;
		used += n;
	}
	pthread_mutex_unlock(&lock);
	fuse_reply_buf(req, buf, used);
	free(buf);
}

static void null_ok(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	fuse_reply_err(req, 0);
}

static void null_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	fuse_reply_err(req, 0);
}

/* As ops_init() of pacefs, so that the kernel does the same for both. */
static void null_init(void *userdata, struct fuse_conn_info *conn)
{
	unsigned on = FUSE_CAP_ATOMIC_O_TRUNC | FUSE_CAP_EXPORT_SUPPORT | FUSE_CAP_DONT_MASK |
		FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_EXPLICIT_INVAL_DATA | FUSE_CAP_ASYNC_READ;

	conn->want = on & conn->capable;
	conn->max_write = pacefs.options.max_write;
	conn->max_background = 512;
	conn->congestion_threshold = 384;
	conn->time_gran = 1;
}

static void null_destroy(void *userdata)
{
	mount_destroy(&pacefs.mount, false);
}

static const struct fuse_lowlevel_ops null_ops = {
	.init = null_init,
	.destroy = null_destroy,
	.lookup = null_lookup,
	.getattr = null_getattr,
	.setattr = null_setattr,
	.unlink = null_unlink,
	.open = null_open,
	.read = null_read,
	.write = null_write,
	.flush = null_ok,
	.release = null_ok,
	.fsync = null_fsync,
	.readdir = null_readdir,
	.create = null_create,
};

static int serve(struct pacefs *p)
{
	struct mount_request req = {
		.source = "nullfs",
		.mountpoint = mountpoint,
		.root_mode = S_IFDIR,
		.allow_other = geteuid() == 0,
		.kernel_options = "",
	};

	int ret = mount_create(&req, &p->mount);
	if (ret < 0)
		return ret;
	ret = session_create(p, &null_ops);
	if (ret == 0)
		ret = session_loop(p);
	mount_destroy(&p->mount, false);
	session_destroy(p);
	return ret;
}

int main(int argc, char **argv)
{
	struct pacefs *p = &pacefs;
	uint64_t max_write = 1 << 20;

	if (argc < 2 || argc > 3 || (argc > 2 && parse_size(argv[2], &max_write) < 0) ||
		max_write < OPTIONS_MAX_WRITE_LEAST || max_write > OPTIONS_MAX_WRITE_MOST) {
		fprintf(stderr, "usage: nullfs MOUNTPOINT [MAX_WRITE]\n");
		return 2;
	}
	p->options.max_write = (uint32_t)max_write;
	if (mount_resolve(argv[1], mountpoint, sizeof(mountpoint)) < 0)
		return 1;
	int ret = domain_init(&p->dom, CACHE_FRAMES, ARENA_FRAMES);
	if (ret < 0) {
		log_error("no memory: %s", strerror(-ret));
		return 1;
	}
	ret = serve(p);
	domain_finish(&p->dom);
	return ret == 0 ? 0 : 1;
}
