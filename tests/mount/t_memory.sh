#!/bin/bash
# Memory: what the daemon takes stays below its ceiling, it lives in a small control group, needs
# nothing from malloc to write what it has accepted, and does not deadlock with a loop device.
# timeout: 240
#
# PACEFS_MEMORY_MB (300) and PACEFS_MEMORY_RATE (30000000): how much is copied in the small group,
# and how fast the disk is, bytes/s.
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt
trigger=$TEST_DIR/trigger
ROOM=${PACEFS_ROOM//\//_}

# A sanitizer has a malloc of its own, and needs memory for itself.
sanitized() {
	ldd "$PACEFS" | grep -qE 'lib[a-z]+san\.'
}

# ---- control groups with a memory limit, version 1 or 2 ----

groups=
limit_file=
if [ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ]; then
	groups=/sys/fs/cgroup/memory
	limit_file=memory.limit_in_bytes
elif grep -qw memory /sys/fs/cgroup/cgroup.subtree_control 2>/dev/null; then
	groups=/sys/fs/cgroup
	limit_file=memory.max
fi

group_up() {
	[ -n "$groups" ] && mkdir "$groups/pacefs-$ROOM-$1" &&
		echo "$2" >"$groups/pacefs-$ROOM-$1/$limit_file"
}

group_enter() {
	echo "$BASHPID" >"$groups/pacefs-$ROOM-$1/cgroup.procs"
}

group_leave() {
	echo "$BASHPID" >"$groups/cgroup.procs"
}

group_down() {
	_slowdisk_wait 5 rmdir "$groups/pacefs-$ROOM-$1" 2>/dev/null
}

# most the group has ever had
group_most() {
	cat "$groups/pacefs-$ROOM-$1"/memory.{max_usage_in_bytes,peak} 2>/dev/null
}

# ---- the process ----

has_cap() { # CAP_NUMBER
	(((16#$(awk '/^CapEff/ { print $2 }' /proc/self/status) >> $1) & 1))
}

# The kernel's PF_MEMALLOC_NOIO and PF_LOCAL_THROTTLE: what PR_SET_IO_FLUSHER sets. Threads that
# lack one of them.
threads_without_flag() {
	awk '{ sub(/.*\) /, ""); flags = $7
		if (int(flags / 524288) % 2 == 0 || int(flags / 1048576) % 2 == 0) n++ }
		END { print n + 0 }' "/proc/$1"/task/*/stat
}

process_is_protected() {
	local pid=$1
	if has_cap 24; then
		check_eq "no thread does I/O to get memory" "$(threads_without_flag "$pid")" 0
		check_eq "it is killed last" "$(cat "/proc/$pid/oom_score_adj")" -990
	else
		skip "no thread does I/O to get memory" "CAP_SYS_RESOURCE is not there"
	fi
	if sanitized; then
		skip "its memory is locked" "not with a sanitizer"
	elif has_cap 14; then
		check_ge "its memory is locked, kB" \
			"$(awk '/^VmLck/ { print $2 }' "/proc/$pid/status")" 10000
	else
		skip "its memory is locked" "CAP_IPC_LOCK is not there"
	fi
}

# ---- a small group ----

in_a_small_group() { # MB of data
	group_up daemon 128M || {
		skip "128 MiB for the daemon" "no memory controller"
		return
	}
	slowdisk_down usb
	source_up usb ext4 4G "${PACEFS_MEMORY_RATE:-30000000}" || exit 1
	group_enter daemon
	pacefs_start "$src" "$mnt" || exit 1
	group_leave
	# and what the readers hold to receive into
	check_between "the default cache is a 16th of the group's memory: ceiling, bytes" \
		"$(pstat memory_ceiling_bytes)" $((8388608 + 8388608 / 50 + 16777216)) 28000000
	process_is_protected "${PACEFS_PID[$mnt]}"
	head -c "${1}M" /dev/urandom >"$TEST_DIR/data"
	check "$1 MiB are copied" timeout 900 cp "$TEST_DIR/data" "$mnt/data"
	check "within its ceiling" within_ceiling
	check "umount" pacefs_stop
	check "the content" cmp "$TEST_DIR/data" "$src/data"
	check_le "the group never had more than, bytes" "$(group_most daemon)" 50000000
	check "nothing is left in the group" group_down daemon
	rm "$TEST_DIR/data" "$src/data"
}

# ---- requests that wait ----

within_ceiling() {
	sanitized || [ "$(pstat memory_bytes)" -le "$(pstat memory_ceiling_bytes)" ]
}

lent_is_back() {
	[ "$(pstat cache_bytes)" -eq 8388608 ] && within_ceiling
}

takes_more_than_the_cache() {
	[ "$(pstat cache_bytes)" -gt 30000000 ] 2>/dev/null
}

waiting_requests() {
	local load
	source_up usb ext4 1G 30000000 || exit 1
	pacefs_start "$src" "$mnt" cache_size=8M || exit 1
	mkdir "$mnt/many"
	"$BENCH/load" -n 300 -b 128K -w 1 -t 2 "$mnt/many" >"$TEST_DIR/load" &
	load=$!
	check "300 requests of 128 KiB take more than the cache" _slowdisk_wait 10 \
		takes_more_than_the_cache
	wait "$load"
	check "which is given back" _slowdisk_wait 10 lent_is_back
	check "umount" pacefs_stop
}

# ---- no memory at all ----

refused() {
	od -An -tu8 -j8 -N8 "$trigger" | tr -d ' '
}

memory_off() {
	printf 1 | dd of="$trigger" conv=notrunc status=none
}

memory_on() {
	printf 0 | dd of="$trigger" conv=notrunc status=none
}

FSYNC_LATER='
import os, sys
file = os.open(sys.argv[1], os.O_RDWR)
open(sys.argv[2]).readline()
try:
	os.fsync(file)
	print("success")
except OSError as error:
	print(error.errno)
'

# Whole pages, a tail, small pieces that need the rest of their pages from the source, and a file
# that has become shorter.
make_dirty() {
	local i
	cp "$TEST_DIR/data" "$mnt/whole"
	cp "$TEST_DIR/old" "$TEST_DIR/old.want"
	for i in {1..20}; do
		printf 'piece %d' "$i" | tee >(dd of="$TEST_DIR/old.want" bs=1 seek=$((i * 9000)) \
			conv=notrunc status=none) | dd of="$mnt/old" bs=64 seek=$((i * 9000)) \
			oflag=seek_bytes conv=notrunc status=none
	done
	truncate -s 5000 "$mnt/cut"
}

is_written() {
	cmp -s "$TEST_DIR/data" "$src/whole" && cmp -s "$TEST_DIR/old.want" "$src/old" &&
		[ "$(stat -c %s "$src/cut")" -eq 5000 ]
}

without_memory() {
	local later go
	if sanitized; then
		skip "without memory" "a sanitizer has its own malloc"
		return
	fi
	[ -n "${DEV[usb]:-}" ] || source_up usb ext4 1G 20000000 || exit 1
	head -c 2000003 /dev/urandom >"$TEST_DIR/data"
	head -c 300000 /dev/urandom | tee "$TEST_DIR/old" "$src/cut" >"$src/old"
	head -c 4096 /dev/zero >"$trigger"
	LD_PRELOAD=$PACEFS_BUILD/tests/mount/failing_malloc.so FAILING_MALLOC=$trigger \
		pacefs_start "$src" "$mnt" "$1" || exit 1
	# open before: its fsync is one request
	mkfifo "$TEST_DIR/go"
	: >"$TEST_DIR/fsync"
	python3 -c "$FSYNC_LATER" "$mnt/old" "$TEST_DIR/go" >"$TEST_DIR/fsync" &
	later=$!
	exec {go}>"$TEST_DIR/go"
	slowdisk_set usb stall=1
	make_dirty
	check_ge "$1: dirty before memory runs out, bytes" \
		"$(($(pstat dirty_bytes) + $(pstat writeback_bytes)))" 2000000
	memory_off
	slowdisk_set usb stall=0
	check "$1: without memory all is written" _slowdisk_wait 10 is_written
	check_eq "$1: and no memory was asked for" "$(refused)" 0
	# A request needs memory to be received. It is told so, and what is accepted is not lost.
	echo >&"$go"
	_slowdisk_wait 5 test -s "$TEST_DIR/fsync"
	check_eq "$1: fsync fails with ENOMEM" "$(<"$TEST_DIR/fsync")" 12
	check_fails "$1: so does a write" dd if=/dev/zero of="$mnt/old" bs=4k count=1 \
		conv=notrunc status=none
	check_ge "$1: refused" "$(refused)" 1
	memory_on
	check "$1: with memory again fsync succeeds" sync "$mnt/old"
	check_eq "$1: nothing is dirty" "$(($(pstat dirty_bytes) + $(pstat writeback_bytes)))" 0
	wait "$later"
	exec {go}>&-
	rm "$TEST_DIR/go"
	cp "$TEST_DIR/data" "$mnt/last"
	memory_off
	check "$1: umount without memory waits" umount "$mnt"
	check "$1: until all is written" cmp "$TEST_DIR/data" "$src/last"
	memory_on
	check "$1: the daemon ends" pacefs_wait
	check_eq "$1: with status" "$PACEFS_STATUS" 0
}

# ---- a loop device over a file of the mount ----

loop_device() {
	local loop
	[ -n "${DEV[usb]:-}" ] || source_up usb ext4 1G 20000000 || exit 1
	group_up daemon 64M && group_enter daemon
	pacefs_start "$src" "$mnt" cache_size=8M || exit 1
	[ -z "$groups" ] || group_leave
	truncate -s 200M "$mnt/image"
	loop=$(losetup -f --show "$mnt/image") || return 1
	mkdir -p "$TEST_DIR/inner"
	check "mkfs on a loop device over a file" timeout 60 mkfs.ext4 -qF "$loop"
	check "it is mounted" mount "$loop" "$TEST_DIR/inner"
	group_up writer 32M && group_enter writer
	check "60 MB through it under memory pressure" timeout 60 dd if=/dev/zero \
		of="$TEST_DIR/inner/data" bs=1M count=60 conv=fsync status=none
	[ -z "$groups" ] || group_leave
	check "its umount" timeout 30 umount "$TEST_DIR/inner"
	losetup -d "$loop"
	check "umount" pacefs_stop
	check "the file system in the file is whole" e2fsck -fn "$src/image"
	[ -z "$groups" ] || { group_down writer && group_down daemon; }
}

waiting_requests
in_a_small_group "${PACEFS_MEMORY_MB:-300}"
without_memory io_engine=uring
without_memory io_engine=sync
loop_device
