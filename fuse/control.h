/* control.h - settings and figures as xattrs "user.pacefs.NAME", on any path by exact name, and
 * listed on the hidden file .pacefs of the root only (so that rsync -X, cp -a and tar never copy
 * them).
 *
 * Writable by root and by who mounted; every call returns at once (flush only starts one).
 */
#ifndef PACEFS_FUSE_CONTROL_H
#define PACEFS_FUSE_CONTROL_H

#include "fuse/pacefs.h"

#define CONTROL_PREFIX "user.pacefs."
#define CONTROL_NAME ".pacefs"
#define CONTROL_TEXT_MAX 65536

bool control_is_name(fuse_ino_t parent, const char *name);
bool control_is_xattr(const char *name);
void control_stat(struct pacefs *p, struct stat *ret_stat);
void control_entry(struct pacefs *p, struct fuse_entry_param *ret_entry);

/* Root and who mounted. They alone may set something, and see whom and what it is about. */
bool control_is_master(uid_t uid);
/* name with prefix, as uid may see it: the names of other users' programs, and of files, are for
 * masters. Length of the text, or -ENODATA. Without the lock, like the others. */
ssize_t control_get(struct pacefs *p, uid_t uid, const char *name, char *text, size_t size);
/* 0; -EPERM (read-only, or not for this caller); -EINVAL with one line in the log. */
int control_set(fuse_req_t req, const char *name, const char *value, size_t size);
/* All names, each with its NUL. */
ssize_t control_list(char *names, size_t size);

/* Start a flush of everything dirty now. 0 or -errno. */
int control_flush(struct pacefs *p);
/* After pacefs_end(): returns when no flush is under way any more. */
void control_stop(struct pacefs *p);
/* The text of user.pacefs.stats. */
int control_stats(struct pacefs *p, uid_t uid, char *text, size_t size);

#endif
