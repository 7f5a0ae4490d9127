#include "fuse/mount.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <libgen.h>
#include <libmount/libmount.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fuse/anchor.h"
#include "util/log.h"

/* The helper's documented way to hand back the descriptor: the number of a socket. */
#define COMM_FD_VARIABLE "_FUSE_COMMFD"
#define FUSERMOUNT "fusermount3"

enum { DEAD_LAYERS_MAX = 16 };

/* ---- flags ---- */

static const struct {
	const char *word;
	unsigned long set;
	unsigned long clear;
} flag_words[] = {
	{"ro", MS_RDONLY, 0},
	{"rw", 0, MS_RDONLY},
	{"nosuid", MS_NOSUID, 0},
	{"suid", 0, MS_NOSUID},
	{"nodev", MS_NODEV, 0},
	{"dev", 0, MS_NODEV},
	{"noexec", MS_NOEXEC, 0},
	{"exec", 0, MS_NOEXEC},
	{"sync", MS_SYNCHRONOUS, 0},
	{"async", 0, MS_SYNCHRONOUS},
	{"dirsync", MS_DIRSYNC, 0},
	{"noatime", MS_NOATIME, 0},
	{"atime", 0, MS_NOATIME},
	{"nodiratime", MS_NODIRATIME, 0},
	{"diratime", 0, MS_NODIRATIME},
	{"relatime", MS_RELATIME, MS_NOATIME | MS_STRICTATIME},
	{"norelatime", 0, MS_RELATIME},
	{"strictatime", MS_STRICTATIME, MS_NOATIME | MS_RELATIME},
	{"nostrictatime", 0, MS_STRICTATIME},
	{"lazytime", MS_LAZYTIME, 0},
	{"nolazytime", 0, MS_LAZYTIME},
};

enum { NR_FLAG_WORDS = sizeof(flag_words) / sizeof(flag_words[0]) };

bool mount_is_kernel_option(const char *word)
{
	for (size_t i = 0; i < NR_FLAG_WORDS; i++)
		if (strcmp(word, flag_words[i].word) == 0)
			return true;
	return false;
}

static void apply_flag(unsigned long *flags, const char *word, size_t length)
{
	for (size_t i = 0; i < NR_FLAG_WORDS; i++) {
		if (strlen(flag_words[i].word) == length &&
			strncmp(word, flag_words[i].word, length) == 0) {
			*flags &= ~flag_words[i].clear;
			*flags |= flag_words[i].set;
		}
	}
}

/* As libfuse does: files from anywhere get no set-uid and no devices unless asked. */
static unsigned long flags_of(const struct mount_request *req)
{
	unsigned long flags = MS_NOSUID | MS_NODEV;
	const char *at = req->kernel_options ? req->kernel_options : "";

	while (*at) {
		size_t length = strcspn(at, ",");

		apply_flag(&flags, at, length);
		at += length + (at[length] == ',');
	}
	if (req->read_only)
		flags |= MS_RDONLY;
	return flags;
}

/* ---- what is mounted now ---- */

static bool is_pacefs_type(const char *type)
{
	return type &&
		(strcmp(type, "fuseblk.pacefs") == 0 || strcmp(type, "fuse.pacefs") == 0);
}

/* mountinfo lists mounts oldest first: the last one on a path is the visible one. */
static struct libmnt_fs *top_mount(struct libmnt_table *table, const char *mountpoint)
{
	struct libmnt_iter *iter = mnt_new_iter(MNT_ITER_BACKWARD);
	struct libmnt_fs *fs = NULL;
	bool found = false;

	while (iter && !found && mnt_table_next_fs(table, iter, &fs) == 0) {
		const char *target = mnt_fs_get_target(fs);

		found = target && strcmp(target, mountpoint) == 0;
	}
	mnt_free_iter(iter);
	return found ? fs : NULL;
}

