#!/bin/bash
# What programs expect of a filesystem beside its data: times, names, handles, owners, permissions,
# extended attributes, special files, holes; while files are dirty, and in the source after umount.
# timeout: 180
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt
nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
# What is written stays dirty until somebody asks for it: no limit, no age.
lazy=dirty_background_centisecs=0,dirty_centisecs=0,dirty_writeback_centisecs=0

# py NAME CODE: a check in Python, in the mount, with os, the helpers of helpers.py
py() {
	check "$1" python3 -c "from helpers import *
os.chdir('$mnt')
$2"
}

mkdir -p "$TEST_DIR/lib"
cat >"$TEST_DIR/lib/helpers.py" <<'END'
import ctypes, errno, fcntl, mmap, os, stat, struct, subprocess, sys, time

libc = ctypes.CDLL(None, use_errno=True)
HOUR = 3600 * 10**9

def fails(number, call, *args, **kw):
    try:
        call(*args, **kw)
    except OSError as e:
        if e.errno != number:
            raise
        return
    raise AssertionError("no error %s" % errno.errorcode[number])

def equal(got, want):
    assert got == want, "got %r, want %r" % (got, want)

def put(name, data, flags=0, mode=0o644):
    fd = os.open(name, os.O_RDWR | os.O_CREAT | flags, mode)
    os.write(fd, data)
    return fd

def text(name):
    with open(name, "rb") as f:
        return f.read()

def call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def renameat2(old, new, flags):
    call(libc.renameat2(-100, old.encode(), -100, new.encode(), flags))

def fallocate(fd, mode, offset, length):
    call(libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)))

def handle_of(name):
    """What NFS keeps of a file."""
    h = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136)
    mount = ctypes.c_int()
    call(libc.name_to_handle_at(-100, name.encode(), h, ctypes.byref(mount), 0))
    return h

def open_handle(h, flags=os.O_RDONLY):
    at = os.open(".", os.O_RDONLY)
    try:
        return call(libc.open_by_handle_at(at, h, flags))
    finally:
        os.close(at)

def forget_all():
    """The kernel forgets all it need not know."""
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("2")

def stats():
    return dict(line.split(": ", 1) for line in
                os.getxattr(".", "user.pacefs.stats").decode().splitlines() if ": " in line)

def disk(line):
    with open(os.environ['CTL'], 'a') as f:
        f.write(line + '\n')

def sync_all():
    call(libc.syncfs(os.open('.', os.O_RDONLY))) # sync(2) would wait for others' disks too

def unwritten():
    s = stats()
    return int(s["dirty_bytes"]) + int(s["writeback_bytes"])

def settles(condition, seconds=5):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end, "did not settle"
        time.sleep(0.02)
END
export PYTHONPATH=$TEST_DIR/lib:$PYTHONPATH

export CTL=$SLOWDISK_DIR/usb/ctl
source_up usb ext4 400M 0 || exit 1
pacefs_start "$src" "$mnt" "$lazy" || exit 1

# ---- sizes and times ----

py "size and mtime are right at once" "
before = time.time_ns() - 10**9
fd = put('a', b'x' * 100001)
st = os.stat('a')
equal(st.st_size, 100001)
assert before <= st.st_mtime_ns <= time.time_ns() + 10**6, st
assert st.st_blocks * 512 >= 100001, st
equal(unwritten() > 100000, True)"

py "each write moves mtime and ctime, however fast" "
fd = put('b', b'1')
seen = []
for i in range(200):
    os.pwrite(fd, b'2', i)
    st = os.fstat(fd)
    seen.append((st.st_mtime_ns, st.st_ctime_ns))
assert all(x[0] < y[0] and x[1] < y[1] for x, y in zip(seen, seen[1:]))"

