#include "util/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <syslog.h>
#include <unistd.h>

static enum log_level max_level = LOG_LEVEL_INFO;
static bool use_syslog;

void log_set_level(enum log_level level)
{
	max_level = level;
}

void log_to_syslog(void)
{
	openlog("pacefs", LOG_PID | LOG_NDELAY, LOG_DAEMON);
	use_syslog = true;
}

void log_make_printable(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' || *text == 0x7f)
			*text = '?';
}

void log_msg(enum log_level level, const char *fmt, ...)
{
	static const int priority[] = {LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG};
	char text[1024];
	char line[1040];
	va_list ap;

	if (level > max_level)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	log_make_printable(text);
	int n = snprintf(line, sizeof(line), "pacefs: %s\n", text);
	/* One write(2), so that lines of several threads never mix. */
	if (n > 0 && write(STDERR_FILENO, line, (size_t)n) < 0)
		return; /* nobody listens any more */
	if (use_syslog)
		syslog(priority[level], "%s", text);
}
