#!/bin/bash
# The ways a mount ends: when it has ended, everything is on the device and nothing is left.
# timeout: 300
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt
log=$TEST_DIR/oplog
payload=$TEST_DIR/payload
MIB=16

entries() {
	findmnt -rn -o FSTYPE --mountpoint "${1:-$mnt}" | grep -c '^fuse'
}

anchors() {
	find /var/lib/pacefs -mindepth 1 | wc -l
}

# Of this room: others may run beside it.
anchor_loops() {
	losetup -nO BACK-FILE | grep -cF "$(tr / - <<<"${TEST_DIR#/}")"
}

# Writes of the file's pages that the device has finished, in bytes.
logged_bytes() {
	awk '$3 == "write" && !$6 { n += $5 } END { print n + 0 }' "$log"
}

sum() {
	dd if="$1" bs=1M iflag=direct status=none | sha256sum
}

want=
# fill NAME: the payload, through the mount
fill() {
	cp "$payload" "$mnt/$1"
}

# on_disk NAME: read from the device, not from a cache
on_disk() {
	[ "$(sum "$src/$1")" = "$want" ]
}

dirty() {
	echo $(($(pstat dirty_bytes) + $(pstat writeback_bytes)))
}

nothing_left() {
	check_eq "$1: no mount" "$(entries)" 0
	check_eq "$1: no node" "$(anchors)" 0
	check_eq "$1: no loop device" "$(anchor_loops)" 0
	check_eq "$1: no daemon" "$(pgrep -cx pacefs)" 0
}

# ended NAME: the daemon is gone with status 0 and the file is there
ended() {
	check "$1: the daemon ends" pacefs_wait
	check_eq "$1: with status" "$PACEFS_STATUS" 0
	check "$1: the file is on the disk" on_disk "$2"
	nothing_left "$1"
}

dd if=/dev/urandom of="$payload" bs=1M count=$MIB status=none
want=$(sha256sum <"$payload")
mkdir -p "$mnt"
source_up usb ext4 512M 20000000 log="$log" || exit 1

# ---- umount(8) ----

pacefs_start "$src" "$mnt" || exit 1
check_eq "the mount is of type" "$(findmnt -rn -o FSTYPE --mountpoint "$mnt")" fuseblk.pacefs
check_eq "and findmnt shows the source's name" "$(findmnt -rn -o SOURCE --mountpoint "$mnt")" \
	"/var/lib/pacefs/$(tr / - <<<"${src#/}")"
daemon=${PACEFS_PID[$mnt]}
before=$(logged_bytes)
check "write $MIB MiB" fill a
check_ge "a part of it waits, bytes" "$(dirty)" 4000000
check "umount" umount "$mnt"
# The very next thing: no more may come.
written=$(($(logged_bytes) - before))
check_ge "when it returns the device has all of it, bytes" "$written" $((MIB << 20))
check_eq "and the daemon had nothing left but to exit" "$(ls "/proc/$daemon/fd" 2>/dev/null |
	xargs -rI{} readlink "/proc/$daemon/fd/{}" 2>/dev/null | grep -c "^$src")" 0
check "the source is free for umount at once" umount "$src"
mount "${DEV[usb]}" "$src"
ended umount a

# ---- sync ----

pacefs_start "$src" "$mnt" || exit 1
for how in "sync -f $mnt/b" "python3 -c 'import ctypes, os
fd = os.open(\"$mnt\", os.O_RDONLY)
assert ctypes.CDLL(None).syncfs(fd) == 0'"; do
	name=$([[ $how == sync* ]] && echo "sync -f" || echo "syncfs(2)")
	fill b
	# In this order, and without what is in flight: all of it is logged after the first look.
	before=$(logged_bytes)
	waiting=$(pstat dirty_bytes)
	check_ge "$name: a part waits, bytes" "$waiting" 1000000
	check "$name" bash -c "$how"
	check_eq "$name: nothing waits" "$(dirty)" 0
	check_ge "$name: the device was written, bytes" $(($(logged_bytes) - before)) "$waiting"
	check "$name: the file is on the disk" on_disk b
done

# It has an end though others never stop.
slowdisk_set usb rate=10000000
for i in $(seq 12); do
	timeout 12 python3 -c "
import os
fd = os.open('$mnt/fsync$i', os.O_RDWR | os.O_CREAT)
data = os.urandom(1 << 20)
n = 0
while True:
    os.pwrite(fd, data, (n % 8) << 20)
    n += 1
    os.fdatasync(fd)" &
	writers[i]=$!
done
sleep 2
check "sync -f beside writers that fsync" timeout 8 sync -f "$mnt"
check "is done before they are" kill -0 "${writers[@]}" 2>/dev/null
kill "${writers[@]}" 2>/dev/null
wait "${writers[@]}" 2>/dev/null
rm -f "$mnt"/fsync*
slowdisk_set usb rate=20000000

# ---- umount -l with an open file ----

exec {fd}>"$mnt/open"
check "umount -l" umount -l "$mnt"
check_eq "the mount is gone from view" "$(entries)" 0
check "its user still writes" cp "$payload" "/proc/self/fd/$fd"
check "and the daemon still serves" kill -0 "${PACEFS_PID[$mnt]}"
exec {fd}>&-
ended "umount -l" open

# ---- umount -f: no DESTROY ----

pacefs_start "$src" "$mnt" || exit 1
fill forced
check "umount -f" umount -f "$mnt"
ended "umount -f" forced

# ---- signals ----

for signal in TERM INT HUP; do
	pacefs_start "$src" "$mnt" || exit 1
	fill "$signal"
	kill -"$signal" "${PACEFS_PID[$mnt]}"
	ended "SIG$signal" "$signal"
done

# ---- kill -9 ----

for again in 1 2; do
	pacefs_start "$src" "$mnt" || exit 1
	fill killed
	kill -9 "${PACEFS_PID[$mnt]}"
	pacefs_wait
	check_eq "killed: the mount is dead ($again)" "$(stat "$mnt" 2>&1 | grep -c 'not connected')" 1
	if [ "$again" -eq 1 ]; then
		check "killed: it mounts again" pacefs_start "$src" "$mnt"
		check_eq "killed: one entry" "$(entries)" 1
		check_eq "killed: one node" "$(anchors)" 1
		check_eq "killed: one loop device" "$(anchor_loops)" 1
		check "killed: it works" fill afterwards
		pacefs_stop
		check "killed: and writes" on_disk afterwards
	else
		check "killed: umount takes the dead mount" umount "$mnt"
	fi
done
pacefs_start "$src" "$mnt" && pacefs_stop # takes the killed one's node with it
nothing_left killed

# ---- over the source itself ----

pacefs_start "$src" "$src" || exit 1
check_eq "over itself: two mounts there" "$(findmnt -rn --mountpoint "$src" | wc -l)" 2
check "over itself: what was there shows" cmp "$payload" "$src/a"
cp "$payload" "$src/over"
(cd "$src" && exec sleep 60) &
holder=$!
sleep 0.2
"$PACEFS" umount "$src" >"$TEST_DIR/out" 2>&1
check_eq "over itself: a busy umount fails" $? 1
check_eq "over itself: and names the holder alone" "$(grep -c '\[[0-9]*\]' "$TEST_DIR/out")" 1
check "over itself: who is" grep -q "sleep\[$holder\] is in it" "$TEST_DIR/out"
kill "$holder"
wait "$holder" 2>/dev/null
check_eq "over itself: the verdict" "$("$PACEFS" umount "$src" 2>/dev/null)" \
	"safe to remove: all data written, 0 errors"
check "over itself: the daemon ends" pacefs_wait "$src"
check_eq "over itself: with status" "$PACEFS_STATUS" 0
check "over itself: the file is on the disk" on_disk over
check_eq "over itself: the source is as before" "$(findmnt -rn -o FSTYPE --mountpoint "$src")" ext4
mnt=$src
pacefs_start "$src" "$src" || exit 1
kill -9 "${PACEFS_PID[$src]}"
pacefs_wait "$src"
check "over itself: again after a kill" pacefs_start "$src" "$src"
check_eq "over itself: one entry" "$(entries "$src")" 1
check "over itself: umount" pacefs_stop "$src"
mnt=$TEST_DIR/mnt
nothing_left "over itself"

# A signal again, while somebody keeps the mount busy: only pacefs's own mount goes.
mnt=$src
pacefs_start "$src" "$src" || exit 1
exec {fd}>"$src/busy"
for again in 1 2; do
	kill -TERM "${PACEFS_PID[$src]}"
	_slowdisk_wait 5 eval '[ "$(entries "$src")" -eq 0 ]'
	sleep 0.5
	check_eq "over itself: after SIGTERM $again the disk's own mount is there" \
		"$(findmnt -rn -o FSTYPE --mountpoint "$src")" ext4
done
check "over itself: the daemon still serves" cp "$payload" "/proc/self/fd/$fd"
exec {fd}>&-
check "over itself: then it ends" pacefs_wait "$src"
check_eq "over itself: with status" "$PACEFS_STATUS" 0
check "over itself: the file is on the disk" on_disk busy
mnt=$TEST_DIR/mnt
nothing_left "over itself, two signals"

# ---- one daemon per source ----

pacefs_start "$src" "$mnt" || exit 1
mkdir -p "$TEST_DIR/other"
for second in "$TEST_DIR/other" "$src"; do
	"$PACEFS" "$src" "$second" >"$TEST_DIR/out" 2>&1
	check_eq "a second daemon on the source is refused" $? 1
	check "and the first is named" grep -q "served by pacefs on $mnt already" "$TEST_DIR/out"
done
"$PACEFS" "$src/lost+found" "$mnt" >"$TEST_DIR/out" 2>&1
check_eq "a second mount on the mountpoint is refused" $? 1
check "and said to be one already" grep -q "$mnt is a pacefs mount already" "$TEST_DIR/out"
check_eq "one entry" "$(entries)" 1
check "the first still works" fill first
pacefs_stop

# ---- the launcher ----

start=$(now_ms)
"$PACEFS" "$src" "$mnt" 2>"$TEST_DIR/out" && stat "$mnt/a" >/dev/null
check_eq "status 0 means that the mount answers" $? 0
check_le "and it comes soon, ms" "$(elapsed_ms "$start")" 2000
check "it says what it assumes" grep -qE \
	"^pacefs: $src on $mnt, background 1.00 s, limit 2.00 s, at most [0-9.]+ MB \(speed not yet measured, assuming 4 MB/s\)$" \
	"$TEST_DIR/out"
check "umount" umount "$mnt"

# ---- in turn ----

cycles=0
for i in $(seq 20); do
	"$PACEFS" "$src" "$mnt" 2>/dev/null && echo "$i" >"$mnt/cycle" && umount "$mnt" &&
		[ "$(<"$src/cycle")" = "$i" ] && cycles=$((cycles + 1))
done
check_eq "20 quick mounts in turn" "$cycles" 20
_slowdisk_wait 5 bash -c '! pgrep -x pacefs >/dev/null'
nothing_left "20 quick mounts"