py "the change time never steps back when a file becomes clean" "
fd = put('c', b'1')
last = 0
for i in range(60):
    os.pwrite(fd, b'2', i)
    for j in range(3):
        now = os.fstat(fd).st_ctime_ns
        assert now >= last, (i, j, now, last)
        last = now
        if j == 0:
            os.fsync(fd)"

py "a time set by hand survives what is written after it was set" "
fd = put('hand', b'x' * 50000)
os.utime('hand', ns=(5 * HOUR, 12345 * HOUR + 678901234))
os.close(fd)
equal(os.stat('hand').st_mtime_ns, 12345 * HOUR + 678901234)
fd = os.open('hand', os.O_RDWR)
os.fsync(fd)
equal(os.stat('hand').st_mtime_ns, 12345 * HOUR + 678901234)
equal(os.stat('hand').st_atime_ns, 5 * HOUR)"

py "but a later write goes over it" "
fd = put('hand2', b'x' * 50000)
os.utime('hand2', ns=(0, 5 * HOUR))
os.pwrite(fd, b'y', 3)
assert os.stat('hand2').st_mtime_ns > time.time_ns() - 10**10
os.fsync(fd)
assert os.stat('hand2').st_mtime_ns > time.time_ns() - 10**10"

py "truncate moves mtime, up, down and in place" "
fd = put('t', b'x' * 10000)
for size in 5000, 20000, 20000, 0:
    os.utime('t', ns=(0, 5 * HOUR))
    os.truncate('t', size)
    st = os.stat('t')
    equal(st.st_size, size)
    assert st.st_mtime_ns > time.time_ns() - 10**10
    os.fsync(fd)
    equal((os.stat('t').st_size, os.stat('$src/t').st_size), (size, size))"

py "cut, written far behind, cut between" "
sync_all()
fd = put('cut', b'x' * 200000)
disk('stall=1') # the writes in flight keep the cuts waiting
try:
    os.setxattr('.', 'user.pacefs.flush', b'1')
    settles(lambda: int(stats()['writeback_bytes']) > 0)
    os.ftruncate(fd, 10000)
    os.pwrite(fd, b'y' * 10, 150000)
    os.ftruncate(fd, 100000)
    equal(os.fstat(fd).st_size, 100000)
finally:
    disk('stall=0')
os.fsync(fd)
equal(os.stat('$src/cut').st_size, 100000)
equal(os.fstat(fd).st_size, 100000)
equal(os.pread(fd, 200000, 0), b'x' * 10000 + bytes(90000))"

py "a file cut below the source's end and grown again shows no old bytes" "
fd = put('grow', b'x' * 200000)
os.fsync(fd)
os.ftruncate(fd, 1000)
os.ftruncate(fd, 5000)
os.pwrite(fd, b'z', 150000)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
equal(os.pread(fd, 200000, 0), b'x' * 1000 + bytes(149000) + b'z')
os.fsync(fd)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
equal(os.pread(fd, 200000, 0), b'x' * 1000 + bytes(149000) + b'z')"

py "O_TRUNC, O_APPEND by two" "
a = put('app', b'old old old')
b = os.open('app', os.O_WRONLY | os.O_TRUNC | os.O_APPEND)
equal(os.fstat(a).st_size, 0)
c = os.open('app', os.O_WRONLY | os.O_APPEND)
for i in range(50):
    os.write(b, b'b%02d' % i)
    os.write(c, b'c%02d' % i)
equal(text('app'), b''.join(b'b%02dc%02d' % (i, i) for i in range(50)))"

py "direct I/O of the caller meets buffered pages" "
fd = put('direct', b'x' * 12300)
d = os.open('direct', os.O_RDWR | os.O_DIRECT)
m = mmap.mmap(-1, 8192)
m[:] = b'd' * 8192
os.pwrite(d, m, 4096)
equal(os.pread(fd, 20000, 0), b'x' * 4096 + b'd' * 8192 + b'x' * 12)
equal(os.preadv(d, [m], 8192), 4108)
equal(m[:4108], b'd' * 4096 + b'x' * 12)"

