/* fake_login1 - stands for logind on a private bus (DBUS_SYSTEM_BUS_ADDRESS): hands out delay
 * locks, and says that the machine goes to sleep and has woken up.
 *
 * Commands on standard input, one a line: sleep, wake. What happens is told on standard output:
 *   inhibit WHAT WHO MODE    a lock was asked for
 *   free                     the last lock was given back
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <systemd/sd-bus.h>
#include <unistd.h>

static int lock_fd = -1; /* our end: at its end when the other is closed */

static int on_inhibit(sd_bus_message *m, void *data, sd_bus_error *error)
{
	const char *what, *who, *why, *mode;
	int ends[2];

	int ret = sd_bus_message_read(m, "ssss", &what, &who, &why, &mode);
	if (ret < 0)
		return ret;
	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	lock_fd = ends[0];
	printf("inhibit %s %s %s\n", what, who, mode);
	ret = sd_bus_reply_method_return(m, "h", ends[1]);
	close(ends[1]);
	return ret;
}

static const sd_bus_vtable manager[] = {
	SD_BUS_VTABLE_START(0),
	SD_BUS_METHOD("Inhibit", "ssss", "h", on_inhibit, SD_BUS_VTABLE_UNPRIVILEGED),
	SD_BUS_SIGNAL("PrepareForSleep", "b", 0),
	SD_BUS_VTABLE_END,
};

static int command(sd_bus *bus)
{
	char line[64];

	if (!fgets(line, sizeof(line), stdin))
		return -ENODATA;
	return sd_bus_emit_signal(bus, "/org/freedesktop/login1",
		"org.freedesktop.login1.Manager", "PrepareForSleep", "b",
		strcmp(line, "sleep\n") == 0);
}

static int loop(sd_bus *bus)
{
	for (;;) {
		int ret;
		while ((ret = sd_bus_process(bus, NULL)) > 0)
			;
		if (ret < 0)
			return ret;
		struct pollfd fds[3] = {
			{.fd = sd_bus_get_fd(bus), .events = (short)sd_bus_get_events(bus)},
			{.fd = STDIN_FILENO, .events = POLLIN},
			{.fd = lock_fd, .events = POLLIN},
		};
		if (poll(fds, 3, -1) < 0)
			return -errno;
		if (fds[1].revents) {
			ret = command(bus);
			if (ret < 0)
				return ret;
		}
		if (fds[2].revents) {
			puts("free");
			close(lock_fd);
			lock_fd = -1;
		}
	}
}

int main(void)
{
	sd_bus *bus;

	setvbuf(stdin, NULL, _IONBF, 0); /* poll() must see what is left to read */
	setvbuf(stdout, NULL, _IOLBF, 0);
	int ret = sd_bus_open_system(&bus);
	if (ret >= 0)
		ret = sd_bus_add_object_vtable(bus, NULL, "/org/freedesktop/login1",
			"org.freedesktop.login1.Manager", manager, NULL);
	if (ret >= 0)
		ret = sd_bus_request_name(bus, "org.freedesktop.login1", 0);
	if (ret >= 0) {
		puts("ready");
		ret = loop(bus);
	}
	if (ret < 0 && ret != -ENODATA)
		fprintf(stderr, "fake_login1: %s\n", strerror(-ret));
	return ret < 0 && ret != -ENODATA;
}
