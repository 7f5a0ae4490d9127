#!/bin/bash
# timeout: 400
# A full disk is found by write(2): every byte acknowledged before the error is there, whoever
# else wants the room; df tells what is left; when there is room again, writing works again.
#
# PACEFS_FULL_SECONDS (default 5) and PACEFS_FULL_SEEDS (default 1): how long the random writers
# run, and which ones; t_quota.sh too. PACEFS_FULL_FS (default "ext4 btrfs"; also xfs, tmpfs): on what.
# PACEFS_FULL_FOUR, _SIZE, _FILL, _RATE (default ext4, 200M, none, 40000000): the disk of the
# four writers.
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
dd if=/dev/zero of="$mnt/behind" bs=1M count=16 seek=64 conv=fsync status=none
check_le "sparse: no blocks in a hole before a stream, KiB" \
	"$(du -k "$TEST_DIR/usb/behind" | cut -f1)" 16600
rm "$mnt/behind"
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
source_down usb

# ---- df ----

free_kib() {
	echo $(($(stat -f -c '%f * %S' "$1") / 1024))
}

# dropped NAME BEFORE KIB: df's free bytes are so many less than before, give or take 5 MiB
dropped() {
	check_between "$1, KiB" $(($2 - $(free_kib "$mnt"))) $(($3 - 5120)) $(($3 + 5120))
}

df_tells() {
	local fs=$1 before after
	source_up usb "$fs" 400M 50000000 || exit 1
	pacefs_start "$TEST_DIR/usb" "$mnt" "$later,cache_size=256M" || exit 1
	dd if=/dev/urandom of="$mnt/old" bs=1M count=60 conv=fsync status=none # it knows the speed now
	sync -f "$mnt"
	before=$(free_kib "$mnt")
	dd if=/dev/zero of="$mnt/new" bs=1M count=100 status=none
	check_ge "df on $fs: most of it is not on the disk, bytes" "$(pstat dirty_bytes)" 30000000
	dropped "df on $fs: 100 MiB are taken at once" "$before" 102400
	sleep 0.7
	dropped "df on $fs: and not twice while they are written" "$before" 102400
	sync -f "$mnt"
	dropped "df on $fs: nor afterwards" "$before" 102400
	after=$(free_kib "$mnt")
	dd if=/dev/urandom of="$mnt/old" bs=1M count=30 conv=notrunc status=none
	[ "$fs" = btrfs ] || dropped "df on $fs: writing over takes nothing" "$after" 0
	sync -f "$mnt"
	after=$(free_kib "$mnt")
	dd if=/dev/zero of="$mnt/gone" bs=1M count=40 status=none
	truncate -s 20M "$mnt/gone"
	# what had blocks already is the source's to free
	[ "$fs" = btrfs ] || check_le "df on $fs: what is cut off comes back, KiB" \
		$((after - $(free_kib "$mnt"))) $((40960 - 5120))
	rm "$mnt/gone"
	sleep 0.1
	[ "$fs" = btrfs ] || check_le "df on $fs: what is deleted and was not written comes back, KiB" \
		$((after - $(free_kib "$mnt"))) $((40960 - 5120))
	sync -f "$mnt"
	[ "$fs" = btrfs ] || dropped "df on $fs: and then all of it" "$after" 0
	check "df on $fs: umount" pacefs_stop
	source_down usb
}

df_tells ext4
df_tells btrfs

# ---- a full disk, and files that have blocks ----

full_file() {
	dd if=/dev/zero of="$1" bs=64K count=4000 status=none 2>/dev/null
	dd if=/dev/zero of="$1.2" bs=4k count=4000 status=none 2>/dev/null
}

source_up usb ext4 200M 50000000 || exit 1
pacefs_start "$TEST_DIR/usb" "$mnt" || exit 1
dd if=/dev/urandom of="$TEST_DIR/data" bs=1M count=50 status=none
dd if=/dev/urandom of="$TEST_DIR/other" bs=1M count=50 status=none
check "full: a file before" dd if="$TEST_DIR/data" of="$mnt/data" bs=1M conv=fsync status=none
full_file "$mnt/fill"
check_fails "full: a byte more" dd if="$TEST_DIR/data" of="$mnt/more" bs=64K count=1 status=none
for size in 1G 100M; do
	check_fails "full: fallocate $size" fallocate -l "$size" "$mnt/data"
done
check_fails "full: fallocate behind the end" fallocate -n -o 50M -l 1G "$mnt/data"
check_fails "full: truncate to more than a file may have" truncate -s 17T "$mnt/data"
check "full: content and size are what they were" cmp "$TEST_DIR/data" "$mnt/data"
start=$(now_ms)
check "full: writing over it works" \
	dd if="$TEST_DIR/other" of="$mnt/data" bs=128K conv=notrunc status=none
check_le "full: and is not written through, ms" "$(elapsed_ms "$start")" 10000
check "full: fsync" sync "$mnt/data"
check "full: it has the new content" cmp "$TEST_DIR/other" "$mnt/data"
(until dd if="$TEST_DIR/data" of="$mnt/again" bs=1M count=10 status=none 2>/dev/null; do sleep 1; done
	now_ms >"$TEST_DIR/ended") &