py "mapped writes" "
fd = put('map', bytes(10000))
m = mmap.mmap(fd, 10000)
m[5000:5003] = b'abc'
m.flush()
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
equal(os.pread(fd, 5, 4999), b'\\0abc\\0')
os.fsync(fd)
equal(os.fstat(fd).st_size, 10000)"

py "a file larger than the source can hold is refused at once" "
fd = put('huge', b'x')
fails(errno.EFBIG, os.pwrite, fd, b'x', 17 << 40)
fails(errno.EFBIG, os.ftruncate, fd, 17 << 40)
equal(os.fstat(fd).st_size, 1)"

# ---- names ----

py "renamed while dirty, over another that is dirty" "
put('r1', b'one')
fd = put('r2', b'two')
os.rename('r1', 'r2')
equal(text('r2'), b'one')
fails(errno.ENOENT, os.stat, 'r1')
equal(os.pread(fd, 10, 0), b'two')
equal(os.fstat(fd).st_nlink, 0)"

py "exchange, and no replacing" "
put('e1', b'one'); put('e2', b'two')
renameat2('e1', 'e2', 2)
equal((text('e1'), text('e2')), (b'two', b'one'))
fails(errno.EEXIST, renameat2, 'e1', 'e2', 1)
equal((text('e1'), text('e2')), (b'two', b'one'))"

py "a deleted file is dropped unwritten" "
sync_all()
equal(unwritten(), 0)
before = int(stats()['written_bytes'])
os.close(put('gone', b'x' * 3000000))
equal(unwritten() >= 3000000, True)
os.unlink('gone')
settles(lambda: unwritten() == 0)
equal(int(stats()['written_bytes']), before)"

py "a deleted file lives while it is open" "
fd = put('open', b'x' * 100000)
os.unlink('open')
forget_all()
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
equal(os.pread(fd, 200000, 0), b'x' * 100000)
os.fsync(fd)
os.pwrite(fd, b'y', 200000)
os.ftruncate(fd, 50000)
st = os.fstat(fd)
equal((st.st_size, st.st_nlink), (50000, 0))
again = os.open('/proc/self/fd/%d' % fd, os.O_RDONLY)
os.close(fd)
equal(os.pread(again, 200000, 0), b'x' * 50000)"

py "a deleted file is whole for one who opens it late" "
fd = put('late', b'x' * 100000)
path = os.open('late', os.O_PATH)
os.close(fd)
os.unlink('late')
time.sleep(0.2)
fd = os.open('/proc/self/fd/%d' % path, os.O_RDONLY)
equal(os.pread(fd, 200000, 0), b'x' * 100000)"

py "a deleted directory lives while it is somebody's" "
os.mkdir('d')
os.chdir('d')
os.rmdir('../d')
equal(os.stat('.').st_mode & 0o170000, stat.S_IFDIR)
equal(os.listdir('.'), [])
fails(errno.ENOENT, open, 'x', 'w')"

py "hard links are one file" "
fd = put('h1', b'x' * 5000)
os.link('h1', 'h2')
os.write(fd, b'y')
a, b = os.stat('h1'), os.stat('h2')
equal((a.st_ino, a.st_size, a.st_nlink, b.st_nlink), (b.st_ino, 5001, 2, 2))
os.unlink('h1')
equal(text('h2'), b'x' * 5000 + b'y')
fails(errno.EEXIST, os.link, 'h2', 'a')"

py "symbolic links" "
os.symlink('a', 'link')
equal((os.readlink('link'), os.lstat('link').st_size), ('a', 1))
equal(os.stat('link').st_ino, os.stat('a').st_ino)
os.symlink('x' * 1000, 'long')
equal(os.readlink('long'), 'x' * 1000)
os.utime('link', ns=(HOUR, HOUR), follow_symlinks=False)
equal(os.lstat('link').st_mtime_ns, HOUR)
os.chown('link', 5, 6, follow_symlinks=False)
equal((os.lstat('link').st_uid, os.stat('a').st_uid), (5, 0))
equal(os.listxattr('link', follow_symlinks=False), [])
os.link('link', 'link2', follow_symlinks=False)
equal(os.readlink('link2'), 'a')"

