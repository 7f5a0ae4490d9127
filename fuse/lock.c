#include "fuse/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "util/log.h"

#define LOCK_DIR "/run/pacefs"

enum { NOTE_MAX = PATH_MAX + 32, GROUPS_MAX = 256, HOLDERS_MAX = 32 };

/* ---- who holds the source's flock ---- */

struct holder {
	pid_t pid;
	char comm[32];
	uid_t uid;
	gid_t groups[GROUPS_MAX]; /* of which the first is its own */
	size_t nr_groups;
	bool known; /* it could be looked at */
};

static void read_groups(char *list, struct holder *h)
{
	char *end;

	for (;;) {
		unsigned long gid = strtoul(list, &end, 10);
		if (end == list || h->nr_groups == GROUPS_MAX)
			return;
		h->groups[h->nr_groups++] = (gid_t)gid;
		list = end;
	}
}

static void look_at(struct holder *h)
{
	char path[48];
	char *line = NULL;
	size_t size = 0;
	unsigned long id;

	snprintf(path, sizeof(path), "/proc/%d/status", h->pid);
	FILE *status = fopen(path, "re");
	if (!status)
		return;
	while (getline(&line, &size, status) > 0) {
		sscanf(line, "Name: %31s", h->comm);
		/* The second word is the effective one. */
		if (sscanf(line, "Uid: %*u %lu", &id) == 1) {
			h->uid = (uid_t)id;
			h->known = true;
		}
		if (sscanf(line, "Gid: %*u %lu", &id) == 1)
			h->groups[h->nr_groups++] = (gid_t)id;
		if (strncmp(line, "Groups:", 7) == 0)
			read_groups(line + 7, h);
	}
	free(line);
	fclose(status);
}

/* By owner and mode: who may harm what is there anyway may also keep us away from it. */
static bool may_write(const struct holder *h, const struct stat *source)
{
	if (h->uid == 0 || h->uid == source->st_uid || source->st_mode & S_IWOTH)
		return true;
	for (size_t i = 0; i < h->nr_groups; i++)
		if (h->groups[i] == source->st_gid)
			return source->st_mode & S_IWGRP;
	return false;
}

/* "1: FLOCK  ADVISORY  WRITE 1234 08:01:131 0 EOF". The device is not compared: btrfs shows
 * another one there than in stat. */
static bool is_lock_on(const char *line, const struct stat *source, pid_t *ret_pid)
{
	uintmax_t ino;
	int pid;

	if (sscanf(line, "%*d: FLOCK %*s %*s %d %*x:%*x:%" SCNuMAX, &pid, &ino) != 2)
		return false;
	*ret_pid = pid;
	return ino == source->st_ino;
}

/* The first holder that is to be believed. */
static bool find_holder(const struct stat *source, struct holder *ret_holder)
{
	FILE *locks = fopen("/proc/locks", "re");
	char *line = NULL;
	size_t size = 0;
	bool found = false;

	if (!locks)
		return false;
	while (!found && getline(&line, &size, locks) > 0) {
		struct holder h = {.comm = "?"};

		if (!is_lock_on(line, source, &h.pid) || h.pid == getpid())
			continue;
		look_at(&h);
		/* One that may not be looked at (hidepid) is somebody else's, perhaps root's. */
		found = !h.known || may_write(&h, source);
		if (found)
			*ret_holder = h;
	}
	free(line);
	fclose(locks);
	return found;
}

static int refuse_holder(const char *source, const struct holder *h)
{
	char user[32] = "another user";

	if (h->known)
		snprintf(user, sizeof(user), "user %u", h->uid);
	log_error(
		"%s is served by another pacefs already, or locked: by %s[%d] of %s; that one "
		"must end first",
		source, h->comm, h->pid, user);
	return -EBUSY;
}

/* ---- the two locks ---- */

/* A device that has just come is locked by udev while that looks at it. */
static int flock_patiently(int fd, bool device)
{
	enum { TRIES = 20, WAIT_US = 50000 };

	for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; i++) {
		if (errno != EWOULDBLOCK || !device || i == TRIES)
			return errno;
		usleep(WAIT_US);
	}
	return 0;
}

/* Returns the descriptor that holds it, -1 when it is not to be had here, -EBUSY when somebody
 * else serves the source. */
static int lock_source(const char *source, int source_fd, const struct stat *st)
{
	char path[40];
	struct holder holder;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", source_fd);
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return -1; /* then nothing of it can be served either, and that is said later */
	int error = flock_patiently(fd, S_ISBLK(st->st_mode));
	if (error == 0)
		return fd;
	close(fd);
	if (error != EWOULDBLOCK) {
		log_debug("%s cannot be locked: %s", source, strerror(error));
		return -1;
	}
	if (find_holder(st, &holder))
		return refuse_holder(source, &holder);
	log_warn("%s is locked by somebody who may not write there: ignored", source);
	return -1;
}

static int open_own_dir(const char *path)
{
	struct stat st;

	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return -errno;
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0 || st.st_uid != geteuid() || st.st_mode & (S_IWGRP | S_IWOTH)) {
		close(fd);
		return -EPERM;
	}
	return fd;
}

