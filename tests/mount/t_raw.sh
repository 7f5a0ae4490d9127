#!/bin/bash
# Raw sources: a device or an image shown as one file.
# timeout: 120
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

mnt=$TEST_DIR/mnt
inner=$TEST_DIR/inner
mkdir -p "$mnt" "$inner" "$TEST_DIR/images"

# An image on a real filesystem; its size is no multiple of a page, nor of 512
source_up disk ext4 300M 0 || exit 1
image=$TEST_DIR/disk/image
odd=$((64 * 1024 * 1024 + 1234))

sum() {
	sha256sum <"$1" | cut -d' ' -f1
}

# exercise NAME FILE SIZE: what one may do with the shown file
exercise() {
	local name=$1 file=$2 size=$3
	check_eq "$name: its size" "$(stat -c %s "$file")" "$size"
	check_eq "$name: it is a regular file" "$(stat -c %F "$file")" "regular file"
	check_fails "$name: nothing beyond the end" \
		dd if=/dev/zero of="$file" bs=4096 count=2 seek="$size" oflag=seek_bytes \
		conv=notrunc status=none 2>"$TEST_DIR/err"
	check "$name: because there is no space" grep -q 'No space left' "$TEST_DIR/err"
	check_fails "$name: no other size" truncate -s $((size / 2)) "$file" 2>/dev/null
	check_eq "$name: the size stays" "$(stat -c %s "$file")" "$size"
	check "$name: written with O_TRUNC" dd if=/dev/urandom of="$file" bs=1M count=3 status=none
	check_eq "$name: the size stays" "$(stat -c %s "$file")" "$size"
	check "$name: written at its end" dd if=/dev/urandom of="$file" bs=1000 count=1 \
		seek=$((size - 1000)) oflag=seek_bytes conv=notrunc status=none
	check "$name: written unaligned" dd if=/dev/urandom of="$file" bs=12345 count=100 \
		seek=777777 oflag=seek_bytes conv=notrunc status=none
	check "$name: no names to make" test ! -e "$(dirname "$file")/other"
	sum "$file" >"$TEST_DIR/sum"
}

# inside NAME FILE: a filesystem in the shown file
inside() {
	local name=$1 file=$2 loop
	check "$name: mkfs" mkfs.ext4 -qF "$file"
	loop=$(losetup -f --show "$file" 2>/dev/null) || fail "$name: losetup" "no loop device"
	check "$name: mount" mount "$loop" "$inner"
	check "$name: files" sh -c "head -c 20000000 /dev/urandom >$inner/a && cp $inner/a $inner/b"
	sum "$inner/a" >"$TEST_DIR/sum.a"
	check "$name: umount" umount "$inner"
	losetup -d "$loop"
	while [ -e "/sys/block/${loop##*/}/loop" ]; do sleep 0.05; done
	check "$name: fsck" e2fsck -fn "$file" >"$TEST_DIR/fsck" 2>&1
	sum "$file" >"$TEST_DIR/sum"
}

# below NAME SOURCE: after umount
below() {
	local name=$1 source=$2
	check "$name: umount of the mount" pacefs_stop "$3"
	echo 1 >/proc/sys/vm/drop_caches
	check_eq "$name: the source has it all" "$(sum "$source")" "$(cat "$TEST_DIR/sum")"
}

# ---- an image, on a directory ----

truncate -s "$odd" "$image"
pacefs_start "$image" "$mnt" raw || exit 1
check_eq "the directory shows one file" "$(ls "$mnt")" image
check "and can be looked at in every way" ls -la "$mnt" >/dev/null
check_fails "no other file is made there" touch "$mnt/other" 2>/dev/null
check_fails "nor directory" mkdir "$mnt/other" 2>/dev/null
check_fails "nor is it deleted" rm -f "$mnt/image" 2>/dev/null
check_eq "df tells its size, KiB" "$(df --output=size "$mnt" | tail -n 1 | tr -d ' ')" \
	$((odd / 4096 * 4))
exercise "image" "$mnt/image" "$odd"
below "image" "$image" "$mnt"
check_eq "its size is as before" "$(stat -c %s "$image")" "$odd"

pacefs_start "$image" "$mnt" raw,max_bytes=2M,dirty_centisecs=0 || exit 1
inside "image" "$mnt/image"
below "image, with a filesystem" "$image" "$mnt"

# ---- the same, on a file ----

touch "$TEST_DIR/point"
pacefs_start "$image" "$TEST_DIR/point" raw || exit 1
exercise "on a file" "$TEST_DIR/point" "$odd"
below "on a file" "$image" "$TEST_DIR/point"
source_down disk

# ---- a punch that the source refuses ----

truncate -s 16M "$TEST_DIR/blocks"
loop=$(losetup -f --show "$TEST_DIR/blocks") || fail "punch: losetup" "no loop device"
touch "$TEST_DIR/shown"
pacefs_start "$loop" "$TEST_DIR/shown" raw || exit 1
# A device punches whole blocks only.
check "punch: refused, nothing changes" python3 - "$TEST_DIR/shown" <<'END'
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open(sys.argv[1], os.O_RDWR)
data = os.urandom(16384)
os.pwrite(fd, data, 0)
assert libc.fallocate(fd, 3, ctypes.c_long(100), ctypes.c_long(5000)) < 0, "not refused"
assert os.pread(fd, 16384, 0) == data
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
assert os.pread(fd, 16384, 0) == data
END
sum "$TEST_DIR/shown" >"$TEST_DIR/sum"
below "punch" "$TEST_DIR/blocks" "$TEST_DIR/shown"
losetup -d "$loop"

# ---- a block device ----

slowdisk_up block 96M 60000000 || exit 1
size=$((96 * 1024 * 1024))
pacefs_start "${DEV[block]}" "$mnt" raw || exit 1
name=$(basename "${DEV[block]}")
exercise "device" "$mnt/$name" "$size"
below "device" "${DEV[block]}" "$mnt"
pacefs_start "${DEV[block]}" "$mnt" raw || exit 1
inside "device" "$mnt/$name"
below "device, with a filesystem" "${DEV[block]}" "$mnt"
check "which fsck finds clean there too" sh -c "e2fsck -fn ${DEV[block]} >/dev/null 2>&1"
check "and mounts" mount "${DEV[block]}" "$inner"
check_eq "with its files" "$(sum "$inner/b")" "$(cat "$TEST_DIR/sum.a")"
umount "$inner"
slowdisk_down block
