/* Options as they are typed. */
#include "tests/sim/config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int add_device(struct complaint *c, struct sim_config *config, char *text)
{
	unsigned at = config->devices_are_default ? 0 : config->nr_devices;

	if (at == SIM_DEVICES)
		return complain(c, "more than %d devices", SIM_DEVICES);
	config->devices[at] = sim_device_default;
	config->nr_devices = at + 1;
	config->devices_are_default = false;
	return spec_parse_device(c, &config->devices[at], text);
}

static int add_writer(struct complaint *c, struct sim_config *config, char *text)
{
	struct sim_writer_spec *w = &config->writers[config->nr_writers];

	if (config->nr_writers == SIM_SPECS)
		return complain(c, "more than %d writer SPECs", SIM_SPECS);
	config->nr_writers++;
	*w = sim_writer_default;
	return spec_parse_writer(c, w, text);
}

/* Kept in order of time. */
static int add_action(struct complaint *c, struct sim_config *config, char *text)
{
	struct sim_action a = {0};
	unsigned at = config->nr_actions;

	if (at == SIM_ACTIONS)
		return complain(c, "more than %d actions", SIM_ACTIONS);
	if (spec_parse_action(c, config, &a, text))
		return -EINVAL;
	for (; at && config->actions[at - 1].at_s > a.at_s; at--)
		config->actions[at] = config->actions[at - 1];
	config->actions[at] = a;
	config->nr_actions++;
	return 0;
}

static int set_seed(struct complaint *c, struct sim_config *config, const char *text)
{
	char *end;

	errno = 0;
	uint64_t seed = strtoull(text, &end, 0);
	if (errno || *end || end == text || *text == '-' || *text == '+' || *text == ' ')
		return complain(c, "'%s' is not within 0..2^64-1", text);
	config->seed = seed;
	return 0;
}

int sim_config_set(
	struct sim_config *c, const char *name, const char *value, char *message, size_t size)
{
	struct complaint complaint = {.message = message, .size = size};
	const struct field *f = field_find(&sim_config_fields, name);
	struct sim_config *copy = malloc(sizeof(*copy));
	char text[512];
	int ret = 0;

	if (!copy)
		return complain(&complaint, "no memory");
	*copy = *c;
	if (!f)
		snprintf(complaint.where, sizeof(complaint.where), "%s", name);
	if (snprintf(text, sizeof(text), "%s", value) >= (int)sizeof(text))
		ret = complain(&complaint, "longer than %zu characters", sizeof(text) - 1);
	else if (f)
		ret = field_assign(&complaint, f, copy, value);
	else if (!strcmp(name, "device"))
		ret = add_device(&complaint, copy, text);
	else if (!strcmp(name, "writer"))
		ret = add_writer(&complaint, copy, text);
	else if (!strcmp(name, "at"))
		ret = add_action(&complaint, copy, text);
	else if (!strcmp(name, "seed"))
		ret = set_seed(&complaint, copy, value);
	else if (!strcmp(name, "law") && !throttle_law_by_name(value, &copy->law))
		ret = complain(&complaint, "'%s' is none of linux, pace", value);
	else if (strcmp(name, "law"))
		ret = -ENOENT;
	if (ret == 0)
		*c = *copy;
	free(copy);
	return ret;
}

/* The next word of a command line, quotes taken away; NULL at the end. */
static const char *next_word(const char *line, char *word, size_t size)
{
	size_t length = 0;
	bool quoted = false;

	line += strspn(line, " \n");
	if (!*line)
		return NULL;
	for (; *line && (quoted || !strchr(" \n", *line)); line++) {
		if (*line == '\'')
			quoted = !quoted;
		else if (length + 1 < size)
			word[length++] = *line;
	}
	word[length] = '\0';
	return line;
}

int sim_config_parse(struct sim_config *c, const char *line, char *message, size_t size)
{
	char word[600];

	sim_config_init(c);
	line = next_word(line, word, sizeof(word));
	while (line && (line = next_word(line, word, sizeof(word)))) {
		char *value = spec_split(word, '=');
		const char *name = word + strspn(word, "-");
		int ret = sim_config_set(c, name, value ? value : "1", message, size);
		if (ret == -ENOENT)
			snprintf(message, size, "there is no option --%s", name);
		if (ret < 0)
			return ret;
	}
	return 0;
}
