/* inside.h - is a file that was found by its number, and not by its name, one of the source?
 *
 * A file handle leads to any file of a filesystem, while the source may be one directory of it.
 * Clients of NFS send handles, and may invent them. Below the root of a filesystem everything is
 * inside; otherwise a path is needed that leads from the source to the file now: the one the
 * kernel knows is walked again, without symbolic links. It knows none of a file (not a directory)
 * that nobody has looked up since it was last forgotten: such a handle is stale.
 *
 * Where a directory is moved out of the source by others while it is in use here, those who use
 * it go on in it, as below a bind mount; no ".." leads on from there.
 */
#ifndef PACEFS_FUSE_INSIDE_H
#define PACEFS_FUSE_INSIDE_H

#include <stdbool.h>

/* root_fd: of the source, a directory. */
bool inside_is_whole_filesystem(int root_fd);
/* fd: O_PATH will do. */
bool inside_source(int root_fd, int fd);

#endif
