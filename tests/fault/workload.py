"""What a sweep does to a mount, and what must hold of it whatever fails inside the daemon.

Every operation either fails with an error or is true: at once through the mount, and on the source
after umount. What fsync acknowledged is there. With status 0 of the daemon all that any write()
acknowledged is there. Nothing here is random, so that the Nth call of one run is that of another.
"""
import ctypes
import errno
import mmap
import os
import stat
import time

LIBC = ctypes.CDLL(None, use_errno=True)
USER = 1000
FLUSH_S = 20  # as much patience as a busy machine needs


def pattern(length, seed):
    """Bytes without a period of a page."""
    unit = bytes((i * 7 + seed * 31 + (i >> 5)) & 0xFF for i in range(4093))
    return (unit * (length // len(unit) + 1))[:length]


def same_where(a, b, mask):
    """Are a and b equal where mask is 0xff? All of one length."""
    if a == b:
        return True
    both = int.from_bytes(a, "little") ^ int.from_bytes(b, "little")
    return both & int.from_bytes(mask, "little") == 0


class File:
    """What is known of one file. Masks have 0xff for bytes that are known."""

    def __init__(self, name, exists, data=b""):
        self.name = name
        self.exists = exists  # True, False, None: unknown
        self.data = bytearray(data)
        self.known = bytearray(b"\xff" * len(data))
        self.good = bytearray(self.known)  # no error was heard since it was written
        self.acked = bytearray(self.known)  # fsync() answered 0 after it was written
        self.size_known = True
        self.suspect = None  # it was read back wrong; whoever asks next must hear of an error
        self.mode = self.owner = self.link = None
        self.xattr = {}

    def resize(self, size):
        for b in (self.data, self.known, self.good, self.acked):
            if size < len(b):
                del b[size:]
        more = size - len(self.data)
        if more > 0:
            self.data += b"\0" * more
            self.known += b"\xff" * more
            self.good += b"\xff" * more
            self.acked += b"\0" * more

    def wrote(self, offset, data):
        end = offset + len(data)
        if not self.size_known and offset > len(self.data):
            self.maybe(len(self.data), offset - len(self.data))
        if end > len(self.data):
            self.resize(end)
        self.data[offset:end] = data
        self.known[offset:end] = self.good[offset:end] = b"\xff" * len(data)
        self.acked[offset:end] = b"\0" * len(data)

    def maybe(self, offset, length):
        """It may have been written or not."""
        end, start = offset + length, min(offset, len(self.data))
        if end > len(self.data):
            self.resize(end)
            self.size_known = False
        for b in (self.known, self.good, self.acked):
            b[start:end] = b"\0" * (end - start)

    def spoil(self):
        self.size_known = False
        for b in (self.known, self.good, self.acked):
            b[:] = b"\0" * len(b)

    def synced(self):
        self.acked[:] = self.good

    def heard_error(self):
        self.suspect = None
        self.good[:] = self.acked

    def differs(self, found, mask, whole):
        """Why found is not what it should be, or None."""
        if whole and self.size_known and len(found) != len(self.data):
            return f"size {len(found)}, not {len(self.data)}"
        size = max(len(self.data), len(found))
        data = bytes(self.data).ljust(size, b"\0")
        mask = bytes(mask).ljust(size, b"\0")
        # what the file lacks is wrong whatever it should be
        if len(found) < size and any(mask[len(found) :]):
            return f"ends at {len(found)}, known bytes follow"
        if same_where(found.ljust(size, b"\0"), data, mask):
            return None
        at = next(i for i in range(size) if mask[i] and found[i] != data[i])
        n = sum(1 for i in range(size) if mask[i] and found[i] != data[i])
        return f"{n} bytes differ, first at {at}: {found[at]:#x}, not {data[at]:#x}"


class Workload:
    """Runs in a process of its own; report() is for the one that judges the source."""

    def __init__(self, root, source_files, short=False, raw=False):
        self.root = root  # a descriptor of the mount's root
        self.files = {f.name: f for f in source_files}
        self.violations = []
        self.errors = []  # (operation, errno name)
        self.short, self.raw = short, raw

    def report(self):
        return self.files, self.violations, self.errors

    # ---- helpers ----

    def wrong(self, text):
        self.violations.append(text)

    def do(self, what, call, *args, **kwargs):
        """(True, result) or (False, errno)"""
        try:
            return True, call(*args, **kwargs)
        except OSError as e:
            self.errors.append((what, errno.errorcode.get(e.errno, str(e.errno))))
            return False, e.errno

    def file(self, name):
        return self.files.setdefault(name, File(name, False))

    def open(self, name, flags, mode=0o644):
        f = self.file(name)
        ok, fd = self.do(f"open {name}", os.open, name, flags, mode, dir_fd=self.root)
        if ok:
            if f.exists is False and not flags & os.O_CREAT:
                self.wrong(f"open of {name} found what is not there")
            if f.exists and flags & os.O_CREAT and flags & os.O_EXCL:
                self.wrong(f"exclusive create of {name}, which is there")
            if flags & os.O_CREAT and not f.exists:
                f.exists = True
                f.__init__(name, True)
            if flags & os.O_TRUNC:
                f.resize(0)
                f.size_known = True
            return f, fd
        if flags & os.O_CREAT and not f.exists:
            f.exists = None
        if flags & os.O_TRUNC:
            f.spoil()
        return f, -1

    def close(self, f, fd):
        if fd < 0:
            return
        if not self.do(f"close {f.name}", os.close, fd)[0]:
            f.heard_error()
        self.nothing_suspect(f, "close")

    def nothing_suspect(self, f, what):
        """The call said that there was no error."""
        if f.suspect:
            self.wrong(f"{f.name}: {f.suspect}, and {what} said nothing")
            f.suspect = None

    def write(self, f, fd, offset, length, seed):
        data = pattern(length, seed)
        while data:
            ok, n = self.do(f"write {f.name}", os.pwrite, fd, data, offset)
            if not ok or n == 0:
                f.maybe(offset, len(data))
                return False
            f.wrote(offset, data[:n])
            data = data[n:]
            offset += n
        return True

    def read_back(self, f, fd):
        """All of it, asked of the daemon."""
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        found = b""
        while True:
            ok, piece = self.do(f"read {f.name}", os.pread, fd, 1 << 20, len(found))
            if not ok:
                return
            if not piece:
                break
            found += piece
        why = f.differs(found, f.good, whole=True)
        f.suspect = why and "read back: " + why

    def check_size(self, f, fd):
        ok, st = self.do(f"fstat {f.name}", os.fstat, fd)
        if ok and f.size_known and st.st_size != len(f.data):
            self.wrong(f"fstat says {f.name} has {st.st_size} bytes, not {len(f.data)}")

    def fsync(self, f, fd, data_only=False):
        call = os.fdatasync if data_only else os.fsync
        if self.do(f"fsync {f.name}", call, fd)[0]:
            f.synced()
            self.nothing_suspect(f, "fsync")
            return True
        f.heard_error()
        return False

    def truncate(self, f, fd, size):
        if self.do(f"truncate {f.name}", os.ftruncate, fd, size)[0]:
            f.resize(size)
        else:
            f.spoil()

    def syncfs(self):
        if LIBC.syncfs(self.root) == 0:
            for f in self.files.values():
                f.synced()
        else:
            self.errors.append(("syncfs", errno.errorcode.get(ctypes.get_errno(), "?")))

    def name_op(self, what, call, *names):
        """The change of names is done (True) or it is not known (False)."""
        ok, _ = self.do(what, call)
        if not ok:
            for name in names:
                self.file(name).exists = None
        return ok

    # ---- what is done ----

    def run(self):
        if self.raw:
            self.raw_device()
            return
        self.small_writes()
        if self.short:
            return
        self.partial_pages()
        self.large_file()
        self.names()
        self.replace()
        self.directory()
        self.attributes()
        self.mapped()
        self.ranges()
        self.other_user()
        self.settings()
        self.unlinked()
        self.left_dirty()
        self.syncfs()
        self.last_writes()

    def small_writes(self):
        f, fd = self.open("small", os.O_CREAT | os.O_EXCL | os.O_RDWR)
        if fd < 0:
            return
        self.write(f, fd, 0, 100, 1)
        self.write(f, fd, 3000, 5000, 2)
        self.write(f, fd, 1000, 4096, 3)
        self.read_back(f, fd)
        self.check_size(f, fd)
        self.fsync(f, fd)
        self.read_back(f, fd)
        self.write(f, fd, 50, 7000, 4)
        self.fsync(f, fd, data_only=True)
        self.close(f, fd)

    def raw_device(self):
        """One file, and its size is what it is."""
        f, fd = self.open("image", os.O_RDWR)
        if fd < 0:
            return
        self.write(f, fd, 100, 5000, 1)
        self.write(f, fd, 20000, 10, 2)
        self.write(f, fd, 500001, 300000, 3)
        self.read_back(f, fd)
        self.fsync(f, fd)
        self.write(f, fd, 700000, 4096, 4)
        self.fsync(f, fd, data_only=True)
        self.check_size(f, fd)
        if self.do("write beyond", os.pwrite, fd, b"x" * 10, len(f.data))[0]:
            self.wrong("written beyond the end of a raw image")
        self.read_back(f, fd)
        self.close(f, fd)
        self.syncfs()
        f, fd = self.open("image", os.O_WRONLY)
        if fd >= 0:
            self.write(f, fd, 300007, 200000, 5)
            self.close(f, fd)

    def partial_pages(self):
        """Pages of which the source has the rest: it is read when they are written."""
        f, fd = self.open("old", os.O_RDWR)
        if fd < 0:
            return
        self.write(f, fd, 20000, 10, 5)
        self.write(f, fd, 40950, 20, 6)
        self.read_back(f, fd)
        self.fsync(f, fd)
        self.write(f, fd, 20005, 10, 7)
        self.fsync(f, fd)
        self.read_back(f, fd)
        self.close(f, fd)

    def large_file(self):
        f, fd = self.open("large", os.O_CREAT | os.O_RDWR)
        if fd < 0:
            return
        self.write(f, fd, 0, 1400000, 8)
        self.do("flush", os.setxattr, self.path(""), "user.pacefs.flush", b"1")
        self.write(f, fd, 700000, 300000, 9)
        self.truncate(f, fd, 1200001)
        self.truncate(f, fd, 1300000)
        self.check_size(f, fd)
        self.write(f, fd, 1250000, 5000, 10)
        self.read_back(f, fd)
        self.fsync(f, fd)
        self.write(f, fd, 1100000, 9000, 11)
        self.fsync(f, fd)
        self.read_back(f, fd)
        self.close(f, fd)

    def path(self, name):
        return f"/proc/self/fd/{self.root}/{name}"

    def names(self):
        def at(call, *args, **kwargs):
            return lambda: call(*args, dir_fd=self.root, **kwargs)

        if self.name_op("mkdir", at(os.mkdir, "dir"), "dir"):
            self.file("dir").exists = True
        if self.name_op("symlink", lambda: os.symlink("to/where", "sym", dir_fd=self.root), "sym"):
            f = self.file("sym")
            f.exists, f.link = True, "to/where"
            ok, text = self.do("readlink", os.readlink, "sym", dir_fd=self.root)
            if ok and text != "to/where":
                self.wrong(f"readlink says {text}")
        if self.name_op("mknod", at(os.mknod, "fifo", stat.S_IFIFO | 0o600), "fifo"):
            self.file("fifo").exists = True
        small = self.file("small")
        if small.exists and self.name_op("link", lambda: os.link(
                "small", "dir/linked", src_dir_fd=self.root, dst_dir_fd=self.root), "dir/linked"):
            self.clone(small, "dir/linked")
        if small.exists and self.name_op("rename", lambda: os.rename(
                "small", "moved", src_dir_fd=self.root, dst_dir_fd=self.root), "small", "moved"):
            self.clone(small, "moved")
            self.file("small").exists = False
        if self.file("fifo").exists and self.name_op("unlink", at(os.unlink, "fifo"), "fifo"):
            self.file("fifo").exists = False
        if self.name_op("mkdir 2", at(os.mkdir, "gone"), "gone"):
            self.file("gone").exists = True
            if self.name_op("rmdir", at(os.rmdir, "gone"), "gone"):
                self.file("gone").exists = False
        for f in list(self.files.values()):
            ok, _ = self.do(f"lstat {f.name}", os.lstat, self.path(f.name))
            if ok and f.exists is False:
                self.wrong(f"{f.name} should not be there")
            if not ok and f.exists and self.errors[-1][1] == "ENOENT":
                self.wrong(f"{f.name} should be there")

    def clone(self, f, name):
        new = File(name, True)
        new.__dict__.update({k: bytearray(v) if isinstance(v, bytearray) else v
                             for k, v in f.__dict__.items()})
        new.name = name
        self.files[name] = new

    def replace(self):
        """As programs save: a new file, synced, moved over the old one."""
        f, fd = self.open("new", os.O_CREAT | os.O_WRONLY)
        if fd < 0:
            return
        self.write(f, fd, 0, 9000, 12)
        synced = self.fsync(f, fd)
        self.close(f, fd)
        if synced and self.name_op("rename over", lambda: os.rename(
                "new", "saved", src_dir_fd=self.root, dst_dir_fd=self.root), "new", "saved"):
            self.clone(f, "saved")
            self.file("new").exists = False

    def directory(self):
        if not self.file("dir").exists:
            return
        made = []
        for i in range(5):
            f, fd = self.open(f"dir/n{i}", os.O_CREAT | os.O_WRONLY)
            self.close(f, fd)
            if fd >= 0:
                made.append(f"n{i}")
        ok, fd = self.do("open dir", os.open, "dir", os.O_RDONLY | os.O_DIRECTORY,
                         dir_fd=self.root)
        if not ok:
            return
        ok, found = self.do("readdir", os.listdir, fd)
        if ok:
            for name in made:
                if name not in found:
                    self.wrong(f"readdir has no {name}")
            for name in found:
                if self.file("dir/" + name).exists is False:
                    self.wrong(f"readdir has {name}")
        self.do("fsync dir", os.fsync, fd)
        os.close(fd)

    def attributes(self):
        f = self.file("old")
        path = self.path("old")
        for name, value in (("user.one", b"1"), ("user.two", b"2" * 300)):
            if self.do("setxattr", os.setxattr, path, name, value)[0]:
                f.xattr[name] = value
                ok, got = self.do("getxattr", os.getxattr, path, name)
                if ok and got != value:
                    self.wrong(f"getxattr {name} says {got}")
            else:
                f.xattr[name] = None
        ok, names = self.do("listxattr", os.listxattr, path)
        if ok:
            for name, value in f.xattr.items():
                if value and name not in names:
                    self.wrong(f"listxattr has no {name}")
        if f.xattr["user.one"]:
            f.xattr["user.one"] = None
            if self.do("removexattr", os.removexattr, path, "user.one")[0]:
                f.xattr["user.one"] = False
        f.mode = 0o640 if self.do("chmod", os.chmod, path, 0o640)[0] else None
        f.owner = USER if self.do("chown", os.chown, path, USER, USER)[0] else None
        when = 1000000007
        if self.do("utime", os.utime, path, (when, when))[0]:
            ok, st = self.do("stat", os.stat, path)
            if ok and int(st.st_mtime) != when:
                self.wrong(f"utime: mtime is {st.st_mtime}")
        ok, st = self.do("stat", os.stat, path)
        if ok and f.mode and stat.S_IMODE(st.st_mode) != f.mode:
            self.wrong(f"chmod: mode is {st.st_mode:o}")

    def mapped(self):
        f, fd = self.open("mapped", os.O_CREAT | os.O_RDWR)
        if fd < 0:
            return
        if not self.write(f, fd, 0, 40000, 13):
            self.close(f, fd)
            return
        ok, m = self.do("mmap", mmap.mmap, fd, 40000)
        if ok:
            data = pattern(9000, 14)
            child = os.fork()
            if child == 0:
                m[5000:14000] = data
                os._exit(0)
            # A page that cannot be had kills who touches it, and that is an error told.
            if os.waitpid(child, 0)[1] == 0 and self.do("msync", m.flush)[0]:
                f.wrote(5000, data)
                self.fsync(f, fd)
            else:
                f.maybe(5000, 9000)
                f.heard_error()
            m.close()
        self.close(f, fd)

    def ranges(self):
        f, fd = self.open("ranges", os.O_CREAT | os.O_RDWR)
        if fd < 0:
            return
        self.write(f, fd, 0, 100000, 15)
        if self.do("fallocate", os.posix_fallocate, fd, 50000, 100000)[0]:
            f.resize(150000)
        else:
            f.size_known = False
        hole = LIBC.fallocate(fd, 3, ctypes.c_long(8192), ctypes.c_long(16384))
        if hole == 0:
            f.wrote(8192, b"\0" * 16384)
        else:
            f.maybe(8192, 16384)
        self.read_back(f, fd)
        ok, at = self.do("seek", os.lseek, fd, 4096, os.SEEK_DATA)
        if ok and at != 4096 and all(f.good[4096:8192]):
            f.suspect = f"SEEK_DATA from 4096 says {at}"
        ok, at = self.do("seek", os.lseek, fd, 0, os.SEEK_HOLE)
        if ok and at < 8192 and all(f.good[:8192]):
            f.suspect = f"SEEK_HOLE says {at}"
        synced = self.fsync(f, fd)
        self.close(f, fd)
        f, fd = self.open("ranges", os.O_RDONLY)
        g, copy = self.open("copy", os.O_CREAT | os.O_RDWR)
        if fd >= 0 and copy >= 0 and synced:
            ok, n = self.do("copy_file_range", os.copy_file_range, fd, copy, 30000, 0, 0)
            if ok:
                if all(f.good[:n]):
                    g.wrote(0, bytes(f.data[:n]))
                else:
                    g.spoil()
            else:
                g.maybe(0, 30000)
            self.read_back(g, copy)
        self.close(g, copy)
        self.close(f, fd)

    def other_user(self):
        """A file that another user makes is that user's."""
        os.setegid(USER)
        os.seteuid(USER)
        f, fd = self.open("open/theirs", os.O_CREAT | os.O_RDWR)
        if fd >= 0:
            f.owner = USER
            self.write(f, fd, 0, 5000, 16)
            self.close(f, fd)
        if self.name_op("mkdir theirs", lambda: os.mkdir(
                "open/theirdir", dir_fd=self.root), "open/theirdir"):
            self.file("open/theirdir").exists = True
            self.file("open/theirdir").owner = USER
        g, fd = self.open("closed/theirs", os.O_CREAT | os.O_RDWR)
        if fd >= 0:
            self.wrong("another user made a file where they may not")
            os.close(fd)
        g.exists = False
        os.seteuid(0)
        os.setegid(0)

    def settings(self):
        root = self.path("")
        name = "user.pacefs.dirty_background_centisecs"
        if self.do("set", os.setxattr, root, name, b"50")[0]:
            ok, value = self.do("get", os.getxattr, root, name)
            if ok and value.split()[0] != b"50":
                self.wrong(f"{name} is {value}")
        if self.do("flush", os.setxattr, root, "user.pacefs.flush", b"1")[0]:
            self.flush_ends(root)
        self.do("stats", os.getxattr, root, "user.pacefs.stats")
        self.do("statvfs", os.statvfs, root)

    def flush_ends(self, root):
        """Of three numbers the first are flushes started and done."""
        end = time.monotonic() + FLUSH_S
        while time.monotonic() < end:
            ok, text = self.do("flush?", os.getxattr, root, "user.pacefs.flush")
            if not ok or text.split()[0] == text.split()[1]:
                return
            time.sleep(0.005)
        self.wrong("a flush does not end")

    def unlinked(self):
        """Written, deleted while open, written again."""
        f, fd = self.open("deleted", os.O_CREAT | os.O_RDWR)
        if fd < 0:
            return
        self.write(f, fd, 0, 20000, 17)
        if self.name_op("unlink open", lambda: os.unlink("deleted", dir_fd=self.root), "deleted"):
            f.exists = False
        self.write(f, fd, 10000, 20000, 18)
        self.read_back(f, fd)
        self.fsync(f, fd)
        self.close(f, fd)
        g, fd = self.open("short-lived", os.O_CREAT | os.O_WRONLY)
        if fd >= 0:
            self.write(g, fd, 0, 20000, 19)
            self.close(g, fd)
            if self.name_op("unlink", lambda: os.unlink("short-lived", dir_fd=self.root),
                            "short-lived"):
                g.exists = False

    def left_dirty(self):
        """Truncated by open, and written."""
        f, fd = self.open("moved", os.O_WRONLY | os.O_TRUNC)
        linked = self.file("dir/linked")
        linked.spoil()  # the same file
        if fd >= 0:
            self.write(f, fd, 0, 6000, 20)
            self.close(f, fd)

    def last_writes(self):
        """Nobody syncs these: umount does."""
        for i in range(3):
            f, fd = self.open(f"last{i}", os.O_CREAT | os.O_RDWR)
            if fd < 0:
                continue
            self.write(f, fd, 0, 30000 + i, 21 + i)
            if i == 1:
                self.truncate(f, fd, 20000)
            self.close(f, fd)


# ---- the source ----


def source_files(root, raw=False):
    """Makes what is there before, and says what it is."""
    os.umask(0o022)
    if raw:
        data = pattern(1 << 20, 98)
        with open(f"{root}/image", "wb") as out:
            out.write(data)
        return [File("image", True, data)]
    data = pattern(65536, 99)
    with open(f"{root}/old", "wb") as out:
        out.write(data)
    os.mkdir(f"{root}/open")
    os.chmod(f"{root}/open", 0o777)
    os.mkdir(f"{root}/closed")
    return [File("old", True, data), File("open", True), File("closed", True)]


def read_source(path):
    with open(path, "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return f.read()


def judge_file(root, f, status):
    path = f"{root}/{f.name}"
    there = os.path.lexists(path)
    if f.exists is not None and there != f.exists:
        return f"{f.name} {'is' if there else 'is not'} on the source"
    if not there or f.exists is None:
        return None
    st = os.lstat(path)
    if f.owner is not None and st.st_uid != f.owner:
        return f"{f.name} belongs to {st.st_uid}, not {f.owner}"
    if f.mode is not None and stat.S_IMODE(st.st_mode) != f.mode:
        return f"{f.name} has mode {st.st_mode:o}, not {f.mode:o}"
    if f.link is not None and os.readlink(path) != f.link:
        return f"{f.name} leads to {os.readlink(path)}"
    if not stat.S_ISREG(st.st_mode):
        return None
    for name, value in f.xattr.items():
        if value is not None:
            found = os.getxattr(path, name) if name in os.listxattr(path) else False
            if found != value:
                return f"{f.name}: {name} is {found} on the source"
    found = read_source(path)
    why = f.differs(found, f.acked, whole=False)
    if why:
        return f"{f.name}, acknowledged by fsync: {why}"
    if status == 0:
        why = f.differs(found, f.known, whole=True)
        if why:
            return f"{f.name}, though the daemon exited 0: {why}"
    return None


def judge_source(root, files, status):
    found = (judge_file(root, f, status) for f in files.values())
    return [why for why in found if why]
