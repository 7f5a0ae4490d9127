/* perform_name.c - operations on names and attributes. */

#include "twin.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

static unsigned char value[VALUE_BYTES];

static void done(struct outcome *out, long ret)
{
	out->ret = ret;
	out->error = ret < 0 ? errno : 0;
}

/* xattrs have no *at(): by the name of the tree's descriptor */
static const char *full_path(const struct trees *trees, int tree, const struct op *op)
{
	static char path[PATH_BYTES + 64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", trees->root[tree], op->path);
	return path;
}

/* A v2 capability set, and anything at all. */
static void make_value(const struct op *op)
{
	static const unsigned char caps[20] = {1, 0, 0, 2, 0x80};

	op_fill(op, value, op->value_bytes);
	if (strcmp(op->name, "security.capability") == 0)
		memcpy(value, caps, sizeof(caps));
}

static void do_setxattr(
	const struct trees *trees, int tree, const struct op *op, struct outcome *out)
{
	const char *path = full_path(trees, tree, op);
	size_t bytes = strcmp(op->name, "security.capability") ? op->value_bytes : 20;

	make_value(op);
	if (strcmp(op->name, "security.capability") == 0)
		syncfs(trees->root[tree]); /* of what is mapped, too */
	done(out,
		(op->salt & 1 ? lsetxattr : setxattr)(path, op->name, value, bytes, op->flags));
}

static void do_getxattr(
	const struct trees *trees, int tree, const struct op *op, struct outcome *out)
{
	const char *path = full_path(trees, tree, op);
	size_t room = op->salt & 2 ? sizeof(value) : op->value_bytes;

	done(out, (op->salt & 1 ? lgetxattr : getxattr)(path, op->name, value, room));
	if (out->ret > 0 && room)
		out->hash = hash_bytes(0, value, (size_t)out->ret);
}

/* Their order is the filesystem's, and whether users see those that only root may read. */
static void do_listxattr(
	const struct trees *trees, int tree, const struct op *op, struct outcome *out)
{
	const char *path = full_path(trees, tree, op);
	long n = (op->salt & 1 ? llistxattr : listxattr)(path, (char *)value, sizeof(value));
	long seen = 0;

	done(out, n);
	for (long at = 0, bytes; at < n; at += bytes) {
		const char *name = (const char *)value + at;
		bytes = (long)strlen(name) + 1;
		if (geteuid() != 0 && strncmp(name, "trusted.", 8) == 0)
			continue;
		seen += bytes;
		out->hash += hash_bytes(1, name, (size_t)bytes);
	}
	if (n > 0)
		out->ret = seen;
}

struct acl {
	uint32_t version;
	struct {
		uint16_t tag, perm;
		uint32_t id;
	} entry[6];
};

static void do_setacl(
	const struct trees *trees, int tree, const struct op *op, struct outcome *out)
{
	enum { USER_OBJ = 1, USER = 2, GROUP_OBJ = 4, GROUP = 8, MASK = 16, OTHER = 32 };
	static const uint16_t tags[] = {USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER};
	struct acl acl = {.version = 2};
	bool is_default = op->salt & 1;
	const char *name = is_default ? "system.posix_acl_default" : "system.posix_acl_access";

	for (unsigned i = 0; i < 6; i++) {
		acl.entry[i].tag = tags[i];
		acl.entry[i].perm = (uint16_t)(op->salt >> (8 + 3 * i)) & 7;
		acl.entry[i].id = tags[i] == USER ? 1002 : tags[i] == GROUP ? 2000 : UINT32_MAX;
	}
	if ((op->salt & 6) == 0)
		acl.entry[3].tag = USER_OBJ; /* not a valid one */
	if ((op->salt & 24) == 0)
		done(out, removexattr(full_path(trees, tree, op), name));
	else
		done(out, setxattr(full_path(trees, tree, op), name, &acl, sizeof(acl), 0));
}

static uint64_t hash_entry(const struct dirent *d)
{
	uint64_t h = hash_bytes(7, d->d_name, strlen(d->d_name));

	return hash_bytes(h, &d->d_type, sizeof(d->d_type));
}

/* All entries; then from a place in the middle on again: the same that came after it before. */
static void do_readdir(
	const struct trees *trees, int tree, const struct op *op, struct outcome *out)
{
	int fd = openat(trees->root[tree], op->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *d;
	uint64_t rest = 0;
	long place = 0, n = 0, stop = (long)(op->salt % 8);

	done(out, dir ? 0 : -1);
	if (!dir)
		return;
	for (; (d = readdir(dir)); n++) {
		out->hash += hash_entry(d);
		if (n >= stop)
			rest += hash_entry(d);
		if (n + 1 == stop)
			place = telldir(dir);
	}
	out->ret = n;
	if (place && n > stop) {
		seekdir(dir, place);
		while ((d = readdir(dir)))
			rest -= hash_entry(d);
		if (rest)
			snprintf(out->note, sizeof(out->note), "seekdir gave other entries");
	}
	closedir(dir);
}

static void do_statfs(
	const struct trees *trees, int tree, const struct op *op, struct outcome *out)
{
	struct statvfs vfs;

	int fd = openat(trees->root[tree], op->path, O_PATH | O_CLOEXEC);
	done(out, fd < 0 ? -1 : fstatvfs(fd, &vfs));
	if (out->ret == 0)
		out->hash = vfs.f_namemax * 65536 + vfs.f_bsize;
	if (fd >= 0)
		close(fd);
}

/* To the same size it moves times and takes set-user-id away in some filesystems only: times are now
 * before that, and what has it is left alone. There is no truncateat(). */
static void do_truncate(
	const struct trees *trees, int tree, const struct op *op, struct outcome *out)
{
	struct stat st;

	if (fstatat(trees->root[tree], op->path, &st, 0) == 0 &&
		st.st_mode & (S_ISUID | S_ISGID) && S_ISREG(st.st_mode))
		return;
	done(out, utimensat(trees->root[tree], op->path, NULL, 0));
	if (out->ret == 0)
		done(out, truncate(full_path(trees, tree, op), op->offset));
}

static void do_readlink(
	const struct trees *trees, int tree, const struct op *op, struct outcome *out)
{
	char target[PATH_MAX];

	done(out, readlinkat(trees->root[tree], op->path, target, sizeof(target)));
	if (out->ret > 0)
		out->hash = hash_bytes(0, target, (size_t)out->ret);
}

bool perform_name(struct worker_files *files, const struct trees *trees, int tree,
	const struct op *op, struct outcome *out)
{
	int root = trees->root[tree], nofollow = op->flags & 1 ? AT_SYMLINK_NOFOLLOW : 0, fd;

	switch (op->kind) {
	case OP_STAT:
		return true; /* compared after each operation */
	case OP_ACCESS:
		done(out, faccessat(root, op->path, (int)(op->salt % 8), AT_EACCESS));
		return true;
	case OP_TRUNCATE:
		do_truncate(trees, tree, op, out);
		return true;
	case OP_MKDIR:
		done(out, mkdirat(root, op->path, op->mode & 07777));
		return true;
	case OP_RMDIR:
		done(out, unlinkat(root, op->path, AT_REMOVEDIR));
		return true;
	case OP_UNLINK:
		done(out, unlinkat(root, op->path, 0));
		return true;
	case OP_RENAME:
		done(out, renameat2(root, op->path, root, op->path2, (unsigned)op->flags));
		return true;
	case OP_LINK:
		done(out, linkat(root, op->path, root, op->path2, op->flags));
		return true;
	case OP_SYMLINK:
		done(out, symlinkat(op->path2, root, op->path));
		return true;
	case OP_READLINK:
		do_readlink(trees, tree, op, out);
		return true;
	case OP_MKNOD:
		done(out, mknodat(root, op->path, op->mode, op->rdev));
		return true;
	case OP_CHMOD:
		done(out, fchmodat(root, op->path, op->mode & 07777, 0));
		return true;
	case OP_CHOWN:
		done(out, fchownat(root, op->path, op->uid, op->gid, nofollow));
		return true;
	case OP_UTIMENS:
		done(out, utimensat(root, op->path, op->times, nofollow));
		return true;
	case OP_SETXATTR:
		do_setxattr(trees, tree, op, out);
		return true;
	case OP_GETXATTR:
		do_getxattr(trees, tree, op, out);
		return true;
	case OP_LISTXATTR:
		do_listxattr(trees, tree, op, out);
		return true;
	case OP_REMOVEXATTR:
		fd = (op->salt & 1 ? lremovexattr : removexattr)(
			full_path(trees, tree, op), op->name);
		done(out, fd);
		return true;
	case OP_SETACL:
		do_setacl(trees, tree, op, out);
		return true;
	case OP_READDIR:
		do_readdir(trees, tree, op, out);
		return true;
	case OP_STATFS:
		do_statfs(trees, tree, op, out);
		return true;
	default:
		return false;
	}
}
