/* crash.h - what a kill -9 of this process would lose is kept in a file (backend/state), and what
 * the last one has lost is said at the start. */
#ifndef PACEFS_FUSE_CRASH_H
#define PACEFS_FUSE_CRASH_H

#include "fuse/pacefs.h"

/* After the source is open and locked and before anything of it is served. source: its stat.
 * Failing it, the mount works without, and a warning says so. */
void crash_start(struct pacefs *p, const struct stat *source);
/* Everything is written, or what was not has been said: the next start has nothing to say. While
 * the source is still locked. Takes the lock. */
void crash_finish(struct pacefs *p);
/* Around the renaming of a file or directory: its name before, to be handed on (NULL is fine). */
char *crash_name(struct pacefs *p, struct fnode *fn);
/* It has another name now, and all below it. Takes the lock, frees old. */
void crash_renamed(struct pacefs *p, struct fnode *fn, char *old);

#endif
