#!/bin/bash
# timeout: 150
# A full disk is found by write(2): every byte acknowledged before the error is there, whoever
# else wants the room.
. "$PACEFS_REPO/tests/lib/mount_test.sh"

source_up usb ext4 80M 20000000 || exit 1
mnt=$TEST_DIR/mnt
check "mounts" pacefs_start "$TEST_DIR/usb" "$mnt" || exit 1

# dd says how much write() took before it failed.
out=$(dd if=/dev/urandom of="$mnt/big" bs=64K count=2000 2>&1)
check "dd hears that the disk is full" grep -q "No space left on device" <<<"$out"
bytes=$(sed -n 's/^\([0-9]*\) bytes.*/\1/p' <<<"$out")
check_ge "bytes acknowledged" "${bytes:-0}" 40000000
check_eq "size shown" "$(stat -c %s "$mnt/big")" "$bytes"
sum=$(sha256sum <"$mnt/big")
check_eq "no error of writeback" "$(pstat errors)" 0

out=$(dd if=/dev/zero of="$mnt/more" bs=64K count=2000 2>&1)
check "still full" grep -q "No space left on device" <<<"$out"
check "rm" rm "$mnt/more" "$mnt/big"
check "writing works again at once" dd if=/dev/zero of="$mnt/again" bs=1M count=20 status=none
sum_again=$(sha256sum <"$mnt/again")

dd if=/dev/urandom of="$mnt/keep" bs=64K count=2000 status=none 2>/dev/null
sum=$(sha256sum <"$mnt/keep")
check "umount, daemon exits 0" pacefs_stop
check_eq "what was acknowledged is in the source" "$(sha256sum <"$TEST_DIR/usb/keep")" "$sum"
check_eq "and the file written after rm" "$(sha256sum <"$TEST_DIR/usb/again")" "$sum_again"
source_down usb

# ended NAME: nothing was lost, and the daemon knows of no error
ended() {
	check_eq "$1: no error of writeback" "$(pstat errors)" 0
	check_eq "$1: nothing lost, bytes" "$(pstat lost_bytes)" 0
	check "$1: umount, daemon exits 0" pacefs_stop
	echo 1 >/proc/sys/vm/drop_caches
}

avail_kib() {
	df -k --output=avail "$1" | tail -n 1 | tr -d ' '
}

# ---- many writers whose requests queue ----

source_up usb ext4 200M 20000000 || exit 1
fallocate -l 130M "$TEST_DIR/usb/fill"
pacefs_start "$TEST_DIR/usb" "$mnt" max_bytes=4M,max_write=1M || exit 1
cat >"$TEST_DIR/many.py" <<'END'
import errno, os, sys, threading

top, n = sys.argv[1], 60
taken = [0] * n

def write(i):
    fd = os.open(f"{top}/f{i}", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        while True:
            taken[i] += os.write(fd, bytes([i + 1]) * 1048576)
    except OSError as e:
        assert e.errno == errno.ENOSPC, e

def check(i):
    with open(f"{top}/f{i}", "rb") as f:
        got = f.read()
    return got == bytes([i + 1]) * taken[i]

if sys.argv[2] == "write":
    threads = [threading.Thread(target=write, args=(i,)) for i in range(n)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    with open(sys.argv[3], "w") as f:
        print(*taken, sep="\n", file=f)
else:
    taken = [int(line) for line in open(sys.argv[3])]
    bad = [i for i in range(n) if not check(i)]
    print("differ:", bad) if bad else None
    sys.exit(bool(bad))
END
check "many writers: all hear that the disk is full" \
	timeout 40 python3 "$TEST_DIR/many.py" "$mnt" write "$TEST_DIR/taken"
check_ge "many writers: bytes acknowledged" \
	"$(awk '{ n += $1 } END { printf "%.0f", n }' "$TEST_DIR/taken")" 20000000
check "many writers: sync" sync -f "$mnt"
ended "many writers"
check "many writers: what was acknowledged is in the source" \
	python3 "$TEST_DIR/many.py" "$TEST_DIR/usb" check "$TEST_DIR/taken"
source_down usb

# ---- fallocate beside writes that are not on the disk yet ----

later=dirty_background_centisecs=1000,dirty_centisecs=3000
source_up usb ext4 120M 10000000 || exit 1
pacefs_start "$TEST_DIR/usb" "$mnt" "$later" || exit 1
dd if=/dev/urandom of="$TEST_DIR/data" bs=1M count=40 status=none
check "fallocate: writes before it" cp "$TEST_DIR/data" "$mnt/data"
check_ge "fallocate: which wait, bytes" "$(pstat dirty_bytes)" 20000000
# It may be refused, or granted: the writes were there first.
fallocate -l "$(avail_kib "$TEST_DIR/usb")K" "$mnt/all" 2>/dev/null
check "fallocate: sync" sync -f "$mnt"
ended "fallocate"
check "fallocate: the writes are in the source" cmp "$TEST_DIR/data" "$TEST_DIR/usb/data"
source_down usb

# ---- a sparse file ----

source_up usb ext4 400M 60000000 || exit 1
tune2fs -m 0 "${DEV[usb]}" >/dev/null
pacefs_start "$TEST_DIR/usb" "$mnt" "$later,cache_size=256M" || exit 1
dd if=/dev/zero of="$mnt/warm" bs=1M count=100 conv=fsync status=none # it knows the speed now
fallocate -l $(($(avail_kib "$TEST_DIR/usb") - 66000))K "$TEST_DIR/usb/fill"
sync -f "$TEST_DIR/usb"
sleep 1.5
dd if=/dev/urandom of="$TEST_DIR/image" bs=1M count=20 status=none
dd if=/dev/urandom of="$TEST_DIR/data" bs=1M count=36 status=none
check "sparse: a stream at its start" dd if="$TEST_DIR/image" of="$mnt/image" bs=1M status=none
check "sparse: a page far behind" \
	dd if="$TEST_DIR/image" of="$mnt/image" bs=4k count=1 seek=1M conv=notrunc status=none
check "sparse: another file" cp "$TEST_DIR/data" "$mnt/data"
check "sparse: sync" sync -f "$mnt"
check_le "sparse: no blocks in the hole, KiB" "$(du -k "$TEST_DIR/usb/image" | cut -f1)" 20600
ended "sparse"
check "sparse: the other file is in the source" cmp "$TEST_DIR/data" "$TEST_DIR/usb/data"
check "sparse: and its own stream" cmp -n $((20 << 20)) "$TEST_DIR/image" "$TEST_DIR/usb/image"
source_down usb

# ---- a deleted file that is open ----

source_up usb ext4 80M 50000000 || exit 1
pacefs_start "$TEST_DIR/usb" "$mnt" || exit 1
dd if=/dev/zero of="$mnt/big" bs=1M count=52 conv=fsync status=none

# The last megabytes, in ms
last_ms() {
	local start
	start=$(now_ms)
	timeout 20 dd if=/dev/zero of="$mnt/x" bs=64K count=100 conv=notrunc status=none 2>/dev/null
	elapsed_ms "$start"
	rm "$mnt/x"
	sleep 1
}

without=$(last_ms)
exec {fd}>"$mnt/deleted"
rm "$mnt/deleted"
with=$(last_ms)
exec {fd}>&-
check_le "a deleted open file slows the last megabytes by less than, times" \
	"$(awk -v a="$with" -v b="$without" 'BEGIN { printf "%.1f", a / (b > 200 ? b : 200) }')" 10
check "a deleted open file: umount" pacefs_stop