py "special files" "
os.mkfifo('fifo', 0o640)
os.mknod('null', 0o666 | stat.S_IFCHR, os.makedev(1, 3))
os.mknod('sock', 0o600 | stat.S_IFSOCK)
equal(stat.filemode(os.stat('fifo').st_mode), 'prw-r-----')
equal((os.stat('null').st_rdev, stat.S_ISCHR(os.stat('null').st_mode)), (os.makedev(1, 3), True))
equal(stat.S_ISSOCK(os.stat('sock').st_mode), True)
fd = os.open('fifo', os.O_RDWR)
os.write(fd, b'through')
equal(os.read(fd, 10), b'through')"

py "errors of names" "
os.mkdir('dir'); put('dir/x', b'')
fails(errno.ENOTEMPTY, os.rmdir, 'dir')
fails(errno.ENOTDIR, os.rmdir, 'a')
fails(errno.ENOTDIR, os.stat, 'a/x')
fails(errno.ENOENT, os.rename, 'nothing', 'x')
fails(errno.EINVAL, os.rename, 'dir', 'dir/y')
fails(errno.ENAMETOOLONG, os.stat, 'x' * 256)
fails(errno.EEXIST, os.mkdir, 'dir')
fails(errno.ELOOP, os.open, 'link', os.O_RDONLY | os.O_NOFOLLOW)"

# ---- directories ----

py "a large directory, read in pieces while names go" "
os.mkdir('big')
for i in range(3000):
    os.mknod('big/%04d' % i)
seen = []
with os.scandir('big') as it:
    for n, e in enumerate(it):
        seen.append(e.name)
        equal(e.inode(), os.stat('big/' + e.name).st_ino) if n % 100 == 0 else None
        os.unlink('big/' + e.name)
equal((len(seen), len(set(seen))), (3000, 3000))
equal(os.listdir('big'), [])
os.rmdir('big')"

py "positions in a directory hold" "
os.mkdir('pos')
for i in range(2000):
    os.mknod('pos/%04d' % i)
class Dirent(ctypes.Structure):
    _fields_ = [('ino', ctypes.c_uint64), ('off', ctypes.c_int64), ('len', ctypes.c_uint16),
                ('type', ctypes.c_uint8), ('name', ctypes.c_char * 256)]
libc.opendir.restype = ctypes.c_void_p
libc.readdir.restype = ctypes.POINTER(Dirent)
libc.telldir.restype = ctypes.c_long
d = ctypes.c_void_p(libc.opendir(b'pos'))
def rest():
    names = []
    while (e := libc.readdir(d)):
        names.append(e.contents.name)
    return names
first = [libc.readdir(d).contents.name for i in range(700)]
at = libc.telldir(d)
second = rest()
equal(len(set(first + second)), 2002)
libc.seekdir(d, ctypes.c_long(at))
equal(rest(), second)
libc.rewinddir(d)
equal(rest(), first + second)
os.mknod('pos/new')
libc.rewinddir(d)
equal(len(rest()), 2003)"

mkdir "$src/many"
(cd "$src/many" && seq -f 'f%.0f' 9500 | xargs touch)
check_eq "many files" "$(find "$mnt/many" -type f -size 0 | wc -l)" 9500
check_le "do not each keep a descriptor" \
	"$(ls "/proc/${PACEFS_PID[$mnt]}/fd" | wc -l)" 8600
rm -r "$src/many"

# ---- handles: what an NFS server keeps ----

