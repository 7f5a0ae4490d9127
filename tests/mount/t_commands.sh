#!/bin/bash
# The commands that talk to a live mount: what they print, their exit status, what they refuse.
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt
out=$TEST_DIR/out
err=$TEST_DIR/err

# run WANT command...: its exit status is WANT; output in $out and $err
run() {
	local want=$1 status
	shift
	timeout 60 "$PACEFS" "$@" >"$out" 2>"$err"
	status=$?
	[ "$status" -eq "$want" ] && return 0
	echo "pacefs $* returned $status, want $want:"
	cat "$out" "$err"
	return 1
}

one_line() {
	[ "$(wc -l <"$1")" -eq 1 ]
}

as_nobody() {
	setpriv --reuid 65534 --clear-groups "$PACEFS" "$@" >"$out" 2>"$err"
}

# json EXPRESSION: of the object d in $out
json() {
	python3 -c "import json, sys
d = json.load(open(sys.argv[1]))
sys.exit(0 if ($1) else print(d) or 1)" "$out"
}

mounted() {
	[[ $(findmnt -rn -o FSTYPE --mountpoint "$mnt" | tail -n 1) == fuse* ]]
}

# fill NAME MIB
fill() {
	dd if=/dev/urandom of="$mnt/$1" bs=1M count="$2" conv=notrunc status=none
}

# on_disk NAME: the source below has what the mount shows
on_disk() {
	dd if="$src/$1" bs=1M iflag=direct status=none | cmp - "$mnt/$1"
}

# ---- without a mount ----

mkdir -p "$mnt" "$TEST_DIR/empty"
check "help exits 0" run 0 --help
check "and names the commands" says "$out" 'umount MNT'
check "version" run 0 --version
check "is the name and a number" says "$out" '^pacefs [0-9]+\.[0-9]+'
for command in status stats flush umount get set; do
	check "$command --help exits 0" run 0 "$command" --help
	check "and shows the usage" says "$out" "^pacefs $command MNT"
	check "$command without words exits 1" run 1 "$command"
done
for command in status stats flush umount get; do
	check "$command of something else exits 1" run 1 "$command" "$TEST_DIR/empty"
	check "and says what it is not" says "$err" 'is not a pacefs mount'
	check "in one line" one_line "$err"
done
check "an unknown command exits 1" run 1 flsh
check "and the nearest is named" says "$err" 'did you mean flush\?'
check "an unknown option exits 1" run 1 "$TEST_DIR/empty" "$mnt" -o dirty_centisec=5
check "and the nearest is named" says "$err" 'did you mean dirty_centisecs\?'
check "a bad value exits 1" run 1 "$TEST_DIR/empty" "$mnt" -o dirty_background_centisecs=abc
check "with the range" says "$err" 'rejected: need 0 or 10\.\.360000 centiseconds'
check "an impossible pair exits 1" run 1 "$TEST_DIR/empty" "$mnt" \
	-o dirty_centisecs=100,dirty_background_centisecs=100
check "a missing mountpoint exits 1" run 1 "$TEST_DIR/empty" "$TEST_DIR/nowhere"
check "and says what to do" says "$err" 'does not exist: create it'
check "nothing is mounted by all that" test "$(findmnt -rn --mountpoint "$mnt" | wc -l)" -eq 0

# ---- a mount at rest ----

source_up usb ext4 256M 10000000 || exit 1
pacefs_start "$src" "$mnt" dirty_background_centisecs=300,dirty_centisecs=400 || exit 1

check "a second mount of the same source is refused" run 1 "$src" "$TEST_DIR/empty"
check "and the first is named" says "$err" "$mnt"

check "status exits 0" run 0 status "$mnt"
check "prints one line" one_line "$out"
check "with speed, backlog, limit, errors, verdict" says "$out" \
	'^[0-9.]+ [kMG]?B/s (measured|assumed) \| dirty .* \| limit 4\.0 s \| .* \| 0 errors \| safe to remove: '
check "and never calls a mounted disk safe" says "$out" 'after umount'

check "stats exits 0" run 0 stats "$mnt"
for key in BdiWriteback BdiDirtyThresh BdiWritten dirty_bytes writeback_bytes limit_bytes \
	write_bandwidth errors daemon_pid; do
	check "stats has $key" says "$out" "^$key: [0-9]+"
done
check "stats --json exits 0" run 0 stats --json "$mnt"
check "is one object with numbers and arrays" json \
	"d['errors'] == 0 and isinstance(d['writers'], list) and d['lost'] == [] and d['limit_bytes'] > 0"
check "names the daemon" json "d['daemon_pid'] == ${PACEFS_PID[$mnt]}"

# ---- settings ----

check "get reads what was mounted" run 0 get "$mnt" dirty_centisecs
check_eq "its value alone" "$(cat "$out")" 400
check "get of all" run 0 get "$mnt"
check "has NAME=VALUE lines" says "$out" '^dirty_background_centisecs=300$'
check "set exits 0" run 0 set "$mnt" dirty_background_centisecs 200
check_eq "get and getfattr agree" "$("$PACEFS" get "$mnt" dirty_background_centisecs)" \
	"$(getfattr --only-values -n user.pacefs.dirty_background_centisecs "$mnt" 2>/dev/null)"
