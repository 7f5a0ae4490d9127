#!/usr/bin/env python3
"""full_load.py - writers on a disk that fills up, and what they were told.

  full_load.py write TOP BOOK SEED SECONDS   random writers in TOP until the time is over; what
                                             write(2) acknowledged is written to BOOK
  full_load.py check TOP BOOK                every file of BOOK is in TOP, byte for byte

Each writer owns a directory. It streams, makes many small files, leaves holes, appends, writes
over what is there, preallocates, cuts, lengthens, deletes, makes directories. The only errors it takes
are those of a full disk (ENOSPC, EDQUOT); after one the file must be what it was. fsync(2) and close(2)
must never fail: an error there comes after success. The same seed makes the same choices, each writer
for itself; how they interleave is the machine's. Exits 1 when anything was not as told.
"""
import errno, os, pickle, random, sys, threading, time

FULL = (errno.ENOSPC, errno.EDQUOT)
WRITERS = 6
PAGE = 4096
BLOCK = os.urandom(1 << 20)


class Wrong(Exception):
    pass


class File:
    """One file and what it must hold."""

    def __init__(self, path):
        self.path = path
        self.data = bytearray()
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)

    def acknowledged(self, offset, chunk):
        if offset > len(self.data):
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset:offset + len(chunk)] = chunk

    def unchanged(self, what):
        size = os.fstat(self.fd).st_size
        if size != len(self.data):
            raise Wrong(f"{self.path}: size {size} after a failed {what}, {len(self.data)} before")