py "handles lead back after the kernel has forgotten" "
os.mkdir('nfs'); os.mkdir('nfs/sub')
fd = put('nfs/sub/f', b'by handle')
os.close(fd)
f, s, root = handle_of('nfs/sub/f'), handle_of('nfs/sub'), handle_of('.')
ino = os.stat('nfs/sub/f').st_ino
for i in range(3):
    forget_all()
    fd = open_handle(f, os.O_RDWR)
    equal((os.pread(fd, 20, 0), os.fstat(fd).st_ino), (b'by handle', ino))
    os.close(fd)
    forget_all()
    fd = open_handle(s, os.O_RDONLY | os.O_DIRECTORY)
    equal(os.readlink('/proc/self/fd/%d' % fd), '$mnt/nfs/sub')
    equal(os.listdir(fd), ['f'])
    equal(os.stat('..', dir_fd=fd).st_ino, os.stat('nfs').st_ino)
    os.close(fd)
    fd = open_handle(root, os.O_RDONLY | os.O_DIRECTORY)
    equal(os.fstat(fd).st_ino, os.stat('.').st_ino)
    os.close(fd)"

py "handles hold over a rename, and of dirty files" "
os.close(put('nfs/g', b'dirty'))
g = handle_of('nfs/g')
os.rename('nfs/g', 'nfs/sub/g')
forget_all()
fd = open_handle(g)
equal(os.pread(fd, 20, 0), b'dirty')"

py "a handle of a deleted file is stale" "
os.close(put('nfs/h', b'gone'))
h = handle_of('nfs/h')
os.unlink('nfs/h')
forget_all()
fails(errno.ESTALE, open_handle, h)
os.close(put('nfs/h', b'another'))
forget_all()
fails(errno.ESTALE, open_handle, h)
fd = put('nfs/i', b'open')
i = handle_of('nfs/i')
os.unlink('nfs/i')
equal(os.pread(fd, 20, 0), b'open')"

# ---- owners and permissions ----

mkdir -m 1777 "$mnt/tmp"
mkdir -m 2777 "$mnt/setgid"
chgrp 1234 "$mnt/setgid"
mkdir -m 700 "$mnt/private"
# in the mount: the way to it is not open to nobody
as_nobody() {
	(cd "$mnt" && umask 027 && "${nobody[@]}" "$@")
}
check "nobody may make a file" as_nobody sh -c 'echo x >tmp/f && mkdir tmp/d'
check_eq "which is nobody's, by nobody's umask" "$(stat -c '%u %g %a' "$mnt/tmp/f" "$mnt/tmp/d" |
	tr '\n' ' ')" "65534 65534 640 65534 65534 750 "
check "in a setgid directory" as_nobody sh -c \
	'echo x >setgid/f && mkdir setgid/d && ln -s x setgid/l'
check_eq "the group is the directory's" \
	"$(stat -c '%u %g %a' "$mnt"/setgid/[df] | tr '\n' ' ')" \
	"65534 1234 2750 65534 1234 640 "
touch "$mnt/tmp/root"
check_fails "not in others' directories" as_nobody sh -c 'echo x >private/f' 2>/dev/null
check_fails "nor see them" as_nobody ls private 2>/dev/null
check_fails "nor delete others' files in a sticky one" as_nobody rm -f tmp/root 2>/dev/null
check "but write what is nobody's" as_nobody sh -c 'echo y >>tmp/f && chmod 600 tmp/f'
check_fails "nor give it away" as_nobody chown 0 tmp/f 2>/dev/null
check_fails "nor set others' times" as_nobody touch -d 2001-01-01 a 2>/dev/null

# POSIX ACLs as their xattrs: version 2, then (tag, permissions, id)
py "a default ACL goes before the umask" "
def acl(*entries):
    return struct.pack('<I', 2) + b''.join(struct.pack('<HHI', *e) for e in entries)
none = 0xffffffff
os.mkdir('acl')
os.setxattr('acl', 'system.posix_acl_default', acl((1, 7, none), (2, 6, 65534), (4, 5, none),
    (16, 7, none), (32, 0, none)))
