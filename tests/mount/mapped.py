"""Mapped files, for t_mmap.sh: mapped.py WHAT MNT [...]; prints what is wrong, if anything."""
import ctypes
import mmap
import os
import random
import signal
import sqlite3
import sys
import threading

PAGE = 4096
libc = ctypes.CDLL(None, use_errno=True)


def shared(fd, size, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_SHARED):
    return mmap.mmap(fd, size, flags, prot)


def file_of(path, size):
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    os.pwrite(fd, bytes(i % 251 for i in range(PAGE)) * (size // PAGE), 0)
    return fd


def expect(name, got, want):
    if got != want:
        sys.exit(f"{name}: got {got!r:.80}, want {want!r:.80}")


def odd(mnt):
    """An odd range at an odd offset, msync, pread; a buffered writer elsewhere in the file."""
    size = 1 << 20
    fd = file_of(f"{mnt}/odd", 2 * size)
    m = shared(fd, size)
    stop = threading.Event()
    written = []

    def writes():
        n = 0
        while not stop.is_set():
            n += 1
            os.pwrite(fd, n.to_bytes(8, "little") * 700, size + n * 977 % (size - 5600))
        written.append(n)

    t = threading.Thread(target=writes)
    t.start()
    try:
        for i in range(int(os.environ.get("MMAP_REPEATS", "150"))):
            at = random.randrange(size - 9927)
            data = random.randbytes(9927)
            m[at : at + 9927] = data
            if i % 10 == 0:
                m.flush()
            expect(f"repeat {i}: pread", os.pread(fd, 9927, at), data)
    finally:
        stop.set()
        t.join()
    n = written[0]
    at = size + n * 977 % (size - 5600)
    expect("the writer beside", os.pread(fd, 5600, at), n.to_bytes(8, "little") * 700)


def both_ways(mnt):
    """What one does the other sees: write(2), mapping, another process, private mapping."""
    fd = file_of(f"{mnt}/both", 64 * PAGE)
    m = shared(fd, 64 * PAGE)
    private = shared(fd, 64 * PAGE, flags=mmap.MAP_PRIVATE)
    os.pwrite(fd, b"written", 5 * PAGE + 100)
    expect("mapping after write", m[5 * PAGE + 100 :][:7], b"written")
    private[6 * PAGE : 6 * PAGE + 3] = b"own"
    expect("private stays private", os.pread(fd, 3, 6 * PAGE), bytes([0, 1, 2]))
    if os.fork() == 0:
        other = os.open(f"{mnt}/both", os.O_RDWR)
        theirs = shared(other, 64 * PAGE)
        theirs[7 * PAGE : 7 * PAGE + 6] = b"theirs"
        os._exit(0)
    os.wait()
    expect("another's mapping", m[7 * PAGE : 7 * PAGE + 6], b"theirs")
    expect("another's mapping, read", os.pread(fd, 6, 7 * PAGE), b"theirs")
    os.pwrite(fd, b"x" * PAGE, 8 * PAGE)
    m[8 * PAGE + 10] = ord("m")
    expect("write, then mapping", os.pread(fd, 12, 8 * PAGE), b"x" * 10 + b"mx")
    direct = os.open(f"{mnt}/both", os.O_RDWR | os.O_DIRECT)
    buf = mmap.mmap(-1, PAGE)
    m[9 * PAGE : 9 * PAGE + 5] = b"dirty"
    os.preadv(direct, [buf], 9 * PAGE)
    expect("O_DIRECT reads the dirty mapping", buf[:5], b"dirty")
    buf[:6] = b"direct"
    os.pwritev(direct, [buf], 10 * PAGE)
    expect("the mapping after O_DIRECT", m[10 * PAGE : 10 * PAGE + 6], b"direct")


def faults(touch):
    """Does touch() die of SIGBUS? In a process of its own."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
        touch()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGBUS


def cut(mnt):
    """Truncate and holes below a mapping; SIGBUS beyond the end, as on any disk."""
    fd = file_of(f"{mnt}/cut", 16 * PAGE)
    m = shared(fd, 16 * PAGE)
    for i in range(16):
        m[i * PAGE : i * PAGE + 4] = b"here"
    os.ftruncate(fd, 8 * PAGE + 10)
    expect("size", os.fstat(fd).st_size, 8 * PAGE + 10)
    expect("beyond the end", faults(lambda: m[12 * PAGE]), True)
    expect("in the last page", faults(lambda: m[8 * PAGE + 100]), False)
    os.ftruncate(fd, 16 * PAGE)
    expect("grown again", m[8 * PAGE : 16 * PAGE], b"here" + bytes([4, 5, 6, 7, 8, 9]) + bytes(8 * PAGE - 10))
    keep_size, punch = 1, 2
    if libc.fallocate(fd, keep_size | punch, ctypes.c_long(2 * PAGE), ctypes.c_long(PAGE)):
        sys.exit("punch: " + os.strerror(ctypes.get_errno()))
    expect("punched", m[2 * PAGE : 3 * PAGE], bytes(PAGE))
    expect("punched, read", os.pread(fd, PAGE, 2 * PAGE), bytes(PAGE))
    m[2 * PAGE] = 7
    m.flush()
    expect("after msync", os.pread(fd, 2, 2 * PAGE), b"\x07\0")
    expect("empty file", os.fstat(os.open(f"{mnt}/none", os.O_RDWR | os.O_CREAT)).st_size, 0)


def closed(mnt):
    """Written, unmapped, closed: the test looks at the source later."""
    fd = file_of(f"{mnt}/closed", 32 * PAGE)
    m = shared(fd, 32 * PAGE)
    m[:] = b"mapped! " * (32 * PAGE // 8)
    m.close()
    os.close(fd)


def database(mnt, who, rounds):
    """A process that works on a database in WAL mode, mapped; the other one is beside it."""
    db = sqlite3.connect(f"{mnt}/base.sqlite", timeout=60)
    if who == "new":
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE t (who TEXT, n INTEGER, text BLOB)")
    expect("mode", db.execute("PRAGMA journal_mode").fetchone(), ("wal",))
    db.execute("PRAGMA mmap_size=67108864")
    for n in range(int(rounds)):
        with db:
            db.execute("INSERT INTO t VALUES (?, ?, ?)", (who, n, random.randbytes(3000)))
        print(n, flush=True)
        if n % 10 == 0:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")


def integrity(mnt):
    """The database is whole, and has all that was committed in the two processes' logs."""
    db = sqlite3.connect(f"{mnt}/base.sqlite", timeout=60)
    db.execute("PRAGMA mmap_size=67108864")
    expect("integrity", db.execute("PRAGMA integrity_check").fetchone(), ("ok",))
    for who in ("one", "two"):
        with open(f"{os.environ['TEST_DIR']}/{who}.log", encoding="ascii") as f:
            told = len(f.read().split())
        have = db.execute("SELECT count(*) FROM t WHERE who = ?", (who,)).fetchone()[0]
        if not told <= have <= told + 1 or not told:
            sys.exit(f"{who}: told of {told}, has {have}")


globals()[sys.argv[1]](*sys.argv[2:])