static void name_of_file(const char *kind, const struct stat *source, char *name, size_t size)
{
	bool block = S_ISBLK(source->st_mode);
	dev_t dev = block ? source->st_rdev : source->st_dev;

	/* A device is the same by whatever node it is reached. */
	snprintf(name, size, "%s-%u:%u-%" PRIuMAX, kind, major(dev), minor(dev),
		block ? (uintmax_t)0 : (uintmax_t)source->st_ino);
}

/* The note in a lock: "PID MOUNTPOINT". */
static int refuse_note(const char *source, int fd)
{
	char note[NOTE_MAX];
	ssize_t n = pread(fd, note, sizeof(note) - 1, 0);

	note[n > 0 ? n : 0] = '\0';
	note[strcspn(note, "\n")] = '\0';
	char *mountpoint = strchr(note, ' ');
	if (!mountpoint) {
		log_error("%s is served by another pacefs already: umount that one first",
			source);
		return -EBUSY;
	}
	*mountpoint++ = '\0';
	log_error("%s is served by pacefs on %s already (pid %s): use that mount, or pacefs "
		  "umount it and wait until it has ended",
		source, mountpoint, note);
	return -EBUSY;
}

/* As lock_source(). */
static int lock_file(const char *source, const struct stat *st, const char *mountpoint)
{
	char name[96];
	int dir = open_own_dir(LOCK_DIR);
	int r = dir < 0 ? dir : 0;
	int fd = -1;

	name_of_file("lock", st, name, sizeof(name));
	if (r == 0) {
		fd = openat(dir, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
		r = fd < 0 ? -errno : 0;
		close(dir);
	}
	if (r == 0 && flock(fd, LOCK_EX | LOCK_NB) < 0)
		r = errno == EWOULDBLOCK ? refuse_note(source, fd) : -errno;
	if (r == 0 &&
		(ftruncate(fd, 0) < 0 || dprintf(fd, "%d %s\n", getpid(), mountpoint) < 0))
		r = -errno;
	if (r == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	if (r == -EBUSY)
		return r;
	log_warn("%s/%s: %s: only the source itself is locked", LOCK_DIR, name, strerror(-r));
	return -1;
}

int lock_take(
	const char *source, int source_fd, const char *mountpoint, struct source_lock *ret_lock)
{
	struct source_lock lock = {.source_fd = -1, .file_fd = -1};
	struct stat st;

	if (fstat(source_fd, &st) < 0) {
		int r = -errno;
		log_error("source %s cannot be used: %s", source, strerror(-r));
		return r;
	}
	/* The file first: it knows the holder's mountpoint. */
	if (geteuid() == 0)
		lock.file_fd = lock_file(source, &st, mountpoint);
	if (lock.file_fd == -EBUSY)
		return -EBUSY;
	lock.source_fd = lock_source(source, source_fd, &st);
	if (lock.source_fd == -EBUSY) {
		lock.source_fd = -1;
		lock_release(&lock);
		return -EBUSY;
	}
	*ret_lock = lock;
	lock_take_verdict(getpid()); /* of somebody who had this number before */
	return 0;
}

/* Where this user keeps what outlives a process: a descriptor or -errno, and its path. */
static int open_state_dir(char *ret_path, size_t size)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");

	if (geteuid() == 0)
		snprintf(ret_path, size, "%s", LOCK_DIR);
	else if (runtime && *runtime)
		snprintf(ret_path, size, "%s/pacefs", runtime);
	else
		return -ENOENT;
	return open_own_dir(ret_path);
}

int lock_state_open(const struct stat *source, bool create, char *ret_path, size_t size)
{
	char dir_path[PATH_MAX], name[96];
	int dir = open_state_dir(dir_path, sizeof(dir_path));

	if (dir < 0)
		return dir;
	name_of_file("state", source, name, sizeof(name));
	int fd = openat(
		dir, name, O_RDWR | (create ? O_CREAT : 0) | O_NOFOLLOW | O_CLOEXEC, 0600);
	int ret = fd < 0 ? -errno : fd;
	close(dir);
	snprintf(ret_path, size, "%s/%s", dir_path, name);
	return ret;
}

static void name_of_verdict(pid_t pid, char *name, size_t size)
{
	snprintf(name, size, "lost-%d", pid);
}

void lock_leave_verdict(void)
{
	char path[PATH_MAX], name[32];
	int dir = open_state_dir(path, sizeof(path));

	if (dir < 0)
		return;
	name_of_verdict(getpid(), name, sizeof(name));
	int fd = openat(dir, name, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd >= 0)
		close(fd);
	close(dir);
}

bool lock_take_verdict(pid_t pid)
{
	char path[PATH_MAX], name[32];
	int dir = open_state_dir(path, sizeof(path));

	if (dir < 0)
		return false;
	name_of_verdict(pid, name, sizeof(name));
	bool taken = unlinkat(dir, name, 0) == 0;
	close(dir);
	return taken;
}

void lock_release(struct source_lock *lock)
{
	if (lock->source_fd >= 0)
		close(lock->source_fd);
	if (lock->file_fd >= 0)
		close(lock->file_fd);
	lock->source_fd = lock->file_fd = -1;
}
