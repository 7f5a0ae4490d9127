#!/bin/bash
# room.sh SCRIPT - a sealed room for one mount test. Process 1 of a new PID and mount namespace.
#
# The test gets TEST_DIR, an empty private tmpfs (TMPDIR points there too), and a private
# /var/lib/pacefs, /run/pacefs and /run/mount. When it has ended nothing may be left of it:
# processes, mounts, loop devices, blkio limits. What is left is named in a "not ok leftover" line
# and taken away.
#
# room.sh --scan-outside - what the room's end should have taken with it, seen from outside.
#
# PACEFS_ROOM: a directory of the runner for this one test.
set -u

throttles=/sys/fs/cgroup/blkio

mounts() {
	awk '{ print $5 }' /proc/self/mountinfo
}

loops() {
	losetup -nO NAME,BACK-MAJ:MIN,BACK-FILE
}

limits() {
	grep -H '^7:' "$throttles"/blkio.throttle.*_device 2>/dev/null
}

# new FILE command: lines of the command that were not in FILE
new() {
	"${@:2}" | grep -vxFf "$1"
}

leftover() {
	echo "not ok leftover $1: $2"
}

# ---- inside ----

others() {
	local pid command
	for pid in /proc/[0-9]*; do
		pid=${pid#/proc/}
		[ "$pid" -eq 1 ] || [ "$pid" -eq "$BASHPID" ] && continue
		command=$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline")
		[ -z "$command" ] || echo "$pid $command"
	done
}

scan_processes() {
	local tries=20 found pid command
	while found=$(others) && [ -n "$found" ] && [ $((tries--)) -gt 0 ]; do
		sleep 0.1
	done
	while read -r pid command; do
		[ -n "$pid" ] || continue
		leftover process "$command"
		kill -9 "$pid"
	done <<<"$found"
}

scan_mounts() {
	local target
	new "$PACEFS_ROOM/mounts" mounts | tac | while read -r target; do
		leftover mount "$target"
		umount "$target" 2>/dev/null || umount -l "$target"
	done
}

# A loop device is ours when its backing file lies on a file system made in this room.
scan_loops() {
	local devices name majmin file
	# shellcheck disable=SC2016
	devices=$(new "$PACEFS_ROOM/devices" awk '{ print $3 }' /proc/self/mountinfo)
	new "$PACEFS_ROOM/loops" loops | while read -r name majmin file; do
		grep -qxF "$majmin" <<<"$devices" || [[ $file == "$TEST_DIR"/* ]] || continue
		leftover "loop device" "$name on $file"
		losetup -d "$name"
	done
}

scan_limits() {
	local line
	[ -d "$throttles" ] || return 0
	new "$PACEFS_ROOM/limits" limits | while read -r line; do
		leftover "blkio limit" "$line"
		echo "$(cut -d: -f2,3 <<<"$line" | cut -d' ' -f1) 0" >"${line%%:*}"
	done
}

# Nobody can be killed who waits for a disk that stalls.
release_disks() {
	local ctl
	for ctl in "$TEST_DIR"/.disks/*/ctl; do
		[ ! -e "$ctl" ] || printf '%s\n' stall=0 rate=0 >>"$ctl"
	done
}

inside() {
	local status
	export TEST_DIR=$PACEFS_ROOM/dir
	export TMPDIR=$TEST_DIR
	awk '{ print $3 }' /proc/self/mountinfo >"$PACEFS_ROOM/devices"
	mkdir -p "$TEST_DIR" /var/lib/pacefs /run/pacefs /run/mount
	mount -t tmpfs -o mode=755 pacefs-room "$TEST_DIR" || return 1
	mount -t tmpfs -o mode=755 pacefs-room /var/lib/pacefs || return 1
	mount -t tmpfs -o mode=700 pacefs-room /run/pacefs || return 1
	mount -t tmpfs -o mode=755 pacefs-room /run/mount || return 1
	stat -c %Hd:%Ld "$TEST_DIR" >"$PACEFS_ROOM/dev"
	mounts >"$PACEFS_ROOM/mounts"
	loops >"$PACEFS_ROOM/loops"
	limits >"$PACEFS_ROOM/limits"

	trap release_disks TERM INT # the test is told too and cleans up by itself
	bash "$1" &
	while true; do
		wait $!
		status=$?
		kill -0 $! 2>/dev/null || break
	done
	cd /
	scan_mounts
	scan_processes
	scan_loops
	scan_limits
	return "$status"
}

# ---- outside ----

# Control groups of a test, named after its room (PACEFS_ROOM with _ for /). What is frozen cannot
# be killed.
scan_groups() {
	local group
	for group in /sys/fs/cgroup{,/freezer,/memory}/"pacefs-${PACEFS_ROOM//\//_}"*; do
		[ -d "$group" ] || continue
		[ ! -e "$group/freezer.state" ] || echo THAWED >"$group/freezer.state"
		[ ! -e "$group/cgroup.freeze" ] || echo 0 >"$group/cgroup.freeze"
		leftover "control group" "$group"
		sleep 0.5
		rmdir "$group"
	done
}

outside() {
	local file pid target name majmin
	scan_groups
	for file in /proc/[0-9]*/environ; do
		grep -qzxF "PACEFS_ROOM=$PACEFS_ROOM" "$file" 2>/dev/null || continue
		pid=${file//[!0-9]/}
		[ "$pid" -eq $$ ] || [ "$pid" -eq "$BASHPID" ] || [ "$pid" -eq "$PPID" ] && continue
		leftover process "$(tr '\0' ' ' <"/proc/$pid/cmdline")"
		kill -9 "$pid"
	done
	mounts | grep -F "$PACEFS_ROOM/" | tac | while read -r target; do
		leftover mount "$target"
		umount -l "$target"
	done
	loops | while read -r name majmin _; do
		[ "$majmin" = "$(cat "$PACEFS_ROOM/dev" 2>/dev/null)" ] || continue
		leftover "loop device" "$name"
		losetup -d "$name"
	done
}

case $1 in
--scan-outside) outside ;;
*) inside "$1" ;;
esac
