#!/bin/bash
# A disk that fails or falls silent: errors reach who has the file open, once, and the verdict; what
# fsync acknowledged is there; nothing else is harmed.
# timeout: 150
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt

# ---- a disk that refuses writes for a while ----

# Without a journal: its own errors would make the whole filesystem read-only
slowdisk_up usb 200M 0 || exit 1
mkfs.ext4 -qF -O ^has_journal -E nodiscard,lazy_itable_init=0 "${DEV[usb]}"
mkdir -p "$src" && mount "${DEV[usb]}" "$src"
mkdir "$src/d"
for f in bad good; do
	head -c 4M /dev/urandom >"$src/$f" # allocated: the journal has nothing to say later
done
sync -f "$src"
cp "$src/good" "$TEST_DIR/good.before"
pacefs_start "$src" "$mnt" dirty_background_centisecs=0,dirty_centisecs=0 -f || exit 1

# Two open files of one; a third opened after the error. The disk fails while "bad" is written, and
# is whole again when "good" is.
cat >"$TEST_DIR/errors.py" <<'END'
import errno, os, sys, time
mnt, ctl = sys.argv[1:3]
def disk(line):
    with open(ctl, "a") as f:
        f.write(line + "\n")
def result(call, *args):
    try:
        call(*args)
        return "ok"
    except OSError as e:
        return errno.errorcode[e.errno]
data = os.urandom(1 << 20)
good = os.open(mnt + "/good", os.O_RDWR)
os.pwrite(good, data, 0)
os.fsync(good)
a = os.open(mnt + "/bad", os.O_RDWR)
b = os.open(mnt + "/bad", os.O_RDWR)
r = os.open(mnt + "/bad", os.O_RDONLY)
os.pwrite(a, os.urandom(1 << 20), 1 << 20)
disk("weio=1")
print("a", result(os.fsync, a), result(os.fsync, a))
disk("weio=0")
print("b", result(os.fsync, b), result(os.fsync, b))
print("r", result(os.fsync, r), result(os.fsync, r))
c = os.open(mnt + "/bad", os.O_RDWR)
print("c", result(os.fsync, c), result(os.close, c))
os.pwrite(a, os.urandom(5000), 100)
print("again", result(os.fsync, a), result(os.close, a), result(os.close, b), result(os.close, r))
# Nobody hears of this one before it is closed
a = os.open(mnt + "/bad", os.O_RDWR)
os.pwrite(a, os.urandom(1 << 20), 2 << 20)
disk("weio=1")
os.setxattr(mnt, "user.pacefs.flush", b"1")
while os.getxattr(mnt, "user.pacefs.dirty") != b"0" or \
        os.getxattr(mnt, "user.pacefs.writeback") != b"0":
    time.sleep(0.01)
disk("weio=0")
print("close", result(os.close, a))
a = os.open(mnt + "/bad", os.O_RDWR)
os.pwrite(a, b"x" * 4096, 3 << 20)
disk("weio=1")
os.close(a)
os.setxattr(mnt, "user.pacefs.flush", b"1")
while os.getxattr(mnt, "user.pacefs.dirty") != b"0" or \
        os.getxattr(mnt, "user.pacefs.writeback") != b"0":
    time.sleep(0.01)
disk("weio=0")
a = os.open(mnt + "/bad", os.O_RDWR)
b = os.open(mnt + "/bad", os.O_RDWR)
print("late", result(os.fsync, a), result(os.close, b))
os.pwrite(good, b"after", 2 << 20)
print("good", result(os.fsync, good), result(os.close, good))
new = os.open(mnt + "/d/new", os.O_RDWR | os.O_CREAT)
os.write(new, data)
print("new", result(os.fsync, new), result(os.close, new))
with open("good.data", "wb") as f:
    f.write(data)
END
check "the program ends" timeout 60 python3 "$TEST_DIR/errors.py" "$mnt" \
	"$SLOWDISK_DIR/usb/ctl" >"$TEST_DIR/errors"
