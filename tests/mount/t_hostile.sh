#!/bin/bash
# Nobody gets at more than the source would give him: by invented file handles, by swapping names
# below us while we work, or as another user of the machine.
#
# PACEFS_HOSTILE_S (default 4): how long names are swapped, PACEFS_HOSTILE_HANDLES (default 3000):
# how many handles are tried.
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

disk=$TEST_DIR/usb
src=$disk/share
mnt=$TEST_DIR/mnt
export disk src mnt

mkdir -p "$TEST_DIR/lib" "$mnt"
cat >"$TEST_DIR/lib/hostile.py" <<'END'
import ctypes, errno, fcntl, os, random, stat, struct, sys, time

libc = ctypes.CDLL(None, use_errno=True)
disk, src, mnt = (os.environ[name] for name in ("disk", "src", "mnt"))
CANARY = b"nobody reads this"

def call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def nodeid_of(path):
    """As the daemon makes it: generation and inode number of ext4."""
    fd = os.open(path, os.O_RDONLY)
    generation = struct.unpack("I", fcntl.ioctl(fd, 0x80087601, b"\0" * 8)[:4])[0]
    os.close(fd)
    return generation << 32 | os.stat(path).st_ino

def open_nodeid(nodeid, generation=0, kind=0x81):
    """As an NFS server opens what a client has sent."""
    data = struct.pack("=III", nodeid >> 32, nodeid & 0xffffffff, generation)
    if kind == 0x82: # with the parent
        data += struct.pack("=III", 0, 1, 0)
    h = ctypes.create_string_buffer(struct.pack("Ii", len(data), kind) + data)
    at = os.open(mnt, os.O_RDONLY)
    try:
        return call(libc.open_by_handle_at(at, h, os.O_RDONLY | os.O_NONBLOCK))
    finally:
        os.close(at)

def refused(nodeid, **kw):
    try:
        fd = open_nodeid(nodeid, **kw)
    except OSError as e:
        assert e.errno == errno.ESTALE, e
        return
    raise AssertionError(f"{nodeid:#x} opens {os.readlink(f'/proc/self/fd/{fd}')}")

def forget_all():
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("2")

def seconds(name, default):
    return float(os.environ.get(name, default))
END
export PYTHONPATH=$TEST_DIR/lib:$PYTHONPATH

py() {
	check "$1" timeout 100 python3 -c "from hostile import *
$2"
}

source_up usb ext4 64M 200M || exit 1
mkdir "$src" "$disk/outside" "$src/d"
echo inside | tee "$src/f" >"$src/d/c"
echo "nobody reads this" | tee "$disk/canary" >"$disk/outside/c"

# ---- invented handles ----

pacefs_start "$src" "$mnt" || exit 1

# The source must still know the way to a file: so it is kept open there.
py "the handle of a file is what it is taken for here" "
keep = os.open(src + '/f', os.O_RDONLY)
nodeid = nodeid_of(src + '/f')
for again in range(3):
    forget_all()
    assert os.read(open_nodeid(nodeid), 100) == b'inside\n'"
py "a directory's too" "
forget_all()
assert os.listdir(open_nodeid(nodeid_of(src + '/d'))) == ['c']"
py "not that of a file beside the source" "
keep = os.open(disk + '/canary', os.O_RDONLY)
refused(nodeid_of(disk + '/canary'))
forget_all()
refused(nodeid_of(disk + '/canary'))
os.rename(disk + '/canary', src + '/canary') # it was only for where it is
os.close(open_nodeid(nodeid_of(src + '/canary')))
os.rename(src + '/canary', disk + '/canary')"
py "nor of a directory beside it, above it, or what holds the filesystem together" "
refused(nodeid_of(disk + '/outside'))
assert nodeid_of(disk) == 2 # which is the control file here
st = os.fstat(open_nodeid(2))
assert stat.S_ISREG(st.st_mode) and st.st_size == 0
for ino in list(range(3, 16)) + [0, 0xffffffff, 0x80000000]:
    refused(ino)
    refused(ino | 7 << 32)"