class Writer(threading.Thread):
    def __init__(self, top, number, seed, until, most):
        super().__init__()
        self.top = f"{top}/w{number}"
        self.random = random.Random(seed * 1000 + number)
        self.until, self.most = until, most
        self.files, self.nr_made, self.nr_full, self.wrong = [], 0, 0, None
        self.longest_s = 0
        self.taken = 0

    # ---- what may fail because the disk is full ----

    def tried(self, call, *args):
        start = time.monotonic()
        try:
            return call(*args)
        except OSError as e:
            if e.errno not in FULL:
                raise
            self.nr_full += 1
            return None
        finally:
            self.longest_s = max(self.longest_s, time.monotonic() - start)

    def chunk(self, size):
        at = self.random.randrange(len(BLOCK) - 257) if size < len(BLOCK) else 0
        return (BLOCK[at:] + BLOCK)[:size]

    def write(self, f, offset, size):
        chunk = self.chunk(size)
        n = self.tried(os.pwrite, f.fd, chunk, offset)
        if n is None:
            f.unchanged("write")
            return False
        self.taken += n
        f.acknowledged(offset, chunk[:n])
        return n == size

    def make(self):
        self.nr_made += 1
        f = self.tried(File, f"{self.top}/f{self.nr_made}")
        if f:
            self.files.append(f)
        return f

    def some(self):
        return self.random.choice(self.files) if self.files else self.make()

    # ---- what writers do ----

    def stream(self):
        f = self.make()
        size = self.random.choice([PAGE, 5000, 65536, 131072, 1 << 20])
        for i in range(self.random.randrange(1, (8 << 20) // size + 2)):
            if not f or not self.write(f, len(f.data), size) or time.monotonic() > self.until:
                break

    def small(self):
        for i in range(self.random.randrange(100)):
            f = self.make()
            if not f or not self.write(f, 0, self.random.randrange(1, 9000)):
                break
            if len(self.files) > 200:
                self.delete(f)

    def sparse(self):
        f = self.some()
        for i in range(self.random.randrange(40)):
            if f:
                self.write(f, self.random.randrange(6 << 20), self.random.randrange(1, 20000))

    def append(self):
        f = self.some()
        if not f or len(f.data) > 12 << 20:
            return
        os.set_blocking(f.fd, True)
        fd = os.open(f.path, os.O_WRONLY | os.O_APPEND)
        for i in range(self.random.randrange(60)):
            chunk = self.chunk(self.random.randrange(1, 70000))
            n = self.tried(os.write, fd, chunk)
            if n is None:
                f.unchanged("append")
                break
            self.taken += n
            f.acknowledged(len(f.data), chunk[:n])
        os.close(fd)

    def over(self):
        f = self.some()
        if not f or not f.data:
            return
        for i in range(self.random.randrange(60)):
            at = self.random.randrange(len(f.data))
            self.write(f, at, min(self.random.randrange(1, 200000), len(f.data) - at))

    def preallocate(self):
        f = self.some()
        if not f:
            return
        at = self.random.randrange(len(f.data) + 1)
        size = self.random.randrange(1, 1 << self.random.randrange(12, 28))
        try:
            if self.tried(lambda: os.posix_fallocate(f.fd, at, size) or True):
                f.acknowledged(max(at + size, len(f.data)), b"")
            else:
                f.unchanged("fallocate")
        except OSError as e:
            if e.errno not in (errno.EOPNOTSUPP, errno.EFBIG):
                raise
            f.unchanged("fallocate")

    def cut(self):
        f = self.some()
        if f:
            size = self.random.randrange(len(f.data) + 1)
            if self.tried(lambda: os.ftruncate(f.fd, size) or True):
                del f.data[size:]
            else:
                # btrfs wants room for this; refusing it has cleared the rest of a block
                f.unchanged("ftruncate")
                self.delete(f)

    def lengthen(self):
        f = self.some()
        if f and len(f.data) < 12 << 20:
            size = len(f.data) + self.random.randrange(1 << 20)
            if self.tried(lambda: os.ftruncate(f.fd, size) or True):
                f.acknowledged(size, b"")
            else:
                f.unchanged("ftruncate")

    def delete(self, f=None):
        if f or self.files:
            f = f or self.some()
            os.unlink(f.path)
            os.close(f.fd)
            self.files.remove(f)

    def delete_many(self):
        if self.nr_full > self.random.randrange(40):
            for i in range(len(self.files) // 2):
                self.delete()
            self.nr_full = 0

    def sync(self):
        f = self.some()
        if f:
            os.fsync(f.fd)

    def directories(self):
        for i in range(self.random.randrange(20)):
            self.nr_made += 1
            self.tried(os.mkdir, f"{self.top}/d{self.nr_made}")

    def reopen(self):
        f = self.some()
        if f:
            os.close(f.fd)
            f.fd = os.open(f.path, os.O_RDWR)

    def step(self):
        """More is written than deleted, until the disk is full."""
        what = self.random.choices(
            [self.stream, self.small, self.sparse, self.append, self.over, self.preallocate, self.cut,
             self.lengthen, self.delete, self.delete_many, self.sync, self.directories, self.reopen],
            [20, 10, 10, 10, 10, 3, 3, 3, 2, 3, 2, 2, 3])[0]
        what()
        if sum(len(f.data) for f in self.files) > self.most:
            self.delete()

    def run(self):
        try:
            os.mkdir(self.top)
            while time.monotonic() < self.until:
                self.step()
            for f in self.files:
                os.fsync(f.fd) if self.random.random() < 0.1 else None
                os.close(f.fd)
        except BaseException as e:  # told by the main thread
            import traceback
            traceback.print_exc()
            self.wrong = e


def differs(top, path, data):
    with open(f"{top}/{path}", "rb") as f:
        got = f.read()
    if got == data:
        return None
    if len(got) != len(data):
        return f"{path}: {len(got)} bytes, {len(data)} were acknowledged"
    first = next(i for i in range(len(data)) if got[i] != data[i])
    last = next(i for i in range(len(data) - 1, -1, -1) if got[i] != data[i])
    zero = "zeroes" if not any(got[first:last + 1]) else "data"
    wanted = "zeroes" if not any(data[first:last + 1]) else "data"
    return f"{path}: bytes {first}-{last} of {len(data)} differ: {zero} for {wanted}"


def write(top, book, seed, seconds):
    print(f"seed {seed}, {seconds} s", flush=True)
    until = time.monotonic() + float(seconds)
    writers = [Writer(top, i, int(seed), until, 100 << 20) for i in range(WRITERS)]
    for w in writers:
        w.start()
    for w in writers:
        w.join()
    with open(book, "wb") as out:
        pickle.dump({os.path.relpath(f.path, top): bytes(f.data)
                     for w in writers for f in w.files}, out)
    print(f"{sum(w.taken for w in writers)} bytes taken, "
          f"{sum(len(w.files) for w in writers)} files left, "
          f"full {sum(w.nr_full for w in writers)} times since the last deletion, "
          f"longest call {max(w.longest_s for w in writers):.2f} s", flush=True)
    return any(w.wrong for w in writers)


def check(top, book):
    with open(book, "rb") as f:
        files = pickle.load(f)
    bad = [d for d in (differs(top, path, data) for path, data in files.items()) if d]
    for line in bad:
        print("differs:", line)
    return bool(bad)


sys.exit({"write": write, "check": check}[sys.argv[1]](*sys.argv[2:]))
