#!/bin/bash
# The slow disk itself: rate, faults, log, and that nothing of it stays.
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

rig_processes() {
	ps -eo comm= | grep -E "^(nbdkit|nbdfuse|sleep)"
}

# direct_MBs FILE MIB: rate of a sequential direct write
direct_MBs() {
	local start
	start=$(now_ms)
	dd if=/dev/zero of="$1" bs=1M count="$2" oflag=direct status=none || return 1
	awk -v ms="$(elapsed_ms "$start")" -v mib="$2" 'BEGIN { print mib * 1.048576 * 1000 / ms }'
}

direct_write() {
	dd if=/dev/zero of="$1" bs=64k count=1 oflag=direct status=none
}

log=$TEST_DIR/log
check "a disk comes up" slowdisk_up a 256M 10000000 log="$log"
dev=${DEV[a]:-}
[ -b "$dev" ] || exit 1

check_between "rate at 10 MB/s" "$(direct_MBs "$dev" 30)" 9 11
slowdisk_set a rate=40000000
check_between "rate changed to 40 MB/s" "$(direct_MBs "$dev" 80)" 36 44
check_eq "the log has every byte" "$(awk '$3 == "write" { n += $5 } END { print n }' "$log")" \
	$((110 << 20))
check_between "the log shows the rate" "$(awk '$3 == "write" && !first { first = $1 }
	$3 == "write" && n < 30 * 1048576 { n += $5; last = $2 }
	END { print n / (last - first) }' "$log")" 9 10.5

slowdisk_set a seekmin=5 seekmax=5 rot=0
start=$(now_ms)
for i in 0 100 20 120 40 140 60 160 80 180; do
	dd if=/dev/zero of="$dev" bs=1M seek="$i" count=1 oflag=direct status=none
done
check_between "10 seeks of 5 ms and 10 MiB take" "$(elapsed_ms "$start")" 300 450
slowdisk_set a seekmin=0 seekmax=0

slowdisk_set a stall=1
start=$(now_ms)
(sleep 1 && slowdisk_set a stall=0) &
check "a stalled write ends" direct_write "$dev"
check_between "when the stall does, ms" "$(elapsed_ms "$start")" 950 1300
wait

for fault in weio enospc vanish; do
	slowdisk_set a "$fault=1"
	check_fails "write fails with $fault" direct_write "$dev"
	slowdisk_set a "$fault=0"
	check "and works again" direct_write "$dev"
done
check_eq "the log shows the errors" "$(awk '$6 { print $3, $6 }' "$log" | sort -u | tr '\n' ' ')" \
	"write 28 write 5 "
slowdisk_set a reio=1
check_fails "read fails with reio" dd if="$dev" of=/dev/null iflag=direct bs=64k count=1 status=none
check "write does not" direct_write "$dev"
check_fails "an unknown key is refused" slowdisk_set a rat=1

check "the disk goes" slowdisk_down a
check_eq "with its loop device" "$(losetup -nO BACK-FILE | grep -F "$TEST_DIR")" ""
check_eq "and its directory" "$(ls -A "$SLOWDISK_DIR")" ""

check_fails "a disk that cannot start fails" slowdisk_up b 64M 1000000 nonsense=1
check_eq "and leaves nothing" "$(ls -A "$SLOWDISK_DIR")" ""

made=0
for i in $(seq 20); do
	slowdisk_up "c$i" 64M 5000000 && slowdisk_down "c$i" && made=$((made + 1))
done
check_eq "20 disks in turn" "$made" 20

check "three disks, one stalled, one mounted" source_up d ext4 128M 5000000
slowdisk_up e 64M 5000000
slowdisk_up f 64M 5000000
slowdisk_set f stall=1
dd if=/dev/zero of="$TEST_DIR/d/file" bs=1M count=20 status=none
dd if=/dev/zero of="${DEV[f]}" bs=1M count=4 status=none &
sleep 0.2
check "all go at once" slowdisk_down_all
wait
check_eq "no process is left" "$(rig_processes)" ""

# ---- killed with a filesystem full of dirty data on the disk ----

mkdir "$TEST_DIR/killed"
# shellcheck disable=SC2016 # for the inner shell
unshare -mp --propagation private --fork --kill-child --mount-proc bash -c '
	. "$PACEFS_REPO/tests/lib/mount_test.sh"
	trap - EXIT
	SLOWDISK_DIR=$TEST_DIR/killed
	source_up k ext4 128M 1000000
	dd if=/dev/zero of="$TEST_DIR/k/file" bs=1M count=20 status=none
	echo "${DEV[k]}" >"$TEST_DIR/ready"
	sleep 60' >/dev/null 2>&1 &
inner=$!
_slowdisk_wait 20 test -s "$TEST_DIR/ready"
dev=$(<"$TEST_DIR/ready")
check "the disk is there" test -e "/sys/block/${dev##*/}/loop"
kill -9 "$inner"
wait "$inner" 2>/dev/null
check "and goes with those who used it" _slowdisk_wait 10 _slowdisk_detached "$dev"
check "and so do they all" _slowdisk_wait 10 eval '[ -z "$(rig_processes)" ]'
