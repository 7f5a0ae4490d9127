#include "fuse/signals.h"

#include "fuse/processes.h"
#include "fuse/session.h"
#include "util/clock.h"
#include "util/log.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	/* What programs get to close their files after the mount was taken from view. They are
	 * told to end at the same time as we are when the machine goes down, and init systems
	 * kill what is left after a minute and a half: the last pages and the verdict need a few
	 * seconds of that. */
	OPEN_FILES_S = 10,
};

static pthread_t thread;
static bool running;

static void signals_of_end(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGINT);
	sigaddset(set, SIGHUP);
}

void signals_block(void)
{
	sigset_t set;

	signals_of_end(&set);
	signal(SIGPIPE, SIG_IGN);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static bool has_ended(struct pacefs *p)
{
	domain_lock(&p->dom);
	bool ended = p->ended;
	domain_unlock(&p->dom);
	return ended;
}

static void write_everything(struct pacefs *p)
{
	struct device *dev = &p->backing.dev;

	domain_lock(&p->dom);
	dev->drain = true; /* also what comes from now on, at once */
	device_kick(dev);
	domain_unlock(&p->dom);
	pacefs_sync(p);
}

/* Only what is ours: over its own source the disk's mount shows there afterwards. */
static void take_from_view(struct pacefs *p)
{
	const char *mountpoint = p->mount.mountpoint;
	dev_t dev;

	if (!mount_find(mountpoint, NULL, 0, &dev) || dev != p->mount.dev)
		return;
	if (mount_umount(mountpoint, false) == 0)
		return;
	processes_name_holders(mountpoint, getpid());
	log_warn("%s is in use: it is gone from view, and its users are cut off after %d s",
		mountpoint, OPEN_FILES_S);
	int ret = mount_umount(mountpoint, true);
	if (ret < 0)
		log_warn("%s: %s", mountpoint, strerror(-ret));
}

/* Until the mount has ended, or its users' time is over. Returns false for the latter. */
static bool wait_for_users(struct pacefs *p, const sigset_t *set)
{
	uint64_t until = clock_now_us() + OPEN_FILES_S * US_PER_S;

	for (uint64_t now; (now = clock_now_us()) < until;) {
		struct timespec left = {
			.tv_sec = (time_t)((until - now) / US_PER_S),
			.tv_nsec = (long)((until - now) % US_PER_S * 1000),
		};
		int sig = sigtimedwait(set, NULL, &left);
		if (has_ended(p))
			return true;
		if (sig > 0) {
			log_info("%s: %s: on its way", p->options.source, strsignal(sig));
			take_from_view(p); /* it may be hidden below another one no longer */
		}
	}
	return false;
}

static void *signals_main(void *arg)
{
	struct pacefs *p = arg;
	sigset_t set;
	int sig;

	signals_of_end(&set);
	while (sigwait(&set, &sig) != 0)
		;
	if (has_ended(p))
		return NULL;
	log_info("%s: %s: writing what is left, then unmounting", p->options.source,
		strsignal(sig));
	write_everything(p);
	take_from_view(p);
	if (wait_for_users(p, &set))
		return NULL;
	log_warn("%s: files are still open after %d s: their users are cut off",
		p->options.source, OPEN_FILES_S);
	session_end();
	return NULL;
}

int signals_start(struct pacefs *p)
{
	int ret = pthread_create(&thread, NULL, signals_main, p);

	running = ret == 0;
	return -ret;
}

void signals_stop(struct pacefs *p)
{
	if (!running)
		return;
	/* It finds that all has ended, whatever it waits for. */
	pthread_kill(thread, SIGTERM);
	pthread_join(thread, NULL);
	running = false;
}