os.umask(0o077)
fd = put('acl/f', b'x', mode=0o666)
os.mkdir('acl/d')
equal(oct(os.stat('acl/f').st_mode & 0o777), oct(0o660))
assert b'' != os.getxattr('acl/d', 'system.posix_acl_default')
subprocess.check_call('${nobody[*]} sh -c \"echo y >>acl/f\"', shell=True)
equal(text('acl/f'), b'xy\\n')
os.chmod('acl/f', 0o600)
equal(subprocess.call('${nobody[*]} sh -c \"echo y >>acl/f\" 2>/dev/null', shell=True), 2)
os.setxattr('acl/f', 'system.posix_acl_access', acl((1, 6, none), (4, 4, none), (32, 4, none)))
equal(oct(os.stat('acl/f').st_mode & 0o777), oct(0o644))"

py "set-group-id goes with an ACL set by one who is not in the group" "
acl = struct.pack('<I', 2) + b''.join(struct.pack('<HHI', *e) for e in
    ((1, 7, 0xffffffff), (4, 5, 0xffffffff), (32, 5, 0xffffffff)))
def set_by_nobody(name, groups):
    os.close(put(name, b'x'))
    os.chown(name, 65534, 1234)
    os.chmod(name, 0o2755)
    if os.fork() == 0:
        os.setgroups(groups); os.setgid(65534); os.setuid(65534)
        os.setxattr(name, 'system.posix_acl_access', acl)
        os._exit(0)
    equal(os.wait()[1], 0)
    return oct(os.stat(name).st_mode & 0o7777)
equal(set_by_nobody('g1', []), oct(0o755))
equal(set_by_nobody('g2', [1234]), oct(0o2755))"

py "set-user-id goes with a write of nobody, stays with root's" "
def program(name, mode):
    os.close(put(name, b'#!/bin/sh'))
    os.chown(name, 65534, 65534)
    os.chmod(name, mode)
program('suid', 0o6755)
fd = os.open('suid', os.O_RDWR)
os.write(fd, b'x')
equal(oct(os.stat('suid').st_mode & 0o7777), oct(0o6755))
subprocess.check_call('${nobody[*]} sh -c \"echo x >>suid\"', shell=True)
equal(oct(os.stat('suid').st_mode & 0o7777), oct(0o755))
os.chmod('suid', 0o4755)
subprocess.check_call('${nobody[*]} sh -c \"echo x >>suid\"', shell=True)
equal(oct(os.stat('suid').st_mode & 0o7777), oct(0o755))
program('sgid', 0o2745)
subprocess.check_call('${nobody[*]} sh -c \"echo x >>sgid\"', shell=True)
equal(oct(os.stat('sgid').st_mode & 0o7777), oct(0o2745))
program('suid2', 0o4755)
subprocess.check_call('${nobody[*]} truncate -s 3 suid2', shell=True)
equal(oct(os.stat('suid2').st_mode & 0o7777), oct(0o755))
program('suid3', 0o4755)
subprocess.check_call('${nobody[*]} sh -c \"echo x >suid3\"', shell=True)
equal(oct(os.stat('suid3').st_mode & 0o7777), oct(0o755))
program('suid4', 0o4755)
os.chown('suid4', 1, 1)
equal(oct(os.stat('suid4').st_mode & 0o7777), oct(0o755))"

py "capabilities go with a write of anybody" "
caps = struct.pack('<IIIII', 0x02000001, 1 << 10, 0, 0, 0)
fd = put('caps', b'x')
for i in range(2):
    os.setxattr('caps', 'security.capability', caps)
    equal(os.getxattr('caps', 'security.capability'), caps)
    os.write(fd, b'y')
    fails(errno.ENODATA, os.getxattr, 'caps', 'security.capability')
