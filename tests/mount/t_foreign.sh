#!/bin/bash
# Somebody changes the source behind the mount: seen where the file is clean, said where it is not.
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt

source_up usb ext4 200M 0 || exit 1
# What is written stays dirty until somebody asks for it.
pacefs_start "$src" "$mnt" dirty_background_centisecs=0,dirty_writeback_centisecs=0 -f || exit 1
timeout 60 python3 "$PACEFS_REPO/tests/mount/foreign.py" "$src" "$mnt" \
	"$SLOWDISK_DIR/usb/ctl" | tee "$TEST_DIR/out"
[ "${PIPESTATUS[0]}" -eq 0 ] || failures=$((failures + 1))
check "the log names the files" says "$(_pacefs_dir "$mnt")/log" "/usb/held: .*changed"
check "umount" pacefs_stop
