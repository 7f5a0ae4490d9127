#!/bin/bash
# Eight processes open, write, cut, rename, link and delete the same few names at once. In a build
# with the thread sanitizer (see CONTRIBUTING.md) it finds what the locks leave out.
#
# PACEFS_RACES_OPS (default 10000): how many operations.
# timeout: 300
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/src
mnt=$TEST_DIR/mnt
races=$PACEFS_BUILD/tests/mount/races
ops=${PACEFS_RACES_OPS:-10000}
seed=${PACEFS_RACES_SEED:-$RANDOM}

# races NAME OPTIONS: on a new mount, then compared with the source
races() {
	local name=$1 options=$2
	pacefs_start "$src" "$mnt" "$options" || exit 1
	mkdir -p "$mnt/work"
	check "$name: all goes on" timeout 200 "$races" "$mnt/work" ops="$ops" seed="$seed"
	(cd "$mnt/work" && find . -type f -exec sha1sum {} + | sort) >"$TEST_DIR/seen"
	check "$name: umount" pacefs_stop
	(cd "$src/work" && find . -type f -exec sha1sum {} + | sort) >"$TEST_DIR/there"
	check "$name: the source has what was seen" cmp "$TEST_DIR/seen" "$TEST_DIR/there"
	rm -rf "${src:?}/work"
}

# A disk, with io_uring; memory, with the other engine and hardly room for anything.
source_up src ext4 256M 200M || exit 1
races disk ""
source_down src
mount -t tmpfs -o size=256M races "$src" || exit 1
races memory io_engine=sync,cache_size=4M,max_bytes=256K
umount "$src"