bool mount_find(const char *mountpoint, char *source, size_t source_size, dev_t *ret_dev)
{
	struct libmnt_table *table = mnt_new_table_from_file("/proc/self/mountinfo");
	struct libmnt_fs *fs = table ? top_mount(table, mountpoint) : NULL;
	bool found = fs && is_pacefs_type(mnt_fs_get_fstype(fs));

	if (found && source) {
		const char *text = mnt_fs_get_source(fs);
		snprintf(source, source_size, "%s", text ? text : "none");
	}
	if (found && ret_dev)
		*ret_dev = mnt_fs_get_devno(fs);
	mnt_unref_table(table);
	return found;
}

/* ---- fusermount3 ---- */

static void exec_fusermount(char *const *argv, int comm_fd)
{
	char number[16];

	if (comm_fd >= 0) {
		snprintf(number, sizeof(number), "%d", comm_fd);
		setenv(COMM_FD_VARIABLE, number, 1);
	}
	execvp(FUSERMOUNT, argv);
	dprintf(STDERR_FILENO, "pacefs: cannot run %s: %s (it comes with the package fuse3)\n",
		FUSERMOUNT, strerror(errno));
	_exit(127);
}

/* comm_fd: inherited by the helper when >= 0. quiet: nobody sees its messages. */
static int run_fusermount(char *const *argv, int comm_fd, bool quiet)
{
	int status;
	pid_t pid = fork();

	if (pid < 0)
		return -errno;
	if (pid == 0) {
		if (quiet) {
			int null = open("/dev/null", O_WRONLY);
			if (null >= 0)
				dup2(null, STDERR_FILENO);
		}
		exec_fusermount(argv, comm_fd);
	}
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EPERM;
}

static int umount_by_helper(const char *mountpoint, bool lazy)
{
	char *argv[8];
	int n = 0;

	argv[n++] = (char *)FUSERMOUNT;
	argv[n++] = (char *)"-u";
	if (lazy)
		argv[n++] = (char *)"-z";
	argv[n++] = (char *)"--";
	argv[n++] = (char *)mountpoint;
	argv[n] = NULL;
	return run_fusermount(argv, -1, true);
}

int mount_umount(const char *mountpoint, bool lazy)
{
	if (umount2(mountpoint, lazy ? MNT_DETACH : UMOUNT_NOFOLLOW) == 0)
		return 0;
	/* The helper tells no reason apart: only where the kernel said "not you". */
	return errno == EPERM ? umount_by_helper(mountpoint, lazy) : -errno;
}

static int receive_fd(int socket)
{
	char byte;
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = {.iov_base = &byte, .iov_len = 1};
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes)};
	ssize_t n;
	int fd;

	do
		n = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	struct cmsghdr *header = n > 0 ? CMSG_FIRSTHDR(&msg) : NULL;
	if (!header || header->cmsg_type != SCM_RIGHTS)
		return -EPROTO;
	memcpy(&fd, CMSG_DATA(header), sizeof(fd));
	return fd;
}

/* fsname="a,b" would be two options: the helper takes a backslash before such a byte. */
static void append_escaped(char *text, size_t size, const char *value)
{
	size_t at = strlen(text);

	for (; *value && at + 3 < size; value++) {
		if (*value == ',' || *value == '\\')
			text[at++] = '\\';
		text[at++] = *value;
	}
	text[at] = '\0';
}

static void helper_options(const struct mount_request *req, char *text, size_t size)
{
	snprintf(text, size, "subtype=pacefs,default_permissions%s%s%s%s,fsname=",
		req->allow_other ? ",allow_other" : "", req->read_only ? ",ro" : "",
		req->kernel_options && *req->kernel_options ? "," : "",
		req->kernel_options ? req->kernel_options : "");
	append_escaped(text, size, req->source);
}

