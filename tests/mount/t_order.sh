#!/bin/bash
# Where the disk seeks, files are written in the order of their places on it; elsewhere in the
# order in which they got dirty.
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/disk
mnt=$TEST_DIR/mnt
log=$TEST_DIR/log
files=16

source_up disk ext4 1G 0 log="$log" || exit 1

# 1 MiB each, with their places as the disk counts; files.at: place and number, lowest first
for ((i = 0; i < files; i++)); do
	dd if=/dev/urandom of="$src/$i" bs=1M count=1 conv=fsync status=none || exit 1
	echo "$(filefrag -e -b4096 "$src/$i" | awk '$1 == "0:" { print $4 * 4096 }') $i"
done | sort -n >"$TEST_DIR/files.at"
check_eq "files, each with a place" "$(awk '$1' "$TEST_DIR/files.at" | wc -l)" $files
# So slow that one request at a time is under way, and they arrive in the order of being sent.
slowdisk_set disk rate=3000000
highest_first=$(sort -rn "$TEST_DIR/files.at" | cut -d' ' -f2)

# touch_all: every file gets dirty, the highest on the disk first
touch_all() {
	for i in $highest_first; do
		dd if=/dev/urandom of="$mnt/$i" bs=128k count=2 conv=notrunc status=none
	done
}

# order LINE: the files in the order in which they were written since that line of the log
order() {
	tail -n +"$(($1 + 1))" "$log" | sort -n | awk '
		NR == FNR { at[n++] = $1; name[$1] = $2; next }
		$3 == "write" {
			for (i = 0; i < n; i++)
				if ($4 >= at[i] && $4 < at[i] + 1048576 && !seen[at[i]]++)
					print at[i]
		}' "$TEST_DIR/files.at" -
}

# steps_back LINE: how often the next file was one that lies lower
steps_back() {
	order "$1" | awk 'NR > 1 && $1 < last { n++ } { last = $1 } END { print n + 0 }'
}

lines() {
	wc -l <"$log"
}

all_written() {
	[ "$(order "$1" | wc -l)" -eq $files ] && [ "$(pstat dirty_bytes)" -le 1048576 ]
}

# round ROTATIONAL: sync_back and background_back, steps back of 16 files written by sync and
# when there is more dirty than the background threshold
round() {
	local fds=() fd i at
	echo "$1" >"/sys/block/${DEV[disk]##*/}/queue/rotational"
	pacefs_start "$src" "$mnt" \
		dirty_centisecs=0,dirty_background_centisecs=0,dirty_bytes=100M || return 1
	# The places are found out after something was written of an open file.
	for ((i = 0; i < files; i++)); do
		exec {fd}<>"$mnt/$i"
		fds+=("$fd")
	done
	touch_all
	sync -f "$mnt"
	sleep 0.5

	at=$(lines)
	touch_all
	check "nothing is written yet" [ "$(order "$at" | wc -l)" -eq 0 ]
	sync -f "$mnt"
	check "sync writes all" all_written "$at"
	sync_back=$(steps_back "$at")

	at=$(lines)
	touch_all
	setfattr -n user.pacefs.dirty_background_bytes -v 4096 "$mnt"
	check "the background threshold makes it write all" \
		_slowdisk_wait 10 all_written "$at"
	background_back=$(steps_back "$at")

	for fd in "${fds[@]}"; do
		exec {fd}>&-
	done
	check "the daemon ends" pacefs_stop
}

# Once from the head to the top and once from the bottom.
round 1 || exit 1
check_le "a disk that seeks: sync goes down, of 15 times" "$sync_back" 2
check_le "the background too" "$background_back" 2

round 0 || exit 1
check_ge "one that does not: sync goes down, of 15 times" "$sync_back" 13
check_ge "the background too" "$background_back" 13
