/* log.h - one-line messages to stderr and, once in the background, to syslog.
 *
 * Every message is one line, starts with "pacefs: " on stderr, and names the value, the
 * allowed range and the unit where it refuses something. Safe to call from any thread and
 * with any lock held (it takes no lock of ours). A message never goes to the mount itself.
 */
#ifndef PACEFS_UTIL_LOG_H
#define PACEFS_UTIL_LOG_H

#include <stdbool.h>

enum log_level {
	LOG_LEVEL_NONE = -1,
	LOG_LEVEL_ERROR,
	LOG_LEVEL_WARN,
	LOG_LEVEL_INFO,
	LOG_LEVEL_DEBUG
};

/* Show messages up to this level; LOG_LEVEL_INFO at start. */
void log_set_level(enum log_level level);

/* From now on also to syslog (the daemon has left its terminal). */
void log_to_syslog(void);

/* Names of files and programs are anybody's: a line break in one would begin a line of its own,
 * which says what its author likes. Such characters become "?". */
void log_make_printable(char *text);

/* One line, made printable. */
void log_msg(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_msg(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...) log_msg(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...) log_msg(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_msg(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
