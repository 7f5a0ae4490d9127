#include "fuse/memory.h"

#include "util/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/capability.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef PR_SET_IO_FLUSHER
#define PR_SET_IO_FLUSHER 57 /* Linux 5.6 */
#endif

/* ---- control groups ---- */

/* A hierarchy that may limit memory. */
struct hierarchy {
	bool version2;
	char group[PATH_MAX]; /* ours, as /proc/self/cgroup has it */
	char top[PATH_MAX];   /* the group that is seen at ... */
	char mount[PATH_MAX]; /* ... this directory */
};

static bool has_word(const char *list, const char *word)
{
	size_t length = strlen(word);

	for (const char *at = list; at; at = strchr(at, ',')) {
		at += *at == ',';
		if (strncmp(at, word, length) == 0 && strchr(",", at[length]))
			return true;
	}
	return false;
}

/* Lines "4:memory:/a/b" (version 1) and "0::/a/b" (version 2). */
static bool find_group(const char *root, struct hierarchy *h)
{
	char path[PATH_MAX], line[PATH_MAX + 256];
	bool found = false;

	snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	FILE *file = fopen(path, "re");
	if (!file)
		return false;
	while (!found && fgets(line, sizeof(line), file)) {
		char *controllers = strchr(line, ':');
		char *group = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!group)
			continue;
		*controllers++ = *group++ = '\0';
		group[strcspn(group, "\n")] = '\0';
		found = h->version2 ? *controllers == '\0' : has_word(controllers, "memory");
		if (found)
			snprintf(h->group, sizeof(h->group), "%.*s", PATH_MAX - 1, group);
	}
	fclose(file);
	return found;
}

/* "ID PARENT MAJ:MIN ROOT MOUNTPOINT OPTIONS ... - TYPE SOURCE SUPER_OPTIONS" */
static bool find_mount(const char *root, struct hierarchy *h)
{
	char path[PATH_MAX], line[3 * PATH_MAX];
	bool found = false;

	snprintf(path, sizeof(path), "%s/proc/self/mountinfo", root);
	FILE *file = fopen(path, "re");
	if (!file)
		return false;
	while (!found && fgets(line, sizeof(line), file)) {
		char type[32], super[512];
		const char *tail = strstr(line, " - ");
		if (!tail || sscanf(tail, " - %31s %*s %511s", type, super) != 2 ||
			sscanf(line, "%*s %*s %*s %4095s %4095s", h->top, h->mount) != 2)
			continue;
		found = h->version2 ? strcmp(type, "cgroup2") == 0
				    : strcmp(type, "cgroup") == 0 && has_word(super, "memory");
	}
	fclose(file);
	return found;
}

/* The number in a group's file; "max", no file and no number are no limit. */
static uint64_t read_limit(const char *directory, const char *name)
{
	char path[2 * PATH_MAX + 32];
	uint64_t limit = MEMORY_NO_LIMIT;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	FILE *file = fopen(path, "re");
	if (!file)
		return MEMORY_NO_LIMIT;
	if (fscanf(file, "%" SCNu64, &limit) != 1)
		limit = MEMORY_NO_LIMIT;
	fclose(file);
	return limit;
}

static uint64_t hierarchy_limit(const char *root, bool version2)
{
	struct hierarchy h = {.version2 = version2};
	char path[2 * PATH_MAX];
	uint64_t least = MEMORY_NO_LIMIT;

	if (!find_group(root, &h) || !find_mount(root, &h))
		return MEMORY_NO_LIMIT;
	/* In a container the tree may be seen from a group further down. */
	const char *group = h.group;
	size_t top = strcmp(h.top, "/") ? strlen(h.top) : 0;
	if (strncmp(group, h.top, top) == 0)
		group += top;
	else
		group = "";
	int length = snprintf(path, sizeof(path), "%s%s", root, h.mount);
	snprintf(path + length, sizeof(path) - (size_t)length, "%s", group);
	for (;;) {
		uint64_t limit =
			read_limit(path, version2 ? "memory.max" : "memory.limit_in_bytes");
		least = limit < least ? limit : least;
		char *slash = strrchr(path + length, '/');
		if (!slash)
			return least;
		*slash = '\0';
	}
}

uint64_t memory_group_limit(const char *root)
{
	uint64_t v1 = hierarchy_limit(root, false);
	uint64_t v2 = hierarchy_limit(root, true);

	return v1 < v2 ? v1 : v2;
}

uint64_t memory_machine_bytes(void)
{
	long pages = sysconf(_SC_PHYS_PAGES);
	uint64_t bytes = pages > 0 ? (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
	uint64_t limit = memory_group_limit("");

	return limit < bytes ? limit : bytes;
}

/* ---- protection ---- */

static bool may_lock_all(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];
	struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};

	if (syscall(SYS_capget, &head, data) == 0 && data[0].effective & 1u << CAP_IPC_LOCK)
		return true;

	if (setrlimit(RLIMIT_MEMLOCK, &limit) < 0 && getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_MEMLOCK, &limit);
	}
	/* With less than that a later allocation would fail for want of locks. */
	return getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY;
}

/* What is dirty, and all that is needed to write it, must be there when memory is short. Only what
 * is touched counts, so that the unused part of the cache costs nothing. */
static void lock_memory(void)
{
	if (!may_lock_all())
		log_debug("memory is not locked: that needs LimitMEMLOCK=infinity");
	else if (mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) < 0)
		log_debug("memory is not locked: %s", strerror(errno));
}

static void avoid_killing(void)
{
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return;
	/* Not -1000: if it is the daemon that leaks, it must go in the end. */
	if (write(fd, "-990", 4) < 0)
		log_debug("oom_score_adj: %s", strerror(errno));
	close(fd);
}

void memory_protect(void)
{
	/* Each reader would have a heap of its own that only grows. */
	mallopt(M_ARENA_MAX, 2);
	/* Threads that come later inherit it. */
	if (prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) < 0)
		log_debug("not marked as one that writes for others: %s", strerror(errno));
	avoid_killing();
	lock_memory();
}

/* ---- figures ---- */

uint64_t memory_resident_bytes(void)
{
	uint64_t pages = 0;
	FILE *file = fopen("/proc/self/statm", "re");

	if (!file)
		return 0;
	if (fscanf(file, "%*u %" SCNu64, &pages) != 1)
		pages = 0;
	fclose(file);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t memory_ceiling_bytes(uint64_t cache_bytes, uint64_t held_bytes)
{
	return cache_bytes + cache_bytes / 50 + MEMORY_BESIDE_BYTES + held_bytes;
}
