#!/bin/bash
# timeout: 90
# A full disk is found by write(2): for every byte acknowledged before the error, it is there.
. "$PACEFS_REPO/tests/lib/mount_test.sh"

source_up usb ext4 80M 20000000 || exit 1
mnt=$TEST_DIR/mnt
check "mounts" pacefs_start "$TEST_DIR/usb" "$mnt" || exit 1

# dd says how much write() took before it failed.
out=$(dd if=/dev/urandom of="$mnt/big" bs=64K count=2000 2>&1)
check "dd hears that the disk is full" grep -q "No space left on device" <<<"$out"
bytes=$(sed -n 's/^\([0-9]*\) bytes.*/\1/p' <<<"$out")
check_ge "bytes acknowledged" "${bytes:-0}" 40000000
check_eq "size shown" "$(stat -c %s "$mnt/big")" "$bytes"
sum=$(sha256sum <"$mnt/big")
check_eq "no error of writeback" "$(pstat errors)" 0

out=$(dd if=/dev/zero of="$mnt/more" bs=64K count=2000 2>&1)
check "still full" grep -q "No space left on device" <<<"$out"
check "rm" rm "$mnt/more" "$mnt/big"
check "writing works again at once" dd if=/dev/zero of="$mnt/again" bs=1M count=20 status=none
sum_again=$(sha256sum <"$mnt/again")

dd if=/dev/urandom of="$mnt/keep" bs=64K count=2000 status=none 2>/dev/null
sum=$(sha256sum <"$mnt/keep")
check "umount, daemon exits 0" pacefs_stop
check_eq "what was acknowledged is in the source" "$(sha256sum <"$TEST_DIR/usb/keep")" "$sum"
check_eq "and the file written after rm" "$(sha256sum <"$TEST_DIR/usb/again")" "$sum_again"