static int create_by_helper(const struct mount_request *req, struct mount *m)
{
	char options[PATH_MAX + 512];
	int pair[2];

	helper_options(req, options, sizeof(options));
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	/* The helper's end must survive its exec; ours must not. */
	fcntl(pair[0], F_SETFD, 0);
	char *argv[] = {(char *)FUSERMOUNT, (char *)"-o", options, (char *)"--",
		(char *)req->mountpoint, NULL};
	int r = run_fusermount(argv, pair[0], false);
	close(pair[0]);
	if (r == 0) {
		r = receive_fd(pair[1]);
		if (r >= 0) {
			m->fuse_fd = r;
			r = 0;
		}
	}
	close(pair[1]);
	if (r < 0)
		log_error("cannot mount on %s: %s refused (its reason is above)",
			req->mountpoint, FUSERMOUNT);
	return r;
}

/* ---- mount(2) ---- */

static int open_device(void)
{
	int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	struct stat st;

	if (fd < 0)
		return -errno;
	/* A container may have put something else there. */
	if (fstat(fd, &st) < 0 || !S_ISCHR(st.st_mode)) {
		close(fd);
		return -ENODEV;
	}
	return fd;
}

static int do_mount(const struct mount_request *req, const char *source, bool fuseblk, int fd)
{
	char data[256];
	char block[32] = "";

	if (fuseblk)
		snprintf(block, sizeof(block), ",blksize=%d", ANCHOR_BLOCK_SIZE);
	snprintf(data, sizeof(data),
		"fd=%d,rootmode=%o,user_id=%u,group_id=%u,default_permissions%s%s", fd,
		req->root_mode & S_IFMT, geteuid(), getegid(),
		req->allow_other ? ",allow_other" : "", block);
	if (mount(source, req->mountpoint, fuseblk ? "fuseblk.pacefs" : "fuse.pacefs",
		    flags_of(req), data) < 0)
		return -errno;
	return 0;
}

/* The device itself as mount source: fuseblk or nothing, the mount is the claim on it. */
static int create_raw(const struct mount_request *req, struct mount *m)
{
	int r = do_mount(req, req->source, true, m->fuse_fd);

	if (r == 0)
		m->fuseblk = true;
	else if (r == -EBUSY)
		log_error("%s is in use (mounted, or held by another program): unmount "
			  "it first",
			req->source);
	else if (r == -EACCES)
		log_error("%s is read-only, or lies on a mount with nodev: try -o ro",
			req->source);
	else
		log_error("cannot mount %s on %s: %s", req->source, req->mountpoint,
			strerror(-r));
	return r;
}

static int create_anchored(
	const struct mount_request *req, struct mount *m, char *why, size_t why_size)
{
	struct anchor anchor;
	int r = anchor_create(req->source, &anchor, why, why_size);

	if (r < 0)
		return r;
	r = do_mount(req, anchor.node, true, m->fuse_fd);
	close(anchor.fd); /* the mount holds the device now, or nobody needs it */
	if (r < 0) {
		snprintf(why, why_size, "type fuseblk refused: %s", strerror(-r));
		anchor_remove_node(anchor.node);
		return r;
	}
	memcpy(m->anchor_node, anchor.node, sizeof(m->anchor_node));
	m->fuseblk = true;
	return 0;
}

static void warn_umount_returns_early(const struct mount_request *req, const char *why)
{
	log_warn("umount will not wait for the data (%s); use: pacefs umount %s", why,
		req->mountpoint);
}

static int create_plain(const struct mount_request *req, struct mount *m)
{
	int r = do_mount(req, req->source, false, m->fuse_fd);

	/* The helper opens the device anew, as the caller's own. */
	if (r == -EPERM) {
		close(m->fuse_fd);
		m->fuse_fd = -1;
		return create_by_helper(req, m);
	}
	if (r < 0)
		log_error("cannot mount on %s: %s", req->mountpoint, strerror(-r));
	return r;
}

/* A descriptor that was offered to one mount(2) may not be fit for the next. */
static int reopen_device(struct mount *m)
{
	close(m->fuse_fd);
	m->fuse_fd = open_device();
	if (m->fuse_fd < 0)
		log_error("cannot open /dev/fuse: %s", strerror(-m->fuse_fd));
	return m->fuse_fd < 0 ? m->fuse_fd : 0;
}

