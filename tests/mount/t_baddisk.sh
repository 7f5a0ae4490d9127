#!/bin/bash
# A disk that fails when it is flushed, at each kind of read, and in two ways at once: nobody is told
# of a success that is none, and all is well again when the disk is.
# timeout: 120
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt
MANUAL=dirty_background_centisecs=0,dirty_centisecs=0

# Without a journal: its own errors would make the whole filesystem read-only
disk_up() {
	slowdisk_up usb 200M 0 || exit 1
	mkfs.ext4 -qF -O ^has_journal -E nodiscard,lazy_itable_init=0 "${DEV[usb]}"
	mkdir -p "$src" && mount "${DEV[usb]}" "$src"
}

# What the programs below have in common
cat >"$TEST_DIR/common.py" <<'END'
import errno, mmap, os, sys, time
from ask import result, syncfs, tell, until_healthy
mnt, ctl = sys.argv[1:3]
def disk(*lines):
    tell(ctl, *lines)
def again(call, *args):
    """A disk that answered nothing at all is looked for every two seconds."""
    end = time.time() + 10
    while result(call, *args) != "ok" and time.time() < end:
        time.sleep(0.1)
def healthy(fd):
    until_healthy(mnt, os.pwrite, fd, b"3", 0)
def forget_cached():
    """What the kernel has, above and below pacefs."""
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3")
END

# program NAME: runs NAME.py, its output in NAME.out
program() {
	PYTHONPATH=$TEST_DIR:$PYTHONPATH timeout 60 python3 "$TEST_DIR/$1.py" "$mnt" "$SLOWDISK_DIR/usb/ctl" \
		>"$TEST_DIR/$1.out" || fail "$1" "it did not end well"
}

line() {
	sed -n "s/^$2 //p" "$TEST_DIR/$1.out"
}

# ended NAME STATUS: umount; the daemon's exit status
ended() {
	umount "$mnt"
	pacefs_wait
	check_eq "$1: the daemon exits" "$PACEFS_STATUS" "$2"
}

# ---- flush ----

disk_up
pacefs_start "$src" "$mnt" $MANUAL -f || exit 1
cat >"$TEST_DIR/flush.py" <<'END'
from common import *
root = os.open(mnt, os.O_RDONLY)
a = os.open(mnt + "/a", os.O_RDWR | os.O_CREAT)
other = os.open(mnt + "/a", os.O_RDONLY)
os.pwrite(a, b"a" * 50000, 0)
disk("feio=1")
print("fsync", result(os.fsync, a))
disk("feio=0")
print("other", result(os.fsync, other))
healthy(a)
os.pwrite(a, b"b" * 4096, 4096)
disk("feio=1")
print("fdatasync", result(os.fdatasync, a))
print("write", result(os.pwrite, a, b"c" * 4096, 8192)) # it goes through, now that it fails
print("syncfs", result(syncfs, root))
disk("feio=0")
for fd in (a, other):
    result(os.fsync, fd)
result(syncfs, root)
print("again", result(os.fsync, a), result(os.fsync, other), result(syncfs, root))
b = os.open(mnt + "/b", os.O_RDWR | os.O_CREAT)
os.pwrite(b, b"d" * 50000, 0)
print("new", result(os.fsync, b), result(os.close, b), result(os.close, a))
END
program flush
check_eq "flush: fsync says EIO" "$(line flush fsync)" EIO
check_eq "flush: to each open file" "$(line flush other)" EIO
check_eq "flush: fdatasync too" "$(line flush fdatasync)" EIO
check_eq "flush: a write after that too" "$(line flush write)" EIO
check_eq "flush: syncfs too" "$(line flush syncfs)" EIO
check_eq "flush: afterwards all is well" "$(line flush again)" "ok ok ok"
check_eq "flush: for new files too" "$(line flush new)" "ok ok ok"
ended flush 1

# The last flush of all is umount's
pacefs_start "$src" "$mnt" $MANUAL -f || exit 1
head -c 100000 /dev/zero >"$mnt/last"
slowdisk_set usb feio=1
ended "flush at umount" 1
check "flush at umount: the log says so" grep -q "sync failed: Input/output error" <(pacefs_log)
slowdisk_set usb feio=0

# ---- reads ----

mkdir "$src/dir" && touch "$src/dir/"{one,two}
head -c 1M /dev/urandom >"$src/data"
setfattr -n user.big -v "$(head -c 900 /dev/zero | tr '\0' x)" "$src/data"
ln -s "$(head -c 1000 /dev/zero | tr '\0' x)" "$src/link"
cp "$src/data" "$TEST_DIR/data.before"
sync -f "$src"
pacefs_start "$src" "$mnt" $MANUAL -f || exit 1
cat >"$TEST_DIR/reads.py" <<'END'
from common import *
fd = os.open(mnt + "/data", os.O_RDWR)
def mapped():
    child = os.fork()
    if child == 0:
        m = mmap.mmap(fd, 1 << 20)
        m[300000]
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        raise OSError(errno.EIO if os.WTERMSIG(status) == 7 else errno.EINVAL, "signal")
reads = {
    "read": lambda: os.pread(fd, 4096, 0),
    "long-read": lambda: os.pread(fd, 1 << 19, 4096),
    "mmap": mapped,
    "part-of-a-page": lambda: (os.pwrite(fd, b"x", 700001), os.fsync(fd)),
    "readdir": lambda: os.listdir(mnt + "/dir"),
    "lookup": lambda: os.stat(mnt + "/dir/two"),
    "xattr": lambda: os.getxattr(mnt + "/data", "user.big"),
    "symlink": lambda: os.readlink(mnt + "/link"),
}
bad = {}
for name, call in reads.items():
    forget_cached()
    disk("reio=1")
    bad[name] = result(call)
    disk("reio=0")
