#include "tests/sim/properties.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- bounds ---- */

static bool bound_is_there(const struct bound *b)
{
	return !isnan(b->least) || !isnan(b->most);
}

/* How far inside of the bound the figure is; below 0: it fails. */
static double bound_margin(const struct bound *b, double figure)
{
	double margin = HUGE_VAL;

	if (!isfinite(figure))
		return -HUGE_VAL;
	if (!isnan(b->least))
		margin = fmin(margin, figure - b->least);
	if (!isnan(b->most))
		margin = fmin(margin, b->most - figure);
	return margin;
}

void found(struct check *c, unsigned bar, double figure, const char *where, ...)
{
	const struct bound *b = &c->row->bars[bar].bound[c->law];
	va_list args;

	if (c->found[bar].there &&
		!(bound_margin(b, figure) < bound_margin(b, c->found[bar].figure)))
		return;
	c->found[bar].there = true;
	c->found[bar].figure = figure;
	c->found[bar].run = c->last;
	va_start(args, where);
	vsnprintf(c->found[bar].where, sizeof(c->found[bar].where), where, args);
	va_end(args);
}

static bool has_bar(const struct check *c, unsigned bar)
{
	return c->row->bars[bar].what && bound_is_there(&c->row->bars[bar].bound[c->law]);
}

/* A bar of a row that ran must have got a figure. */
static bool bar_holds(const struct check *c, unsigned bar)
{
	return c->found[bar].there &&
		bound_margin(&c->row->bars[bar].bound[c->law], c->found[bar].figure) >= 0;
}

static bool check_holds(const struct check *c)
{
	bool holds = !c->broken[0];

	for (unsigned i = 0; i < BARS_MAX; i++)
		holds = (!has_bar(c, i) || bar_holds(c, i)) && holds;
	return holds;
}

/* ---- printing ---- */

static void print_bound(const struct bound *b)
{
	if (isnan(b->least))
		printf("<= %.6g", b->most);
	else if (isnan(b->most))
		printf(">= %.6g", b->least);
	else
		printf("%.6g..%.6g", b->least, b->most);
}

static void print_bar(const struct check *c, unsigned bar)
{
	printf("%s: ", c->row->bars[bar].what);
	if (c->found[bar].there)
		printf("%.4g", c->found[bar].figure);
	else
		printf("nothing");
	printf(" (bound ");
	print_bound(&c->row->bars[bar].bound[c->law]);
	printf(bar_holds(c, bar) ? ")" : "!)");
	if (c->found[bar].there)
		printf(" [%s]", c->found[bar].where);
}

/* "ok p04-jain pace: Jain, N <= 100: 0.9991 (bound >= 0.995) [N=10]; ..." */
static void print_check(const struct check *c)
{
	const char *between = "";

	printf("%s %s %s: ", check_holds(c) ? "ok" : "not ok", c->row->name,
		throttle_law_name(c->law));
	for (unsigned i = 0; i < BARS_MAX; i++) {
		if (!has_bar(c, i))
			continue;
		printf("%s", between);
		print_bar(c, i);
		between = "; ";
	}
	if (c->broken[0])
		printf("%sbroken: %s", between, c->broken);
	printf("\n");
	for (unsigned i = 0; i < BARS_MAX; i++) {
		if (!has_bar(c, i) || bar_holds(c, i) || !c->found[i].run)
			continue;
		printf("#\treplay: ");
		sim_config_print(&c->found[i].run->config, stdout);
	}
	fflush(stdout);
}

/* What the table in throttle/README.md needs besides. */
static void print_row(const struct row *row)
{
	printf("# %s: %s\n", row->name, row->what);
	for (unsigned i = 0; i < BARS_MAX; i++)
		if (row->bars[i].first)
			printf("#\t%s: the design has %s: %s\n", row->bars[i].what,
				row->bars[i].first, row->bars[i].why);
}

/* ---- the table ---- */

struct totals {
	uint64_t seed;
	int passed, failed;
};

static void run_check(const struct row *row, enum throttle_law law, struct totals *t)
{
	struct check *c = calloc(1, sizeof(*c));

	if (!c)
		abort();
	c->row = row;
	c->law = law;
	c->seed = t->seed;
	row->run(c);
	print_check(c);
	if (check_holds(c))
		t->passed++;
	else
		t->failed++;
	case_forget(c);
	free(c);
}

static void run_row(const struct row *row, unsigned laws, struct totals *t)
{
	print_row(row);
	for (unsigned law = 0; law < THROTTLE_NR_LAWS; law++)
		if (laws & 1u << law)
			run_check(row, (enum throttle_law)law, t);
}

/* "p04-jain", "p04", "4" */
static bool is_called(const struct row *row, const char *name)
{
	const char *digits = name + (name[0] == 'p');
	char *end;
	long number = strtol(digits, &end, 10);

	if (strcmp(row->name, name) == 0)
		return true;
	return end != digits && !*end && number == strtol(row->name + 1, NULL, 10);
}

struct part {
	const struct row *rows;
	const size_t *nr;
};
static const struct part parts[] = {
	{rows_steady, &nr_rows_steady},
	{rows_change, &nr_rows_change},
	{rows_devices, &nr_rows_devices},
	{rows_edge, &nr_rows_edge},
};
enum { NR_PARTS = sizeof(parts) / sizeof(parts[0]) };

static bool is_row(const char *name)
{
	for (size_t p = 0; p < NR_PARTS; p++)
		for (size_t i = 0; i < *parts[p].nr; i++)
			if (is_called(&parts[p].rows[i], name))
				return true;
	return false;
}

static bool is_wanted(const struct row *row, const char *const *names, size_t nr)
{
	for (size_t i = 0; i < nr; i++)
		if (is_called(row, names[i]))
			return true;
	return nr == 0;
}

int sim_properties(unsigned laws, const char *const *names, size_t nr_names, uint64_t seed)
{
	struct totals t = {.seed = seed};

	for (size_t i = 0; i < nr_names; i++)
		if (!is_row(names[i]))
			return -EINVAL;
	for (size_t p = 0; p < NR_PARTS; p++)
		for (size_t i = 0; i < *parts[p].nr; i++)
			if (is_wanted(&parts[p].rows[i], names, nr_names))
				run_row(&parts[p].rows[i], laws, &t);
	case_forget_steady();
	printf("%d passed, %d failed\n", t.passed, t.failed);
	return t.failed;
}
