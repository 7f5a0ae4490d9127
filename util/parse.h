/* parse.h - numbers as people type them, and the nearest name to a mistyped one. */
#ifndef PACEFS_UTIL_PARSE_H
#define PACEFS_UTIL_PARSE_H

#include <stddef.h>
#include <stdint.h>

/* "4096", "64K", "64M", "2G" (powers of 1024, an optional trailing "B" or "iB") to bytes.
 * Returns 0, or -EINVAL for anything else: signs, blanks, fractions, trailing text,
 * or a value above 2^63-1. *ret_bytes is untouched on failure. */
int parse_size(const char *text, uint64_t *ret_bytes);

/* A plain decimal number without sign, blank or suffix. Errors as parse_size(). */
int parse_uint(const char *text, uint64_t *ret_value);

/* The entry of names (NULL-terminated) with the least edit distance to text, or NULL when
 * none is closer than half of its own length. The result belongs to names. */
const char *parse_nearest(const char *text, const char *const *names);

#endif
