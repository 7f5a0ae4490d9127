#!/bin/bash
# Real programs (tests/programs) on a disk of 10 MB/s, three at a time beside a greedy writer; what they
# made is verified by themselves, and again after another mount. PACEFS_PROGRAMS=10 is ten times as much.
# timeout: 1800
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt
programs=$PACEFS_REPO/tests/programs
limit=$((150 * ${PACEFS_PROGRAMS:-1}))
# What waits for the disk beside what computes.
lanes=("git qemu make edit" "sqlite copy stress" "fio python")
mapfile -t names < <(find "$programs" -type f -perm /1 -printf '%f\n')
# shellcheck disable=SC2034 # of pacefs_stop
PACEFS_STOP_TIMEOUT_S=120

# lane "PROGRAM..." [again]: their exit statuses
lane() {
	local name start
	for name in $1; do
		start=$SECONDS
		mkdir -p "$mnt/$name" "$TEST_DIR/scratch/$name"
		timeout -k 5 "$limit" "$programs/$name" "$mnt/$name" "$TEST_DIR/scratch/$name" ${2:+"$2"} \
			>"$TEST_DIR/scratch/$name.out" 2>&1 </dev/null
		echo "$? $((SECONDS - start))" >"$TEST_DIR/scratch/$name.status"
	done
}

# results WHAT
results() {
	local name status seconds
	for name in "${names[@]}"; do
		read -r status seconds <"$TEST_DIR/scratch/$name.status"
		rm "$TEST_DIR/scratch/$name.status"
		case $status in
		0) pass "$name $1 ($seconds s)" ;;
		77) skip "$name $1" "not installed" ;;
		*)
			tail -n 20 "$TEST_DIR/scratch/$name.out" "$TEST_DIR/scratch/$name"/*.log 2>/dev/null
			fail "$name $1" "status $status after $seconds s"
			;;
		esac
	done
}

# all [again]
all() {
	local pids=() one
	for one in "${lanes[@]}"; do
		lane "$one" ${1:+"$1"} &
		pids+=($!)
	done
	wait "${pids[@]}"
}

mkdir -p "$TEST_DIR/scratch"
# In memory: what is compared with is not to be slow.
mount -t tmpfs none "$TEST_DIR/scratch" || exit 1
source_up usb ext4 "$((1000 + 1000 * ${PACEFS_PROGRAMS:-1} / 2))M" 0 || exit 1
slowdisk_set usb rate=10000000
pacefs_start "$src" "$mnt" "" -f || exit 1
mkdir "$mnt/greedy"
setsid "$BENCH/load" --request 128K --warm 0 --run 3600 --wrap 100M "$mnt/greedy" >/dev/null &
greedy=$!
all
check "the greedy writer is still at it" kill -- "-$greedy"
wait "$greedy" 2>/dev/null
results "beside a greedy writer"
rm -r "$mnt/greedy"
check_eq "nothing was lost, nothing was taken for others'" \
	"$(pstat errors) $(pstat foreign_changes) $(pstat foreign_collisions)" "0 0 0"
pacefs_log | grep "somebody changed"
check "umount" pacefs_stop
slowdisk_set usb rate=0
umount "$src"
check_eq "the source is sound" "$(e2fsck -fn "${DEV[usb]}" >"$TEST_DIR/fsck" 2>&1; echo $?)" 0
mount "${DEV[usb]}" "$src"
pacefs_start "$src" "$mnt" || exit 1
all again
results "after another mount"
check "umount" pacefs_stop
umount "$TEST_DIR/scratch"
