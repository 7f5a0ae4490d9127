#include "fuse/sleep.h"

#ifdef PACEFS_SUSPEND

#include "fuse/pacefs.h"
#include "util/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <systemd/sd-bus.h>
#include <unistd.h>

#define LOGIND "org.freedesktop.login1"
#define LOGIND_PATH "/org/freedesktop/login1"
#define LOGIND_MANAGER "org.freedesktop.login1.Manager"

/* One mount per process. */
static struct {
	struct pacefs *p;
	pthread_t thread;
	sd_bus *bus;
	int stop_fd; /* eventfd */
	int lock_fd; /* logind waits while it is open; -1 */
	bool running;
} watch;

static void take_lock(void)
{
	sd_bus_error error = SD_BUS_ERROR_NULL;
	sd_bus_message *reply = NULL;
	int fd;

	if (watch.lock_fd >= 0)
		return;
	int ret = sd_bus_call_method(watch.bus, LOGIND, LOGIND_PATH, LOGIND_MANAGER, "Inhibit",
		&error, &reply, "ssss", "sleep", "pacefs",
		"Programs that wait for a disk are answered first", "delay");
	if (ret >= 0)
		ret = sd_bus_message_read(reply, "h", &fd);
	if (ret >= 0)
		watch.lock_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	else
		log_debug("no delay of sleep: %s",
			error.message ? error.message : strerror(-ret));
	sd_bus_error_free(&error);
	sd_bus_message_unref(reply);
}

static void drop_lock(void)
{
	if (watch.lock_fd >= 0)
		close(watch.lock_fd);
	watch.lock_fd = -1;
}

static int on_sleep(sd_bus_message *m, void *data, sd_bus_error *error)
{
	int sleeping;

	if (sd_bus_message_read(m, "b", &sleeping) < 0)
		return 0;
	log_debug("the machine %s", sleeping ? "goes to sleep" : "is awake");
	writes_sleep(watch.p, sleeping);
	if (sleeping)
		drop_lock();
	else
		take_lock();
	return 0;
}

/* Until something is there to be processed. False: stop. */
static bool wait_for_bus(void)
{
	struct pollfd fds[2] = {
		{.fd = sd_bus_get_fd(watch.bus)}, {.fd = watch.stop_fd, .events = POLLIN}};
	int events = sd_bus_get_events(watch.bus);

	if (events < 0)
		return false;
	fds[0].events = (short)events;
	/* There are no calls of ours under way, so no timeouts. */
	if (poll(fds, 2, -1) < 0 && errno != EINTR)
		return false;
	return fds[1].revents == 0;
}

static void *watch_main(void *arg)
{
	int ret = sd_bus_match_signal(watch.bus, NULL, LOGIND, LOGIND_PATH, LOGIND_MANAGER,
		"PrepareForSleep", on_sleep, NULL);

	if (ret >= 0)
		take_lock();
	while (ret >= 0) {
		ret = sd_bus_process(watch.bus, NULL);
		if (ret == 0 && !wait_for_bus())
			break;
	}
	if (ret < 0)
		log_debug("no word of sleep any more: %s", strerror(-ret));
	/* Nobody would tell that it is over. */
	writes_sleep(watch.p, false);
	drop_lock();
	sd_bus_flush_close_unref(watch.bus);
	return NULL;
}

void sleep_watch_start(struct pacefs *p)
{
	int ret = sd_bus_open_system(&watch.bus);

	if (ret < 0) {
		log_debug("no word of sleep: %s", strerror(-ret));
		return;
	}
	watch.p = p;
	watch.lock_fd = -1;
	watch.stop_fd = eventfd(0, EFD_CLOEXEC);
	watch.running = watch.stop_fd >= 0 &&
		pthread_create(&watch.thread, NULL, watch_main, NULL) == 0;
	if (watch.running)
		return;
	if (watch.stop_fd >= 0)
		close(watch.stop_fd);
	sd_bus_unref(watch.bus);
}

void sleep_watch_stop(void)
{
	uint64_t one = 1;

	if (!watch.running)
		return;
	if (write(watch.stop_fd, &one, sizeof(one)) < 0)
		log_debug("eventfd: %s", strerror(errno));
	pthread_join(watch.thread, NULL);
	close(watch.stop_fd);
	watch.running = false;
}

#else

void sleep_watch_start(struct pacefs *p)
{
}

void sleep_watch_stop(void)
{
}

#endif
