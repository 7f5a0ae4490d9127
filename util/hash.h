/* hash.h - uthash's tables. By itself it ends the process when it has no memory for one; here the
 * entry is not added, and whoever adds it asks hash_added().
 */
#ifndef PACEFS_UTIL_HASH_H
#define PACEFS_UTIL_HASH_H

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#define hash_added(entry) ((entry)->hh.tbl != NULL)

#endif
