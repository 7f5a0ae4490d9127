#!/bin/bash
# Contents: random operations of several processes at once, held against a copy in memory, while
# the mount is up and in the source after umount; with small limits, slow and fast disks, both
# engines, every kind of source.
# timeout: 240
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

torture=$PACEFS_BUILD/tests/mount/torture
src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt
seconds=${TORTURE_SECONDS:-8}
first_seed=${TORTURE_SEED:-$RANDOM}
mkdir -p "$src"

# torture NAME: three processes at once, then umount, then the source
torture() {
	local name=$1 seed pid pids=()
	for seed in "$first_seed" $((first_seed + 1)) $((first_seed + 2)); do
		timeout 120 "$torture" "$mnt" seed="$seed" seconds="$seconds" \
			save="$TEST_DIR/saved.$seed" &
		pids+=($!)
	done
	for pid in "${pids[@]}"; do
		wait "$pid" || fail "$name: operations" "repro: TORTURE_SEED=$first_seed"
	done
	check_eq "$name: eviction met no dirty page" "$(pstat dirty_met_evicting)" 0
	check_eq "$name: the limit held" "$(pstat over_limit_pages)" 0
	check "$name: umount" pacefs_stop "$mnt"
	for seed in "$first_seed" $((first_seed + 1)) $((first_seed + 2)); do
		[ ! -e "$TEST_DIR/saved.$seed" ] ||
			check "$name: the source has what was written" \
				"$torture" --check "$src" "$TEST_DIR/saved.$seed"
	done
	rm -f "$TEST_DIR"/saved.*
}

echo "TORTURE_SEED=$first_seed"
tiny=max_bytes=1M,dirty_centisecs=0
for conf in "ext4 20000000 $tiny,io_engine=uring" "xfs 0 io_engine=sync" "btrfs 0 $tiny" \
	"ext4 0 flush"; do
	read -r fs rate opts <<<"$conf"
	source_up usb "$fs" 400M "$rate" >/dev/null || exit 1
	pacefs_start "$src" "$mnt" "$opts" || exit 1
	torture "$fs $opts"
	source_down usb
done
mount -t tmpfs -o size=256M tmpfs "$src"
pacefs_start "$src" "$mnt" "$tiny" || exit 1
torture "tmpfs $tiny"
umount "$src"

# ---- sums of many files, large and small ----

source_up usb ext4 400M 40000000 || exit 1
pacefs_start "$src" "$mnt" || exit 1
mkdir "$mnt/tree"
for i in $(seq 40); do
	head -c $((i * i * 997)) /dev/urandom >"$mnt/tree/f$i"
done
head -c 30000000 /dev/urandom >"$mnt/tree/large"
cp -a "$mnt/tree" "$mnt/copy"
sums() {
	(cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum)
}
sums "$mnt/copy" >"$TEST_DIR/sums"
check "a copy is like its original" cmp "$TEST_DIR/sums" <(sums "$mnt/tree")
stats() {
	(cd "$1" && find . -type f -printf '%p %s %T@\n' | sort)
}
stats "$mnt" >"$TEST_DIR/stats"
check "umount" pacefs_stop
echo 3 >/proc/sys/vm/drop_caches
check "sums in the source" cmp "$TEST_DIR/sums" <(sums "$src/copy")
check "sizes and times in the source" cmp "$TEST_DIR/stats" <(stats "$src")
