/* races.c - many processes do everything at once to the same few names.
 *
 *   races DIR [processes=8] [ops=10000] [seed=1]
 *
 * ops operations altogether. What they read may be anything; what they must not get is an error
 * that a filesystem does not give for a name that comes and goes. Such a one, or a process that
 * ends otherwise, is said, and the exit status is 1.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { NAMES = 6, DIRS = 2, KEPT = 4, BYTES_MOST = 256 * 1024 };

static uint64_t state;

static unsigned below(unsigned n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (unsigned)(state >> 33) % n;
}

static const char *any_name(char *text, size_t size)
{
	unsigned dir = below(DIRS + 1);

	if (dir == DIRS)
		snprintf(text, size, "f%u", below(NAMES));
	else
		snprintf(text, size, "d%u/f%u", dir, below(NAMES));
	return text;
}

/* Errors of names that others take away, and of files that others cut. */
static bool is_usual(int error)
{
	return error == ENOENT || error == EEXIST || error == ENOTEMPTY || error == ENOTDIR ||
		error == EISDIR || error == ENXIO || error == ENODATA || error == ELOOP;
}

static void judge(const char *what, long ret)
{
	if (ret >= 0 || is_usual(errno))
		return;
	printf("%s: %s\n", what, strerror(errno));
	exit(1);
}

/* ---- files that stay open for a while ---- */

static int kept[KEPT] = {-1, -1, -1, -1};

static void open_one(const char *name)
{
	static const int flags[] = {O_RDWR | O_CREAT, O_RDWR, O_RDONLY, O_WRONLY | O_TRUNC,
		O_RDWR | O_CREAT | O_EXCL, O_WRONLY | O_APPEND};
	int *fd = &kept[below(KEPT)];

	if (*fd >= 0)
		judge("close", close(*fd));
	*fd = open(name, flags[below(6)] | O_NOFOLLOW, 0644);
	judge("open", *fd);
}

static bool may(int fd, int mode)
{
	int flags = fcntl(fd, F_GETFL);

	return flags >= 0 && ((flags & O_ACCMODE) == O_RDWR || (flags & O_ACCMODE) == mode);
}

static void map_one(int fd)
{
	char *at;

	if (!may(fd, O_RDWR) || ftruncate(fd, 8192) < 0)
		return;
	at = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	judge("mmap", at == MAP_FAILED ? -1 : 0);
	judge("msync", msync(at, 8192, MS_ASYNC)); /* touching it would race with truncation */
	munmap(at, 8192);
}

static void use_open(int fd)
{
	static char data[BYTES_MOST];
	struct stat st;
	size_t bytes = 1 + below(BYTES_MOST);
	off_t at = below(BYTES_MOST);

	switch (below(9)) {
	case 0:
	case 1:
	case 2:
		if (may(fd, O_WRONLY))
			judge("write", pwrite(fd, data, bytes, at));
		break;
	case 3:
		if (may(fd, O_RDONLY))
			judge("read", pread(fd, data, bytes, at));
		break;
	case 4:
		if (may(fd, O_WRONLY))
			judge("ftruncate", ftruncate(fd, at));
		break;
	case 5:
		judge("fsync", below(4) ? fdatasync(fd) : fsync(fd));
		break;
	case 6:
		judge("fstat", fstat(fd, &st));
		break;
	case 7:
		if (may(fd, O_WRONLY))
			judge("fallocate",
				fallocate(fd,
					below(2) ? FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
						 : 0,
					at, (off_t)bytes));
		break;
	default:
		map_one(fd);
	}
}

/* ---- names ---- */

static void list(const char *name)
{
	DIR *dir = opendir(name);

	if (!dir) {
		judge("opendir", -1);
		return;
	}
	while (readdir(dir))
		;
	closedir(dir);
}

static void use_names(const char *a, const char *b)
{
	char dir[16];
	struct stat st;

	snprintf(dir, sizeof(dir), "d%u", below(DIRS));
	switch (below(12)) {
	case 0:
	case 1:
		judge("rename", rename(a, b));
		break;
	case 2:
		judge("exchange", syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 2));
		break;
	case 3:
	case 4:
		judge("unlink", unlink(a));
		break;
	case 5:
		judge("link", link(a, b));
		break;
	case 6:
		judge("truncate", truncate(a, below(BYTES_MOST)));
		break;
	case 7:
		judge("stat", lstat(a, &st));
		break;
	case 8:
		judge("setxattr", setxattr(a, "user.x", "1", 1, 0));
		break;
	case 9:
		judge("mkdir", mkdir(dir, 0755));
		break;
	case 10:
		judge("rmdir", rmdir(dir));
		break;
	default:
		list(below(2) ? "." : dir);
	}
}

static void run(unsigned ops)
{
	char a[32], b[32];

	while (ops--) {
		int fd = kept[below(KEPT)];
		unsigned kind = below(8);
		if (kind < 3)
			open_one(any_name(a, sizeof(a)));
		else if (kind < 6 && fd >= 0)
			use_open(fd);
		else
			use_names(any_name(a, sizeof(a)), any_name(b, sizeof(b)));
	}
	exit(0);
}

int main(int argc, char **argv)
{
	unsigned processes = 8, ops = 10000, seed = 1;
	int status, ret = 0;

	for (int i = 2; i < argc; i++)
		if (sscanf(argv[i], "processes=%u", &processes) != 1 &&
			sscanf(argv[i], "ops=%u", &ops) != 1 &&
			sscanf(argv[i], "seed=%u", &seed) != 1)
			return 2;
	if (argc < 2 || processes == 0 || chdir(argv[1]) < 0)
		return 2;
	printf("seed=%u\n", seed);
	fflush(stdout);
	for (unsigned i = 0; i < processes; i++) {
		pid_t pid = fork();
		if (pid < 0)
			return 2;
		if (pid == 0) {
			state = 88172645463325252ull ^ (uint64_t)(seed * 1000 + i) << 20;
			run(ops / processes);
		}
	}
	while (wait(&status) >= 0)
		if (status != 0) {
			printf("a process ended with %#x\n", (unsigned)status);
			ret = 1;
		}
	return ret;
}