os.setxattr('caps', 'security.capability', caps)
os.truncate('caps', 1)
fails(errno.ENODATA, os.getxattr, 'caps', 'security.capability')"

# ---- extended attributes ----

py "extended attributes pass through" "
put('x', b'x')
for name in 'user.one', 'trusted.two', 'security.three':
    os.setxattr('x', name, b'v' * 200)
equal(sorted(os.listxattr('x')), ['security.three', 'trusted.two', 'user.one'])
equal(os.getxattr('x', 'user.one'), b'v' * 200)
fails(errno.EEXIST, os.setxattr, 'x', 'user.one', b'', os.XATTR_CREATE)
fails(errno.ENODATA, os.setxattr, 'x', 'user.none', b'', os.XATTR_REPLACE)
fails(errno.ENODATA, os.getxattr, 'x', 'user.none')
os.removexattr('x', 'user.one')
fails(errno.ENODATA, os.removexattr, 'x', 'user.one')
fails(errno.EPERM, os.setxattr, 'null', 'user.one', b'')
equal(os.getxattr('$src/x', 'trusted.two'), b'v' * 200)
before = os.stat('x').st_ctime_ns
os.setxattr('x', 'user.one', b'')
assert os.stat('x').st_ctime_ns > before"

# ---- holes ----

py "of symbolic links too, wherever they are, and not those of what they lead to" "
os.makedirs('links/deep')
text_ = put('links/deep/file', b'x')
for name in 'links/deep/link', 'rootlink':
    os.symlink('file', name)
    os.setxattr(name, 'trusted.l', b'v', follow_symlinks=False)
    equal(os.listxattr(name, follow_symlinks=False), ['trusted.l'])
    fails(errno.EPERM, os.setxattr, name, 'user.l', b'v', follow_symlinks=False)
os.rename('links/deep/link', 'links/moved')
equal(os.getxattr('$src/links/moved', 'trusted.l', follow_symlinks=False), b'v')
equal(os.getxattr('links/moved', 'trusted.l', follow_symlinks=False), b'v')
equal(os.listxattr('links/deep/file'), [])
os.removexattr('links/moved', 'trusted.l', follow_symlinks=False)
equal(os.listxattr('links/moved', follow_symlinks=False), [])
fails(errno.ENODATA, os.getxattr, 'links/moved', 'trusted.l', follow_symlinks=False)"

