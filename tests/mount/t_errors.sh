#!/bin/bash
# A disk that fails or falls silent: errors reach who has the file open, once, and the verdict; what
# fsync acknowledged is there; nothing else is harmed.
# timeout: 200
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
import mmap, os, sys, time
from ask import result, syncfs, tell, until_healthy
mnt, ctl, src = sys.argv[1:4]
def disk(line):
    tell(ctl, line)
def healthy():
    until_healthy(mnt, os.pwrite, good, data[:4096], 0)
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
# Until it recovers each write goes through, and hears its own error
a = os.open(mnt + "/bad", os.O_RDWR)
disk("weio=1")
print("through", result(os.pwrite, a, data, 1 << 20), result(os.pwrite, a, data, 1 << 20))
disk("weio=0")
os.pwrite(a, data, 1 << 20)
print("kept", os.getxattr(mnt, "user.pacefs.dirty").decode())
fd = os.open(src + "/bad", os.O_RDONLY | os.O_DIRECT)
room = mmap.mmap(-1, 1 << 20)
os.preadv(fd, [room], 1 << 20)
os.close(fd)
print("below", "yes" if room[:] == data else "no", result(os.fsync, a), result(os.close, a))
healthy()
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
healthy()
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
os.close(a)
healthy()
# Through a mapping, and by way of the whole filesystem
a = os.open(mnt + "/bad", os.O_RDWR)
b = os.open(mnt + "/bad", os.O_RDWR)
m = mmap.mmap(a, 8192)
m[4096:4100] = b"mmap"
disk("weio=1")
print("msync", result(m.flush), end=" ")
disk("weio=0")
print(result(m.flush), result(os.fsync, b), result(os.fsync, a))
m.close()
os.close(a)
os.close(b)
print("syncfs", result(syncfs, good), result(syncfs, good))
os.pwrite(good, b"after", 2 << 20)
print("good", result(os.fsync, good), result(os.close, good))
new = os.open(mnt + "/d/new", os.O_RDWR | os.O_CREAT)
os.write(new, data)
print("new", result(os.fsync, new), result(os.close, new))
with open("good.data", "wb") as f:
    f.write(data)
END
check "the program ends" timeout 60 python3 "$TEST_DIR/errors.py" "$mnt" \
	"$SLOWDISK_DIR/usb/ctl" "$src" >"$TEST_DIR/errors"
cat "$TEST_DIR/errors"
line() {
	sed -n "s/^$1 //p" "$TEST_DIR/errors"
}
check_eq "fsync says EIO once" "$(line a)" "EIO ok"
check_eq "to each open file" "$(line b)" "EIO ok"
check_eq "for reading too" "$(line r)" "EIO ok"
check_eq "who opens after all that hears nothing" "$(line c)" "ok ok"
check_eq "the file can be written again" "$(line again)" "ok ok ok ok"
check_eq "while the disk fails write(2) says so itself" "$(line through)" "EIO EIO"
check_eq "and keeps nothing, bytes" "$(line kept)" 0
check_eq "what it took is below before it returns" "$(line below)" "yes ok ok"
check_eq "close says EIO when nobody asked before" "$(line close)" "EIO"
check_eq "an error nobody heard of is for those who open next" "$(line late)" "EIO EIO"
check_eq "msync says EIO once, and so does fsync of others" "$(line msync)" "EIO ok EIO ok"
check_eq "syncfs says it once" "$(line syncfs)" "EIO ok"
check_eq "another file is not concerned" "$(line good)" "ok ok"
check_eq "nor a new one" "$(line new)" "ok ok"
check_ge "errors are counted" "$(pstat errors)" 3
check_eq "with their bytes" "$(pstat lost_bytes)" $((2 * 1048576 + 2 * 4096))
daemon=${PACEFS_PID[$mnt]}
check "umount" umount "$mnt"
check "a word of the loss is left for who waits for the daemon" rm "/run/pacefs/lost-$daemon"
pacefs_wait "$mnt" || fail "the daemon's end" "see above"
check_eq "the daemon exits 1" "$PACEFS_STATUS" 1
check "and has named the file" grep -q 'usb/bad' <(pacefs_log "$mnt")
check "and the bytes" grep -Eq 'bad.*(0x100000|1048576|1\.0 MB)' <(pacefs_log "$mnt")
check_fails "and no other file" grep -Eq 'usb/(good|d)' <(pacefs_log "$mnt")
check "and how much in how many" grep -q "$((2 * 1048576 + 2 * 4096)) bytes in 1 files" <(pacefs_log "$mnt")
check_le "and says that it fails or recovers once each time" \
	"$(pacefs_log "$mnt" | grep -Ec 'succeed again')" 12
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
import os, sys
from ask import result, tell
mnt, ctl = sys.argv[1:3]
fd = os.open(mnt + "/bad", os.O_RDWR)
os.pwrite(fd, b"part", 100) # a part of a page: the rest must be read first
with open("/proc/sys/vm/drop_caches", "w") as f:
    f.write("1")
tell(ctl, "reio=1")
print(result(os.fsync, fd))
tell(ctl, "reio=0")
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

# ---- no room below, although there was some when it was accepted ----

