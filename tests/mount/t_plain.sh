#!/bin/bash
# Without loop devices the mount is plain fuse, and the kernel's umount does not wait: what does is
# umount(8)'s helper, and the source is busy until all is written. The helper for a mount that has
# an anchor too.
# timeout: 240
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt
payload=$TEST_DIR/payload
out=$TEST_DIR/out
err=$TEST_DIR/err
want=

fill() {
	cp "$payload" "$mnt/$1"
}

on_disk() {
	[ "$(dd if="$src/$1" bs=1M iflag=direct status=none | sha256sum)" = "$want" ]
}

mounted() {
	[[ $(findmnt -rn -o FSTYPE --mountpoint "$mnt" | tail -n 1) == fuse* ]]
}

# run WANT command...
run() {
	local want=$1 status
	shift
	timeout 60 "$@" >"$out" 2>"$err"
	status=$?
	[ "$status" -eq "$want" ] && return 0
	echo "$* returned $status, want $want:"
	cat "$out" "$err"
	return 1
}

no_daemon() {
	! pgrep -x pacefs >/dev/null
}

loops_away() {
	mount --bind "$TEST_DIR/nothing" /dev/loop-control
}

loops_back() {
	umount /dev/loop-control
}

# ended NAME FILE
ended() {
	check "$1: the daemon ends" pacefs_wait "$mnt"
	check_eq "$1: with status" "$PACEFS_STATUS" 0
	check "$1: the file is on the disk" on_disk "$2"
	check_fails "$1: no mount" mounted
}

dd if=/dev/urandom of="$payload" bs=1M count=8 status=none
want=$(sha256sum <"$payload")
mkdir -p "$mnt"
: >"$TEST_DIR/nothing"
source_up usb ext4 512M 5000000 || exit 1

# ---- what the kernel's umount does, without a helper ----

loops_away || exit 1
pacefs_start "$src" "$mnt" || exit 1
check_eq "without loop devices the mount is of type" \
	"$(findmnt -rn -o FSTYPE --mountpoint "$mnt")" fuse.pacefs
check_eq "it shows the source" "$(findmnt -rn -o SOURCE --mountpoint "$mnt")" "$src"
check_eq "there is one warning, with the reason and what to do" \
	"$(pacefs_log | grep -cE "umount will not wait for the data \(no loop device: .*\); use: pacefs umount $mnt$")" 1
check_eq "no node is left of the attempt" "$(find /var/lib/pacefs -mindepth 1 | wc -l)" 0
fill a
check "umount -i" umount -i "$mnt"
check "returns at once: the daemon still writes" kill -0 "${PACEFS_PID[$mnt]}"
umount "$src" 2>"$err"
check_eq "meanwhile the source is busy" $? 32
check "and is said to be" says "$err" 'busy'
check "the daemon ends" pacefs_wait "$mnt"
check_eq "with status" "$PACEFS_STATUS" 0
check "then the source can be unmounted" umount "$src"
mount "${DEV[usb]}" "$src"
check "the file is on the disk" on_disk a

pacefs_start "$src" "$mnt" || exit 1
fill b
check "umount -f" umount -i -f "$mnt"
ended "umount -f" b
pacefs_start "$src" "$mnt" || exit 1
fill c
check "pacefs umount" run 0 "$PACEFS" umount "$mnt"
check "with progress" says "$err" '^[0-9.]+ [kM]?B left, about [0-9]+ s$'
check "has the verdict" says "$out" '^safe to remove: all data written, 0 errors$'
check "and the source is free at once" umount "$src"
mount "${DEV[usb]}" "$src"
ended "pacefs umount" c

# ---- with what is installed ----

mkdir "$TEST_DIR/upper" "$TEST_DIR/work"
DESTDIR=$TEST_DIR/installed meson install -C "$PACEFS_BUILD" --no-rebuild >"$out" 2>&1 ||
	{ cat "$out" && exit 1; }
for helper in mount.fuse.pacefs umount.fuse.pacefs umount.fuseblk.pacefs; do
	check_eq "installed: $helper is the program" \
		"$(basename "$(readlink "$TEST_DIR/installed/sbin/$helper")")" pacefs
	ln -s "$PACEFS" "$TEST_DIR/upper/$helper"
