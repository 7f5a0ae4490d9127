/* processes.h - other processes: who holds a mount, and when its daemon has ended. For
 * commands. */
#ifndef PACEFS_FUSE_PROCESSES_H
#define PACEFS_FUSE_PROCESSES_H

#include <stdbool.h>
#include <sys/types.h>

/* One line on stderr for each process that has a directory or file of the mount open (the
 * first few). Returns how many there are, of those this user may look into. Not the daemon:
 * what it holds below a mount over its own source has the same path. When the daemon itself asks,
 * mapped files do not count: to look at a process's memory waits for that process, which may wait
 * for the daemon. */
unsigned int processes_name_holders(const char *mountpoint, pid_t daemon);

/* The daemon as a descriptor that becomes readable when it has ended; -1 when it cannot
 * be told. A number from another PID namespace would be somebody else's: only a process
 * that holds /dev/fuse is believed. */
int processes_open_daemon(pid_t pid);

/* Wait for that, saying so after a second. False when it will not come now, after a line on stderr:
 * the mount with this st_dev is still there in another mount namespace. */
bool processes_wait_end(int daemon, dev_t dev);

/* After that: its exit status, 128 + signal if it was killed; 0 also when the kernel
 * cannot tell (before Linux 6.15). */
int processes_exit_status(int daemon);

#endif