static int create_any(const struct mount_request *req, struct mount *m)
{
	int r;
	char why[256] = "not root";

	if (geteuid() == 0) {
		if (req->raw_block)
			return create_raw(req, m);
		if (create_anchored(req, m, why, sizeof(why)) == 0)
			return 0;
		r = reopen_device(m);
		if (r < 0)
			return r;
	}
	r = create_plain(req, m);
	if (r == 0)
		warn_umount_returns_early(req, why);
	return r;
}

/* ---- the note for umount(8) ---- */

/* As root, and given an absolute path, umount(8) looks no further than "fuse" for the type, and so
 * not for our helper, unless libmount's table of user space options has an entry. */
static void note_update(const char *mountpoint, struct libmnt_fs *fs)
{
	struct libmnt_update *update = mnt_new_update();

	if (update && mnt_update_set_fs(update, 0, fs ? NULL : mountpoint, fs) == 0 &&
		mnt_update_table(update, NULL) < 0)
		log_debug("the table of libmount could not be written");
	mnt_free_update(update);
}

static void note_write(const struct mount *m, const char *source)
{
	struct libmnt_fs *fs = mnt_new_fs();

	note_update(m->mountpoint, NULL); /* of one that was killed */
	if (fs && mnt_fs_set_source(fs, m->anchor_node[0] ? m->anchor_node : source) == 0 &&
		mnt_fs_set_target(fs, m->mountpoint) == 0 &&
		mnt_fs_set_options(fs, "helper=fuse.pacefs") == 0)
		note_update(m->mountpoint, fs);
	mnt_unref_fs(fs);
}

/* When the daemon is killed and nobody else is in its mount namespace, the kernel unmounts on the
 * way out, and waits for an answer that only the daemon could give, for as long as its /dev/fuse is
 * not closed: with it would hang every sync of the machine. So the namespace has to live longer
 * than that descriptor. The kernel closes what a process leaves in the order of the numbers or
 * against it: one reference below, one above. */
static int hold_namespace(void)
{
	return open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
}

static int create_held(const struct mount_request *req, struct mount *ret_mount)
{
	struct mount m = {.fuse_fd = open_device()};

	if (m.fuse_fd < 0) {
		log_error("cannot open /dev/fuse: %s", strerror(-m.fuse_fd));
		return m.fuse_fd;
	}
	snprintf(m.mountpoint, sizeof(m.mountpoint), "%s", req->mountpoint);
	int r = create_any(req, &m);
	if (r < 0) {
		if (m.fuse_fd >= 0)
			close(m.fuse_fd);
		return r;
	}
	mount_find(m.mountpoint, NULL, 0, &m.dev);
	if (geteuid() == 0)
		note_write(&m, req->source);
	*ret_mount = m;
	return 0;
}

int mount_create(const struct mount_request *req, struct mount *ret_mount)
{
	int below = hold_namespace();
	int r = create_held(req, ret_mount);

	if (r == 0)
		(void)hold_namespace(); /* both until the process ends */
	else if (below >= 0)
		close(below);
	return r;
}

void mount_destroy(struct mount *m, bool lazy_umount)
{
	dev_t dev;

	/* The path may show somebody else's mount by now. */
	if (lazy_umount && m->mountpoint[0] && m->dev &&
		mount_find(m->mountpoint, NULL, 0, &dev) && dev == m->dev) {
		mount_umount(m->mountpoint, true);
		m->mountpoint[0] = '\0';
	}
	anchor_remove_node(m->anchor_node);
	m->anchor_node[0] = '\0';
}

/* ---- dead mounts ---- */

/* stat may answer from the kernel's cache although the daemon is dead: ask through. */
bool mount_is_dead(const char *path)
{
	struct statx stx;

	return statx(AT_FDCWD, path, AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &stx) < 0 &&
		(errno == ENOTCONN || errno == ECONNABORTED);
}

