/* law.c - the names of the laws. */
#include "throttle/formulas.h"

#include <string.h>

static const char *const names[THROTTLE_NR_LAWS] = {
	[THROTTLE_LINUX] = "linux",
	[THROTTLE_PACE] = "pace",
};

const char *throttle_law_name(enum throttle_law law)
{
	return names[law == THROTTLE_PACE ? THROTTLE_PACE : THROTTLE_LINUX];
}

bool throttle_law_by_name(const char *name, enum throttle_law *ret_law)
{
	for (unsigned i = 0; i < THROTTLE_NR_LAWS; i++) {
		if (strcmp(name, names[i]) != 0)
			continue;
		*ret_law = (enum throttle_law)i;
		return true;
	}
	return false;
}