py "nor of a file that was deleted" "
open(src + '/gone', 'w').close()
nodeid = nodeid_of(src + '/gone')
os.close(open_nodeid(nodeid))
os.unlink(src + '/gone')
time.sleep(1.1) # what the kernel may believe
forget_all()
refused(nodeid)"
py "nor a wrong generation, of either kind" "
nodeid = nodeid_of(src + '/f')
keep = os.open(src + '/f', os.O_RDONLY)
os.close(open_nodeid(nodeid))
refused(nodeid, generation=1)
refused(nodeid & 0xffffffff)
refused(nodeid ^ 1 << 40)"
py "any bytes lead nowhere, or to files of the source" "
random.seed(os.environ.get('PACEFS_HOSTILE_SEED', '1'))
inside = {os.stat(p).st_ino for p in (src, src + '/f', src + '/d', src + '/d/c')} | {1, 2}
known = [nodeid_of(p) for p in (src + '/f', src + '/d', disk + '/canary', disk + '/outside')]
found = 0
for i in range(int(seconds('PACEFS_HOSTILE_HANDLES', 3000))):
    nodeid = random.choice((random.getrandbits(64), random.getrandbits(6),
        random.choice(known), random.choice(known) ^ 1 << random.randrange(64)))
    kind = random.choice((0x81, 0x81, 0x81, 0x82, random.getrandbits(8)))
    try:
        fd = open_nodeid(nodeid, random.choice((0, 0, 0, random.getrandbits(32))), kind)
    except OSError as e:
        assert e.errno in (errno.ESTALE, errno.EINVAL, errno.EOPNOTSUPP), e
        continue
    assert os.fstat(fd).st_ino in inside, os.readlink(f'/proc/self/fd/{fd}')
    os.close(fd)
    found += 1
print('found', found)
assert found > 100"

# ---- names swapped below us ----

# Each of many directories is a directory, a symbolic link to the one outside, or away there itself,
# in turns. (Many, because the kernel asks for a name once a second.)
cat >"$TEST_DIR/lib/swap.py" <<'END'
from hostile import *

UNTIL = time.monotonic() + seconds("PACEFS_HOSTILE_S", 4)
AT_FDCWD, RENAME_EXCHANGE = -100, 2
DIRS = 100

def refill(path):
    for name in (path + "/c", src + "/f"):
        with open(name, "w") as f:
            f.write("inside")

def swap(rand):
    linked = [False] * DIRS
    while time.monotonic() < UNTIL:
        i = rand.randrange(DIRS)
        d, link, away = f"{src}/d{i}", f"{src}/l{i}", disk + "/outside/moved"
        if not linked[i]:
            refill(d)
            os.rename(d, away)
            time.sleep(rand.random() / 1000)
            os.rename(away, d)
        call(libc.renameat2(AT_FDCWD, d.encode(), AT_FDCWD, link.encode(), RENAME_EXCHANGE))
        linked[i] = not linked[i]

def work(rand, n):
    mine = f"new{n}"
    ops = [
        lambda d: os.close(os.open(d + "/c", os.O_WRONLY | os.O_TRUNC)),
        lambda d: open(d + "/" + mine, "w").write("x"),
        lambda d: os.mkdir(d + "/" + mine),
        lambda d: os.rmdir(d + "/" + mine),
        lambda d: os.unlink(d + "/" + mine),
        lambda d: os.unlink(d + "/c"),
        lambda d: os.rename(mnt + "/f", d + "/c"),
        lambda d: os.rename(d + "/c", mnt + "/f"),
        lambda d: os.chmod(d + "/c", 0o600),
        lambda d: os.utime(d + "/c", (1, 1)),
        lambda d: os.truncate(d + "/c", 3),
        lambda d: os.setxattr(d + "/c", "user.x", b"1"),
        lambda d: os.link(mnt + "/f", d + "/" + mine),
        lambda d: os.symlink("x", d + "/" + mine),
        lambda d: os.listdir(d),
        # of the name itself
        lambda d: open(d, "w").write("x"),
        lambda d: os.chmod(d, 0o755),
        lambda d: os.utime(d, (1, 1)),
        lambda d: os.setxattr(d, "user.x", b"1"),
    ]
    done = 0
    while time.monotonic() < UNTIL:
        d = f"{mnt}/d{rand.randrange(DIRS)}"
        for op in (rand.choice(ops), None):
            try:
                if op:
                    op(d)
                else:
                    with open(d + "/c", "rb") as f:
                        data = f.read()
                    assert CANARY not in data, "read outside"
                done += 1
            except OSError:
                pass
    print("done", done)
    return done > 100

pids = []
for n in range(4):
    pid = os.fork()
    if pid == 0:
        rand = random.Random(n)
        try:
            os._exit(0 if (swap(rand) if n == 0 else work(rand, n)) is not False else 3)
        except BaseException as e:
            print(f"process {n}: {e!r}", flush=True)
            os._exit(1)
    pids.append(pid)
sys.exit(max(os.waitpid(pid, 0)[1] for pid in pids) != 0)
END

# Followed by the kernel above, the link leads nowhere; followed below, to the canary.
for i in $(seq 0 99); do
	mkdir "$src/d$i"
	ln -s ../outside "$src/l$i"
done
before=$(find "$disk/outside" -printf '%p %s %m %C@ %n\n' | sort | grep -v '/outside ')
check "names are swapped below while files are used" timeout 60 python3 "$TEST_DIR/lib/swap.py"
check_eq "what lies outside is untouched" \
	"$(find "$disk/outside" -printf '%p %s %m %C@ %n\n' | sort | grep -v '/outside ')" "$before"
