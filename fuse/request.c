#include "fuse/request.h"

#include <errno.h>
#include <linux/fuse.h>
#include <stdint.h>
#include <string.h>

enum {
	/* Without FUSE_SETXATTR_EXT, which is not asked for. */
	SETXATTR_BYTES = FUSE_COMPAT_SETXATTR_IN_SIZE,
	INIT_BYTES = offsetof(struct fuse_init_in, flags2), /* all without FUSE_INIT_EXT */
	XATTR_MOST = 65536, /* XATTR_SIZE_MAX and XATTR_LIST_MAX of the kernel */
	/* Linux 5.4; the structs of older kernels are shorter. */
	MINOR_LEAST = 31,
	NSEC_PER_S = 1000000000,
};

enum names { NAMES_NONE, NAMES_ONE, NAMES_TWO, NAMES_TARGET, NAMES_XATTR };

/* What a request consists of: a struct, then strings. */
struct shape {
	bool known;
	uint16_t fixed; /* bytes, after the header */
	uint8_t names;	/* enum names */
	bool dots;	/* "." and ".." are names too */
	bool makes;	/* a file, that will be the caller's */
};

#define FIXED(type) .known = true, .fixed = sizeof(struct type)
#define NOTHING .known = true

static const struct shape shapes[] = {
	[FUSE_LOOKUP] = {NOTHING, .names = NAMES_ONE, .dots = true},
	[FUSE_FORGET] = {FIXED(fuse_forget_in)},
	[FUSE_GETATTR] = {FIXED(fuse_getattr_in)},
	[FUSE_SETATTR] = {FIXED(fuse_setattr_in)},
	[FUSE_READLINK] = {NOTHING},
	[FUSE_SYMLINK] = {NOTHING, .names = NAMES_TARGET, .makes = true},
	[FUSE_MKNOD] = {FIXED(fuse_mknod_in), .names = NAMES_ONE, .makes = true},
	[FUSE_MKDIR] = {FIXED(fuse_mkdir_in), .names = NAMES_ONE, .makes = true},
	[FUSE_UNLINK] = {NOTHING, .names = NAMES_ONE},
	[FUSE_RMDIR] = {NOTHING, .names = NAMES_ONE},
	[FUSE_RENAME] = {FIXED(fuse_rename_in), .names = NAMES_TWO},
	[FUSE_LINK] = {FIXED(fuse_link_in), .names = NAMES_ONE},
	[FUSE_OPEN] = {FIXED(fuse_open_in)},
	[FUSE_READ] = {FIXED(fuse_read_in)},
	[FUSE_WRITE] = {FIXED(fuse_write_in)},
	[FUSE_STATFS] = {NOTHING},
	[FUSE_RELEASE] = {FIXED(fuse_release_in)},
	[FUSE_FSYNC] = {FIXED(fuse_fsync_in)},
	[FUSE_SETXATTR] = {.known = true, .fixed = SETXATTR_BYTES, .names = NAMES_XATTR},
	[FUSE_GETXATTR] = {FIXED(fuse_getxattr_in), .names = NAMES_XATTR},
	[FUSE_LISTXATTR] = {FIXED(fuse_getxattr_in)},
	[FUSE_REMOVEXATTR] = {NOTHING, .names = NAMES_XATTR},
	[FUSE_FLUSH] = {FIXED(fuse_flush_in)},
	[FUSE_INIT] = {.known = true, .fixed = INIT_BYTES},
	[FUSE_OPENDIR] = {FIXED(fuse_open_in)},
	[FUSE_READDIR] = {FIXED(fuse_read_in)},
	[FUSE_RELEASEDIR] = {FIXED(fuse_release_in)},
	[FUSE_FSYNCDIR] = {FIXED(fuse_fsync_in)},
	[FUSE_GETLK] = {FIXED(fuse_lk_in)},
	[FUSE_SETLK] = {FIXED(fuse_lk_in)},
	[FUSE_SETLKW] = {FIXED(fuse_lk_in)},
	[FUSE_ACCESS] = {FIXED(fuse_access_in)},
	[FUSE_CREATE] = {FIXED(fuse_create_in), .names = NAMES_ONE, .makes = true},
	[FUSE_INTERRUPT] = {FIXED(fuse_interrupt_in)},
	[FUSE_BMAP] = {FIXED(fuse_bmap_in)},
	[FUSE_DESTROY] = {NOTHING},
	[FUSE_IOCTL] = {FIXED(fuse_ioctl_in)},
	[FUSE_POLL] = {FIXED(fuse_poll_in)},
	[FUSE_BATCH_FORGET] = {FIXED(fuse_batch_forget_in)},
	[FUSE_FALLOCATE] = {FIXED(fuse_fallocate_in)},
	[FUSE_READDIRPLUS] = {FIXED(fuse_read_in)},
	[FUSE_RENAME2] = {FIXED(fuse_rename2_in), .names = NAMES_TWO},
	[FUSE_LSEEK] = {FIXED(fuse_lseek_in)},
	[FUSE_COPY_FILE_RANGE] = {FIXED(fuse_copy_file_range_in)},
	[FUSE_SYNCFS] = {FIXED(fuse_syncfs_in)},
};

