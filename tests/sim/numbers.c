#include "tests/sim/config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Factor of the suffix, or 0. */
static double factor_of(const char *suffix, enum unit unit)
{
	static const char letters[] = "KMGT";
	bool time = unit == UNIT_S || unit == UNIT_MS;
	double second = unit == UNIT_MS ? 1e3 : 1;

	if (!*suffix)
		return 1;
	if (time)
		return !strcmp(suffix, "us")	? second / 1e6
			: !strcmp(suffix, "ms") ? second / 1e3
			: !strcmp(suffix, "s")	? second
			: !strcmp(suffix, "m")	? second * 60
						: 0;
	if (unit == UNIT_NONE)
		return 0;
	char letter = *suffix >= 'a' ? (char)(*suffix - 'a' + 'A') : *suffix;
	const char *at = strchr(letters, letter);
	if (!at)
		return 0;
	suffix++;
	if (*suffix == 'i')
		suffix++;
	if (*suffix == 'B')
		suffix++;
	return *suffix ? 0 : ldexp(1, 10 * (int)(at - letters + 1));
}

static bool parse_number(const char *text, enum unit unit, double *ret)
{
	size_t digits = strspn(text, "0123456789.");
	char number[32], *end;

	if (digits && (text[digits] == 'e' || text[digits] == 'E'))
		digits += 1 + strspn(text + digits + 1, "0123456789+-");
	if (digits == 0 || digits >= sizeof(number) || *text == '.')
		return false;
	memcpy(number, text, digits);
	number[digits] = '\0';
	double value = strtod(number, &end);
	double factor = factor_of(text + digits, unit);
	if (*end || factor == 0 || !isfinite(value))
		return false;
	*ret = value * factor;
	return true;
}

/* value within least..most, or a complaint that names all of it. */
int spec_number(struct complaint *c, const char *name, const char *text, enum unit unit,
	double least, double most, double *ret)
{
	double value;

	if (!parse_number(text, unit, &value))
		return complain(c, "%s: '%s' is not a number%s%s", name, text,
			unit == UNIT_NONE ? "" : " of", unit_names[unit]);
	if (value < least || value > most)
		return complain(c, "%s: %s is not within %.10g..%.10g%s", name, text, least,
			most, unit_names[unit]);
	*ret = value;
	return 0;
}

const struct field *field_find(const struct field_list *list, const char *name)
{
	for (size_t i = 0; i < list->nr; i++)
		if (!strcmp(list->fields[i].name, name))
			return &list->fields[i];
	return NULL;
}

int field_assign(struct complaint *c, const struct field *f, void *base, const char *text)
{
	double value;

	if (f->type == FIELD_BOOL && !text)
		text = "1";
	if (!text || !*text)
		return complain(c, "%s wants a value", f->name);
	if (spec_number(c, f->name, text, f->unit, f->zero ? 0 : f->least, f->most, &value))
		return -EINVAL;
	if (value < f->least && value != 0)
		return complain(c, "%s: %s is not within %.10g..%.10g%s", f->name, text,
			f->least, f->most, unit_names[f->unit]);
	if (f->type != FIELD_DOUBLE && value != floor(value))
		return complain(c, "%s: %s is no whole number", f->name, text);
	field_put(f, base, value);
	return 0;
}
