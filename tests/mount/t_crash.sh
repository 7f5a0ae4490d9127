#!/bin/bash
# kill -9 of the daemon at random moments: see tests/crash/kill.py. PACEFS_KILL_CYCLES=200 is the
# long version (some 10 minutes), PACEFS_KILL_SEED repeats a run.
# timeout: 1500
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt
cycles=${PACEFS_KILL_CYCLES:-5}

# ---- what the next start says ----

# says LINE: once
says() {
	[ "$(pacefs_log | grep -cF -- "$1")" -eq 1 ] || {
		echo "not once '$1' in:"
		pacefs_log
		return 1
	}
}

# By root's file handles where the source has them, else by name.
state_of() {
	local major minor
	IFS=: read -r major minor < <(mountpoint -d "$src")
	echo "/run/pacefs/state-$major:$minor-$(stat -c %i "$src")"
}

told() {
	local name=$1
	pacefs_start "$src" "$mnt" dirty_background_centisecs=0 || exit 1
	echo hello >"$mnt/plain"
	echo hello >"$mnt/old-name"
	mkdir "$mnt/dir"
	echo hello >"$mnt/dir/inside"
	echo hello >"$mnt/gone"
	echo hello >"$mnt/synced"
	sync "$mnt/synced"
	mv "$mnt/old-name" "$mnt/new-name"
	mv "$mnt/dir" "$mnt/new-dir"
	rm "$mnt/gone"
	kill -9 "${PACEFS_PID[$mnt]}"
	pacefs_wait
	pacefs_start "$src" "$mnt" || exit 1
	check "$name: a file is named" says "$src/plain: up to 6 bytes written last were lost"
	check "$name: by its new name" says "$src/new-name: up to 6 bytes written last were lost"
	check "$name: in a directory that has another name" says \
		"$src/new-dir/inside: up to 6 bytes written last were lost"
	check "$name: these three" says "3 files lost up to 18 bytes of what was not synced"
	check_eq "$name: and in the statistics" "$(pstat killed_lost_files)" 3
	check_eq "$name: what was synced is there" "$(<"$src/synced")" hello
	check_eq "$name: the state is kept in a file" "$(stat -c %a "$(state_of)")" 600
	check "$name: umount" pacefs_stop
	check_fails "$name: after which it is gone" test -e "$(state_of)"
	pacefs_start "$src" "$mnt" || exit 1
	check_fails "$name: and nothing is said" grep -q lost <(pacefs_log)
	# any bytes
	kill -9 "${PACEFS_PID[$mnt]}"
	pacefs_wait
	head -c 300000 /dev/urandom >"$(state_of)"
	pacefs_start "$src" "$mnt" || exit 1
	check "$name: a damaged state is said to be" says "the list of what was lost is damaged"
	pacefs_stop
}

source_up usb ext4 64M 0 >/dev/null || exit 1
told "with handles"
source_down usb
mount -t tmpfs tmpfs "$src"
mkdir "$src/upper" "$src/work" "$src/lower"
mount -t overlay overlay -o "upperdir=$src/upper,workdir=$src/work,lowerdir=$src/lower" "$src"
told "without handles"
umount "$src"
umount "$src"

# ---- kill -9 ----

# cycles FS N
cycles() {
	local fs=$1 n=$2
	source_up usb "$fs" 400M 8000000 >/dev/null || exit 1
	mkdir -p "$mnt" "$TEST_DIR/work.$fs"
	check "kill -9 on $fs" timeout 1200 python3 "$PACEFS_REPO/tests/crash/kill.py" "$PACEFS" "$src" \
		"$mnt" "$TEST_DIR/work.$fs" cycles="$n" ${PACEFS_KILL_SEED:+seed="$PACEFS_KILL_SEED"}
	source_down usb
}

cycles ext4 "$cycles"
cycles xfs $((cycles / 3))
[ "$cycles" -lt 30 ] || cycles btrfs $((cycles / 3))