void mount_clear(struct mount *m)
{
	dev_t dev;

	/* Its number may be another mount's by now, but that one is not dead. */
	if (m->mountpoint[0] && m->dev && mount_find(m->mountpoint, NULL, 0, &dev) &&
		dev == m->dev && mount_is_dead(m->mountpoint))
		mount_umount(m->mountpoint, true);
	/* umount(8) does it itself; others do not. A newer mount has one of its own. */
	if (geteuid() == 0 && !mount_find(m->mountpoint, NULL, 0, NULL))
		note_update(m->mountpoint, NULL);
}

/* An absolute path without asking the last component itself, which may be dead. */
static int resolve_parent(const char *typed, char *resolved, size_t size)
{
	char for_dir[PATH_MAX];
	char for_base[PATH_MAX];
	char parent[PATH_MAX];

	if (strlen(typed) >= PATH_MAX)
		return -ENAMETOOLONG;
	snprintf(for_dir, sizeof(for_dir), "%s", typed);
	snprintf(for_base, sizeof(for_base), "%s", typed);
	if (!realpath(dirname(for_dir), parent))
		return -errno;
	int n = snprintf(
		resolved, size, "%s/%s", strcmp(parent, "/") ? parent : "", basename(for_base));
	return n < 0 || (size_t)n >= size ? -ENAMETOOLONG : 0;
}

static int clear_dead(const char *typed)
{
	char path[PATH_MAX];

	for (int i = 0; i < DEAD_LAYERS_MAX && mount_is_dead(typed); i++) {
		int r = resolve_parent(typed, path, sizeof(path));

		if (r < 0 || !mount_find(path, NULL, 0, NULL)) {
			log_error("%s is a dead mount, but not of pacefs: umount -l it "
				  "first",
				typed);
			return -ENOTCONN;
		}
		r = mount_umount(path, true);
		if (r < 0) {
			log_error("cannot take away the dead pacefs mount on %s: %s", path,
				strerror(-r));
			return r;
		}
		log_info("took away a dead pacefs mount on %s", path);
	}
	return 0;
}

static bool read_owner(const char *path, uid_t *ret_uid, gid_t *ret_gid)
{
	struct libmnt_table *table = mnt_new_table_from_file("/proc/self/mountinfo");
	struct libmnt_fs *fs = table ? top_mount(table, path) : NULL;
	const char *options = fs ? mnt_fs_get_fs_options(fs) : NULL;
	const char *uid = options ? strstr(options, "user_id=") : NULL;
	const char *gid = options ? strstr(options, "group_id=") : NULL;

	if (uid && gid) {
		*ret_uid = (uid_t)strtoul(uid + strlen("user_id="), NULL, 10);
		*ret_gid = (gid_t)strtoul(gid + strlen("group_id="), NULL, 10);
	}
	mnt_unref_table(table);
	return uid && gid;
}

int mount_become_owner(const char *typed)
{
	char path[PATH_MAX];
	uid_t uid;
	gid_t gid;
	int r = geteuid() == 0 ? resolve_parent(typed, path, sizeof(path)) : -EACCES;

	if (r < 0 || !mount_find(path, NULL, 0, NULL) || !read_owner(path, &uid, &gid))
		return -EACCES;
	/* The kernel wants all of them to be the owner's. */
	if (uid == 0 || setgroups(0, NULL) < 0 || setresgid(gid, gid, gid) < 0 ||
		setresuid(uid, uid, uid) < 0)
		return -EACCES;
	return 0;
}

int mount_resolve(const char *typed, char *resolved, size_t size)
{
	char path[PATH_MAX];
	int r = clear_dead(typed);

	if (r < 0)
		return r;
	if (!realpath(typed, path)) {
		r = -errno;
		if (r == -ENOENT)
			log_error("mountpoint %s does not exist: create it first", typed);
		else
			log_error("mountpoint %s cannot be used: %s", typed, strerror(-r));
		return r;
	}
	int n = snprintf(resolved, size, "%s", path);
	return n < 0 || (size_t)n >= size ? -ENAMETOOLONG : 0;
}

