#!/bin/bash
# Ends that nobody asked umount for: signals while others write, a connection that is cut, a mount
# namespace that goes away. Everything that was accepted is on the disk when the daemon has ended.
# timeout: 240
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt
payload=$TEST_DIR/payload
want=

entries() {
	findmnt -rn -o FSTYPE --mountpoint "$mnt" | grep -c '^fuse'
}

anchors() {
	find /var/lib/pacefs -mindepth 1 | wc -l
}

on_disk() {
	[ "$(dd if="$src/$1" bs=1M iflag=direct status=none | sha256sum)" = "$want" ]
}

dirty() {
	echo $(($(pstat dirty_bytes) + $(pstat writeback_bytes)))
}

last_line_is_safe() {
	pacefs_log "$mnt" | tail -n 1 |
		grep -E 'safe to remove: all data written \([0-9.]+ MB\), 0 errors$'
}

gone_from_view() {
	[ "$(entries)" -eq 0 ]
}

writes_on() {
	[ "$(stat -c %s "$mnt/w" 2>/dev/null || echo 0)" -gt 4000000 ]
}

# ended NAME FILE: the daemon is gone with status 0, the file is there and the mount is not
ended() {
	check "$1: the daemon ends" pacefs_wait "$mnt"
	check_eq "$1: with status" "$PACEFS_STATUS" 0
	check "$1: its last line is the verdict" last_line_is_safe
	[ -z "$2" ] || check "$1: the file is on the disk" on_disk "$2"
	check_eq "$1: no mount" "$(entries)" 0
	check_eq "$1: no node" "$(anchors)" 0
}

in_another_namespace() {
	[ "$(readlink "/proc/$1/ns/mnt")" != "$(readlink /proc/self/ns/mnt)" ]
}

# writer NAME ERROR_FILE: appends numbered lines until a write fails; what was accepted is told
writer() {
	exec python3 -u -c '
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
n = 0
block = b"x" * 65536
try:
    while True:
        n += os.write(fd, block)
except OSError as e:
    pass
open(sys.argv[2], "w").write(str(n))' "$1" "$2"
}

dd if=/dev/urandom of="$payload" bs=1M count=8 status=none
want=$(sha256sum <"$payload")
mkdir -p "$mnt"
source_up usb ext4 1G 10000000 || exit 1

# ---- signals, and writers that do not stop ----

pacefs_start "$src" "$mnt" "" -f || exit 1
daemon=${PACEFS_PID[$mnt]}
cp "$payload" "$mnt/a"
(trap '' TERM && writer "$mnt/w" "$TEST_DIR/accepted") &
writer=$!
_slowdisk_wait 20 writes_on
check_ge "a part of it waits, bytes" "$(dirty)" 1000000
start=$(now_ms)
kill -TERM "$daemon"
kill -TERM "$daemon" # one more while it is at it
kill -INT "$daemon"
_slowdisk_wait 15 gone_from_view
check_eq "signals beside a writer: the mount is gone from view" "$(entries)" 0
check_le "within a few seconds, ms" "$(elapsed_ms "$start")" 15000
check "what was written before is on the disk" on_disk a
check "and who keeps it is named" grep -q "python3\[$writer\] has a file open" <(pacefs_log "$mnt")
kill -HUP "$daemon"
check "the writer goes on for a while" kill -0 "$writer"
check "signals beside a writer: the daemon ends" pacefs_wait "$mnt"
check_between "in the time that open files get, ms" "$(elapsed_ms "$start")" 9000 45000
check_eq "with status" "$PACEFS_STATUS" 0
check "and says whom it cut off" grep -q 'files are still open after 10 s: their users are cut off' \
	<(pacefs_log "$mnt")
check "its last line is the verdict" last_line_is_safe
_slowdisk_wait 10 test -s "$TEST_DIR/accepted"
wait "$writer"
check_ge "all that the writer was told it wrote is on the disk, bytes" \
	"$(stat -c %s "$src/w")" "$(<"$TEST_DIR/accepted")"
check_ge "which is something" "$(<"$TEST_DIR/accepted")" 4000000
rm -f "$src/w"
check_eq "signals beside a writer: no node" "$(anchors)" 0

# ---- a signal while umount waits, and after it ----

pacefs_start "$src" "$mnt" "" -f || exit 1
cp "$payload" "$mnt/b"
daemon=${PACEFS_PID[$mnt]}
umount "$mnt" &
umount=$!
for _ in 1 2 3 4 5 6 7 8; do
	kill -TERM "$daemon" 2>/dev/null
	sleep 0.1
done
wait "$umount"
check_eq "umount, and signals meanwhile: its status" $? 0
check "the file is on the disk when it returns" on_disk b
ended "umount, and signals meanwhile" b

# ---- fusermount3 -u ----

pacefs_start "$src" "$mnt" "" -f || exit 1
cp "$payload" "$mnt/c"
check "fusermount3 -u" fusermount3 -u "$mnt"
check "fusermount3 -u: the file is on the disk when it returns" on_disk c
ended "fusermount3 -u" c

# ---- a connection that is cut ----

mkdir -p "$TEST_DIR/connections"
mount -t fusectl none "$TEST_DIR/connections" || exit 1
pacefs_start "$src" "$mnt" "" -f || exit 1
cp "$payload" "$mnt/d"
for connection in "$TEST_DIR"/connections/*; do
	number=${connection##*/}
	[ $((number >> 20)):$((number & 0xfffff)) = "$(mountpoint -d "$mnt")" ] || continue
	echo 1 >"$connection/abort"
done
ended "connection cut" d

# ---- kill -9, and it was the last one in its mount namespace ----

cut() {
	[ ! -e "$TEST_DIR/connections/$1" ]
}

has_mount() {
	grep -q " $mnt " "/proc/$1/mountinfo"
}

setsid unshare -m --propagation private "$PACEFS" -f "$src" "$mnt" 2>/dev/null &
last=$!
_slowdisk_wait 10 has_mount "$last"
number=$(awk -v mnt="$mnt" '$5 == mnt { split($3, n, ":"); print n[1] * 1048576 + n[2] }' \
	"/proc/$last/mountinfo")
check_fails "the last one in its namespace: its connection" cut "$number"
kill -9 "$last"
check "is gone when it was killed, and nobody waits for its answer" \
	_slowdisk_wait 10 cut "$number"
cut "$number" || echo 1 >"$TEST_DIR/connections/$number/abort" # or all sync of the machine hang
wait "$last" 2>/dev/null
umount "$TEST_DIR/connections"

# ---- umount -f of a mount that is in use ----

pacefs_start "$src" "$mnt" "" -f || exit 1
cp "$payload" "$mnt/f"
exec {fd}<"$mnt/f"
umount -f "$mnt" 2>/dev/null
check_fails "umount -f, in use: its users are cut off" cat <&"$fd" 2>/dev/null
exec {fd}<&-
ended "umount -f, in use" f

# ---- a copy of the mount in another namespace ----

pacefs_start "$src" "$mnt" "" -f || exit 1
unshare -m --propagation private sleep 60 &
holder=$!
_slowdisk_wait 5 in_another_namespace "$holder"
cp "$payload" "$mnt/e"
check "umount of one of two copies" umount "$mnt"
check_eq "it is gone here" "$(entries)" 0
check "the other one is served" kill -0 "${PACEFS_PID[$mnt]}"
kill "$holder"
wait "$holder" 2>/dev/null
ended "the other namespace has gone" e
