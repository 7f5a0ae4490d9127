#!/bin/bash
# Both laws on one mount: chosen when mounting, changed while writers write, and each keeps the limit
# and moves at the disk's speed.
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt
WRITERS=10

one_line() {
	grep "$1=" "$TEST_DIR/load" | value "$1"
}

law() {
	getfattr --only-values -n user.pacefs.law "$mnt"
}

set_law() {
	setfattr -n user.pacefs.law -v "$1" "$mnt"
}

# the base rate against what each of the writers should get, percent
ratelimit_percent() {
	awk -v r="$(getfattr --only-values -n user.pacefs.dirty_ratelimit "$mnt")" \
		-v bw="$(pstat write_bandwidth)" -v n="$WRITERS" \
		'BEGIN { printf "%.0f", 100 * r / (bw / n) }'
}

source_up usb ext4 1G 10000000 || exit 1
check_fails "a law nobody knows is refused" "$PACEFS" "$src" "$mnt" -o law=windows
pacefs_start "$src" "$mnt" law=pace,dirty_bytes=16M,dirty_centisecs=0 || exit 1
check_eq "the law chosen at mount" "$(law)" pace
check_fails "a law nobody knows is refused live" set_law windows
check_eq "and changes nothing" "$(law)" pace

# ---- each by itself ----

for name in pace linux; do
	check "$name: set" set_law $name
	"$BENCH/load" -n $WRITERS -b 4K -w 4 -t 10 "$mnt" >"$TEST_DIR/load" &
	load=$!
	sleep 9
	percent=$(ratelimit_percent)
	wait "$load"
	# The kernel's law has a dead band of its own, and arrives slowly.
	[ $name = pace ] && within=(80 125) || within=(60 200)
	check_between "$name: the base rate is the fair share, %" "$percent" "${within[@]}"
	check_between "$name: ten writers together, MB/s" "$(one_line total_MBs)" 8.5 11
	check_ge "$name: alike (Jain)" "$(one_line jain)" 0.98
	check_eq "$name: never above the limit, pages" "$(pstat over_limit_pages)" 0
done

# ---- changed under the writers ----

"$BENCH/load" -n $WRITERS -b 128K -w 2 -t 8 "$mnt" >"$TEST_DIR/load" &
load=$!
changed=0
while kill -0 "$load" 2>/dev/null; do
	for name in pace linux; do
		sleep 0.2
		set_law $name && [ "$(law)" = $name ] && changed=$((changed + 1))
	done
done
wait "$load"
check_ge "the law was changed, times" "$changed" 20
check_between "writers went on meanwhile, MB/s" "$(one_line total_MBs)" 8.5 11
check_ge "alike (Jain)" "$(one_line jain)" 0.95
check_eq "never above the limit, pages" "$(pstat over_limit_pages)" 0
check_le "and no pause was longer than, us" "$(pstat max_pause_us)" 200000
check "umount" pacefs_stop
