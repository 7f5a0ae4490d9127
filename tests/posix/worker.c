/* worker.c - the processes that do the operations, each a user of its own. */

#include "twin.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/falloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct {
	uid_t uid;
	gid_t gid;
	size_t nr_groups;
	gid_t groups[2];
	mode_t mask;
} users[NR_WORKERS] = {
	{0, 0, 0, {0}, 022},
	{1001, 1001, 1, {2000}, 002},
	{1002, 1002, 2, {1001, 2000}, 077},
	{1003, 1003, 0, {0}, 000},
};

static void become(unsigned number)
{
	umask(users[number].mask);
	if (setgroups(users[number].nr_groups, users[number].groups) < 0 ||
		setresgid(users[number].gid, users[number].gid, users[number].gid) < 0 ||
		setresuid(users[number].uid, users[number].uid, users[number].uid) < 0)
		_exit(3);
	prctl(PR_SET_DUMPABLE, 1); /* or /proc/self were root's */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGPIPE, SIG_IGN); /* a FIFO whose reader has closed it */
}

static bool same_outcome(const struct outcome out[NR_TREES], char *why, size_t bytes)
{
	const struct outcome *a = &out[TREE_A], *b = &out[TREE_B];

	if (a->note[0] || b->note[0])
		snprintf(why, bytes, "%s (plain: %s)", a->note, b->note);
	else if (a->ret != b->ret || a->error != b->error)
		snprintf(why, bytes, "returned %ld (%s), plain %ld (%s)", a->ret,
			strerror(a->error), b->ret, strerror(b->error));
	else if (a->hash != b->hash)
		snprintf(why, bytes, "other bytes were read");
	else
		return true;
	return false;
}

/* What FUSE has not is not done at all. */
static bool left_out(const struct op *op, const struct outcome *out)
{
	return op->kind == OP_FALLOCATE && out->error == EOPNOTSUPP &&
		op->flags &
		(FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE | FALLOC_FL_ZERO_RANGE);
}

static void perform(struct worker_files *files, const struct trees *trees, const struct op *op,
	struct outcome out[NR_TREES])
{
	for (int tree = 0; tree < NR_TREES; tree++) {
		memset(&out[tree], 0, sizeof(out[tree]));
		if (!perform_file(files, trees, tree, op, &out[tree]) &&
			!perform_name(files, trees, tree, op, &out[tree]))
			abort();
		if (tree == TREE_A && left_out(op, &out[tree])) {
			out[TREE_B] = out[TREE_A];
			if (op->flags & FALLOC_FL_ZERO_RANGE) /* as it was begun with */
				futimens(files->fd[TREE_B][op->slot], NULL);
			return;
		}
	}
}

static void do_one(struct worker_files *files, const struct trees *trees, const struct op *op,
	char *why, size_t bytes)
{
	const unsigned slots[2] = {op->slot, op->slot2};
	struct look before[2][NR_TREES], after[NR_TREES];
	struct outcome out[NR_TREES];
	bool opens = op->kind == OP_OPEN || op->kind == OP_OPEN_UNLINKED; /* another file */

	for (int k = 0; k < 2; k++)
		for (int i = 0; i < NR_TREES; i++)
			before[k][i] = look_fd(files->fd[i][slots[k]]);
	perform(files, trees, op, out);
	if (!same_outcome(out, why, bytes))
		return;
	for (int k = 0; k < 2; k++) {
		int fd[NR_TREES];
		for (int i = 0; i < NR_TREES; i++) {
			fd[i] = files->fd[i][slots[k]];
			after[i] = look_fd(fd[i]);
		}
		if (!compare_looks(trees, before[k], after, opens ? MOVES_ANY : op_moves(op),
			    why, bytes))
			return;
		/* Not each time: reading also heals. */
		if (fd[TREE_A] >= 0 && op->salt % 3 == 0 && !compare_fds(fd, why, bytes))
			return;
	}
}

static void serve(int socket, const struct trees *trees, uint64_t seed)
{
	static struct op op;
	struct worker_files files;
	uint64_t index;

	for (int i = 0; i < NR_TREES; i++)
		for (int k = 0; k < NR_SLOTS; k++)
			files.fd[i][k] = -1;
	while (recv(socket, &index, sizeof(index), 0) == sizeof(index)) {
		char why[512] = "";
		op_generate(&op, seed, index);
		do_one(&files, trees, &op, why, sizeof(why));
		if (send(socket, why, strlen(why) + 1, 0) < 0)
			_exit(4);
	}
	_exit(0);
}

void workers_start(struct worker workers[NR_WORKERS], const struct trees *trees, uint64_t seed)
{
	for (unsigned i = 0; i < NR_WORKERS; i++) {
		int pair[2];
		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
			abort();
		fflush(NULL);
		workers[i].pid = fork();
		if (workers[i].pid < 0)
			abort();
		if (workers[i].pid == 0) {
			for (unsigned k = 0; k < i; k++)
				close(workers[k].socket);
			close(pair[0]);
			become(i);
			serve(pair[1], trees, seed);
		}
		close(pair[1]);
		workers[i].socket = pair[0];
	}
}

void worker_do(struct worker *worker, uint64_t index, char *ret_why, size_t bytes)
{
	ssize_t n = -1;

	if (send(worker->socket, &index, sizeof(index), MSG_NOSIGNAL) == sizeof(index))
		n = recv(worker->socket, ret_why, bytes, 0);
	if (n <= 0)
		snprintf(ret_why, bytes, "the process that did it has died");
}

void workers_stop(struct worker workers[NR_WORKERS])
{
	for (unsigned i = 0; i < NR_WORKERS; i++)
		close(workers[i].socket);
	for (unsigned i = 0; i < NR_WORKERS; i++)
		waitpid(workers[i].pid, NULL, 0);
}