writer=$!
sleep 2
rm "$TEST_DIR/usb/fill" # behind our back
start=$(now_ms)
wait "$writer"
check_le "full: a writer that tries each second goes on after rm on the source, ms" \
	$(($(cat "$TEST_DIR/ended") - start)) 2500
ended "full"
check "full: the source has it" cmp "$TEST_DIR/other" "$TEST_DIR/usb/data"
source_down usb

# ---- blocks kept for root ----

source_up usb ext4 60M 50000000 || exit 1
tune2fs -m 20 "${DEV[usb]}" >/dev/null && umount usb && mount "${DEV[usb]}" usb || exit 1
chmod 777 usb
kept=$(($(stat -f -c '(%f - %a) * %S / 1024' usb)))
pacefs_start "$TEST_DIR/usb" "$mnt" || exit 1
(cd "$mnt" && setpriv --reuid 65534 --regid 65534 --clear-groups \
	dd if=/dev/zero of=user bs=64K count=2000) 2>dd.err
check "kept for root: a user hears of a full disk" grep -q "No space left on device" dd.err
sync -f "$mnt"
check_ge "kept for root: they are left, KiB" "$(free_kib usb)" $((kept - 256))
dd if=/dev/zero of="$mnt/root" bs=64K count=2000 status=none 2>/dev/null
sync -f "$mnt"
check_le "kept for root: root has them, KiB left" "$(free_kib usb)" $((kept - 4096))
ended "kept for root"
source_down usb

# ---- four writers of 100 MiB on 200 MiB ----

source_up usb "${PACEFS_FULL_FOUR:-ext4}" "${PACEFS_FULL_SIZE:-200M}" \
	"${PACEFS_FULL_RATE:-40000000}" || exit 1
[ -z "${PACEFS_FULL_FILL:-}" ] || fallocate -l "$PACEFS_FULL_FILL" usb/fill
pacefs_start "$TEST_DIR/usb" "$mnt" || exit 1
cat >"$TEST_DIR/four.py" <<'END'
import errno, os, sys, threading, time

top, size = sys.argv[1], 100 << 20
result, longest = [None] * 4, [0.0] * 4

def timed(i, call, *args):
    start = time.monotonic()
    try:
        return call(*args)
    finally:
        longest[i] = max(longest[i], time.monotonic() - start)

def write(i):
    fd = os.open(f"{top}/f{i}", os.O_RDWR | os.O_CREAT, 0o644)
    done, chunk = 0, bytes([i + 1]) * 131072
    try:
        while done < size:
            done += timed(i, os.write, fd, chunk)
        result[i] = "complete"
    except OSError as e:
        result[i] = errno.errorcode[e.errno]
    try:
        timed(i, os.fsync, fd)
        os.close(fd)
    except OSError as e:
        result[i] = "fsync " + errno.errorcode[e.errno]
    with open(f"{top}/f{i}", "rb") as f:
        got = f.read()
    if got != bytes([i + 1]) * done:
        result[i] = f"{len(got)} bytes, {done} acknowledged, or other ones"

start = time.monotonic()
threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
print("results:", *result, "longest call:", *(f"{s:.2f}" for s in longest),
      f"whole: {time.monotonic() - start:.1f} s")
print(f"longest_ms={max(longest) * 1000:.0f}")
sys.exit(any(r not in ("complete", "ENOSPC") for r in result))
END
check "four writers: complete, or told that the disk is full" \
	timeout 100 python3 "$TEST_DIR/four.py" "$mnt" >four.out
cat four.out
# An fsync waits for the disk: the limit of 2 s for each of four, and 5 s.
check_le "four writers: longest call, ms" "$(value longest_ms <four.out)" 13000
ended "four writers"
source_down usb

# ---- random writers ----

random_source() {
	case $1 in
	tmpfs) mkdir -p usb && mount -t tmpfs -o size=80M none usb ;;
	xfs) source_up usb xfs 340M 40000000 && fallocate -l 200M usb/fill ;;
	*) source_up usb "$1" 140M 40000000 ;;
	esac
}

random_writers() {
	local name="random writers on $1, seed $2" load=$PACEFS_REPO/tests/mount/full_load.py
	random_source "$1" || exit 1
	pacefs_start "$TEST_DIR/usb" "$mnt" || exit 1
	check "$name: nothing but a full disk" timeout 150 \
		python3 "$load" write "$mnt" book "$2" "${PACEFS_FULL_SECONDS:-5}"
	ended "$name"
	check "$name: what was acknowledged is in the source" \
		python3 "$load" check "$TEST_DIR/usb" book
	if [ "$1" = tmpfs ]; then umount usb; else source_down usb; fi
}

for fs in ${PACEFS_FULL_FS:-ext4 btrfs}; do
	for seed in ${PACEFS_FULL_SEEDS:-1}; do
		random_writers "$fs" "$seed"
	done
done