done
mount -t overlay -o "lowerdir=/usr/sbin,upperdir=$TEST_DIR/upper,workdir=$TEST_DIR/work" none \
	/usr/sbin || exit 1

pacefs_start "$src" "$mnt" || exit 1
fill d
check "helper: umount" run 0 umount "$mnt"
check "helper: with progress" says "$err" '^[0-9.]+ [kM]?B left, about [0-9]+ s$'
check "helper: and verdict" says "$out" '^safe to remove: all data written, 0 errors$'
check "helper: the source is free at once" umount "$src"
mount "${DEV[usb]}" "$src"
ended helper d

pacefs_start "$src" "$mnt" || exit 1
fill e
python3 -c '
import mmap, sys, time
with open(sys.argv[1], "r+b") as f:
    m = mmap.mmap(f.fileno(), 4096)
print(flush=True)
time.sleep(60)' "$mnt/e" >"$TEST_DIR/mapped" &
holder=$!
_slowdisk_wait 5 test -s "$TEST_DIR/mapped"
check "helper: a busy mount" run 32 umount "$mnt"
check "helper: who holds it is named" says "$err" "python3\[$holder\] has a file (open|mapped)"
check "helper: it stays" mounted
kill $holder
wait $holder 2>/dev/null
exec {fd}>"$mnt/e2"
check "helper: umount -l" run 0 umount -l "$mnt"
check_fails "helper: it is gone from view" mounted
check "helper: what -l does not wait for is said" says "$err" 'still being written'
exec {fd}>&-
ended "helper: umount -l" e
pacefs_start "$src" "$mnt" || exit 1
fill f
check "helper: umount -f" run 0 umount -f "$mnt"
ended "helper: umount -f" f

pacefs_start "$src" "$mnt" || exit 1
kill -9 "${PACEFS_PID[$mnt]}"
pacefs_wait "$mnt"
check "helper: a dead mount: not all is written" run 64 umount "$mnt"
check "helper: is said to be dead" says "$err" 'its daemon was gone already'
check_fails "helper: it is gone" mounted

check "mount -t fuse.pacefs" mount -t fuse.pacefs "$src" "$mnt" -o dirty_centisecs=300 2>"$err"
check_eq "with its settings" "$("$PACEFS" get "$mnt" dirty_centisecs)" 300
unshare -m --propagation private sleep 60 &
holder=$!
_slowdisk_wait 5 grep -q " $mnt " "/proc/$holder/mountinfo"
sleep 0.3 # so that it has its own
check "helper: a copy in another namespace" run 64 umount "$mnt"
check "helper: is named" says "$err" "unmounted here, but sleep\[$holder\] has it"
kill $holder
wait $holder 2>/dev/null
_slowdisk_wait 10 no_daemon
check_eq "then the daemon has ended" "$(pgrep -cx pacefs)" 0

# ---- with an anchor ----

loops_back
pacefs_start "$src" "$mnt" || exit 1
check_eq "with loop devices the mount is of type" \
	"$(findmnt -rn -o FSTYPE --mountpoint "$mnt")" fuseblk.pacefs
fill g
check "helper, fuseblk: umount" run 0 umount "$mnt"
check "helper, fuseblk: verdict" says "$out" '^safe to remove: all data written, 0 errors$'
ended "helper, fuseblk" g
pacefs_start "$src" "$mnt" || exit 1
slowdisk_set usb weio=1
check "overwrite on a disk that fails" dd if="$payload" of="$mnt/g" bs=1M count=1 conv=notrunc \
	status=none
check "helper: umount unmounts, and says that not all was written" run 64 umount "$mnt"
check "helper: it names the file" says "$err" 'not written: .*g, bytes 0 to [0-9]+'
check_fails "helper: it is unmounted" mounted
slowdisk_set usb weio=0
pacefs_wait "$mnt"
check_fails "helper: the daemon's exit status says so too" test "$PACEFS_STATUS" -eq 0
check_eq "libmount's table has no entry left" "$(grep -c "$mnt" /run/mount/utab)" 0
umount /usr/sbin
