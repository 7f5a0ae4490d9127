/* umount_helper.h - pacefs as the helper that umount(8) looks for, /sbin/umount.fuse.pacefs and
 * /sbin/umount.fuseblk.pacefs: the same as pacefs umount, with umount's exit statuses. A process
 * of its own, like the commands.
 *
 *   umount.fuse.pacefs MOUNTPOINT [-flnrv] [-t TYPE]
 */
#ifndef PACEFS_FUSE_UMOUNT_HELPER_H
#define PACEFS_FUSE_UMOUNT_HELPER_H

#include <stdbool.h>

bool umount_helper_is(const char *argv0);

/* 0: unmounted, and all is written. 1: wrong call. 32: not unmounted. 64: unmounted, but not
 * everything could be written. */
int umount_helper_main(int argc, char **argv);

#endif
