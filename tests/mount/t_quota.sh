#!/bin/bash
# timeout: 120
# A quota is found by write(2) as a full disk is: what was acknowledged before the error is there. On
# btrfs, whose limits for subvolumes work in every kernel; quotas of users take the same way
# (fuse/quota.c).
. "$PACEFS_REPO/tests/lib/mount_test.sh"

mnt=$TEST_DIR/mnt
load=$PACEFS_REPO/tests/mount/full_load.py

ended() {
	check_eq "$1: no error of writeback" "$(pstat errors)" 0
	check_eq "$1: nothing lost, bytes" "$(pstat lost_bytes)" 0
	check "$1: umount, daemon exits 0" pacefs_stop
}

# what dd acknowledged, bytes; the error's text in dd.err
acknowledged() {
	dd if=/dev/urandom of="$1" bs=64K count="$2" 2>dd.err
	sed -n 's/^\([0-9]*\) bytes.*/\1/p' dd.err
}

source_up usb btrfs 600M 50000000 || exit 1
btrfs quota enable usb || skip_all "this kernel has no btrfs quotas"
btrfs subvolume create usb/own >/dev/null
btrfs subvolume create usb/group >/dev/null
btrfs qgroup limit 50M usb/own
btrfs qgroup create 1/0 usb
btrfs qgroup assign --no-rescan "0/$(btrfs inspect-internal rootid usb/group)" 1/0 usb 2>/dev/null
btrfs quota rescan -w usb >/dev/null
btrfs qgroup limit 40M 1/0 usb
sync -f usb

for where in own group; do
	case $where in own) most=50 ;; group) most=40 ;; esac
	name="subvolume with a limit of its $where"
	pacefs_start "$TEST_DIR/usb/$where" "$mnt" || exit 1
	bytes=$(acknowledged "$mnt/file" 2000)
	check "$name: dd hears of it" grep -q "Disk quota exceeded" dd.err
	check_between "$name: acknowledged, MiB" $((${bytes:-0} >> 20)) $((most * 3 / 4)) "$most"
	check_eq "$name: size" "$(stat -c %s "$mnt/file")" "$bytes"
	sum=$(sha256sum <"$mnt/file")
	check "$name: fsync" sync "$mnt/file"
	ended "$name"
	check_eq "$name: the source has it" "$(sha256sum <"usb/$where/file")" "$sum"
	rm "usb/$where/file"
	sync -f usb
done

# after rm there is room again
pacefs_start "$TEST_DIR/usb/own" "$mnt" || exit 1
acknowledged "$mnt/file" 2000 >/dev/null
rm "$mnt/file"
check "after rm writing works again" dd if=/dev/zero of="$mnt/again" bs=1M count=20 status=none
rm "$mnt/again"
# seconds: as in t_full.sh
check "random writers: nothing but a used up quota" \
	timeout 60 python3 "$load" write "$mnt" book "${PACEFS_FULL_SEEDS:-1}" "${PACEFS_FULL_SECONDS:-5}"
ended "random writers"
check "random writers: what was acknowledged is in the source" \
	python3 "$load" check "$TEST_DIR/usb/own" book
