#include "fuse/writer.h"

#include "util/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct task {
	pid_t tid;
	struct writer_caller caller;
	uint64_t seen_us;
	UT_hash_handle hh;
};

/* NFS servers in user space: one process writes for many clients. */
static const char *const servers[] = {"ganesha.nfsd", "unfsd", NULL};

bool writers_cached(
	struct writers *ws, pid_t tid, uint64_t now_us, struct writer_caller *ret_caller)
{
	struct task *t;

	HASH_FIND(hh, ws->tasks, &tid, sizeof(tid), t);
	if (!t || now_us - t->seen_us > US_PER_S)
		return false;
	*ret_caller = t->caller;
	return true;
}

static void parse_status(char *text, struct writer_caller *c)
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

ssize_t writer_read_status(pid_t tid, char *text, size_t size)
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

struct writer_caller writer_resolve(pid_t tid)
{
	struct writer_caller c = {0};
	char text[2048];

	if (tid && writer_read_status(tid, text, sizeof(text)) > 0)
		parse_status(text, &c);
	return c;
}

void writers_remember(
	struct writers *ws, pid_t tid, const struct writer_caller *caller, uint64_t now_us)
{
	struct task *t;

	HASH_FIND(hh, ws->tasks, &tid, sizeof(tid), t);
	if (!t) {
		t = calloc(1, sizeof(*t));
		if (!t)
			return;
		t->tid = tid;
		HASH_ADD(hh, ws->tasks, tid, sizeof(t->tid), t);
	}
	t->caller = *caller;
	t->seen_us = now_us;
}

struct writer *writers_get(struct writers *ws, const struct writer_caller *caller, pid_t tid,
	uid_t uid, uint64_t nodeid, uint64_t now_us)
{
	struct writer_key key = {.id = (uint64_t)caller->tgid};
	struct writer *w;

	if (caller->tgid == 0) {
		key.kind = 1;
		key.id = nodeid * 0x9e3779b97f4a7c15ull ^ uid;
	}
	HASH_FIND(hh, ws->table, &key, sizeof(key), w);
	if (!w) {
		w = calloc(1, sizeof(*w));
		if (!w)
			return NULL;
		w->key = key;
		throttle_writer_init(&w->throttle);
		HASH_ADD(hh, ws->table, key, sizeof(w->key), w);
	}
	w->pid = caller->tgid ? caller->tgid : tid;
	w->uid = uid;
	memcpy(w->comm, caller->comm, sizeof(w->comm));
	w->last_us = now_us;
	return w;
}

static bool has_ended(const struct writer *w, uint64_t now_us)
{
	return w->key.kind == 0 && now_us - w->last_us > WRITER_QUIET_US &&
		kill(w->pid, 0) < 0 && errno == ESRCH;
}

double writers_expire(struct writers *ws, uint64_t now_us)
{
	struct writer *w, *next_writer;
	struct task *t, *next_task;
	double debt = 0;

	HASH_ITER (hh, ws->table, w, next_writer) {
		bool ended = w->held == 0 && has_ended(w, now_us);
		if (ended)
			debt += w->throttle.nr_dirtied;
		if (ended || (w->held == 0 && now_us - w->last_us > WRITER_IDLE_US)) {
			HASH_DEL(ws->table, w);
			free(w);
		}
	}
	HASH_ITER (hh, ws->tasks, t, next_task) {
		if (now_us - t->seen_us > 2 * US_PER_S) {
			HASH_DEL(ws->tasks, t);
			free(t);
		}
	}
	return debt;
}

unsigned writers_active(const struct writers *ws, uint64_t now_us)
{
	unsigned n = 0;

	for (const struct writer *w = ws->table; w; w = w->hh.next)
		n += w->held || now_us - w->last_us < US_PER_S;
	return n ? n : 1;
}

void writers_finish(struct writers *ws)
{
	writers_expire(ws, UINT64_MAX);
	struct writer *w, *next_writer;
	HASH_ITER (hh, ws->table, w, next_writer) {
		HASH_DEL(ws->table, w);
		free(w);
	}
}
