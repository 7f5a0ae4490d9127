#!/bin/bash
# kill -9 of the daemon at random moments: see tests/crash/kill.py. PACEFS_KILL_CYCLES=200 is the
# long version (some 10 minutes), PACEFS_KILL_SEED repeats a run.
# timeout: 1500
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt
cycles=${PACEFS_KILL_CYCLES:-5}

# cycles FS N
cycles() {
	local fs=$1 n=$2
	source_up usb "$fs" 400M 8000000 >/dev/null || exit 1
	mkdir -p "$mnt" "$TEST_DIR/work.$fs"
	check "kill -9 on $fs" timeout 1200 python3 "$PACEFS_REPO/tests/crash/kill.py" "$PACEFS" "$src" \
		"$mnt" "$TEST_DIR/work.$fs" cycles="$n" ${PACEFS_KILL_SEED:+seed="$PACEFS_KILL_SEED"}
	source_down usb
}

cycles ext4 "$cycles"
cycles xfs $((cycles / 3))
[ "$cycles" -lt 30 ] || cycles btrfs $((cycles / 3))
