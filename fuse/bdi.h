/* bdi.h - how many dirty pages of mapped files the kernel may hold.
 *
 * Shared mappings are paced by the kernel, by the mount's own bdi. Its start is 1 % of the
 * machine's dirty limit at most, and strictly so: next to nothing on a small machine, more than
 * the device's limit on a large one. It gets an eighth of the limit in force (BDI_LEAST_BYTES
 * where that is tiny, since below it the kernel pauses for every few pages), and follows it.
 * Kernels before 6.2 know percents only.
 *
 * Needs root; without it, or without sysfs, all stays as the kernel has it.
 */
#ifndef PACEFS_FUSE_BDI_H
#define PACEFS_FUSE_BDI_H

#include "fuse/pacefs.h"

#define BDI_LEAST_BYTES (UINT64_C(4) << 20) /* 1 MiB was up to twice as slow, 16 no quicker */

/* Before the first request is served, and when a setting has changed. Without the lock. */
void bdi_bound(struct pacefs *p);
/* After each tick of the pacer, by its thread alone: again when the limit has moved by an eighth.
 * Without the lock. */
void bdi_follow(struct pacefs *p);

#endif
