#!/usr/bin/env python3
"""workload.py DIR LOGS seed=N seconds=S [pacefs=PROGRAM mount=MNT] - processes that write in DIR in all
ways that promise something, and keep a side log each (LOGS/NAME, see model.py) of what they did and
what was acknowledged. They end when the time is over, or at the first error: the daemon is dead.
"""
import ctypes
import json
import mmap
import os
import random
import subprocess
import sys
import time

import model

LIBC = ctypes.CDLL(None, use_errno=True)
KIB = 1024


def now_us():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


class Over(Exception):
    """The time is over; nothing is under way."""


class Worker:
    """Operations on files below one directory, each logged before and after."""

    def __init__(self, root, log, seed, end, flush_command):
        self.root = root
        self.end = end
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.random = random.Random(seed)
        self.flush_command = flush_command
        self.fids = (seed & 0xFFFF) << 12
        self.version = 0
        self.sizes = {}
        self.fds = {}

    def begin(self, *what):
        if time.monotonic() > self.end:
            raise Over
        os.write(self.log, (json.dumps([now_us(), *what]) + "\n").encode())

    def done(self):
        os.write(self.log, f'[{now_us()}, "ok"]\n'.encode())

    def path(self, name):
        return os.path.join(self.root, name)

    def new(self, prefix, **how):
        """A file with a name of its own: (name, fid)."""
        name = f"{prefix}{self.fids}"
        return name, self.create(name, **how)

    def create(self, name, append=False, flags=0):
        self.fids += 1
        fid = self.fids
        self.begin("create", name, fid, append)
        fd = os.open(self.path(name), os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o644)
        self.done()
        self.fds[fid] = fd
        self.sizes[fid] = 0
        return fid

    def write(self, fid, offset, length, kind="write"):
        self.version += 1
        data = model.contents(fid, offset, length, self.version)
        self.begin(kind, fid, offset, length, self.version)
        # short only at the end of all: what is missing counts as not acknowledged
        if os.pwrite(self.fds[fid], data, offset) != length:
            raise OSError("short write")
        self.done()
        self.sizes[fid] = max(self.sizes[fid], offset + length)

    def append(self, fid, length, kind="write"):
        self.write(fid, self.sizes[fid], length, kind)

    def fsync(self, fid):
        call = self.random.choice((os.fsync, os.fdatasync))
        self.begin("fsync", fid)
        call(self.fds[fid])
        self.done()

    def close(self, fid):
        self.begin("close", fid)
        os.close(self.fds.pop(fid))
        self.done()

    def truncate(self, fid, size):
        self.begin("truncate", fid, size)
        os.ftruncate(self.fds[fid], size)
        self.done()
        self.sizes[fid] = size

    def names(self, kind, call, *names):
        self.begin(kind, *names)
        call(*(self.path(name) for name in names))
        self.done()

    def rename(self, old, new):
        self.names("rename", os.rename, old, new)

    def unlink(self, name):
        self.names("unlink", os.unlink, name)

    def mkdir(self, name):
        self.names("mkdir", os.mkdir, name)

    def syncdir(self, name):
        fd = os.open(self.path(name), os.O_RDONLY | os.O_DIRECTORY)
        self.begin("syncdir", name)
        os.fsync(fd)
        self.done()
        os.close(fd)

    def syncall(self):
        if self.flush_command and self.random.random() < 0.3:
            self.begin("syncall")
            subprocess.run(self.flush_command, check=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
            self.done()
            return
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        self.begin("syncall")
        if LIBC.syncfs(fd) < 0:
            raise OSError(ctypes.get_errno(), "syncfs")
        self.done()
        os.close(fd)

    def length(self, most):
        return self.random.randrange(1, most // model.UNIT + 1) * model.UNIT

    def chance(self, p):
        return self.random.random() < p


# ---- what they do; each is called again and again ----

def logs(w):
    """Append a little, fsync, again."""
    _, fid = w.new("log", append=True)
    while w.sizes[fid] < 400 * KIB:
        w.append(fid, w.length(8 * KIB))
        if w.chance(0.4):
            w.fsync(fid)
        time.sleep(w.random.random() * 0.01)
    w.close(fid)


def in_place(w):
    """A database: pages of one file are written anew, then fdatasync."""
    _, fid = w.new("database")
    w.write(fid, 0, 256 * KIB)
    w.fsync(fid)
    for _ in range(100):
        for _ in range(w.random.randrange(1, 5)):
            length = w.length(12 * KIB)
            w.write(fid, w.length(256 * KIB - length) - model.UNIT, length)
        if w.chance(0.6):
            w.fsync(fid)
        time.sleep(w.random.random() * 0.01)
    w.close(fid)


def replaces(w):
    """An editor: a new file, fsync, rename over the old one."""
    for _ in range(20):
        fid = w.create("new")
        for _ in range(w.random.randrange(1, 4)):
            w.append(fid, w.length(60 * KIB))
        w.fsync(fid)
        w.close(fid)
        w.rename("new", "document")
        if w.chance(0.5):
            w.syncdir("")
        time.sleep(w.random.random() * 0.02)


def o_sync(w):
    _, fid = w.new("sync", flags=os.O_SYNC)
    for _ in range(60):
        if w.chance(0.3) and w.sizes[fid] > 64 * KIB:
            w.write(fid, w.length(32 * KIB), w.length(16 * KIB), "syncwrite")
        else:
            w.append(fid, w.length(24 * KIB), "syncwrite")
        time.sleep(w.random.random() * 0.01)
    w.close(fid)


def closes(w):
    """cp of many files: with -o flush each is there when it is closed."""
    for _ in range(10):
        _, fid = w.new("copy", append=True)
        for _ in range(w.random.randrange(4)):
            w.append(fid, w.length(100 * KIB))
        w.close(fid)
        time.sleep(w.random.random() * 0.02)


def directories(w):
    """Names come, go and move; fsync of the directory."""
    for _ in range(10):
        folder = f"d{w.fids}"
        w.mkdir(folder)
        for i in range(3):
            fid = w.create(f"{folder}/f{i}")
            w.append(fid, w.length(10 * KIB))
            if w.chance(0.6):
                w.fsync(fid)
            w.close(fid)
        if w.chance(0.5):
            w.syncdir(folder)
        w.rename(f"{folder}/f0", f"{folder}/g0")
        if w.chance(0.5):
            w.rename(folder, f"moved-{folder}")
            folder = f"moved-{folder}"
        w.unlink(f"{folder}/f1")
        if w.chance(0.5):
            w.syncdir("")
        if w.chance(0.5):
            w.syncdir(folder)


def truncates(w):
    _, fid = w.new("cut")
    for _ in range(60):
        w.write(fid, w.length(100 * KIB), w.length(30 * KIB))
        if w.chance(0.5):
            w.truncate(fid, w.length(150 * KIB))
        if w.chance(0.3):
            w.truncate(fid, 0)
        if w.chance(0.3):
            w.fsync(fid)
        time.sleep(w.random.random() * 0.01)
    w.close(fid)


def maps(w):
    """msync of a shared mapping."""
    size = 128 * KIB
    _, fid = w.new("map")
    w.write(fid, 0, size)
    w.fsync(fid)
    mapping = mmap.mmap(w.fds[fid], size)
    for _ in range(40):
        for _ in range(3):
            length = w.length(8 * KIB)
            offset = w.length(size - length) - model.UNIT
            w.version += 1
            data = model.contents(fid, offset, length, w.version)
            w.begin("mwrite", fid, offset, length, w.version)
            mapping[offset:offset + length] = data
            w.done()
        w.begin("msync", fid)
        mapping.flush()
        w.done()
        time.sleep(w.random.random() * 0.02)
    mapping.close()
    w.close(fid)


def streams(w):
    """Large files, which pacefs lengthens ahead of their data."""
    name, fid = w.new("stream", append=True)
    while w.sizes[fid] < 4096 * KIB:
        w.append(fid, 128 * KIB)
        if w.chance(0.03):
            w.fsync(fid)
    if w.chance(0.3):
        w.syncall()
    w.close(fid)
    if w.chance(0.5):
        w.unlink(name)


def syncs_all(w):
    for _ in range(5):
        for _ in range(3):
            name, fid = w.new("all", append=True)
            w.append(fid, w.length(50 * KIB))
            w.close(fid)
        w.rename(name, f"renamed-{name}")
        w.syncall()
        time.sleep(w.random.random() * 0.2)


WORKERS = (logs, in_place, replaces, o_sync, closes, directories, truncates, maps, streams,
           syncs_all)


def run_worker(work, root, log, seed, seconds, flush_command):
    w = Worker(root, log, seed, time.monotonic() + seconds, flush_command)
    try:
        while True:
            work(w)
    except (Over, OSError, subprocess.CalledProcessError):
        os._exit(0)
    finally:
        os._exit(1)


def run(root, logs_dir, seed, seconds, flush_command=None):
    """Forks the workers; returns their pids. Their directories are on the disk."""
    pids = []
    for work in WORKERS:
        os.makedirs(os.path.join(root, work.__name__), exist_ok=True)
    fd = os.open(root, os.O_RDONLY)
    LIBC.syncfs(fd)
    subprocess.run(flush_command or ["true"], check=True, stdout=subprocess.DEVNULL)
    os.close(fd)
    for i, work in enumerate(WORKERS):
        name = work.__name__
        pid = os.fork()
        if pid == 0:
            # 10 workers, distinct file numbers
            run_worker(work, os.path.join(root, name), os.path.join(logs_dir, name),
                       seed * 16 + i, seconds, flush_command)
        pids.append(pid)
    return pids


def main():
    root, logs_dir = sys.argv[1:3]
    options = dict(word.split("=", 1) for word in sys.argv[3:])
    flush = [options["pacefs"], "flush", options["mount"]] if "pacefs" in options else None
    for pid in run(root, logs_dir, int(options["seed"]), float(options["seconds"]), flush):
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