py "holes: punched, preallocated, found" "
fd = put('holes', b'x' * 1000000)
fallocate(fd, 3, 100000, 500000)
equal(os.pread(fd, 1000001, 0), b'x' * 100000 + bytes(500000) + b'x' * 400000)
os.fsync(fd)
# To a block of the source, of 1 KiB or 4 KiB.
assert 100000 <= os.lseek(fd, 0, os.SEEK_HOLE) <= 102400
assert 598016 <= os.lseek(fd, 200000, os.SEEK_DATA) <= 600000
os.pwrite(fd, b'y', 300000)
equal(os.lseek(fd, 200000, os.SEEK_DATA), 300000 // 4096 * 4096)
equal(os.lseek(fd, 300000, os.SEEK_HOLE), (300000 // 4096 + 1) * 4096)
fails(errno.ENXIO, os.lseek, fd, 1000000, os.SEEK_DATA)
equal(os.lseek(fd, 999999, os.SEEK_HOLE), 1000000)
fallocate(fd, 1, 900000, 500000)
equal(os.fstat(fd).st_size, 1000000)
fallocate(fd, 0, 900000, 500000)
equal(os.fstat(fd).st_size, 1400000)
fails(errno.EOPNOTSUPP, fallocate, fd, 0x08, 0, 4096)"

py "copy_file_range" "
fd, to = put('from', b'c' * 300000), put('to', b't' * 10000)
n = 0
while n < 300000:
    n += os.copy_file_range(fd, to, 300000 - n, n, 5000 + n)
equal(text('to'), b't' * 5000 + b'c' * 300000)"

# ---- and below ----

py "what is seen now" "
def look(top):
    out = []
    for path, dirs, files in os.walk(top):
        dirs.sort()
        for name in sorted(dirs + files):
            st = os.lstat(path + '/' + name)
            out.append((os.path.relpath(path, top), name, st.st_mode, st.st_uid, st.st_gid,
                st.st_nlink, st.st_size if not stat.S_ISDIR(st.st_mode) else 0, st.st_mtime_ns,
                text(path + '/' + name) if stat.S_ISREG(st.st_mode) else None))
    return out
import pickle
if not os.path.exists('$TEST_DIR/seen'):
    pickle.dump(look('$mnt'), open('$TEST_DIR/seen', 'wb'))"
check "umount" pacefs_stop
check "is in the source after umount, times too" python3 -c "
from helpers import *
import pickle
seen = pickle.load(open('$TEST_DIR/seen', 'rb'))
bad = 0
for where, name, mode, uid, gid, nlink, size, mtime, data in seen:
    path = os.path.join('$src', where, name)
    st = os.lstat(path)
    got = (st.st_mode, st.st_uid, st.st_gid, st.st_nlink, st.st_mtime_ns)
    if got != (mode, uid, gid, nlink, mtime) or (data is not None and text(path) != data):
        bad += 1
        print(path, got, (mode, uid, gid, nlink, mtime))
assert not bad and len(seen) > 2000, (bad, len(seen))"

# ---- a slow disk, and writes that queue ----

pacefs_start "$src" "$mnt" max_bytes=2M,max_write=1M || exit 1
py "open(O_TRUNC) never tears a write" "
import random, threading
disk('rate=10000000')
stop, torn, runs = False, [], 0
def fill(i):
    fd = os.open('queue%d' % i, os.O_RDWR | os.O_CREAT)
    n = 0
    while not stop:
        os.pwrite(fd, b'x' * 1048576, (n % 10) << 20)
        n += 1
others = [threading.Thread(target=fill, args=(i,)) for i in range(6)]
[t.start() for t in others]
try:
    time.sleep(1)
    end = time.time() + 8
    while time.time() < end:
        fd = os.open('v', os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        writer = threading.Thread(target=os.pwrite, args=(fd, b'A' * 1048576, 0))
        writer.start()
        time.sleep(random.uniform(0.02, 0.5))
        os.close(os.open('v', os.O_WRONLY | os.O_TRUNC))
        writer.join()
        if text('v') not in (b'', b'A' * 1048576):
            torn.append((len(text('v')), text('v').count(0)))
        os.close(fd)
        runs += 1
finally:
    stop = True
    [t.join() for t in others]
    disk('rate=0')
equal(torn, [])
assert runs >= 3, runs"
check "umount" pacefs_stop

# ---- other sources ----

umount "$src"
for fs in xfs btrfs; do
	source_mkfs usb $fs >/dev/null || exit 1
	pacefs_start "$src" "$mnt" || exit 1
	py "$fs: a clone shares blocks, of dirty files too" "
fd, to = put('from', b'c' * 300000), put('to', b't' * 500000)
equal(os.copy_file_range(fd, to, 300000 // 4096 * 4096, 0, 4096), 300000 // 4096 * 4096)
equal(text('to'), b't' * 4096 + b'c' * (300000 // 4096 * 4096) +
    b't' * (500000 - 4096 - 300000 // 4096 * 4096))"
	py "$fs: deleted files and directories live while open" "
fd = put('open', b'x' * 100000)
os.mkdir('d')
os.unlink('open')
os.chdir('d')
os.rmdir('../d')
forget_all()
equal(os.fstat(fd).st_nlink, 0)
equal(os.pread(fd, 200000, 0), b'x' * 100000)
equal(os.listdir('.'), [])"
	check "$fs: umount" pacefs_stop
	umount "$src"
done
