#!/bin/bash
# Power cuts: one recorded run of a workload on a disk that forgets what was not flushed, and what
# is there after a cut at random moments of it. See tests/crash/powercut.py. A daemon that only
# says that it has synced must be caught. PACEFS_CUTS=200 is the long version, with xfs and btrfs.
# timeout: 1800
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt
cuts=${PACEFS_CUTS:-0}
crash=$PACEFS_REPO/tests/crash
preload=

# cuts_of FS OPTIONS SECONDS POINTS: status and last line of powercut.py
cuts_of() {
	local fs=$1 opts=$2 seconds=$3 points=$4 work=$TEST_DIR/work ended flush=0
	rm -rf "$work" "$TEST_DIR/record"
	mkdir -p "$work" "$TEST_DIR/cut"
	source_up usb "$fs" 320M 12000000 record="$TEST_DIR/record" >/dev/null || return 2
	LD_PRELOAD=$preload ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0 \
		pacefs_start "$src" "$mnt" "$opts" || return 2
	python3 "$crash/workload.py" "$mnt" "$work" seed="$((RANDOM % 2000 + 1))" \
		seconds="$seconds" pacefs="$PACEFS" mount="$mnt" || return 2
	pacefs_stop || return 2
	ended=$(python3 -c 'import time; print(time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)')
	umount "$src"
	source_down usb
	[[ ,$opts, == *,flush,* ]] && flush=1
	timeout 1500 python3 "$crash/powercut.py" "$TEST_DIR/record" "$work" "$TEST_DIR/cut" "$fs" \
		size=$((320 << 20)) points="$points" flush="$flush" ended="$ended" \
		${PACEFS_CUT_SEED:+seed="$PACEFS_CUT_SEED"}
}

broken_is_caught() {
	local preload=$PACEFS_BUILD/tests/crash/nosync.so # for the daemon alone
	cuts_of ext4 "" 2 8 >"$TEST_DIR/broken"
	[ $? -eq 1 ] && tail -n 1 "$TEST_DIR/broken"
}

check "cuts of ext4" cuts_of ext4 flush 4 $((cuts ? cuts : 20))
if [ "$cuts" -gt 0 ]; then
	check "cuts of ext4, not -o flush" cuts_of ext4 "" 8 "$cuts"
	check "cuts of xfs" cuts_of xfs flush 8 "$cuts"
	check "cuts of btrfs" cuts_of btrfs flush 8 "$cuts"
fi
check "a daemon that never syncs is caught" broken_is_caught
