#include "fuse/processes.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "util/log.h"

enum { HOLDERS_SHOWN = 8 };

static bool is_below(const char *path, const char *mountpoint)
{
	size_t length = strlen(mountpoint);

	return strncmp(path, mountpoint, length) == 0 &&
		(path[length] == '\0' || path[length] == '/');
}

/* Only the text of the link is looked at: following it could hang on a dead mount. */
static bool link_is_below(int dir, const char *name, const char *mountpoint)
{
	char target[PATH_MAX];
	ssize_t n = readlinkat(dir, name, target, sizeof(target) - 1);

	if (n < 0)
		return false;
	target[n] = '\0';
	return is_below(target, mountpoint);
}

static bool fd_is_below(int process, const char *mountpoint)
{
	int fd = openat(process, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;
	bool found = false;

	if (!dir) {
		if (fd >= 0)
			close(fd);
		return false;
	}
	while (!found && (entry = readdir(dir)))
		found = link_is_below(fd, entry->d_name, mountpoint);
	closedir(dir);
	return found;
}

/* A mapped file needs no open descriptor. */
static bool maps_below(int process, const char *mountpoint)
{
	int fd = openat(process, "maps", O_RDONLY | O_CLOEXEC);
	FILE *maps = fd < 0 ? NULL : fdopen(fd, "r");
	char *line = NULL;
	size_t size = 0;
	bool found = false;

	if (!maps) {
		if (fd >= 0)
			close(fd);
		return false;
	}
	while (!found && getline(&line, &size, maps) > 0) {
		char *path = strchr(line, '/');

		line[strcspn(line, "\n")] = '\0';
		found = path && is_below(path, mountpoint);
	}
	free(line);
	fclose(maps);
	return found;
}

/* How the process holds the mount, or NULL. */
static const char *holds(int process, const char *mountpoint, bool mapped_too)
{
	if (link_is_below(process, "cwd", mountpoint))
		return "is in it";
	if (link_is_below(process, "root", mountpoint))
		return "has its root in it";
	if (link_is_below(process, "exe", mountpoint))
		return "runs from it";
	if (fd_is_below(process, mountpoint))
		return "has a file open";
	return mapped_too && maps_below(process, mountpoint) ? "has a file mapped" : NULL;
}

static void read_comm(int process, char *comm, size_t size)
{
	int fd = openat(process, "comm", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, comm, size - 1);

	comm[n > 0 ? n : 0] = '\0';
	comm[strcspn(comm, "\n")] = '\0';
	if (fd >= 0)
		close(fd);
}

unsigned int processes_name_holders(const char *mountpoint, pid_t daemon)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	unsigned int nr = 0;
	char comm[64];

	while (proc && (entry = readdir(proc))) {
		if (!isdigit((unsigned char)entry->d_name[0]) ||
			(pid_t)strtol(entry->d_name, NULL, 10) == daemon)
			continue;
		int process =
			openat(dirfd(proc), entry->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		const char *how =
			process < 0 ? NULL : holds(process, mountpoint, daemon != getpid());
		if (how && nr++ < HOLDERS_SHOWN) {
			read_comm(process, comm, sizeof(comm));
			log_error("%s[%s] %s", comm, entry->d_name, how);
		}
		if (process >= 0)
			close(process);
	}
	if (proc)
		closedir(proc);
	if (nr > HOLDERS_SHOWN)
		log_error("and %u more", nr - HOLDERS_SHOWN);
	return nr;
}

int processes_open_daemon(pid_t pid)
{
	char path[32];

	if (pid <= 0)
		return -1;
	snprintf(path, sizeof(path), "/proc/%d", pid);
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	int process = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool ours = process >= 0 && fd_is_below(process, "/dev/fuse");
	if (process >= 0)
		close(process);
	if (pidfd >= 0 && !ours) {
		close(pidfd);
		pidfd = -1;
	}
	return pidfd;
}

static ino_t mount_namespace(int process)
{
	struct stat st;

	return fstatat(process, "ns/mnt", &st, 0) == 0 ? st.st_ino : 0;
}

/* "36 35 98:0 /mnt1 ...": the third word is the device. Its number may be another's by now, but
 * hardly that of another pacefs. */
static bool mountinfo_has(int process, dev_t dev)
{
	int fd = openat(process, "mountinfo", O_RDONLY | O_CLOEXEC);
	FILE *mounts = fd < 0 ? NULL : fdopen(fd, "r");
	unsigned int major, minor;
	char *line = NULL;
	size_t size = 0;
	bool found = false;

	if (!mounts) {
		if (fd >= 0)
			close(fd);
		return false;
	}
	while (!found && getline(&line, &size, mounts) > 0)
		found = sscanf(line, "%*d %*d %u:%u ", &major, &minor) == 2 &&
			makedev(major, minor) == dev && strstr(line, ".pacefs ");
	free(line);
	fclose(mounts);
	return found;
}

/* A process that still has the mount, in a namespace of its own. */
static bool name_other_namespace(dev_t dev)
{
	DIR *proc = opendir("/proc");
	struct stat here = {0};
	struct dirent *entry;
	bool found = false;
	char comm[64];

	stat("/proc/self/ns/mnt", &here);
	while (proc && !found && (entry = readdir(proc))) {
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		int process =
			openat(dirfd(proc), entry->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		found = process >= 0 && mount_namespace(process) != here.st_ino &&
			mountinfo_has(process, dev);
		if (found) {
			read_comm(process, comm, sizeof(comm));
			log_error(
				"unmounted here, but %s[%s] has it in its own mount namespace",
				comm, entry->d_name);
		}
		if (process >= 0)
			close(process);
	}
	if (proc)
		closedir(proc);
	return found;
}

bool processes_wait_end(int daemon, dev_t dev)
{
	struct pollfd end = {.fd = daemon, .events = POLLIN};
	bool said = false;

	while (poll(&end, 1, 1000) <= 0) {
		if (dev && name_other_namespace(dev))
			return false;
		if (!said)
			fputs("waiting for the daemon to end\n", stderr);
		said = true;
	}
	return true;
}

/* Linux 6.15 and later keep the exit status of a reaped process for those who have a
 * pidfd. The layout is the first published one; old headers do not have it. */
struct first_pidfd_info {
	uint64_t mask;
	uint64_t cgroupid;
	uint32_t ids[11];
	int32_t exit_code;
};
#define FIRST_PIDFD_GET_INFO _IOWR(0xFF, 11, struct first_pidfd_info)
#define FIRST_PIDFD_INFO_EXIT (1u << 3)

int processes_exit_status(int daemon)
{
	const struct timespec pause = {.tv_nsec = 10000000};

	/* Reaping is up to its parent; do not wait long for that. */
	for (int tries = 0; tries < 20; tries++) {
		struct first_pidfd_info info = {.mask = FIRST_PIDFD_INFO_EXIT};

		if (ioctl(daemon, FIRST_PIDFD_GET_INFO, &info) == 0 &&
			info.mask & FIRST_PIDFD_INFO_EXIT)
			return WIFSIGNALED(info.exit_code) ? 128 + WTERMSIG(info.exit_code)
							   : WEXITSTATUS(info.exit_code);
		nanosleep(&pause, NULL);
	}
	return 0;
}