enum { NR_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

/* ---- strings ---- */

/* A string of *at, which moves behind it. NULL: it does not end. */
static const char *take_string(const char **at, const char *end)
{
	const char *text = *at;
	const char *nul = memchr(text, '\0', (size_t)(end - text));

	if (!nul)
		return NULL;
	*at = nul + 1;
	return text;
}

static bool is_name(const char *text, bool dots)
{
	if (!text || !*text || strchr(text, '/'))
		return false;
	return dots || (strcmp(text, ".") != 0 && strcmp(text, "..") != 0);
}

/* Moves *at behind what the shape wants. */
static bool take_names(const struct shape *s, const char **at, const char *end)
{
	switch ((enum names)s->names) {
	case NAMES_NONE:
		return true;
	case NAMES_ONE:
		return is_name(take_string(at, end), s->dots);
	case NAMES_TWO:
		return is_name(take_string(at, end), false) &&
			is_name(take_string(at, end), false);
	case NAMES_TARGET:
		return is_name(take_string(at, end), false) && take_string(at, end);
	case NAMES_XATTR:
		return take_string(at, end);
	}
	return false;
}

/* ---- numbers ---- */

/* A range of a file: neither end may be negative as off_t. */
static int check_range(uint64_t offset, uint64_t bytes)
{
	return offset <= INT64_MAX && bytes <= INT64_MAX - offset ? 0 : -EINVAL;
}

static int check_read(const struct fuse_read_in *in)
{
	return in->size <= REQUEST_DATA_MOST ? check_range(in->offset, in->size) : -EINVAL;
}

/* A position in a directory is the source's own; ext4 ends at the largest number. */
static int check_readdir(const struct fuse_read_in *in)
{
	return in->size <= REQUEST_DATA_MOST && in->offset <= INT64_MAX ? 0 : -EINVAL;
}

static int check_write(const struct fuse_write_in *in, uint64_t rest)
{
	if (in->size != rest || in->size > REQUEST_DATA_MOST)
		return -EIO;
	return check_range(in->offset, in->size);
}

static int check_setattr(const struct fuse_setattr_in *in)
{
	if ((in->valid & FATTR_SIZE && in->size > INT64_MAX) ||
		(in->valid & FATTR_ATIME && in->atimensec >= NSEC_PER_S) ||
		(in->valid & FATTR_MTIME && in->mtimensec >= NSEC_PER_S))
		return -EINVAL;
	return 0;
}

static int check_copy(const struct fuse_copy_file_range_in *in)
{
	int ret = check_range(in->off_in, in->len);

	return ret < 0 ? ret : check_range(in->off_out, in->len);
}

static int check_xattr_size(const struct fuse_getxattr_in *in)
{
	return in->size <= XATTR_MOST ? 0 : -E2BIG;
}

static int check_init(const struct fuse_init_in *in, uint64_t rest)
{
	if (in->flags & FUSE_INIT_EXT && rest < sizeof(*in) - INIT_BYTES)
		return -EIO;
	/* Another major number is answered by libfuse, and the kernel tries again. */
	return in->major != FUSE_KERNEL_VERSION || in->minor >= MINOR_LEAST ? 0 : -EPROTO;
}

/* rest: bytes behind struct and strings. */
static int check_numbers(uint32_t opcode, const void *body, uint64_t rest)
{
	const struct fuse_batch_forget_in *forget = body;
	const struct fuse_fallocate_in *fallocate = body;

	switch (opcode) {
	case FUSE_READ:
		return check_read(body);
	case FUSE_READDIR:
	case FUSE_READDIRPLUS:
		return check_readdir(body);
	case FUSE_WRITE:
		return check_write(body, rest);
	case FUSE_SETATTR:
		return check_setattr(body);
	case FUSE_COPY_FILE_RANGE:
		return check_copy(body);
	case FUSE_FALLOCATE:
		return fallocate->length ? check_range(fallocate->offset, fallocate->length)
					 : -EINVAL;
	case FUSE_GETXATTR:
	case FUSE_LISTXATTR:
		return check_xattr_size(body);
	case FUSE_SETXATTR:
		return ((const struct fuse_setxattr_in *)body)->size <= rest ? 0 : -EIO;
	case FUSE_BATCH_FORGET:
		return forget->count <= rest / sizeof(struct fuse_forget_one) ? 0 : -EIO;
	case FUSE_IOCTL:
		return ((const struct fuse_ioctl_in *)body)->in_size <= rest ? 0 : -EIO;
	case FUSE_INIT:
		return check_init(body, rest);
	default:
		return 0;
	}
}

/* Nobody can be these: a file would become root's instead. */
static bool is_nobody(const struct fuse_in_header *in)
{
	return in->uid == UINT32_MAX || in->gid == UINT32_MAX;
}

int request_check(const void *request, size_t bytes)
{
	const struct fuse_in_header *in = request;
	const char *body = (const char *)request + sizeof(*in);
	const char *end = (const char *)request + bytes;

	if (bytes < sizeof(*in) || in->len != bytes)
		return -EIO;
	if (in->opcode >= NR_SHAPES || !shapes[in->opcode].known)
		return -ENOSYS;
	const struct shape *s = &shapes[in->opcode];
	if ((size_t)(end - body) < s->fixed)
		return -EIO;
	const char *at = body + s->fixed;
	if (!take_names(s, &at, end))
		return -EINVAL;
	if (s->makes && is_nobody(in))
		return -EOVERFLOW;
	return check_numbers(in->opcode, body, (uint64_t)(end - at));
}

bool request_wants_answer(const void *request)
{
	const struct fuse_in_header *in = request;

	return in->opcode != FUSE_FORGET && in->opcode != FUSE_BATCH_FORGET &&
		in->opcode != FUSE_INTERRUPT && in->opcode != FUSE_NOTIFY_REPLY;
}