source_up usb ext4 100M 0 || exit 1
pacefs_start "$src" "$mnt" dirty_background_centisecs=0,dirty_centisecs=0 -f || exit 1
cat >"$TEST_DIR/full.py" <<'END'
import os, sys, time
import ask
from ask import result
mnt, src = sys.argv[1:3]
def stat(key):
    return ask.stat(mnt, key)
def cpu_ticks():
    with open("/proc/" + stat("daemon_pid") + "/stat") as f:
        return sum(map(int, f.read().rpartition(")")[2].split()[11:13]))
data = os.urandom(1 << 20)
b = os.open(mnt + "/b", os.O_RDWR | os.O_CREAT)
os.pwrite(b, data, 0)
os.fsync(b)
a = os.open(mnt + "/a", os.O_RDWR | os.O_CREAT)
os.pwrite(a, data, 0)
# Somebody else takes all the room below
with open(src + "/other", "wb") as f:
    v = os.statvfs(src)
    os.posix_fallocate(f.fileno(), 0, v.f_bavail * v.f_frsize)
    v = os.statvfs(src)
    try:
        while True:
            f.write(bytes(4096))
            f.flush()
    except OSError:
        pass
print("fsync", result(os.fsync, a), result(os.fsync, a))
print("kept", stat("dirty_bytes"), "lost", stat("lost_bytes"))
print("write", result(os.pwrite, b, data, 0), result(os.pwrite, b, data, 1 << 20),
      result(os.pwrite, a, data, 0))
print("other", result(os.fsync, b))
ticks, tries = cpu_ticks(), int(stat("retries"))
time.sleep(2)
print("busy", cpu_ticks() - ticks, int(stat("retries")) - tries)
os.unlink(src + "/other")
end = time.time() + 15
while stat("dirty_bytes") != "0" and time.time() < end:
    time.sleep(0.05)
print("later", stat("dirty_bytes"), result(os.fsync, a), stat("errors"))
with open("full.data", "wb") as f:
    f.write(data)
END
check "no room: the program ends" timeout 60 python3 "$TEST_DIR/full.py" "$mnt" \
	"$src" >"$TEST_DIR/errors"
cat "$TEST_DIR/errors"
check_eq "no room: fsync says so, as long as it is so" "$(line fsync)" "ENOSPC ENOSPC"
check_between "no room: what was accepted is kept, bytes" "$(line kept | cut -d' ' -f1)" 4096 1048576
check_eq "no room: and not lost" "$(line kept | cut -d' ' -f3)" 0
check_eq "no room: write(2) says so itself, where some is needed" "$(line write)" "ok ENOSPC ENOSPC"
check_eq "no room: fsync of another file is not concerned" "$(line other)" ok
check_le "no room: it is not tried all the time, ticks of the CPU" "$(line busy | cut -d' ' -f1)" 40
check_le "no room: requests tried in vain in 2 s" "$(line busy | cut -d' ' -f2)" 60
check_eq "no room: when there is some it is written" "$(line later)" "0 ok 0"
check "no room: umount, the daemon exits 0" pacefs_stop
check "no room: all is there" cmp full.data "$src/a"
check "no room: and of the other file" cmp full.data "$src/b"
source_down usb

# ---- silence ----

# PACEFS_SILENCE_S: how long
silence=${PACEFS_SILENCE_S:-15}
source_up usb ext4 200M 20000000 || exit 1
pacefs_start "$src" "$mnt" dirty_background_centisecs=20,dirty_centisecs=0,max_bytes=8M -f || exit 1
head -c 30M /dev/urandom >"$TEST_DIR/data"
timeout $((silence + 60)) cp "$TEST_DIR/data" "$mnt/data" &
copy=$!
sleep 0.4
slowdisk_set usb stall=1
timeout $((silence + 60)) sh -c "head -c 5000 '$TEST_DIR/data' >'$mnt/small' && sync '$mnt/small'" &
small=$!
sleep 1.6
first=$(pstat silent_us)
sleep 0.6
second=$(pstat silent_us)
check_ge "the silence is seen, us" "$first" 1000000
check_ge "and grows" "$((second - first))" 400000
sleep $((silence - 2))
check "names still answer" sh -c "timeout 2 stat $mnt/data >/dev/null"
check "status says how long" sh -c "'$PACEFS' status '$mnt' | grep -E 'no answer from .* for [0-9]+ s'"
check_eq "the device is not given up" "$(pstat health)" healthy
check "a copy waits" kill -0 "$copy"
check "fsync too" kill -0 "$small"
slowdisk_set usb stall=0
check "the copy ends" wait "$copy"
check "fsync too" wait "$small"
check_eq "the silence too" "$(pstat silent_us)" 0
check_eq "without errors" "$(pstat errors)" 0
slowdisk_set usb stall=1
cp "$TEST_DIR/data" "$mnt/again" 2>/dev/null &
copy=$!
sleep 0.5
kill -9 "$copy"
wait "$copy" 2>/dev/null
(sleep 3 && slowdisk_set usb stall=0) &
slowdisk_waker=$!
start=$(now_ms)
check "umount" pacefs_stop
check_ge "which has waited, ms" "$(elapsed_ms "$start")" 2000
wait "$slowdisk_waker"
check "nothing is lost" cmp "$TEST_DIR/data" "$src/data"
check "of the small one too" cmp -n 5000 "$TEST_DIR/data" "$src/small"
source_down usb
