#!/usr/bin/env python3
"""foreign.py SOURCE MNT CTL - somebody changes the source while it is mounted.

Prints a line per check. CTL: control file of the slow disk. What changed is to be seen within SEEN_S: the kernel asks again after a
second.
"""
import mmap
import os
import shutil
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.environ["PACEFS_REPO"], "tests/lib"))
import ask  # noqa: E402

SEEN_S = 1.1
LONG = 200000


def equal(got, want, *where):
    assert got == want, f"got {got!r:.80}, want {want!r:.80} {where or ''}"


def text(path):
    with open(path, "rb") as f:
        return f.read()


def put(path, data):
    with open(path, "wb") as f:
        f.write(data)


class Test:
    def __init__(self, source, mnt, ctl):
        self.source, self.mnt, self.ctl = source, mnt, ctl
        self.dir = os.open(mnt, os.O_RDONLY)

    def below(self, name):
        return os.path.join(self.source, name)

    def counts(self):
        return [int(ask.stat(".", "foreign_" + key)) for key in ("changes", "collisions")]

    def clean(self, name, data):
        """A file that was written here, is below, and is known to the kernel with its pages."""
        put(name, data)
        ask.syncfs(self.dir)
        equal(text(name), data)
        equal(os.stat(name).st_size, len(data))

    # ---- clean files ----

    def overwritten(self):
        """The same size, another content: seen by the next open, with its time."""
        self.clean("over", b"a" * LONG)
        before = self.counts()
        with open(self.below("over"), "r+b") as f:
            f.write(b"b" * LONG)
        equal(text("over"), b"b" * LONG)  # an open sees it at once
        time.sleep(SEEN_S)
        equal(os.stat("over").st_mtime_ns, os.stat(self.below("over")).st_mtime_ns)
        equal(self.counts(), [before[0] + 1, before[1]])

    def grown_and_cut(self):
        """By stat, in an open file: nothing of the pages of before is left."""
        self.clean("size", b"a" * 5000)
        with open("size", "rb", buffering=0) as f, open("size", "rb") as mapped:
            equal(f.read(5000), b"a" * 5000)
            memory = mmap.mmap(mapped.fileno(), 0, prot=mmap.PROT_READ)
            equal(memory[:], b"a" * 5000)
            for data in b"a" * 5000 + b"b" * 9000, b"c" * 100, b"d" * 6000:
                put(self.below("size"), data)
                time.sleep(SEEN_S)
                st = os.fstat(f.fileno())
                equal((st.st_size, st.st_mtime_ns),
                      (len(data), os.stat(self.below("size")).st_mtime_ns))
                equal(os.pread(f.fileno(), 20000, 0), data)
                equal(memory[:100], data[:100])
            memory.close()

    def followed(self):
        """tail -f: who reads on at the end gets what was added, never zeroes."""
        self.clean("log", b"a" * 5000)
        fd = os.open("log", os.O_RDONLY)
        below = os.open(self.below("log"), os.O_WRONLY | os.O_APPEND)
        equal(os.read(fd, 10000), b"a" * 5000)
        want = have = 0
        end = time.time() + 3.5
        while time.time() < end:
            want += os.write(below, b"line of a log\n")
            got = os.read(fd, 10000)
            assert got.strip(b"line of a log\n") == b"", got
            have += len(got)
            time.sleep(0.02)
        time.sleep(SEEN_S)
        for _ in range(2):  # the first one may only learn of it
            have += len(os.read(fd, 100000))
        equal(have, want)

    def replaced(self):
        """By rename, as a restore does; who has the old one open keeps it."""
        self.clean("replaced", b"old")
        fd = os.open("replaced", os.O_RDONLY)
        put(self.below("new"), b"newer")
        os.rename(self.below("new"), self.below("replaced"))
        time.sleep(SEEN_S)
        equal(text("replaced"), b"newer")
        equal(os.stat("replaced").st_size, 5)
        equal(os.pread(fd, 10, 0), b"old")
        equal(os.fstat(fd).st_nlink, 0)
        os.close(fd)

    def deleted(self):
        self.clean("deleted", b"x" * 5000)
        fd = os.open("deleted", os.O_RDWR)
        os.unlink(self.below("deleted"))
        time.sleep(SEEN_S)
        equal(ask.result(os.stat, "deleted"), "ENOENT")
        equal(ask.result(os.open, "deleted", os.O_RDONLY), "ENOENT")
        equal(os.pread(fd, 10, 0), b"x" * 10)
        os.pwrite(fd, b"y", 0)
        os.fsync(fd)
        equal(os.pread(fd, 10, 0), b"y" + b"x" * 9)
        os.close(fd)
        # and at once, while the kernel still believes in it
        self.clean("deleted", b"x")
        os.unlink(self.below("deleted"))
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("2")
        assert ask.result(os.open, "deleted", os.O_RDWR) in ("ENOENT", "ESTALE", "ok")
        assert ask.result(os.truncate, "deleted", 0) in ("ENOENT", "ESTALE", "ok")
        assert ask.result(os.unlink, "deleted") in ("ENOENT", "ESTALE", "ok")

    def of_another_kind(self):
        os.mkdir("kind")
        put("kind/in", b"x")
        self.clean("kind2", b"x")
        shutil.rmtree(self.below("kind"))
        put(self.below("kind"), b"file")
        os.unlink(self.below("kind2"))
        os.mkdir(self.below("kind2"))
        put(self.below("kind2/in"), b"y")
        time.sleep(SEEN_S)
        equal(text("kind"), b"file")
        equal(ask.result(os.stat, "kind/in"), "ENOTDIR")
        equal(os.listdir("kind2"), ["in"])
        equal(text("kind2/in"), b"y")
        os.unlink(self.below("kind"))
        os.symlink("kind2/in", self.below("kind"))
        time.sleep(SEEN_S)
        equal(text("kind"), b"y")

    def directories(self):
        os.mkdir("dir")
        equal(os.listdir("dir"), [])
        equal(ask.result(os.stat, "dir/new"), "ENOENT")
        put(self.below("dir/new"), b"x")
        equal(text("dir/new"), b"x")  # that there is none is not remembered
        equal(os.listdir("dir"), ["new"])
        os.rename(self.below("dir/new"), self.below("dir/moved"))
        time.sleep(SEEN_S)
        equal(os.listdir("dir"), ["moved"])
        equal(ask.result(os.stat, "dir/new"), "ENOENT")
        os.chmod(self.below("dir/moved"), 0o600)
        os.rename(self.below("dir"), self.below("dir2"))
        time.sleep(SEEN_S)
        equal(ask.result(os.listdir, "dir"), "ENOENT")
        equal(os.stat("dir2/moved").st_mode & 0o777, 0o600)

    # ---- files that are not clean ----

    def changed_before_it_is_written(self):
        """What was accepted goes over it, and that is said."""
        self.clean("dirty", b"a" * LONG)
        before = self.counts()
        with open("dirty", "r+b", buffering=0) as f:
            f.write(b"b" * 5000)
            with open(self.below("dirty"), "r+b") as g:
                g.seek(100000)
                g.write(b"c" * 5000)
            os.fsync(f.fileno())
        equal(self.counts(), [before[0], before[1] + 1])
        equal(text(self.below("dirty"))[:5000], b"b" * 5000)

    def changed_before_it_was_written_to(self):
        """Not even looked at in between: by a descriptor that is open."""
        self.clean("held", b"a" * LONG)
        before = self.counts()
        with open("held", "r+b", buffering=0) as f:
            with open(self.below("held"), "ab") as g:
                g.write(b"c" * 5000)
            f.write(b"b" * 5000)
            os.fsync(f.fileno())
        assert self.counts()[1] > before[1], self.counts()
        time.sleep(SEEN_S)
        equal(os.stat("held").st_size, LONG + 5000)
        equal(text("held"), b"b" * 5000 + b"a" * (LONG - 5000) + b"c" * 5000)

    def grown_while_it_is_written(self):
        self.clean("grown", b"a" * LONG)
        before = self.counts()
        with open("grown", "r+b", buffering=0) as f:
            for i in range(20):
                f.seek(0)
                f.write(b"b" * LONG)
                if i == 10:
                    with open(self.below("grown"), "ab") as g:
                        g.write(b"c" * 5000)
                os.fsync(f.fileno())
        assert self.counts()[1] > before[1]
        time.sleep(SEEN_S)
        equal(os.stat("grown").st_size, LONG + 5000)
        equal(text("grown"), b"b" * LONG + b"c" * 5000)

    def grown_while_it_is_on_its_way(self):
        self.clean("flying", b"a" * LONG)
        before = self.counts()
        with open("flying", "r+b", buffering=0) as f:
            f.write(b"b" * LONG)
            ask.tell(self.ctl, "stall=1")
            os.setxattr(".", "user.pacefs.flush", b"1")
            while int(ask.stat(".", "writeback_bytes")) == 0:
                time.sleep(0.01)
            with open(self.below("flying"), "ab") as g:
                g.write(b"c" * 5000)
            ask.tell(self.ctl, "stall=0")
            os.fsync(f.fileno())
        equal(self.counts()[1], before[1] + 1)
        equal(os.stat("flying").st_size, LONG + 5000)

    def own_changes_are_not(self):
        """Everything that changes a file through the mount."""
        ask.syncfs(self.dir)
        before = self.counts()
        stop = threading.Event()

        def looking():
            while not stop.is_set():
                for i in range(4):
                    for call in os.stat, text:
                        ask.result(call, f"own{i}")
                with open("/proc/sys/vm/drop_caches", "w") as f:
                    f.write("2")  # so that the daemon is asked

        threads = [threading.Thread(target=looking) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            self.change()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        ask.syncfs(self.dir)
        for i in range(4):
            text(f"own{i}")
        equal(self.counts(), before)

    @staticmethod
    def change():
        for i in range(60):
            name = f"own{i % 4}"
            fd = os.open(name, os.O_RDWR | os.O_CREAT)
            os.pwrite(fd, b"x" * (i * 3000 + 1), i * 100)
            if i % 2:
                os.fsync(fd)
            os.ftruncate(fd, i * 1000)
            os.fstat(fd)
            os.ftruncate(fd, i * 2000)
            os.fstat(fd)
            os.posix_fallocate(fd, 0, 40000)
            os.utime(fd, ns=(i, i * 10**15))
            os.fstat(fd)
            os.chmod(name, 0o600 + i)
            if i % 3:
                os.fsync(fd)
            os.utime(fd, ns=(i, i * 10**15 + 1))
            os.setxattr(name, "user.x", b"%d" % i)
            os.link(name, name + "l")
            os.rename(name + "l", name + "m")
            os.unlink(name + "m")
            os.pwrite(fd, b"y", 0)
            os.close(fd)
            equal(os.stat(name).st_size, max(i * 2000, 40000))
            text(name)
            shutil.copy2(name, name + "c")
            fd = os.open(name, os.O_RDWR)
            for j in range(10):  # nothing but the time changes, and then more
                os.ftruncate(fd, os.fstat(fd).st_size)
                os.pwrite(fd, b"z" * 5000, 0)
                os.fsync(fd)
            os.close(fd)
            for j in range(20):
                os.utime(name, ns=(j, i * 10**15 + j))


CHECKS = [
    ("overwritten", Test.overwritten),
    ("grown and cut, seen by who has it open", Test.grown_and_cut),
    ("a log that is followed", Test.followed),
    ("replaced", Test.replaced),
    ("deleted", Test.deleted),
    ("made something of another kind", Test.of_another_kind),
    ("names and directories", Test.directories),
    ("changed before what was accepted is written: said", Test.changed_before_it_is_written),
    ("changed before it was written to: said", Test.changed_before_it_was_written_to),
    ("grown while it is written: said", Test.grown_while_it_is_written),
    ("grown while a write is on its way: said", Test.grown_while_it_is_on_its_way),
    ("what is done through the mount is not taken for others'", Test.own_changes_are_not),
]


def main():
    test = Test(*sys.argv[1:4])
    os.chdir(test.mnt)
    return ask.run_checks(CHECKS, test)


sys.exit(main())
