/* law.c - which law is in force. */
#include "throttle/formulas.h"

#include <string.h>

static const struct law *const laws[THROTTLE_NR_LAWS] = {
	[THROTTLE_LINUX] = &throttle_linux,
	[THROTTLE_PACE] = &throttle_pace,
};

const struct law *throttle_law(enum throttle_law law)
{
	return laws[law == THROTTLE_PACE ? THROTTLE_PACE : THROTTLE_LINUX];
}

const char *throttle_law_name(enum throttle_law law)
{
	return throttle_law(law)->name;
}

bool throttle_law_by_name(const char *name, enum throttle_law *ret_law)
{
	for (unsigned i = 0; i < THROTTLE_NR_LAWS; i++) {
		if (strcmp(name, laws[i]->name) != 0)
			continue;
		*ret_law = (enum throttle_law)i;
		return true;
	}
	return false;
}
