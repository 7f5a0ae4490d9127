#!/bin/bash
# Writers move at the disk's speed, together and alike, in short pauses and under the limit; the
# disk starts early; others are not held.
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt

one_line() {
	grep "$1=" "$TEST_DIR/load" | value "$1"
}

source_up usb ext4 1G 10000000 || exit 1
pacefs_start "$src" "$mnt" || exit 1

# ---- a small file alone ----

sleep 1
start=$(now_ms)
dd if=/dev/urandom of="$mnt/small" bs=128k count=8 status=none
_slowdisk_wait 5 eval '[ $(($(pstat dirty_bytes) + $(pstat writeback_bytes))) -eq 0 ]'
check_between "1 MB is on its way after the background time, and written, ms" \
	"$(elapsed_ms "$start")" 900 2500

# ---- one writer ----

"$BENCH/load" -b 128K -w 4 -t 6 "$mnt" >"$TEST_DIR/load"
check_between "one writer at the speed of the disk, MB/s" "$(one_line total_MBs)" 8.5 11
check_le "no write() takes longer than, ms" "$(one_line max_ms)" 450
check_ge "by pauses" "$(pstat pauses)" 20
check_le "of at most, us" "$(pstat max_pause_us)" 220000
check_eq "never above the limit, pages" "$(pstat over_limit_pages)" 0
check_between "the speed is measured, bytes/s" "$(pstat write_bandwidth)" 8500000 11500000
check_between "and the limit is two seconds of it, bytes" "$(pstat limit_bytes)" 16000000 25000000

# ---- four, and what goes on beside ----

rm -f "$mnt"/[!l]*
"$BENCH/load" -n 4 -b 128K -w 4 -t 10 "$mnt" >"$TEST_DIR/load" &
load=$!
sleep 4
mkdir "$mnt/probe"
"$BENCH/probe" -t 3 stat "$mnt/probe" >"$TEST_DIR/stat"
"$BENCH/probe" -t 3 write "$mnt/probe" >"$TEST_DIR/write"
"$BENCH/probe" -t 3 fsync "$mnt/probe" >"$TEST_DIR/fsync"
wait "$load"
check_between "four writers together, MB/s" "$(one_line total_MBs)" 8 11
check_ge "alike (Jain)" "$(one_line jain)" 0.95
check_eq "never above the limit, pages" "$(pstat over_limit_pages)" 0
check_le "stat beside them, p99, ms" "$(value p99_ms <"$TEST_DIR/stat")" 50
check_le "a small write beside them, p50, ms" "$(value p50_ms <"$TEST_DIR/write")" 50
check_le "a small fsync beside them, p50, ms" "$(value p50_ms <"$TEST_DIR/fsync")" 700

# ---- the way out ----

dd if=/dev/zero of="$mnt/last" bs=1M count=40 status=none
start=$(now_ms)
check "umount with a full backlog" umount "$mnt"
check_le "takes the limit in time, ms" "$(elapsed_ms "$start")" 3500
check "the daemon ends" pacefs_wait
check_eq "with status" "$PACEFS_STATUS" 0

# ---- processes that end before they could be held ----

# Their debt is the next one's: they come and go, and the one that stays gets its part.
rm -f "$src"/[!l]* 2>/dev/null
pacefs_start "$src" "$mnt" max_bytes=8M,dirty_centisecs=0 || exit 1
: >"$TEST_DIR/short"
(
	n=0
	while [ -e "$TEST_DIR/short" ]; do
		dd if=/dev/zero of="$mnt/short.$((n++ % 50))" bs=4k count=31 status=none &&
			echo 126976 >>"$TEST_DIR/short.bytes"
	done
) &
short=$!
"$BENCH/load" -n 1 -w 2 -t 6 -b 4K "$mnt" >"$TEST_DIR/load"
rm "$TEST_DIR/short"
wait "$short"
short_MBs=$(awk '{ n += $1 } END { printf "%.3f", n / 8 / 1e6 }' "$TEST_DIR/short.bytes")
check_ge "beside short-lived writers the one that stays gets, % of the bytes" "$(
	awk -v a="$(one_line total_MBs)" -v b="$short_MBs" 'BEGIN { printf "%.0f", 100 * a / (a + b) }'
)" 20
check "umount" pacefs_stop
