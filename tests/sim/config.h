/* config.h - the fields of a configuration: one list serves assigning, checking and printing. */
#ifndef PACEFS_TESTS_SIM_CONFIG_H
#define PACEFS_TESTS_SIM_CONFIG_H

#include "tests/sim/sim.h"

#define SIM_PAGES_2_40 4503599627370496.0 /* bytes in 2^40 pages */
#define SIM_RATE_MOST 1.1e12		  /* 1 TiB/s */
#define SIM_RATE_LEAST 1.0
#define SIM_TIME_MOST 1e6 /* s: 11 days */
#define SIM_NR(list) (sizeof(list) / sizeof((list)[0]))

/* The first thing that is refused, as one line. */
struct complaint {
	char *message;
	size_t size;
	char where[32]; /* "device 1", "writer 2" */
	bool any;
};
/* Returns -EINVAL. */
int complain(struct complaint *c, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

enum unit { UNIT_NONE, UNIT_BYTES, UNIT_RATE, UNIT_S, UNIT_MS };
extern const char *const unit_names[];

enum field_type { FIELD_DOUBLE, FIELD_U64, FIELD_UNSIGNED, FIELD_BOOL };

struct field {
	const char *name;
	size_t offset;
	enum field_type type;
	enum unit unit;
	double least, most;
	bool zero; /* 0 is allowed too, below least */
};
struct field_list {
	const struct field *fields;
	size_t nr;
};
extern const struct field_list sim_config_fields, sim_device_fields, sim_writer_fields;

double field_get(const struct field *f, const void *base);
void field_put(const struct field *f, void *base, double value);

const struct field *field_find(const struct field_list *list, const char *name);
/* The value as it is typed, checked; a switch needs none (NULL). 0 or -EINVAL. */
int field_assign(struct complaint *c, const struct field *f, void *base, const char *text);

/* ---- as it is typed (numbers.c, spec.c); 0 or -EINVAL; text is taken apart ---- */

/* Within least..most, or a complaint that names value, range and unit. */
int spec_number(struct complaint *c, const char *name, const char *text, enum unit unit,
	double least, double most, double *ret);
/* What follows the character at; it is cut off there. NULL: there is none. */
char *spec_split(char *part, char at);
int spec_parse_device(struct complaint *c, struct sim_device_spec *d, char *text);
int spec_parse_writer(struct complaint *c, struct sim_writer_spec *w, char *text);
int spec_parse_action(
	struct complaint *c, struct sim_config *config, struct sim_action *a, char *text);

extern const struct sim_device_spec sim_device_default;
extern const struct sim_writer_spec sim_writer_default;

#endif
