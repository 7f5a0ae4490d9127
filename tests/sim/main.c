/* pacefs-sim: one case, the property table, or random cases. See --help. */
#include "tests/sim/sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_BROKEN = 1, EXIT_USAGE = 2 };

struct options {
	struct sim_config config;
	const char *csv;
	bool properties, judge;
	unsigned laws; /* chosen by name, a bit each */
	const char *const *rows;
	size_t nr_rows;
	double swarm_s; /* 0: no */
};

static int refuse(const char *message)
{
	fprintf(stderr, "pacefs-sim: %s\n", message);
	return EXIT_USAGE;
}

static const char *const flags[] = {"help", "properties", "drain", "judge"};

static bool is_flag(const char *name)
{
	for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
		if (!strcmp(flags[i], name))
			return true;
	return false;
}

/* Returns 0, or the exit status. */
static int take_option(struct options *o, const char *name, const char *value)
{
	char message[400] = "";
	char *end;

	if (!strcmp(name, "properties")) {
		o->properties = true;
		return 0;
	}
	if (!strcmp(name, "judge")) {
		o->judge = true;
		return 0;
	}
	if (!strcmp(name, "csv")) {
		o->csv = value;
		return 0;
	}
	if (!strcmp(name, "swarm")) {
		o->swarm_s = strtod(value, &end);
		if (*end || end == value || !(o->swarm_s > 0 && o->swarm_s <= 86400))
			return refuse("swarm: the time is not within 0..86400 s");
		return 0;
	}
	int ret = sim_config_set(&o->config, name, value, message, sizeof(message));
	if (ret == -ENOENT)
		snprintf(message, sizeof(message), "there is no option --%s; see --help", name);
	if (ret < 0)
		return refuse(message);
	if (!strcmp(name, "law"))
		o->laws |= 1u << o->config.law;
	return 0;
}

/* --name=value and --name value. Returns 0, an exit status, or -1 after --help. */
static int take_options(struct options *o, int argc, char **argv)
{
	int i;

	for (i = 1; i < argc && argv[i][0] == '-' && argv[i][1] == '-'; i++) {
		char name[32], message[80];
		const char *value = strchr(argv[i], '=');
		size_t length = value ? (size_t)(value - argv[i]) - 2 : strlen(argv[i] + 2);

		snprintf(name, sizeof(name), "%.*s", (int)(length < 31 ? length : 31),
			argv[i] + 2);
		if (!strcmp(name, "help")) {
			sim_config_help(stdout);
			return -1;
		}
		if (value)
			value++;
		else if (is_flag(name))
			value = "1";
		else if (++i < argc)
			value = argv[i];
		if (!value) {
			snprintf(message, sizeof(message), "--%s wants a value", name);
			return refuse(message);
		}
		int ret = take_option(o, name, value);
		if (ret)
			return ret;
	}
	o->rows = (const char *const *)(argv + i);
	o->nr_rows = (size_t)(argc - i);
	if (o->nr_rows && !o->properties)
		return refuse("only --properties takes names of rows; see --help");
	return 0;
}

static int run_one(const struct options *o)
{
	struct sim_config config = o->config;
	struct sim_result *result = malloc(sizeof(*result));
	char message[400];

	if (!result)
		return refuse("no memory");
	if (sim_config_check(&config, message, sizeof(message)) < 0) {
		free(result);
		return refuse(message);
	}
	if (o->csv && !(config.csv = fopen(o->csv, "w"))) {
		snprintf(message, sizeof(message), "%s: %s", o->csv, strerror(errno));
		free(result);
		return refuse(message);
	}
	sim_config_print(&config, stdout);
	fflush(stdout);
	int ret = sim_run(&config, result);
	if (ret == 0) {
		sim_result_print(&config, result, stdout);
		if (o->judge)
			sim_judge(&config, result);
		if (result->message[0]) {
			fprintf(stderr, "pacefs-sim: %s\n", result->message);
			ret = -EILSEQ;
		}
	} else {
		fprintf(stderr, "pacefs-sim: %s\n",
			ret == -ENOMEM ? "no memory" : result->message);
		fprintf(stderr, "replay: ");
		sim_config_print(&config, stderr);
	}
	if (config.csv && fclose(config.csv) && ret == 0)
		ret = -errno;
	sim_result_free(result);
	free(result);
	return ret ? EXIT_BROKEN : 0;
}

static int run(struct options *o)
{
	int failed;

	if (o->swarm_s > 0)
		return sim_swarm(o->swarm_s, o->config.seed) ? EXIT_BROKEN : 0;
	if (!o->properties)
		return run_one(o);
	if (!o->laws)
		o->laws = (1u << THROTTLE_NR_LAWS) - 1;
	failed = sim_properties(o->laws, o->rows, o->nr_rows, o->config.seed);
	return failed < 0 ? EXIT_USAGE : failed ? EXIT_BROKEN : 0;
}

int main(int argc, char **argv)
{
	struct options *o = calloc(1, sizeof(*o));
	int ret;

	if (!o)
		return refuse("no memory");
	sim_config_init(&o->config);
	ret = take_options(o, argc, argv);
	if (ret == 0)
		ret = run(o);
	free(o);
	return ret < 0 ? 0 : ret;
}
