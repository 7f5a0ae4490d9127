/* stats_text.h - reading the text of user.pacefs.stats, and showing it as JSON.
 *
 * Lines "Key: value". Keys that are missing are no error (an older daemon). Two keys may
 * occur many times: "writer: COMM PID RATE" and "lost: PATH FROM TO". Pure, but for
 * stdout.
 */
#ifndef PACEFS_FUSE_STATS_TEXT_H
#define PACEFS_FUSE_STATS_TEXT_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

struct stats_line {
	char key[64];
	char value[PATH_MAX + 64];
};

/* Step to the next line; false at the end. *at begins as the whole text. */
bool stats_next(const char **at, struct stats_line *line);

/* The value of the first line with this key; false when there is none. */
bool stats_text(const char *stats, const char *key, char *value, size_t size);

/* The same as a number, 0 when there is none. */
double stats_number(const char *stats, const char *key);

/* Cut "NAME A B" in place: the name may hold blanks, the two others do not. */
bool stats_split(char *value, const char **ret_a, const char **ret_b);

/* One JSON object and a newline on stdout: writers and lost as arrays, numbers as numbers
 * (units "kB" and "kBps" are left out). */
void stats_json(const char *stats);

/* "lost":[{"path":...,"from":...,"to":...}] on stdout, a member for an object. */
void stats_json_lost(const char *stats);

#endif
