/* shrink.c - a run of operations, and the search for the shortest that still differs. */

#include "twin.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WHY_BYTES = 1024, ROOT_FD = 40 /* with as many digits for both trees */ };

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	remove(path);
	return 0;
}

/* A new and empty directory, the same name in both. */
static void enter(const struct options *options, struct trees *trees)
{
	static unsigned number;
	char path[4096];

	number++;
	umask(0);
	for (int i = 0; i < NR_TREES; i++) {
		if (number > 1) {
			snprintf(path, sizeof(path), "%s/run%u", options->dir[i], number - 1);
			nftw(path, remove_one, 64, FTW_DEPTH | FTW_PHYS);
		}
		snprintf(path, sizeof(path), "%s/run%u", options->dir[i], number);
		nftw(path, remove_one, 64, FTW_DEPTH | FTW_PHYS);
		mkdir(path, 0777);
		/* One further down: some links lead to "..". */
		snprintf(path, sizeof(path), "%s/run%u/top", options->dir[i], number);
		int fd = mkdir(path, 0777) < 0 ? -1
					       : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		trees->root[i] = fd < 0 ? -1 : dup2(fd, ROOT_FD + i);
		if (trees->root[i] < 0) {
			fprintf(stderr, "%s: %s\n", path, strerror(errno));
			exit(2);
		}
		close(fd);
	}
	clock_gettime(CLOCK_REALTIME, &trees->begin);
}

/* The paths an operation may have to do with, and their directories. */
struct view {
	char path[4][PATH_BYTES];
	struct look look[4][NR_TREES];
};

static void parent_of(char *parent, const char *path)
{
	const char *slash = strrchr(path, '/');

	if (slash && slash > path)
		snprintf(parent, PATH_BYTES, "%.*s", (int)(slash - path), path);
	else
		strcpy(parent, ".");
}

static void view_open(struct view *v, const struct op *op)
{
	strcpy(v->path[0], op->path);
	strcpy(v->path[1], op->path2);
	parent_of(v->path[2], op->path);
	parent_of(v->path[3], op->path2);
}

static void view_look(struct view *v, const struct trees *trees)
{
	for (int k = 0; k < 4; k++)
		for (int i = 0; i < NR_TREES; i++)
			v->look[k][i] = look_at(trees->root[i], v->path[k]);
}

static void touch_dirs(const struct view *v, const struct trees *trees)
{
	for (int k = 2; k < 4; k++)
		for (int i = 0; i < NR_TREES; i++)
			utimensat(trees->root[i], v->path[k], NULL, 0);
}

static bool view_compare(
	struct view *v, const struct trees *trees, const struct op *op, char *why, size_t bytes)
{
	static struct view now;
	enum moves moves = op_moves(op);

	if (moves == MOVES_ANY)
		touch_dirs(v, trees);

	memcpy(now.path, v->path, sizeof(now.path));
	view_look(&now, trees);
	for (int k = 0; k < 4; k++) {
		bool same = compare_looks(trees, v->look[k], now.look[k], moves, why, bytes);
		/* Content not each time: reading also heals. */
		if (same && k < 2)
			same = compare_file(
				trees, v->path[k], (op->salt >> 8) % 3 == 0, why, bytes);
		if (same)
			continue;
		char inner[WHY_BYTES];
		strcpy(inner, why);
		snprintf(why, bytes, "%.80s: %.500s", v->path[k], inner);
		return false;
	}
	return true;
}

static double seconds_since(const struct timespec *begin)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (double)(now.tv_sec - begin->tv_sec) +
		(double)(now.tv_nsec - begin->tv_nsec) / 1e9;
}

uint64_t run_once(const struct options *options, const bool *keep, uint64_t count, FILE *out)
{
	static struct op op;
	static struct view view;
	struct worker workers[NR_WORKERS];
	struct trees trees = {.coarse = options->coarse};
	char why[WHY_BYTES] = "";
	uint64_t i;

	enter(options, &trees);
	workers_start(workers, &trees, options->seed);
	for (i = 0; i < count && !why[0]; i++) {
		if (keep && !keep[i])
			continue;
		if (options->seconds > 0 && seconds_since(&trees.begin) > options->seconds)
			break;
		op_generate(&op, options->seed, i);
		if (out && options->verbose)
			op_print(out, &op, i);
		view_open(&view, &op);
		view_look(&view, &trees);
		worker_do(&workers[op.worker], i, why, sizeof(why));
		if (!why[0])
			view_compare(&view, &trees, &op, why, sizeof(why));
		if (!why[0] && options->check_every && (i + 1) % options->check_every == 0)
			compare_trees(&trees, why, sizeof(why));
	}
	workers_stop(workers);
	if (!why[0])
		compare_trees(&trees, why, sizeof(why));
	for (int tree = 0; tree < NR_TREES; tree++)
		close(trees.root[tree]);
	if (out && why[0]) {
		fprintf(out, "seed %llu, after %llu operations: %s\n",
			(unsigned long long)options->seed, (unsigned long long)i, why);
		op_print(out, &op, i - 1);
	} else if (out) {
		fprintf(out, "seed %llu: %llu operations, no difference\n",
			(unsigned long long)options->seed, (unsigned long long)i);
	}
	return why[0] ? i : 0;
}

/* Runs that are worth it: one that never differs again depends on time. */
static unsigned most(uint64_t left, uint64_t count)
{
	enum { RUNS_MOST = 400, RUNS_IN_VAIN = 30 };

	return left == count ? RUNS_IN_VAIN : RUNS_MOST;
}

/* Leaves out pieces of halves, quarters, and so on to single operations, as long as what remains
 * differs. The last one stays: it is the one that showed it. */
void shrink(const struct options *options, uint64_t count)
{
	enum { PRINT_MOST = 60 };
	bool *keep = malloc(count), *tried = malloc(count);
	struct options quiet = *options;
	uint64_t left = count;
	unsigned runs = 0;

	if (!keep || !tried)
		abort();
	memset(keep, true, count);
	quiet.check_every = 0;
	quiet.seconds = 0;
	quiet.verbose = false;
	for (uint64_t size = count / 2; size >= 1; size /= 2) {
		for (uint64_t at = 0; at + 1 < count && runs < most(left, count); at += size) {
			uint64_t end = at + size < count - 1 ? at + size : count - 1, n = 0;
			memcpy(tried, keep, count);
			for (uint64_t k = at; k < end; k++) {
				n += tried[k];
				tried[k] = false;
			}
			if (!n)
				continue;
			runs++;
			if (!run_once(&quiet, tried, count, NULL))
				continue;
			memcpy(keep, tried, count);
			left -= n;
		}
	}
	printf("the fewest operations found (%u runs): %llu%s\n", runs,
		(unsigned long long)left,
		left == count ? ": it depends on more than the operations" : "");
	quiet.verbose = left <= PRINT_MOST;
	run_once(&quiet, keep, count, stdout);
	free(keep);
	free(tried);
}
