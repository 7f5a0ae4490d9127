/* request.h - is a request of the kernel what it says it is?
 *
 * Looked at before anything else reads it: libfuse takes lengths and strings on trust. What a
 * sound kernel sends passes; of the rest nothing reaches the operations that could lead them out
 * of the buffer, out of the directory that is meant, or past the end of a file's possible size.
 * Pure: bytes in, a verdict out.
 */
#ifndef PACEFS_FUSE_REQUEST_H
#define PACEFS_FUSE_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

/* The largest READ, WRITE or READDIR: what a reply or a payload has room for. */
#define REQUEST_DATA_MOST (1u << 20)

/* The whole request, its header first, but of a WRITE only the 80 bytes before the payload must
 * be in memory. 0, or -errno to answer with. */
int request_check(const void *request, size_t bytes);
/* Does the kernel wait for an answer? Not to FORGET and the like. At least a header. */
bool request_wants_answer(const void *request);

#endif