check "the daemon lives" stat "$mnt/l0"
rm -rf "${src:?}"/*
sleep 1.1

# ---- another user ----

mkdir -m 700 "$mnt/private"
mkdir -m 750 "$mnt/group"
mkdir -m 1777 "$mnt/tmp"
chgrp 4242 "$mnt/group"
echo secret | tee "$mnt/private/s" "$mnt/group/s" >"$mnt/s"
chmod 600 "$mnt/s"
chmod 644 "$mnt/private/s" "$mnt/group/s"
echo shown >"$mnt/acl"
chmod 644 "$mnt/acl"
setfattr -n system.posix_acl_access \
	-v 0x0200000001000600ffffffff02000000feff000004000400ffffffff10000400ffffffff20000400ffffffff \
	"$mnt/acl"
setfattr -n trusted.hidden -v 1 "$mnt/acl"
setfattr -n user.shown -v 1 "$mnt/acl"
nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
member=(setpriv --reuid 65534 --regid 65534 --groups 4242)
settings() {
	timeout 20 "$PACEFS" get "$mnt"
}
as_nobody() {
	(cd "$mnt" && "${nobody[@]}" "$@") 2>/dev/null
}
denied() {
	check_fails "denied: $*" as_nobody "$@"
}
chmod 755 "$mnt"
before=$(settings)
flushes=$(getfattr --only-values -n user.pacefs.flush "$mnt")
for name in $(getfattr -m - "$mnt/.pacefs" 2>/dev/null | sed -n 's/^user.pacefs.//p'); do
	for path in . tmp acl .pacefs; do
		as_nobody setfattr -n "user.pacefs.$name" -v 100 "$path" &&
			fail "denied: set $name on $path" "it was set"
		as_nobody setfattr -x "user.pacefs.$name" "$path" &&
			fail "denied: remove $name of $path" "it was removed"
	done
done
pass "every setting was tried"
denied sh -c 'echo 1 >.pacefs'
denied sh -c 'echo 1 >>.pacefs'
denied truncate -s 0 .pacefs
denied touch .pacefs
denied touch -d @1 .pacefs
denied chmod 666 .pacefs
denied chown 65534 .pacefs
denied rm .pacefs
denied mv .pacefs tmp/x
denied ln .pacefs tmp/x
as_nobody sh -c 'echo x >tmp/mine'
denied mv tmp/mine .pacefs
denied ln tmp/mine .pacefs
denied mkdir .pacefs
denied ln -s x .pacefs
denied mknod .pacefs p
# root must not hide it either
check_fails "root cannot put anything in its place" mv "$mnt/s" "$mnt/.pacefs" 2>/dev/null
check_fails "nor take it away" rm "$mnt/.pacefs" 2>/dev/null
check_eq "no setting changed" "$(settings)" "$before"
check_eq "no flush was begun" "$(getfattr --only-values -n user.pacefs.flush "$mnt")" "$flushes"

check "what everybody may read he may" as_nobody cat tmp/mine
denied cat s
denied cat private/s
denied ls private
denied stat private/s
denied cat group/s
denied cat acl
denied getfattr -n trusted.hidden acl
denied setfattr -n trusted.mine -v 1 tmp/mine
denied setfattr -n security.capability -v 0x0100000200000000000000000000000000000000 tmp/mine
check "a member of the group may" sh -c "cd '$mnt' && ${member[*]} cat group/s >/dev/null"
check_eq "names of attributes: what the source would show to him" \
	"$(cd "$mnt" && "${nobody[@]}" getfattr -m - acl 2>/dev/null | grep -v '^#' | tr -d '\n')" \
	"$(cd "$src" && "${nobody[@]}" getfattr -m - acl 2>/dev/null | grep -v '^#' | tr -d '\n')"
check_eq "root sees all of them" "$(getfattr --absolute-names -m - "$mnt/acl" | grep -c trusted.hidden)" 1

# Whose programs write, and what they write, is theirs.
cp "$(command -v dd)" "$TEST_DIR/secretprogram"
"$TEST_DIR/secretprogram" if=/dev/zero of="$mnt/private/w" bs=64K count=4 2>/dev/null
seen() {
	(cd "$mnt" && "$@" getfattr --only-values -n user.pacefs.stats . |
		grep -c '^writer: secretprogram')
}
check_eq "root sees who writes" "$(seen env)" 1
check_eq "nobody sees that of others" "$(seen "${nobody[@]}")" 0
check "nobody may read the rest" sh -c \
	"cd '$mnt' && ${nobody[*]} getfattr --only-values -n user.pacefs.stats . | grep -q '^dirty_bytes: '"
check "umount" pacefs_stop
