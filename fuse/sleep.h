/* sleep.h - hears from logind that the machine goes to sleep and wakes up (PrepareForSleep), and
 * tells the writes. A delay lock (as "systemd-inhibit" lists it) makes the machine wait until that
 * is done. Without libsystemd, a system bus or logind there is none of it.
 */
#ifndef PACEFS_FUSE_SLEEP_H
#define PACEFS_FUSE_SLEEP_H

struct pacefs;

/* Starts a thread, if there is a bus. */
void sleep_watch_start(struct pacefs *p);
void sleep_watch_stop(void);

#endif
