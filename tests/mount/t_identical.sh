#!/bin/bash
# When umount returns the source is what was written, bit by bit, whatever happens to the daemon
# then: it is killed at that moment, and a copy of the device is looked at, since the source's page
# cache is not the disk. PACEFS_UMOUNT_CYCLES: how often, default 3. PACEFS_SEED: of the first.
# timeout: 900
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt
copy=$TEST_DIR/copy
workload=$PACEFS_REPO/tests/lib/workload.py
cycles=${PACEFS_UMOUNT_CYCLES:-3}
seed=${PACEFS_SEED:-$((RANDOM * 100))}

# identical: what is on the device, after the journal of its file system was replayed as after a
# power cut, is what the manifest says
identical() {
	local status
	slowdisk_set usb rate=0
	dd if="${DEV[usb]}" of="$copy.img" bs=1M iflag=direct status=none
	slowdisk_set usb rate=20000000
	mount -o loop "$copy.img" "$copy" || return 1
	python3 "$workload" --compare "$copy/files" "$TEST_DIR/manifest"
	status=$?
	umount "$copy"
	return "$status"
}

mkdir -p "$mnt" "$copy"
source_up usb ext4 96M 20000000 || exit 1
echo "seeds from $seed"
same=0 waited=0
for i in $(seq "$cycles"); do
	mkdir "$src/files"
	pacefs_start "$src/files" "$mnt" || exit 1
	python3 "$workload" "$mnt" "$TEST_DIR/manifest" $((seed + i))
	[ $(($(pstat dirty_bytes) + $(pstat writeback_bytes))) -gt 100000 ] && waited=$((waited + 1))
	if python3 "$workload" --umount "$mnt" "${PACEFS_PID[$mnt]}" && identical; then
		same=$((same + 1))
	else
		echo "seed $((seed + i)) is not identical"
	fi
	pacefs_wait "$mnt"
	rm -r "$src/files"
done
check_eq "umount returns, the daemon is killed, and the device has what was written" \
	"$same of $cycles" "$cycles of $cycles"
check_ge "something was waiting when umount was called, times" "$waited" $((cycles / 2))
