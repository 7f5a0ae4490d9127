/* commands.h - pacefs COMMAND MNT: the client side, talking to a live mount by its xattrs.
 *
 * Runs in a process of its own, never in the daemon. What it reads:
 *   user.pacefs.stats   text lines "Key: value"; keys it does not find are left out
 *   user.pacefs.flush   "started done errors": sequence numbers, and the sticky error count
 *   user.pacefs.NAME    a setting
 * and what it writes: user.pacefs.flush=1 (starts a flush), user.pacefs.NAME.
 */
#ifndef PACEFS_FUSE_COMMANDS_H
#define PACEFS_FUSE_COMMANDS_H

#include <stdbool.h>

/* argv[1] is the command. Returns the exit status: 0 done (and safe, where that was asked),
 * 1 not; messages on stderr. */
int commands_main(int argc, char **argv);

/* pacefs umount MNT: 0 when all is written and it is unmounted, else a negative errno after a line
 * on stderr; *ret_unmounted says whether it is unmounted all the same. */
int commands_umount(const char *mnt, bool *ret_unmounted);

/* NULL-terminated */
const char *const *commands_names(void);

bool commands_is(const char *word);

/* One line on stderr: word is no command, but perhaps this one was meant. */
void commands_refuse_unknown(const char *word);

#endif
