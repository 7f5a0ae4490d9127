#!/bin/bash
# Sparse files: seeking for data and holes while data is dirty, mapped or below; punching, zeroing and
# preallocating; copies that share blocks, and those that programs make of sparse files. Over sources
# that can do all of it, some of it, or little.
#
# SPARSE_HUNT_S: seconds of each random run
# timeout: 240
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

mnt=$TEST_DIR/mnt
# What is written stays dirty until somebody asks for it: no limit, no age.
lazy=dirty_background_centisecs=0,dirty_centisecs=0,dirty_writeback_centisecs=0
sparse=$PACEFS_REPO/tests/mount/sparse.py

checks() {
	local src=$1
	pacefs_start "$src" "$mnt" "$lazy" || exit 1
	python3 "$sparse" "$mnt" "$src" || fail "sparse files over $2" "see above"
	check "$2: umount" pacefs_stop
}

for fs in ext4 xfs btrfs; do
	source_up "$fs" "$fs" 600M 0 || skip_all "no disk"
	checks "$TEST_DIR/$fs" "$fs"
done
mkdir -p "$TEST_DIR/tmpfs" && mount -t tmpfs sparse "$TEST_DIR/tmpfs" || exit 1
checks "$TEST_DIR/tmpfs" tmpfs
umount "$TEST_DIR/tmpfs"

# A disk slow enough that a page is dirty, in writeback and gone from the cache while it is looked for.
slowdisk_set ext4 rate=30M
for fs in ext4 btrfs; do
	pacefs_start "$TEST_DIR/$fs" "$mnt" cache_size=4M || exit 1
	check "no hole hides data: $fs" python3 "$sparse" --hunt "$mnt" "$RANDOM" "${SPARSE_HUNT_S:-4}"
	md5sum <"$mnt/hunted" >"$TEST_DIR/sum"
	check "umount of it" pacefs_stop
	check "it is the same below: $fs" cmp "$TEST_DIR/sum" <(md5sum <"$TEST_DIR/$fs/hunted")
done