print("bad", " ".join(f"{k}={v}" for k, v in bad.items()))
forget_cached()
again(os.pwrite, fd, b"x", 700001)
print("good", " ".join(f"{k}={result(v)}" for k, v in reads.items()))
END
program reads
for name in read long-read mmap part-of-a-page readdir lookup xattr symlink; do
	check_eq "reading: $name fails" "$(line reads bad | value "$name")" EIO
	check_eq "reading: $name works again" "$(line reads good | value "$name")" ok
done
ended reading 1 # the byte that could not be written
printf x | dd of="$TEST_DIR/data.before" bs=1 seek=700001 conv=notrunc status=none
check "reading: the file is whole" cmp "$TEST_DIR/data.before" "$src/data"

# ---- two at once ----

pacefs_start "$src" "$mnt" $MANUAL -f || exit 1
cat >"$TEST_DIR/two.py" <<'END'
from common import *
cases = [
    ("write+flush", ["weio=1", "feio=1"], ["weio=0", "feio=0"]),
    ("read+write", ["reio=1", "weio=1"], ["reio=0", "weio=0"]),
    ("full+flush", ["enospc=1", "feio=1"], ["enospc=0", "feio=0"]),
    ("read+full", ["reio=1", "enospc=1"], ["reio=0", "enospc=0"]),
]
data = os.open(mnt + "/data", os.O_RDWR)
for number, (name, on, off) in enumerate(cases):
    f = os.open(f"{mnt}/two{number}", os.O_RDWR | os.O_CREAT)
    again(os.pwrite, f, b"1" * 100000, 0)
    os.fsync(f)
    healthy(f)
    os.pwrite(f, b"2" * 100000, 0)
    os.pwrite(data, b"p", 5000 + 8192 * number) # the rest of its page is read first
    forget_cached()
    disk(*on)
    heard = [result(os.fsync, f), result(os.fsync, data)]
    disk(*off)
    again(os.pwrite, f, b"3" * 100000, 0)
    again(os.pwrite, data, b"q", 5000 + 8192 * number)
    print(name, "bad" if "ok" in heard else "heard", result(os.fsync, f), result(os.fsync, data))
    os.close(f)
# silent, and when it speaks again it is an error
f = os.open(f"{mnt}/two4", os.O_RDWR | os.O_CREAT)
healthy(f)
os.pwrite(f, b"3" * 100000, 0)
disk("stall=1")
child = os.fork()
if child == 0:
    os._exit(result(os.fsync, f) != "EIO")
time.sleep(1)
silent = os.waitpid(child, os.WNOHANG)[0] == 0
disk("weio=1", "stall=0")
status = os.waitpid(child, 0)[1]
disk("weio=0")
again(os.pwrite, f, b"3" * 100000, 0)
print("stall+write", "heard" if silent and status == 0 else "bad", result(os.fsync, f), "ok")
END
program two
for name in write+flush read+write full+flush read+full stall+write; do
	check_eq "two at once, $name: heard, and then well" "$(line two "$name")" "heard ok ok"
done
ended "two at once" 1
want=$(head -c 100000 /dev/zero | tr '\0' 3 | sha256sum)
for i in 0 1 2 3 4; do
	check_eq "two at once: what fsync acknowledged is there ($i)" \
		"$(dd if="$src/two$i" iflag=direct bs=1M status=none | sha256sum)" "$want"
done
source_down usb

# ---- one write ----

# The end of a new file goes through the page cache below, which thinks after an error that it has
# been written: the second try must not believe it.
disk_up
pacefs_start "$src" "$mnt" $MANUAL -f || exit 1
cat >"$TEST_DIR/one.py" <<'END'
from common import *
f = os.open(mnt + "/one", os.O_RDWR | os.O_CREAT)
os.pwrite(f, b"1" * 1696, 0)
disk("weio=2")
print("fsync", result(os.fsync, f))
END
program one
check_eq "one write that fails is tried again" "$(line one fsync)" ok
ended "one write" 1 # syncfs(2) remembers the first try
check_eq "and is there" "$(dd if="$src/one" iflag=direct bs=1M status=none | tr -d 1 | wc -c)" 0
source_down usb

# ---- flush of a raw device ----

slowdisk_up usb 64M 0 || exit 1
pacefs_start "${DEV[usb]}" "$mnt" raw,$MANUAL -f || exit 1
cat >"$TEST_DIR/raw.py" <<'END'
from common import *
f = os.open(mnt + "/" + os.listdir(mnt)[0], os.O_RDWR)
os.pwrite(f, b"a" * 50000, 0)
disk("feio=1")
print("fsync", result(os.fsync, f))
disk("feio=0")
print("again", result(os.fsync, f))
END
program raw
check_eq "raw: fsync says EIO" "$(line raw fsync)" EIO
check_eq "raw: afterwards it does not" "$(line raw again)" ok
ended raw 1
