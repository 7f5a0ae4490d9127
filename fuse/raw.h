/* raw.h - a raw block device or image, shown as one file: the mountpoint itself when that is a
 * file, else a file of the source's name in it. */
#ifndef PACEFS_FUSE_RAW_H
#define PACEFS_FUSE_RAW_H

#include "fuse/node.h"
#include "fuse/pacefs.h"

int raw_nodes_init(struct pacefs *p);
int raw_stat(struct pacefs *p, struct fnode *fn, struct stat *ret_stat);
/* LOOKUP in the root. 0 or -ENOENT. */
int raw_entry(struct pacefs *p, const char *name, struct fuse_entry_param *ret_entry);
/* READDIR or READDIRPLUS of the root; bytes. */
size_t raw_readdir(fuse_req_t req, char *buf, size_t size, off_t off, bool plus);

#endif
