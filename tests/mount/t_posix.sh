#!/bin/bash
# The same answers as the filesystem below gives: seeded random operations of several users on pacefs
# and on a plain filesystem at once (tests/posix/twin.h), and what these have found.
# PACEFS_POSIX_SEED: the first seed (1). PACEFS_POSIX_S: seconds for each of the two halves (60).
# timeout: 400
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

twin=$PACEFS_BUILD/tests/posix/pacefs-twin
seed=${PACEFS_POSIX_SEED:-1}
half_s=${PACEFS_POSIX_S:-60}
# Of the files: users that need not be anybody
mount_flags=nodev,nosuid,noatime

# plain DIR FS: a filesystem in memory, mounted at DIR
plain() {
	mkdir -p "$1"
	if [ "$2" = tmpfs ]; then
		mount -t tmpfs -o size=512M,$mount_flags tmpfs "$1" || return
	else
		truncate -s 512M "$1.img"
		"mkfs.$2" -q "$1.img" >"$1.mkfs" 2>&1 || { cat "$1.mkfs" && return 1; }
		mount -o loop,$mount_flags "$1.img" "$1" || return
		rmdir "$1/lost+found" 2>/dev/null
	fi
	chmod 755 "$1"
}

twins_up() {
	plain "$1/source" "$2" && plain "$1/plain" "$2"
}

twins_down() {
	umount "$1/source" "$1/plain"
	rm -f "$1"/*.img
}

# The directory of the room is root's alone: other users come by another path.
work=/mnt
mount -t tmpfs -o mode=755 tmpfs $work || exit 1
cd $work || exit 1

# ---- what was found ----

dir=$work/found
mkdir "$dir"
twins_up "$dir" ext4 || exit 1
pacefs_start "$dir/source" "$dir/mnt" noatime,dirty_background_centisecs=0,dirty_centisecs=0 -f || exit 1
for tree in mnt plain; do
	timeout 60 python3 "$PACEFS_REPO/tests/posix/cases.py" "$dir/$tree" >"$dir/$tree.out" 2>&1 ||
		fail "cases on $tree" "$(tail -n 1 "$dir/$tree.out")"
done
while IFS=: read -r name want; do
	check_eq "as without pacefs: $name" "$(sed -n "s/^$name://p" "$dir/mnt.out")" "$want"
done <"$dir/plain.out"
check_ge "cases" "$(wc -l <"$dir/plain.out")" 12
pacefs_stop
twins_down "$dir"

# ---- random operations ----

# run NAME FS SECONDS SEED [OPTIONS]: prints check lines
run() {
	local name="$2${5:+ $5}" dir=$work/$1 out=$work/$1.out
	mkdir "$dir"
	twins_up "$dir" "$2" || fail "$name: a filesystem" "see above" || return
	pacefs_start "$dir/source" "$dir/mnt" "noatime${5:+,$5}" -f || return
	local -a times=()
	# It gives a directory the time of the file that was taken away, by the coarse clock.
	[ "$2" != tmpfs ] || times=(--coarse)
	if timeout $(($3 + 100)) "$twin" --seed "$4" --count 100000000 --seconds "$3" --shrink \
		"${times[@]}" "$dir/mnt" "$dir/plain" >"$out" 2>&1; then
		pass "$name: all the same"
	else
		fail "$name: all the same" "$(head -n 1 "$out")"
	fi
	cat "$out"
	pacefs_stop || fail "$name: umount" "see above"
	check "$name: below it too" "$twin" --compare "$dir/source" "$dir/plain"
	pacefs_start "$dir/source" "$dir/mnt" "noatime${5:+,$5}" -f || return
	check "$name: after a new start" "$twin" --compare "$dir/mnt" "$dir/plain"
	pacefs_stop || fail "$name: umount" "see above"
	check "$name: something was done" grep -Eq 'seed [0-9]+: [0-9]{4,} operations' "$out"
	twins_down "$dir"
}

# Each in a row of its own; two rows at once for the two processors.
first() {
	run a ext4 $((half_s / 2)) "$seed"
	run b xfs $((half_s / 4)) $((seed + 1))
	run c tmpfs $((half_s / 4)) $((seed + 2))
}

second() {
	run d ext4 $((half_s / 4)) $((seed + 3)) \
		cache_size=4M,dirty_bytes=256K,max_write=16K,dirty_background_centisecs=10
	run e btrfs $((half_s / 2)) $((seed + 4))
	run f ext4 $((half_s / 4)) $((seed + 5)) io_engine=sync,flush,max_write=4K
}

first >first.out 2>&1 &
row=$!
second
wait "$row"
cat first.out
cd / && umount $work
