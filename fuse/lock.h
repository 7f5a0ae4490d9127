/* lock.h - one live pacefs per source, whoever runs it.
 *
 * Two locks, both gone with the process however it ends:
 *   - flock(2) on the source itself, which excludes all users from each other. Whoever may read
 *     the source could take it too: only holders that may write there are believed.
 *   - as root also a file in /run/pacefs, named after the source's device and inode number, which
 *     nobody else can open. In it, for messages: "PID MOUNTPOINT".
 */
#ifndef PACEFS_FUSE_LOCK_H
#define PACEFS_FUSE_LOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

struct source_lock {
	int source_fd, file_fd; /* -1: not held */
};

/* source_fd: O_PATH or better. mountpoint, for the note: of this mount. 0; -EBUSY when the source
 * is served already, after one line that names who does; another negative errno, with a line. */
int lock_take(const char *source, int source_fd, const char *mountpoint,
	struct source_lock *ret_lock);
/* A file of this user's for the source, which outlives the process but not the machine
 * (backend/state): in /run/pacefs, or below $XDG_RUNTIME_DIR. A descriptor or -errno (-ENOENT: there is
 * none, or no such place), and its path.
 * While the source is locked. */
int lock_state_open(const struct stat *source, bool create, char *ret_path, size_t size);
/* Until Linux 6.15 nobody but a daemon's parent hears its exit status. So one that has lost something
 * leaves a word of it in the same place, before the mount is gone; who waits for its end asks for that
 * once. */
void lock_leave_verdict(void);
bool lock_take_verdict(pid_t pid);
/* Fine to call twice. */
void lock_release(struct source_lock *lock);

#endif
