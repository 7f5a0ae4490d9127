/* main.c - the same operations on two trees: see twin.h
 *
 *   pacefs-twin [--seed N] [--count N] [--seconds S] [--check-every N] [--shrink] [--verbose]
 *		[--coarse] A B
 *   pacefs-twin --compare A B	whether both look the same now
 *
 * Exit status: 0 if nothing was different, 1 if something was, 2 if it could not be tried. */

#include "twin.h"

#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int usage(void)
{
	fputs("usage: pacefs-twin [--seed N] [--count N] [--seconds S] [--check-every N] "
	      "[--shrink] [--verbose] [--coarse] A B\n"
	      "       pacefs-twin --compare A B\n",
		stderr);
	return 2;
}

/* Long after it was made: what was "now" then is not any more; times are compared as they are
 * apart from those that differ by less than a run may take. */
static int compare(const struct options *options)
{
	struct trees trees = {.begin.tv_sec = 0};
	char why[1024] = "";

	for (int i = 0; i < NR_TREES; i++) {
		trees.root[i] = open(options->dir[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (trees.root[i] < 0) {
			perror(options->dir[i]);
			return 2;
		}
	}
	clock_gettime(CLOCK_REALTIME, &trees.begin);
	trees.begin.tv_sec -= 3600;
	if (compare_trees(&trees, why, sizeof(why)))
		return 0;
	printf("different: %s\n", why);
	return 1;
}

int main(int argc, char **argv)
{
	static const struct option names[] = {{"seed", 1, NULL, 's'}, {"count", 1, NULL, 'n'},
		{"seconds", 1, NULL, 't'}, {"check-every", 1, NULL, 'e'},
		{"shrink", 0, NULL, 'k'}, {"verbose", 0, NULL, 'v'}, {"coarse", 0, NULL, 'o'},
		{"compare", 0, NULL, 'c'}, {0}};
	struct options options = {.seed = 1, .count = 20000, .check_every = 500};
	bool only_compare = false, shrinks = false;

	for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
		switch (c) {
		case 's':
			options.seed = strtoull(optarg, NULL, 0);
			break;
		case 'n':
			options.count = strtoull(optarg, NULL, 0);
			break;
		case 't':
			options.seconds = strtod(optarg, NULL);
			break;
		case 'e':
			options.check_every = strtoull(optarg, NULL, 0);
			break;
		case 'k':
			shrinks = true;
			break;
		case 'v':
			options.verbose = true;
			break;
		case 'o':
			options.coarse = true;
			break;
		case 'c':
			only_compare = true;
			break;
		default:
			return usage();
		}
	}
	if (argc - optind != NR_TREES)
		return usage();
	for (int i = 0; i < NR_TREES; i++)
		options.dir[i] = argv[optind + i];
	if (only_compare)
		return compare(&options);
	uint64_t failed = run_once(&options, NULL, options.count, stdout);
	if (failed && shrinks)
		shrink(&options, failed);
	return failed ? 1 : 0;
}
