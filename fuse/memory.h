/* memory.h - the daemon's own memory: how much the machine has for it, and that the kernel never
 * waits for us to give memory to us.
 *
 * No locks, no state.
 */
#ifndef PACEFS_FUSE_MEMORY_H
#define PACEFS_FUSE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#define MEMORY_NO_LIMIT UINT64_MAX
/* Beside the cached data: code, stacks, nodes, tables, receive buffers. */
#define MEMORY_BESIDE_BYTES (16ull << 20)

/* The least memory limit of the control groups this process is in, all the way up the tree;
 * version 1 and 2. root: "" (or a directory that stands for /, in tests). */
uint64_t memory_group_limit(const char *root);
/* What the machine has for this process: its memory, or that limit. */
uint64_t memory_machine_bytes(void);

/* Before the first thread: no I/O to free memory for us, last to be killed, everything locked
 * where the limits of the process allow it. What is refused is left. */
void memory_protect(void);

/* Resident now, the cache included. 0 if not known. */
uint64_t memory_resident_bytes(void);
/* What it may be at most, with so much of cache, and of payloads held now. */
uint64_t memory_ceiling_bytes(uint64_t cache_bytes, uint64_t held_bytes);

#endif
