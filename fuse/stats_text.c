#include "fuse/stats_text.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool stats_next(const char **at, struct stats_line *line)
{
	while (**at) {
		size_t length = strcspn(*at, "\n");
		const char *start = *at;
		const char *colon = memchr(start, ':', length);

		*at += length + (start[length] == '\n');
		if (!colon || (size_t)(colon - start) >= sizeof(line->key))
			continue;
		const char *value = colon + 1 + strspn(colon + 1, " ");
		snprintf(line->key, sizeof(line->key), "%.*s", (int)(colon - start), start);
		snprintf(line->value, sizeof(line->value), "%.*s",
			(int)(start + length - value), value);
		return true;
	}
	return false;
}

bool stats_text(const char *stats, const char *key, char *value, size_t size)
{
	struct stats_line line;

	while (stats_next(&stats, &line)) {
		if (strcmp(line.key, key) == 0) {
			snprintf(value, size, "%s", line.value);
			return true;
		}
	}
	return false;
}

double stats_number(const char *stats, const char *key)
{
	char value[64];

	return stats_text(stats, key, value, sizeof(value)) ? strtod(value, NULL) : 0;
}

bool stats_split(char *value, const char **ret_a, const char **ret_b)
{
	char *b = strrchr(value, ' ');

	if (!b)
		return false;
	*b = '\0';
	char *a = strrchr(value, ' ');
	if (!a)
		return false;
	*a = '\0';
	*ret_a = a + 1;
	*ret_b = b + 1;
	return true;
}

/* Length of the UTF-8 sequence at s, 0 if it is none. */
static size_t utf8_length(const unsigned char *s)
{
	size_t length = 0;

	if (*s < 0x80)
		length = 1;
	else if (*s >= 0xc2 && *s < 0xe0)
		length = 2;
	else if (*s >= 0xe0 && *s < 0xf0)
		length = 3;
	else if (*s >= 0xf0 && *s < 0xf5)
		length = 4;
	for (size_t i = 1; i < length; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	/* Overlong forms and surrogates are no characters either. */
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
		(s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
		return 0;
	return length;
}

/* A file name may be any bytes; JSON may not. */
static void json_string(const char *text)
{
	const unsigned char *s = (const unsigned char *)text;

	putchar('"');
	while (*s) {
		size_t length = utf8_length(s);

		if (length == 0)
			fputs("\\ufffd", stdout);
		else if (*s == '"' || *s == '\\')
			printf("\\%c", *s);
		else if (*s < 0x20)
			printf("\\u%04x", *s);
		else
			fwrite(s, 1, length, stdout);
		s += length ? length : 1;
	}
	putchar('"');
}

/* "12", "-0.5" and "12 kB" are numbers; "8:0" and "007" are not. Returns their length or
 * 0. */
static size_t number_length(const char *value)
{
	size_t sign = *value == '-';
	size_t whole = strspn(value + sign, "0123456789");
	size_t length = sign + whole;

	if (whole == 0 || (whole > 1 && value[sign] == '0'))
		return 0;
	if (value[length] == '.' && isdigit((unsigned char)value[length + 1]))
		length += 1 + strspn(value + length + 1, "0123456789");
	const char *rest = value + length;
	return !*rest || !strcmp(rest, " kB") || !strcmp(rest, " kBps") ? length : 0;
}

static void json_value(const char *value)
{
	size_t length = number_length(value);

	if (length)
		fwrite(value, 1, length, stdout);
	else
		json_string(value);
}

/* All lines of one key, "NAME A B", as an array of objects with the given names. */
static void json_array(const char *stats, const char *key, const char *const names[3])
{
	struct stats_line line;
	const char *a;
	const char *b;
	const char *comma = "";

	putchar('[');
	while (stats_next(&stats, &line)) {
		if (strcmp(line.key, key) || !stats_split(line.value, &a, &b))
			continue;
		printf("%s{\"%s\":", comma, names[0]);
		json_string(line.value);
		printf(",\"%s\":", names[1]);
		json_value(a);
		printf(",\"%s\":", names[2]);
		json_value(b);
		putchar('}');
		comma = ",";
	}
	putchar(']');
}

void stats_json_lost(const char *stats)
{
	static const char *const names[3] = {"path", "from", "to"};

	fputs("\"lost\":", stdout);
	json_array(stats, "lost", names);
}

void stats_json(const char *stats)
{
	static const char *const names[3] = {"comm", "pid", "rate_bytes_per_s"};
	const char *at = stats;
	struct stats_line line;

	putchar('{');
	while (stats_next(&at, &line)) {
		if (!strcmp(line.key, "writer") || !strcmp(line.key, "lost"))
			continue;
		json_string(line.key);
		putchar(':');
		json_value(line.value);
		putchar(',');
	}
	fputs("\"writers\":", stdout);
	json_array(stats, "writer", names);
	putchar(',');
	stats_json_lost(stats);
	puts("}");
}
