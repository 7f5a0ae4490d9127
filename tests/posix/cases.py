"""cases.py DIR - what random operations have found to differ, each as "name:result". Run on pacefs
and on a plain filesystem, the lines must be the same."""

import ctypes
import os
import stat
import sys
import time

top = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
CAPS = bytes([1, 0, 0, 2, 0x80] + 15 * [0])
KEEP_SIZE = 1


def path(name):
    return os.path.join(top, name)


def as_user(uid, gid, groups, call):
    """What call() returns, or the number of its error, run by another user."""
    end, other = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        try:
            result = call()
        except OSError as e:
            result = f"errno {e.errno}"
        os.write(other, str(result).encode())
        os._exit(0)
    os.close(other)
    result = os.read(end, 1000).decode()
    os.close(end)
    os.waitpid(child, 0)
    return result


def make(name, mode=0o666, data=b"x" * 10000):
    fd = os.open(path(name), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.write(fd, data)
    os.fchmod(fd, mode)
    os.close(fd)
    return path(name)


def mode_of(name):
    return oct(stat.S_IMODE(os.lstat(path(name)).st_mode))


def moves(name, call):
    """Whether call() moves the change time of a file that is not written yet."""
    before = os.stat(path(name)).st_ctime_ns
    time.sleep(0.02)
    call()
    return os.stat(path(name)).st_ctime_ns > before


def whiteout():
    os.chmod(top, 0o777)
    make("w")
    libc.renameat2(-100, path("w").encode(), -100, path("w1").encode(), 0)
    os.chown(path("w1"), 1003, 1003)
    error = as_user(1003, 1003, [], lambda: libc.renameat2(
        -100, path("w1").encode(), -100, path("w2").encode(), 4))
    st = os.lstat(path("w1"))
    return error, st.st_uid, st.st_gid, oct(st.st_mode), st.st_rdev


def xattr_of_link():
    os.symlink("nowhere", path("l"))
    os.setxattr(path("l"), "trusted.a", b"1", follow_symlinks=False)
    try:
        os.setxattr(path("l"), "user.a", b"1", follow_symlinks=False)
        error = 0
    except OSError as e:
        error = e.errno
    return error, os.listxattr(path("l"), follow_symlinks=False)


def caps_stay():
    """Set while the data wait to be written."""
    make("c")
    os.setxattr(path("c"), "security.capability", CAPS)
    fd = os.open(path("c"), os.O_RDWR)
    os.fsync(fd)
    return os.getxattr(path("c"), "security.capability") == CAPS


def caps_go(call):
    make("c")
    os.setxattr(path("c"), "security.capability", CAPS)
    fd = os.open(path("c"), os.O_RDWR)
    call(fd)
    return os.listxattr(path("c"))


def write_as_stranger(mode):
    """One who is not in the file's group."""
    os.chmod(make("s"), mode)
    fd = os.open(path("s"), os.O_RDWR)
    error = as_user(1003, 1003, [], lambda: os.pwrite(fd, b"y", 5))
    return error, mode_of("s")


def write_as_member(mode):
    os.chmod(make("s"), mode)
    os.chown(path("s"), 0, 2000)
    os.chmod(path("s"), mode)
    fd = os.open(path("s"), os.O_RDWR)
    error = as_user(1003, 1003, [2000], lambda: os.pwrite(fd, b"y", 5))
    return error, mode_of("s")


def fallocate_as(uid, mode):
    os.chmod(make("s"), mode)
    fd = os.open(path("s"), os.O_RDWR)
    error = as_user(uid, uid, [], lambda: libc.fallocate(
        fd, 0, ctypes.c_long(0), ctypes.c_long(50000)))
    return error, mode_of("s")


def create_in_group_dir():
    os.chmod(top, 0o777)
    os.mkdir(path("g"))
    os.chown(path("g"), 0, 2000)
    os.chmod(path("g"), 0o2777)
    as_user(1003, 1003, [2000], lambda: os.close(
        os.open(path("g/member"), os.O_CREAT | os.O_WRONLY, 0o2775)))
    as_user(1003, 1003, [], lambda: os.close(
        os.open(path("g/stranger"), os.O_CREAT | os.O_WRONLY, 0o2775)))
    as_user(1003, 1003, [], lambda: os.mkdir(path("g/dir"), 0o700))
    return [(mode_of("g/" + n), os.stat(path("g/" + n)).st_gid)
            for n in ("member", "stranger", "dir")]


def too_large(offset):
    """By a write, truncate, fallocate; and the size afterwards."""
    fd = os.open(make("e"), os.O_RDWR)
    errors = []
    for call in (lambda: os.pwrite(fd, b"12345678", offset),
                 lambda: os.ftruncate(fd, offset + 8),
                 lambda: os.posix_fallocate(fd, offset, 8)):
        try:
            errors.append(call())
        except OSError as e:
            errors.append(e.errno)
        errors.append(os.fstat(fd).st_size)
    os.ftruncate(fd, 0)
    return errors


os.umask(0o022)
for offset in (-8, (1 << 44) - 4096, (1 << 44) - 4, 1 << 44, (1 << 60) + 1, (1 << 63) - 16):
    print(f"at offset {offset}:", too_large(offset))
print("whiteout:", whiteout())
print("xattrs of a symbolic link:", xattr_of_link())
print("capabilities stay:", caps_stay())
print("capabilities go with a write:", caps_go(lambda fd: os.pwrite(fd, b"y", 0)))
print("capabilities go with fallocate:", caps_go(lambda fd: os.posix_fallocate(fd, 0, 50000)))
print("capabilities go with truncate:", caps_go(lambda fd: os.ftruncate(fd, 5)))
for mode in (0o6777, 0o2767, 0o4666):
    print(f"write by a stranger, {mode:o}:", write_as_stranger(mode))
    print(f"write by a member, {mode:o}:", write_as_member(mode))
print("fallocate by a user:", fallocate_as(1003, 0o6777))
print("fallocate by root:", fallocate_as(0, 0o6777))
print("made in a directory of a group:", create_in_group_dir())
make("t")
os.link(path("t"), path("t1"))
print("ctime, xattr set:", moves("t", lambda: os.setxattr(path("t"), "user.a", b"1")))
print("ctime, xattr removed:", moves("t", lambda: os.removexattr(path("t"), "user.a")))
print("ctime, link:", moves("t", lambda: os.link(path("t"), path("t2"))))
print("ctime, unlink:", moves("t", lambda: os.unlink(path("t2"))))
print("ctime, rename:", moves("t", lambda: os.rename(path("t1"), path("t3"))))
print("ctime, rename over:", moves("t", lambda: os.rename(make("u"), path("t3"))))
print("ctime, chmod:", moves("t", lambda: os.chmod(path("t"), 0o600)))
