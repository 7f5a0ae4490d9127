/* session.h - the receive loop and what libfuse does not do for us.
 *
 * Every reader thread receives into 80 bytes of header followed by free frames of the arena, so
 * that the payload of a WRITE lands in pages that the cache can adopt without a copy. All
 * requests go through libfuse's dispatcher; what it drops (SYNCFS, the KILL_SUIDGID bits,
 * HANDLE_KILLPRIV_V2 in INIT) is taken from, or put into, the raw bytes here.
 *
 * Readers are few: one that is about to wait for the source says so (session_block_begin) and
 * another takes its place.
 */
#ifndef PACEFS_FUSE_SESSION_H
#define PACEFS_FUSE_SESSION_H

#include "fuse/pacefs.h"

/* Make the session over mount->fuse_fd with these operations. */
int session_create(struct pacefs *p, const struct fuse_lowlevel_ops *ops);
/* Receive until the mount is gone; returns 0, or -errno when the connection broke. */
int session_loop(struct pacefs *p);
/* Let the loop end within a second or so, whoever has files open. From any thread. */
void session_end(void);
/* After the loop: whoever still waits for an answer, or asks from now on, gets an error. */
void session_cut(struct pacefs *p);
void session_destroy(struct pacefs *p);

/* Around anything that may wait: a system call on the source, a sync. */
void session_block_begin(void);
void session_block_end(void);

/* Payload of the WRITE that this thread is serving. */
struct payload *session_payload(void);
/* Flag words of the request this thread is serving, which libfuse does not hand on. */
bool session_write_kills_privs(void);
bool session_open_kills_privs(void);
bool session_setattr_kills_privs(void);

#endif
