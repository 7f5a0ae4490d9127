#include "fuse/inside.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { EXT_ROOT_INO = 2 }; /* by its format */

bool inside_is_whole_filesystem(int root_fd)
{
	struct statfs fs;
	struct stat st;

	return fstatfs(root_fd, &fs) == 0 && fs.f_type == EXT4_SUPER_MAGIC &&
		fstat(root_fd, &st) == 0 && st.st_ino == EXT_ROOT_INO;
}

/* size bytes of room; false: none, or too long. */
static bool path_of(int fd, char *path, size_t size)
{
	char link[32];

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, size);
	if (n <= 0 || (size_t)n >= size || path[0] != '/')
		return false;
	path[n] = '\0';
	return true;
}

/* What follows the source's path; NULL: this path is not below it. */
static const char *relative(const char *path, const char *root)
{
	size_t length = strcmp(root, "/") == 0 ? 0 : strlen(root);

	if (strncmp(path, root, length) != 0)
		return NULL;
	path += length;
	if (*path == '\0')
		return ".";
	return path[0] == '/' && path[1] ? path + 1 : NULL;
}

bool inside_source(int root_fd, int fd)
{
	struct open_how how = {
		.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
	};
	char root[PATH_MAX], path[PATH_MAX];
	struct stat st, walked;

	if (!path_of(root_fd, root, sizeof(root)) || !path_of(fd, path, sizeof(path)))
		return false;
	/* The kernel's text is a hint only: it may be that of another place of this name. */
	const char *hint = relative(path, root);
	if (!hint || fstatat(fd, "", &st, AT_EMPTY_PATH) < 0)
		return false;
	int again = (int)syscall(SYS_openat2, root_fd, hint, &how, sizeof(how));
	if (again < 0)
		return false;
	bool same = fstatat(again, "", &walked, AT_EMPTY_PATH) == 0 &&
		walked.st_dev == st.st_dev && walked.st_ino == st.st_ino;
	close(again);
	return same;
}
