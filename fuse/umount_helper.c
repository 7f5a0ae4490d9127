#include "fuse/umount_helper.h"

#include <errno.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "fuse/commands.h"
#include "fuse/mount.h"
#include "util/log.h"

/* umount(8)'s own */
enum { EXIT_SAFE = 0, EXIT_USAGE = 1, EXIT_NOT_UNMOUNTED = 32, EXIT_NOT_ALL_WRITTEN = 64 };

bool umount_helper_is(const char *argv0)
{
	const char *slash = strrchr(argv0, '/');

	return strncmp(slash ? slash + 1 : argv0, "umount.", 7) == 0;
}

struct call {
	const char *mountpoint;
	bool lazy, force;
};

static int parse(int argc, char **argv, struct call *ret_call)
{
	struct call call = {0};
	int c;

	/* -n no mtab, -v more words, -r read-only when busy (a FUSE mount cannot), -t type */
	while ((c = getopt(argc, argv, "flnrvt:")) != -1) {
		if (c == '?')
			return -EINVAL; /* getopt has said what, for instance -N */
		call.lazy |= c == 'l';
		call.force |= c == 'f';
	}
	if (optind != argc - 1) {
		log_error("need one mountpoint, got %d", argc - optind);
		return -EINVAL;
	}
	call.mountpoint = argv[optind];
	*ret_call = call;
	return 0;
}

/* -l, -f: at once, and nobody is asked who may not answer. */
static int at_once(const struct call *call)
{
	int flags = (call->lazy ? MNT_DETACH : 0) | (call->force ? MNT_FORCE : 0);
	int r = umount2(call->mountpoint, flags) == 0 ? 0 : -errno;

	if (r == -EPERM && call->lazy)
		r = mount_umount(call->mountpoint, true);
	if (r < 0) {
		log_error("cannot unmount %s: %s", call->mountpoint, strerror(-r));
		return EXIT_NOT_UNMOUNTED;
	}
	log_warn("%s: unmounted without waiting; what is left is still being written, and the "
		 "source is busy until then",
		call->mountpoint);
	return EXIT_SAFE;
}

static int dead(const struct call *call)
{
	int r = mount_umount(call->mountpoint, false);

	if (r < 0) {
		log_error("cannot unmount %s: %s", call->mountpoint, strerror(-r));
		return EXIT_NOT_UNMOUNTED;
	}
	log_warn("%s: its daemon was gone already: what it had not written is lost",
		call->mountpoint);
	return EXIT_NOT_ALL_WRITTEN;
}

int umount_helper_main(int argc, char **argv)
{
	struct call call;
	bool unmounted;

	if (parse(argc, argv, &call) < 0)
		return EXIT_USAGE;
	if (call.lazy || call.force)
		return at_once(&call);
	if (mount_is_dead(call.mountpoint))
		return dead(&call);
	if (commands_umount(call.mountpoint, &unmounted) == 0)
		return EXIT_SAFE;
	return unmounted ? EXIT_NOT_ALL_WRITTEN : EXIT_NOT_UNMOUNTED;
}
