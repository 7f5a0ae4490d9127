#!/bin/bash
# Mapped files: coherent with everything else, bounded by the limit, in the source soon.
# timeout: 120
# MMAP_REPEATS: how often an odd range is mapped, written and read.
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt
mapped=$PACEFS_REPO/tests/mount/mapped.py
export TEST_DIR

eighth() {
	local limit bytes
	limit=$(pstat limit_bytes)
	bytes=$(cat "$bdi/max_bytes")
	awk -v x="$bytes" -v l="$limit" 'BEGIN {
		want = l / 8 > 4194304 ? l / 8 : l / 2 < 4194304 ? l / 2 : 4194304
		exit !(x > want * 0.7 && x < want * 1.4) }'
}

# until SECONDS command...
until_true() {
	local end=$(($(now_ms) + $1 * 1000))
	shift
	until "$@"; do
		[ "$(now_ms)" -lt "$end" ] || return 1
		sleep 0.1
	done
}

source_up usb ext4 400M 10000000 || exit 1
pacefs_start "$src" "$mnt" || exit 1
bdi=/sys/class/bdi/$(mountpoint -d "$mnt")-fuseblk

# ---- what the kernel may hold ----

if [ -e "$bdi/max_bytes" ]; then
	check "mapped pages are bounded" until_true 10 eighth
	setfattr -n user.pacefs.max_bytes -v 2M "$mnt"
	check "a smaller limit binds them" until_true 10 eighth
	setfattr -n user.pacefs.max_bytes -v 0 "$mnt"
else
	check_ge "mapped pages have their share" "$(cat "$bdi/max_ratio")" 1
fi

# ---- coherence ----

for what in odd both_ways cut closed; do
	check "$what" timeout 60 python3 "$mapped" "$what" "$mnt"
done
whole() {
	cmp -s "$mnt/closed" "$src/closed"
}
mapped_bytes() {
	[ "$(head -c 8 "$src/closed")" = "mapped! " ] && whole
}
check "unmapped and closed, it reaches the source" until_true 40 mapped_bytes

# ---- a database of two processes, one of them killed, beside a greedy writer ----

check "a database is made" python3 "$mapped" database "$mnt" new 0
dd if=/dev/zero of="$mnt/greedy" bs=1M count=200 status=none &
greedy=$!
python3 "$mapped" database "$mnt" one 60 >"$TEST_DIR/one.log" &
one=$!
python3 "$mapped" database "$mnt" two 100000 >"$TEST_DIR/two.log" &
two=$!
wait "$one"
check_eq "one of two has done its work" $? 0
kill -9 "$two" "$greedy"
wait "$two" "$greedy" 2>/dev/null
check "the database is whole" python3 "$mapped" integrity "$mnt"
check "umount" pacefs_stop
check "the database is whole in the source" python3 "$mapped" integrity "$src"
source_down usb
