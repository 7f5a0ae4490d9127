#include "util/parse.h"

#include <errno.h>
#include <string.h>

int parse_uint(const char *text, uint64_t *ret_value)
{
	uint64_t value = 0;

	if (!*text)
		return -EINVAL;
	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			return -EINVAL;
		uint64_t digit = (uint64_t)(*text - '0');
		if (value > (INT64_MAX - digit) / 10)
			return -EINVAL;
		value = value * 10 + digit;
	}
	*ret_value = value;
	return 0;
}

static int suffix_shift(const char *suffix)
{
	static const char letters[] = "KMGT";
	int shift = 0;

	if (*suffix) {
		char upper = *suffix >= 'a' ? (char)(*suffix - 'a' + 'A') : *suffix;
		const char *at = strchr(letters, upper);
		if (at) {
			shift = 10 * (int)(at - letters + 1);
			suffix++;
			if (*suffix == 'i')
				suffix++;
		}
	}
	if (*suffix == 'B')
		suffix++;
	return *suffix ? -EINVAL : shift;
}

int parse_size(const char *text, uint64_t *ret_bytes)
{
	char number[24];
	size_t digits = strspn(text, "0123456789");
	uint64_t value;

	if (digits == 0 || digits >= sizeof(number))
		return -EINVAL;
	memcpy(number, text, digits);
	number[digits] = '\0';
	int shift = suffix_shift(text + digits);
	if (shift < 0 || parse_uint(number, &value) < 0)
		return -EINVAL;
	if (value > (uint64_t)INT64_MAX >> shift)
		return -EINVAL;
	*ret_bytes = value << shift;
	return 0;
}

static size_t edit_distance(const char *a, const char *b)
{
	enum { LONGEST = 64 };
	size_t row[LONGEST + 1];
	size_t len = strlen(b);

	if (len > LONGEST || strlen(a) > LONGEST)
		return LONGEST;
	for (size_t j = 0; j <= len; j++)
		row[j] = j;
	for (size_t i = 1; a[i - 1]; i++) {
		size_t diagonal = row[0];
		row[0] = i;
		for (size_t j = 1; j <= len; j++) {
			size_t best = diagonal + (a[i - 1] != b[j - 1]);
			diagonal = row[j];
			if (row[j] + 1 < best)
				best = row[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			row[j] = best;
		}
	}
	return row[len];
}

const char *parse_nearest(const char *text, const char *const *names)
{
	const char *nearest = NULL;
	size_t least = SIZE_MAX;

	for (; *names; names++) {
		size_t distance = edit_distance(text, *names);
		if (distance < least && distance * 2 <= strlen(*names)) {
			least = distance;
			nearest = *names;
		}
	}
	return nearest;
}
