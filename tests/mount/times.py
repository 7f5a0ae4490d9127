#!/usr/bin/env python3
"""times.py SOURCE MNT CTL [coarse] - times and sizes of files that are dirty, on their way, or clean.
times.py --keep DIR FILE, times.py --same DIR FILE - what is below DIR has these times and sizes.

Prints a line per check. CTL: control file of the slow disk. coarse: the source's times are whole
seconds, with 32 bits.
"""
import contextlib
import ctypes
import json
import os
import random
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.environ["PACEFS_REPO"], "tests/lib"))
import ask  # noqa: E402

SECOND = 10**9
PLAIN = 1_234_567_890 * SECOND + 987_654_321


def equal(got, want, *where):
    assert got == want, f"got {got!r}, want {want!r} {where or ''}"


def put(name, data, flags=0):
    fd = os.open(name, os.O_RDWR | os.O_CREAT | flags, 0o644)
    os.write(fd, data)
    return fd


LIBC = ctypes.CDLL(None, use_errno=True)


def handle_of(name):
    """What NFS keeps of a file."""
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136)
    mount = ctypes.c_int()
    equal(LIBC.name_to_handle_at(-100, name.encode(), handle, ctypes.byref(mount), 0), 0)
    return handle


class Test:
    def __init__(self, source, mnt, ctl, coarse):
        self.source, self.mnt, self.ctl, self.coarse = source, mnt, ctl, coarse
        self.dir = os.open(mnt, os.O_RDONLY)

    def sync(self):
        ask.syncfs(self.dir)

    @contextlib.contextmanager
    def stalled(self):
        """Everything accepted before is on its way, and stays there."""
        ask.tell(self.ctl, "stall=1")
        try:
            os.setxattr(".", "user.pacefs.flush", b"1")
            end = time.time() + 10
            while int(ask.stat(".", "writeback_bytes")) == 0:
                assert time.time() < end, "nothing is on its way"
                time.sleep(0.01)
            yield
        finally:
            ask.tell(self.ctl, "stall=0")

    def rounded(self, ns):
        return ns // SECOND * SECOND if self.coarse else ns

    def below(self, name):
        return os.stat(os.path.join(self.source, name))

    def forget(self):
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("2")

    # ---- checks ----

    def each_write_moves_them(self):
        fd = put("moves", b"1")
        seen = [os.fstat(fd)]
        for i in range(300):
            os.pwrite(fd, b"2", i)
            seen.append(os.fstat(fd))
        for a, b in zip(seen, seen[1:]):
            if self.coarse:
                assert a.st_mtime_ns <= b.st_mtime_ns and a.st_ctime_ns <= b.st_ctime_ns
            else:
                assert a.st_mtime_ns < b.st_mtime_ns and a.st_ctime_ns < b.st_ctime_ns

    def what_comes_later_is_not_older(self):
        """As make wants it: a stamp that is touched after an object was written."""
        last = 0
        for i in range(100):
            fd = put(f"later{i}", b"x")
            os.close(fd)
            os.close(os.open(f"stamp{i}", os.O_CREAT | os.O_WRONLY))
            os.utime(f"stamp{i}")
            for name in f"later{i}", f"stamp{i}":
                now = os.stat(name).st_mtime_ns
                assert now >= last, (name, last - now)
                last = now

    def set_in_every_state(self):
        """Explicit times are those of the file, whatever state it was in."""
        self.sync()
        names = ["clean", "dirty", "flying", "cut", "flying2"]
        for name in names:
            os.close(put(name, b"x" * 300000))
        self.sync()
        for name in names[2:]:
            os.close(put(name, b"y" * 200000))
        with self.stalled():
            os.truncate("cut", 1000)
            os.close(put("dirty", b"y" * 1000))
            for i, name in enumerate(names[1:]):
                os.utime(name, ns=(PLAIN, PLAIN + i))
                equal(os.stat(name).st_mtime_ns, self.rounded(PLAIN + i), name)
            with open("flying2", "r+b") as f:  # a write after it is later
                f.write(b"z")
            os.utime("flying2", ns=(PLAIN, PLAIN + 99))
        os.utime("clean", ns=(PLAIN, PLAIN - 1))
        want = dict(zip(names, [PLAIN - 1, PLAIN, PLAIN + 1, PLAIN + 2, PLAIN + 99]))
        for _ in range(2):
            for name in names:
                equal(os.stat(name).st_mtime_ns, self.rounded(want[name]), name)
            self.sync()
        for name in names:
            equal(self.below(name).st_mtime_ns, self.rounded(want[name]), name)

    def set_while_it_has_no_room(self):
        """The source was filled up behind us: what was accepted stays, and so does the time."""
        self.sync()
        fd = put("noroom", b"x" * 4096)
        os.fsync(fd)
        full = os.path.join(self.source, "full")
        os.pwrite(fd, b"y" * 2000000, 0)
        with open(full, "wb") as f:
            for step in 1 << 20, 4096:
                with contextlib.suppress(OSError):
                    while True:
                        os.posix_fallocate(f.fileno(), os.fstat(f.fileno()).st_size, step)
        try:
            os.setxattr(".", "user.pacefs.flush", b"1")
            end = time.time() + 5
            while ask.stat(".", "parked") == "0":
                assert time.time() < end, "it has room"
                time.sleep(0.01)
            os.utime("noroom", ns=(PLAIN, PLAIN))
            equal(os.stat("noroom").st_mtime_ns, self.rounded(PLAIN))
        finally:
            os.unlink(full)
        with contextlib.suppress(OSError):
            os.fsync(fd)
        os.fsync(fd)
        os.close(fd)
        equal(os.stat("noroom").st_mtime_ns, self.rounded(PLAIN))
        equal(self.below("noroom").st_mtime_ns, self.rounded(PLAIN))

    def set_beside_the_flusher(self):
        """At any moment of a file's way to the disk."""
        rng = random.Random(1)
        names = [f"race{i}" for i in range(8)]
        want = {}
        stop = threading.Event()

        def syncing():
            fds = [put(name, b"") for name in names]
            while not stop.is_set():
                for fd in fds:
                    os.fsync(fd)

        thread = threading.Thread(target=syncing)
        thread.start()
        end = time.time() + 1.5
        try:
            while time.time() < end:
                name = rng.choice(names)
                fd = put(name, b"x" * rng.randrange(1, 40000))
                if rng.random() < 0.3:
                    os.ftruncate(fd, rng.randrange(40000))
                when = rng.randrange(10**9, 2 * 10**9) * SECOND + rng.randrange(SECOND)
                if name < "race4":  # the same again and again
                    when = PLAIN
                os.utime(fd, ns=(when, when))
                os.close(fd)
                want[name] = when
                equal(os.stat(name).st_mtime_ns, self.rounded(when), name)
                other = rng.choice(list(want))
                equal(os.stat(other).st_mtime_ns, self.rounded(want[other]), other)
        finally:
            stop.set()
            thread.join()
        self.sync()
        for name, when in want.items():
            equal(os.stat(name).st_mtime_ns, self.rounded(when), name)
            equal(self.below(name).st_mtime_ns, self.rounded(when), name)

    def odd_dates(self):
        """What the source cannot have is shown as it will have it, at once."""
        dates = [-(10**10), -(2**31) - 1, -1, 0, 1, 2**31 - 1, 2**31, 4_354_819_199, 2**32, 10**10,
                 2**34, 2**34 + 10**9]
        for date in dates:
            path = os.path.join(self.source, "plain")
            with open(path, "w"):
                pass
            when = date * SECOND + 123456789
            os.utime(path, ns=(when, when))
            want = os.stat(path).st_mtime_ns
            fd = put("odd", b"x")
            os.utime(fd, ns=(when, when))
            equal(os.fstat(fd).st_mtime_ns, want, date)
            os.fsync(fd)
            equal(os.fstat(fd).st_mtime_ns, want, date)
            os.close(fd)
            equal(self.below("odd").st_mtime_ns, want, date)

    def never_another_time_when_clean(self):
        """mtime does not move when a file leaves memory, the change time not back."""
        for i in range(60):
            fd = put("leaves", b"x" * (1 + i * 500))
            if i % 3 == 1:
                os.fchmod(fd, 0o600 + i % 7)
            elif i % 3 == 2:
                os.setxattr("leaves", "user.note", b"%d" % i)
            a = os.fstat(fd)
            os.fsync(fd)
            b = os.fstat(fd)
            os.close(fd)
            if i % 5 == 0:
                self.forget()
            c = os.stat("leaves")
            equal((a.st_mtime_ns, b.st_mtime_ns), (b.st_mtime_ns, c.st_mtime_ns), i)
            equal(self.below("leaves").st_mtime_ns, a.st_mtime_ns, i)
            assert a.st_ctime_ns <= b.st_ctime_ns <= c.st_ctime_ns, (i, a, b, c)

    def change_times_do_not_move_by_themselves(self):
        """tar and others take that for a change while they read; what changes the file moves it."""
        others = [
            lambda: os.chmod("still", 0o600 + int(time.time() * 1000) % 8),
            lambda: os.setxattr("still", "user.note", b"v"),
            lambda: os.removexattr("still", "user.note"),
            lambda: os.link("still", "still2"),
            lambda: os.unlink("still2"),
            lambda: os.rename("still", "still3"),
            lambda: os.rename("still3", "still"),
            lambda: os.chown("still", 0, 0),
            lambda: os.utime("still", ns=(PLAIN, PLAIN)),
            lambda: os.truncate("still", 3000),
            lambda: os.truncate("still", 9000),
        ]
        for dirty in True, False:
            for i, call in enumerate(others):
                fd = put("still", b"x" * 20000)
                a = os.fstat(fd).st_ctime_ns
                time.sleep(0.02)
                os.fsync(fd)
                equal(os.fstat(fd).st_ctime_ns, a, i)
                if dirty:
                    os.pwrite(fd, b"y", 0)
                    a = os.fstat(fd).st_ctime_ns
                if not self.coarse:
                    time.sleep(0.02)
                    call()
                    b = os.fstat(fd).st_ctime_ns
                    assert b > a, (dirty, i)
                    os.fsync(fd)
                    if dirty:
                        equal(os.fstat(fd).st_ctime_ns, b, i)
                    else:
                        assert os.fstat(fd).st_ctime_ns >= b
                os.close(fd)

    def attributes_leave_mtime_alone(self):
        fd = put("attr", b"x" * 50000)
        before = os.fstat(fd)
        time.sleep(0.02)
        os.setxattr("attr", "user.note", b"v")
        os.chmod("attr", 0o640)
        os.chown("attr", 1, 1)
        os.link("attr", "attr2")
        os.rename("attr2", "attr3")
        os.utime("attr", ns=(PLAIN, before.st_mtime_ns))
        after = os.fstat(fd)
        equal(after.st_mtime_ns, before.st_mtime_ns)
        equal(self.rounded(after.st_atime_ns), self.rounded(PLAIN))
        if not self.coarse:
            assert after.st_ctime_ns > before.st_ctime_ns
        os.fsync(fd)
        os.close(fd)
        equal(os.stat("attr").st_mtime_ns, before.st_mtime_ns)
        equal(self.below("attr").st_mtime_ns, before.st_mtime_ns)
        equal(os.stat("attr").st_mode & 0o7777, 0o640)
        with open("attr", "rb") as f:
            equal(f.read(), b"x" * 50000)

    def sizes_by_every_way(self):
        seeker = subprocess.Popen(
            [sys.executable, "-c", "import os, sys\nfd = os.open('sized', os.O_RDONLY)\n"
             "for line in sys.stdin:\n print(os.lseek(fd, 0, os.SEEK_END), flush=True)"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) if not os.close(
                put("sized", b"")) else None
        fd = put("sized", b"")
        reader = os.open("sized", os.O_RDONLY)
        handle = handle_of("sized")
        rng = random.Random(2)
        size = 0
        for i in range(60):
            more = rng.randrange(1, 30000)
            if i % 7 == 6:
                size = rng.randrange(size)
                os.ftruncate(fd, size)
            else:
                os.pwrite(fd, b"x" * more, size)
                size += more
            if i % 10 == 9:
                os.fsync(fd)
            equal(os.fstat(fd).st_size, size)
            equal(os.fstat(reader).st_size, size)
            equal(os.lseek(reader, 0, os.SEEK_END), size)
            equal(os.stat("sized").st_size, size)
            seeker.stdin.write("\n")
            seeker.stdin.flush()
            equal(int(seeker.stdout.readline()), size)
            if i % 6 == 0:
                self.forget()
            by_handle = LIBC.open_by_handle_at(self.dir, handle, os.O_RDONLY)
            equal(os.fstat(by_handle).st_size, size)
            os.close(by_handle)
            if i % 4 == 0:
                with os.scandir(".") as entries:
                    sizes = {e.name: e.stat().st_size for e in entries}
                equal(sizes["sized"], size)
        seeker.stdin.close()
        seeker.wait()

    def appending(self):
        code = ("import os, sys\nfd = os.open('append', os.O_WRONLY | os.O_APPEND | os.O_CREAT)\n"
                "for i in range(1000): os.write(fd, (b'%s %04d ' % (sys.argv[1].encode(), i))"
                ".ljust(99, b'.') + b'\\n')")
        children = [subprocess.Popen([sys.executable, "-c", code, str(n)]) for n in range(8)]
        equal([c.wait() for c in children], [0] * 8)
        for _ in range(2):
            equal(os.stat("append").st_size, 800000)
            with open("append", "rb") as f:
                lines = f.read().split(b"\n")[:-1]
            equal(len(set(lines)), 8000)
            for n in range(8):
                mine = [line for line in lines if line.startswith(b"%d " % n)]
                equal(mine, sorted(mine))
                equal(len(mine), 1000)
            self.sync()

    def many_small_files(self):
        """Never empty after they were closed."""
        os.mkdir("from")
        for i in range(1500):
            os.makedirs(f"from/{i % 7}/{i % 11}", exist_ok=True)
            with open(f"from/{i % 7}/{i % 11}/{i}", "wb") as f:
                f.write(b"%d\n" % i * (i % 97 + 1))
        subprocess.run(["cp", "-r", "from", "many"], check=True)
        for _ in range(2):
            seen = 0
            for folder, _, names in os.walk("many"):
                for name in names:
                    path = os.path.join(folder, name)
                    want = b"%d\n" % int(name) * (int(name) % 97 + 1)
                    equal(os.stat(path).st_size, len(want), path)
                    with open(path, "rb") as f:
                        equal(f.read(), want, path)
                    seen += 1
            equal(seen, 1500)
            time.sleep(1.2)  # the background time


CHECKS = [
    ("each write moves mtime and ctime", Test.each_write_moves_them),
    ("what is made later is not older", Test.what_comes_later_is_not_older),
    ("a time set by hand stays, in every state of the file", Test.set_in_every_state),
    ("... while there is no room for what was written", Test.set_while_it_has_no_room),
    ("... at any moment of its way to the disk", Test.set_beside_the_flusher),
    ("dates that the source cannot have", Test.odd_dates),
    ("no time changes when a file becomes clean", Test.never_another_time_when_clean),
    ("change times do not move by themselves", Test.change_times_do_not_move_by_themselves),
    ("attributes of a dirty file leave its mtime alone", Test.attributes_leave_mtime_alone),
    ("the size is right by every way", Test.sizes_by_every_way),
    ("eight processes append", Test.appending),
    ("1500 small files are never empty", Test.many_small_files),
]


def listing(top):
    out = {}
    for folder, dirs, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            st = os.lstat(path)
            out[os.path.relpath(path, top)] = [st.st_mtime_ns, st.st_size]
    return out


def main():
    if sys.argv[1] == "--keep":
        with open(sys.argv[3], "w") as f:
            json.dump(listing(sys.argv[2]), f)
        return 0
    if sys.argv[1] == "--same":
        with open(sys.argv[3]) as f:
            want = json.load(f)
        have = listing(sys.argv[2])
        wrong = [(n, want.get(n), have.get(n)) for n in {*want, *have} if want.get(n) != have.get(n)]
        for line in wrong[:20]:
            print(*line)
        return bool(wrong)
    test = Test(*sys.argv[1:4], coarse="coarse" in sys.argv[4:])
    os.chdir(test.mnt)
    # the last ones are about sizes
    return ask.run_checks(CHECKS[:-3] if test.coarse else CHECKS, test)


sys.exit(main())
