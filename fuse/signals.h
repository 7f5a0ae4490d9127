/* signals.h - TERM, INT and HUP: everything is written at once, then the mount goes away.
 *
 * From the first signal on nothing waits for more to come before it is written. Those who have
 * files open may go on for a while, as after umount -l, and are cut off then: whoever stops a
 * service waits for its end, and kills it when that does not come. Further signals change
 * nothing.
 */
#ifndef PACEFS_FUSE_SIGNALS_H
#define PACEFS_FUSE_SIGNALS_H

#include "fuse/pacefs.h"

/* Before any thread is started: they are for signals_start()'s thread alone. */
void signals_block(void);
/* Start listening. 0 or -errno. */
int signals_start(struct pacefs *p);
/* After pacefs_end(): returns when the thread is gone. Fine when there is none. */
void signals_stop(struct pacefs *p);

#endif