check_eq "on the new value" "$("$PACEFS" get "$mnt" dirty_background_centisecs)" 200
check "set takes NAME=VALUE and sizes" run 0 set "$mnt" max_bytes=32M
check_eq "and gives plain numbers" "$("$PACEFS" get "$mnt" max_bytes)" 33554432
check "a bad value exits 1" run 1 set "$mnt" dirty_background_centisecs abc
check "with the range" says "$err" 'dirty_background_centisecs=abc rejected: need 0 or 10'
check "an impossible pair exits 1" run 1 set "$mnt" dirty_background_centisecs 400
check_eq "and changes nothing" "$("$PACEFS" get "$mnt" dirty_background_centisecs)" 200
check "an unknown setting exits 1" run 1 set "$mnt" max_byte 1M
check "and the nearest is named" says "$err" 'did you mean max_bytes\?'
if have setpriv; then
	check_fails "others may not set" as_nobody set "$mnt" max_bytes 1M
	check "and are told who may" says "$err" 'only root and the owner|permission denied'
else
	skip "others may not set" "no setpriv"
fi

# ---- flush ----

check "write 25 MiB" fill a 25
check "status shows a backlog" run 0 status "$mnt"
check "in bytes and seconds" says "$out" 'dirty [0-9.]+ MB = [0-9.]+ s'
check "and when it would be safe" says "$out" 'safe to remove: in about [0-9]+ s, after umount'
check "flush exits 0" run 0 flush --wait "$mnt"
check "and says so" says "$out" '^all data written, 0 errors$'
check "with progress" says "$err" '^[0-9.]+ [kM]?B left, about [0-9]+ s$'
check_eq "nothing is dirty" "$(($(pstat dirty_bytes) + $(pstat writeback_bytes)))" 0
check "the data are on the disk" on_disk a
start=$(now_ms)
check "a flush of nothing exits 0" run 0 flush --json "$mnt"
check_le "at once, ms" "$(elapsed_ms "$start")" 1000
check "as JSON" json "d == {'dirty': 0, 'errors': 0, 'all_written': True, 'lost': []}"

# ---- umount ----

(cd "$mnt" && exec sleep 60) &
holder=$!
sleep 0.2
check "umount of a busy mount exits 1" run 1 umount "$mnt"
check "names who holds it" says "$err" "sleep\[$holder\] is in it"
check "and it stays mounted" mounted
kill "$holder"
wait "$holder" 2>/dev/null

check "write 20 MiB" fill b 20
sum=$(md5sum <"$mnt/b")
daemon=${PACEFS_PID[$mnt]}
check "umount exits 0" run 0 umount "$mnt"
check "and says so" says "$out" '^safe to remove: all data written, 0 errors$'
check_fails "it is unmounted" mounted
check_fails "the daemon has ended" test -e "/proc/$daemon/fd/0"
check "the daemon's end is clean" pacefs_wait "$mnt"
check_eq "and its exit status" "$PACEFS_STATUS" 0
check_eq "the data are there" "$(md5sum <"$src/b")" "$sum"

# ---- mount(8) and fstab ----

# Its helper looks for pacefs where the system has programs.
if have mount.fuse3 && [ -d /usr/local/bin ]; then
	mkdir "$TEST_DIR/bin"
	cp "$PACEFS" "$TEST_DIR/bin/pacefs"
	mount --bind "$TEST_DIR/bin" /usr/local/bin
	echo "$src $mnt fuse.pacefs defaults,nofail,noauto,user,_netdev,x-systemd.automount,x-systemd.device-timeout=5,comment=x,noatime,max_bytes=16M 0 0" \
		>"$TEST_DIR/fstab"
	check "mount by fstab" mount -T "$TEST_DIR/fstab" "$mnt" 2>"$err"
	check "mounts" mounted
	check_eq "with its settings" "$("$PACEFS" get "$mnt" max_bytes)" 16777216
	check "and flags" says <(findmnt -rn -o OPTIONS --mountpoint "$mnt") noatime
	check "umount" run 0 umount "$mnt"
	check "mount -t fuse.pacefs" mount -t fuse.pacefs "$src" "$mnt" -o dirty_centisecs=300 \
		2>"$err"
	check_eq "with its settings" "$("$PACEFS" get "$mnt" dirty_centisecs)" 300
	check "umount" run 0 umount "$mnt"
	check_fails "what pacefs refuses fails" \
		mount -t fuse.pacefs "$src" "$mnt" -o dirty_centisec=300 2>"$err"
	check "with its words" says "$err" 'did you mean dirty_centisecs\?'
	umount /usr/local/bin
else
	skip "mount(8) and fstab" "no mount.fuse3"
fi

# ---- errors ----

pacefs_start "$src" "$mnt" || exit 1
slowdisk_set usb weio=1
check "overwrite 1 MiB on a disk that fails" fill a 1
check "flush exits 1" run 1 flush "$mnt"
check "and names the file" says "$err" 'not written: .*a, bytes 0 to [0-9]+'
check "flush --json exits 1 too" run 1 flush --json "$mnt"
check "with the range" json "not d['all_written'] and d['errors'] > 0 and d['lost'][0]['from'] == 0"
check "status does not call it safe" run 0 status "$mnt"
check "but says no" says "$out" 'safe to remove: no'
slowdisk_set usb weio=0
check "umount unmounts, but exits 1" run 1 umount "$mnt"
check_fails "it is unmounted" mounted
pacefs_wait "$mnt"
check_fails "the daemon's exit status says so too" test "$PACEFS_STATUS" -eq 0
