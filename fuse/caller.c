#include "fuse/caller.h"

#include "util/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct caller_task {
	pid_t tid;
	struct caller caller;
	uint64_t seen_us;
	UT_hash_handle hh;
};

/* NFS servers in user space: one process writes for many clients. */
static const char *const servers[] = {"ganesha.nfsd", "unfsd", NULL};

bool callers_cached(struct callers *cs, pid_t tid, uint64_t now_us, struct caller *ret_caller)
{
	struct caller_task *t;

	HASH_FIND(hh, cs->tasks, &tid, sizeof(tid), t);
	if (!t || now_us - t->seen_us > US_PER_S)
		return false;
	*ret_caller = t->caller;
	return true;
}

static void parse_status(char *text, struct caller *c)
{
	char *save;
	bool kernel_thread = true;

	for (char *line = strtok_r(text, "\n", &save); line;
		line = strtok_r(NULL, "\n", &save)) {
		if (strncmp(line, "Name:\t", 6) == 0)
			snprintf(c->comm, sizeof(c->comm), "%.15s", line + 6);
		else if (strncmp(line, "Tgid:\t", 6) == 0)
			c->tgid = (pid_t)atoi(line + 6);
		else if (strncmp(line, "VmSize:", 7) == 0)
			kernel_thread = false; /* kernel threads have no memory of their own */
	}
	if (kernel_thread)
		c->tgid = 0;
	for (const char *const *s = servers; *s; s++)
		if (strncmp(c->comm, *s, sizeof(c->comm) - 1) == 0)
			c->tgid = 0;
}

static ssize_t read_status(pid_t tid, char *text, size_t size)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/%d/status", tid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ssize_t n = read(fd, text, size - 1);
	if (n < 0)
		n = -errno;
	close(fd);
	text[n > 0 ? n : 0] = '\0';
	return n;
}

struct caller caller_resolve(pid_t tid)
{
	struct caller c = {0};
	char text[2048];

	if (tid && read_status(tid, text, sizeof(text)) > 0)
		parse_status(text, &c);
	return c;
}

void callers_remember(
	struct callers *cs, pid_t tid, const struct caller *caller, uint64_t now_us)
{
	struct caller_task *t;

	HASH_FIND(hh, cs->tasks, &tid, sizeof(tid), t);
	if (!t) {
		t = calloc(1, sizeof(*t));
		if (!t)
			return;
		t->tid = tid;
		HASH_ADD(hh, cs->tasks, tid, sizeof(t->tid), t);
		if (!hash_added(t)) {
			free(t);
			return;
		}
	}
	t->caller = *caller;
	t->seen_us = now_us;
}

void callers_expire(struct callers *cs, uint64_t now_us)
{
	struct caller_task *t, *next;

	HASH_ITER (hh, cs->tasks, t, next) {
		if (now_us - t->seen_us > 2 * US_PER_S) {
			HASH_DEL(cs->tasks, t);
			free(t);
		}
	}
}

void callers_finish(struct callers *cs)
{
	callers_expire(cs, UINT64_MAX);
}

struct writer_key caller_key(const struct caller *caller, uid_t uid, uint64_t nodeid)
{
	if (caller->tgid)
		return (struct writer_key){.id = (uint64_t)caller->tgid, .kind = WRITER_GROUP};
	return (struct writer_key){
		.id = nodeid * 0x9e3779b97f4a7c15ull ^ uid, .kind = WRITER_SERVED};
}

bool caller_has_ended(const struct writer *w)
{
	return w->key.kind == WRITER_GROUP && kill(w->pid, 0) < 0 && errno == ESRCH;
}

/* The mask on this line of /proc/TID/status, 0 if there is none. */
static uint64_t signal_mask(const char *status, const char *key)
{
	const char *at = strstr(status, key);

	return at ? strtoull(at + strlen(key), NULL, 16) : 0;
}

/* Signals that do nothing by default, or only stop. */
static uint64_t harmless_signals(void)
{
	static const int signals[] = {
		SIGCHLD, SIGCONT, SIGURG, SIGWINCH, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU};
	uint64_t mask = 0;

	for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++)
		mask |= 1ull << (signals[i] - 1);
	return mask;
}

bool caller_is_killed(pid_t tid)
{
	char text[4096];

	if (read_status(tid, text, sizeof(text)) < 0)
		return false;
	/* SIGKILL shows as such when it, or a fatal signal with no other one pending, was sent.
	 * A fatal signal behind a handled one stays pending as itself. */
	uint64_t pending = signal_mask(text, "SigPnd:\t") | signal_mask(text, "ShdPnd:\t");
	uint64_t kept = signal_mask(text, "SigBlk:\t") | signal_mask(text, "SigIgn:\t") |
		signal_mask(text, "SigCgt:\t") | harmless_signals();
	uint64_t kill = 1ull << (SIGKILL - 1);
	return pending & (~kept | kill);
}