/* ---- refusals ---- */

static int check_device(void)
{
	int fd = open_device();

	if (fd >= 0) {
		close(fd);
		return 0;
	}
	if (fd == -ENOENT || fd == -ENODEV || fd == -ENXIO)
		log_error("/dev/fuse is missing: load the kernel module (modprobe fuse)");
	else
		log_error("/dev/fuse cannot be opened: %s", strerror(-fd));
	return fd;
}

static bool is_empty_directory(int fd)
{
	DIR *dir = fdopendir(fd);
	struct dirent *entry;
	bool empty = true;

	if (!dir) {
		close(fd);
		return false;
	}
	while (empty && (entry = readdir(dir)))
		empty = !strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..");
	closedir(dir);
	return empty;
}

static int check_empty(const struct mount_request *req, const struct stat *st)
{
	bool empty = st->st_size == 0;

	if (S_ISDIR(st->st_mode)) {
		int fd = open(req->mountpoint, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

		if (fd < 0) {
			int r = -errno;
			log_error("cannot look into mountpoint %s: %s", req->mountpoint,
				strerror(-r));
			return r;
		}
		empty = is_empty_directory(fd);
	}
	if (empty)
		return 0;
	log_error("mountpoint %s is not empty, and is not the source %s itself: "
		  "choose an empty %s",
		req->mountpoint, req->source, S_ISDIR(st->st_mode) ? "directory" : "file");
	return -ENOTEMPTY;
}

static int check_type(const struct mount_request *req, const struct stat *st)
{
	bool directory = S_ISDIR(req->root_mode);

	if ((st->st_mode & S_IFMT) == (req->root_mode & S_IFMT))
		return 0;
	log_error("mountpoint %s is not a %s, as %s needs it", req->mountpoint,
		directory ? "directory" : "regular file", req->source);
	return directory ? -ENOTDIR : -EINVAL;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* A mount inside its own source would be served through itself. */
static int check_not_inside(const struct mount_request *req, const struct stat *source)
{
	char path[PATH_MAX];
	struct stat st;

	snprintf(path, sizeof(path), "%s", req->mountpoint);
	for (char *slash; (slash = strrchr(path, '/'));) {
		slash[slash == path] = '\0';
		if (stat(path, &st) == 0 && same_file(&st, source)) {
			log_error("mountpoint %s lies inside the source %s: choose one "
				  "outside, "
				  "or the source itself",
				req->mountpoint, req->source);
			return -ELOOP;
		}
		if (strcmp(path, "/") == 0)
			break;
	}
	return 0;
}

static int check_mountpoint(const struct mount_request *req, const struct stat *source)
{
	struct stat st;
	char shown[256];

	if (mount_find(req->mountpoint, shown, sizeof(shown), NULL)) {
		log_error("%s is a pacefs mount already (%s): pacefs umount %s first",
			req->mountpoint, shown, req->mountpoint);
		return -EBUSY;
	}
	if (stat(req->mountpoint, &st) < 0) {
		int r = -errno;
		log_error("mountpoint %s cannot be used: %s", req->mountpoint, strerror(-r));
		return r;
	}
	int r = check_type(req, &st);
	if (r < 0 || same_file(&st, source))
		return r;
	r = check_not_inside(req, source);
	return r < 0 ? r : check_empty(req, &st);
}

int mount_check(const struct mount_request *req, int source_fd, struct source_lock *ret_lock)
{
	struct stat source;
	int r = check_device();

	if (r < 0)
		return r;
	if (fstat(source_fd, &source) < 0) {
		r = -errno;
		log_error("source %s cannot be used: %s", req->source, strerror(-r));
		return r;
	}
	r = check_mountpoint(req, &source);
	return r < 0 ? r : lock_take(req->source, source_fd, req->mountpoint, ret_lock);
}