cat "$TEST_DIR/errors"
line() {
	sed -n "s/^$1 //p" "$TEST_DIR/errors"
}
check_eq "fsync says EIO once" "$(line a)" "EIO ok"
check_eq "to each open file" "$(line b)" "EIO ok"
check_eq "for reading too" "$(line r)" "EIO ok"
check_eq "who opens after all that hears nothing" "$(line c)" "ok ok"
check_eq "the file can be written again" "$(line again)" "ok ok ok ok"
check_eq "close says EIO when nobody asked before" "$(line close)" "EIO"
check_eq "an error nobody heard of is for those who open next" "$(line late)" "EIO EIO"
check_eq "another file is not concerned" "$(line good)" "ok ok"
check_eq "nor a new one" "$(line new)" "ok ok"
check_ge "errors are counted" "$(pstat errors)" 3
check_eq "with their bytes" "$(pstat lost_bytes)" $((2 * 1048576 + 4096))
check "umount" umount "$mnt"
pacefs_wait "$mnt" || fail "the daemon's end" "see above"
check_eq "the daemon exits 1" "$PACEFS_STATUS" 1
check "and has named the file" grep -q 'usb/bad' <(pacefs_log "$mnt")
check "and the bytes" grep -Eq 'bad.*(0x100000|1048576|1\.0 MB)' <(pacefs_log "$mnt")
check_fails "and no other file" grep -Eq 'usb/(good|d)' <(pacefs_log "$mnt")
source_sum() {
	dd if="$src/$1" iflag=direct bs=1M status=none | head -c "${2:-999999999}" | sha256sum
}
check_eq "what fsync acknowledged is there" "$(source_sum d/new)" "$(sha256sum <good.data)"
cp "$TEST_DIR/good.before" want
dd if=good.data of=want conv=notrunc status=none
printf after | dd of=want bs=1 seek=2097152 conv=notrunc status=none
check_eq "all of the other file too" "$(source_sum good)" "$(sha256sum <want)"

# ---- a disk that cannot be read ----

pacefs_start "$src" "$mnt" dirty_background_centisecs=0,dirty_centisecs=0 -f || exit 1
cat >"$TEST_DIR/fill.py" <<'END'
import errno, os, sys, time
mnt, ctl = sys.argv[1:3]
fd = os.open(mnt + "/bad", os.O_RDWR)
os.pwrite(fd, b"part", 100) # a part of a page: the rest must be read first
with open("/proc/sys/vm/drop_caches", "w") as f:
    f.write("1")
with open(ctl, "a") as f:
    f.write("reio=1\n")
try:
    os.fsync(fd)
except OSError as e:
    print(errno.errorcode[e.errno])
with open(ctl, "a") as f:
    f.write("reio=0\n")
END
before=$(dd if="$src/bad" bs=4096 count=1 status=none | sha256sum)
check_eq "a page that cannot be completed is an error" \
	"$(timeout 30 python3 "$TEST_DIR/fill.py" "$mnt" "$SLOWDISK_DIR/usb/ctl")" EIO
umount "$mnt"
pacefs_wait "$mnt"
check_eq "the daemon exits 1" "$PACEFS_STATUS" 1
echo 1 >/proc/sys/vm/drop_caches
check_eq "and has not written zeroes around it" \
	"$(dd if="$src/bad" bs=4096 count=1 status=none | sha256sum)" "$before"
source_down usb >/dev/null

# ---- a buffered source ----

# tmpfs in place of a filesystem without direct I/O: full below, where only tmpfs knows
mount -t tmpfs -o size=4M tmpfs "$src"
pacefs_start "$src" "$mnt" dirty_background_centisecs=0,dirty_centisecs=0 -f || exit 1
check_fails "more than a small source holds is refused" \
	sh -c "head -c 8M /dev/urandom >$mnt/f && sync $mnt/f" 2>/dev/null
rm "$mnt/f"
check "and what fits is taken again" sh -c "head -c 1M /dev/urandom >$mnt/g && sync $mnt/g"
check_eq "whole" "$(sha256sum <"$src/g")" "$(sha256sum <"$mnt/g")"
umount "$mnt"
pacefs_wait "$mnt"
umount "$src"

# ---- a short silence ----

source_up usb ext4 200M 20000000 || exit 1
pacefs_start "$src" "$mnt" dirty_background_centisecs=20,dirty_centisecs=0,max_bytes=8M || exit 1
head -c 30M /dev/urandom >"$TEST_DIR/data"
timeout 60 cp "$TEST_DIR/data" "$mnt/data" &
copy=$!
sleep 0.4
slowdisk_set usb stall=1
sleep 1.6
first=$(pstat silent_us)
sleep 0.6
second=$(pstat silent_us)
check_ge "the silence is seen, us" "$first" 1000000
check_ge "and grows" "$((second - first))" 400000
check "names still answer" sh -c "timeout 2 stat $mnt/data >/dev/null"
slowdisk_set usb stall=0
check "the copy ends" wait "$copy"
check_eq "the silence too" "$(pstat silent_us)" 0
check_eq "without errors" "$(pstat errors)" 0
check "umount" pacefs_stop
check "nothing is lost" cmp "$TEST_DIR/data" "$src/data"
source_down usb
