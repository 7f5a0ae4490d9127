#!/usr/bin/env python3
"""workload.py DIR MANIFEST SEED - files of all kinds below DIR, written in all ways.
workload.py --umount MNT PID - umount2(2), and kill -9 PID the moment that it returns.
workload.py --compare DIR MANIFEST - each file of the manifest is there, as it was, and no other.

What the manifest says of contents comes from what was written, not from reading it back. Random
numbers come from SEED: the same files each time.
"""
import ctypes
import hashlib
import json
import mmap
import os
import random
import signal
import sys


class File:
    """A file and what should be in it."""

    def __init__(self, path):
        self.path = path
        self.data = bytearray()
        self.mapped = False
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)

    def write(self, at, data):
        assert os.pwrite(self.fd, data, at) == len(data)
        end = at + len(data)
        if end > len(self.data):
            self.data.extend(bytes(end - len(self.data)))
        self.data[at:end] = data

    def cut(self, size):
        os.ftruncate(self.fd, size)
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))

    def map(self, at, data):
        with mmap.mmap(self.fd, len(self.data)) as memory:
            memory[at:at + len(data)] = data
        self.data[at:at + len(data)] = data
        self.mapped = True  # its time is that of the kernel's writing it back


def one_file(rng, path):
    file = File(path)
    largest = rng.choice([100, 5000, 70000, 400000, 3000000])
    for _ in range(rng.randint(1, 5)):
        data = rng.randbytes(rng.randint(1, largest))
        how = rng.randrange(6)
        if how == 0:
            file.write(len(file.data), data)
        elif how == 1:
            file.write(rng.randrange(len(file.data) + 1), data)
        elif how == 2:
            file.write(len(file.data) + rng.randrange(100000), data)  # a hole before it
        elif how == 3:
            file.write(0, data)
            file.cut(rng.randrange(2 * len(file.data)))
        elif how == 4 and file.data:
            data = data[:len(file.data)]
            file.map(rng.randrange(len(file.data) - len(data) + 1), data)
        else:
            file.write(len(file.data), data)
            os.fsync(file.fd)
    os.close(file.fd)
    if rng.random() < 0.2:
        when = rng.randrange(10**9) * 10**9 + rng.randrange(10**9)
        os.utime(path, ns=(when, when))
    return file


def write(top, manifest, seed):
    rng = random.Random(seed)
    files, gone = [], []
    for i in range(24):
        folder = os.path.join(top, f"d{i % 4}")
        os.makedirs(folder, exist_ok=True)
        file = one_file(rng, os.path.join(folder, f"f{i}"))
        files.append(file)
        what = rng.randrange(8)
        if what == 0:
            new = os.path.join(top, f"moved{i}")
            os.rename(file.path, new)
            file.path = new
        elif what == 1 and len(files) > 1:
            victim = files.pop(rng.randrange(len(files) - 1))
            os.rename(file.path, victim.path)
            file.path = victim.path
        elif what == 2:
            os.unlink(file.path)
            gone.append(files.pop())
        elif what == 3:
            os.chmod(file.path, 0o755)
    entries = {}
    for file in files:
        st = os.lstat(file.path)
        entries[os.path.relpath(file.path, top)] = {
            "size": len(file.data),
            "sha256": hashlib.sha256(file.data).hexdigest(),
            "mode": st.st_mode,
            "mtime": None if file.mapped else st.st_mtime_ns,
        }
    with open(manifest, "w") as out:
        json.dump(entries, out)
    print(f"{len(entries)} files, {sum(e['size'] for e in entries.values())} bytes")


def compare(top, manifest):
    with open(manifest) as text:
        want = json.load(text)
    have = set()
    wrong = 0

    def tell(name, what):
        nonlocal wrong
        wrong += 1
        print(f"{name}: {what}")

    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            name = os.path.relpath(path, top)
            have.add(name)
            if name not in want:
                tell(name, "nobody made it")
                continue
            entry = want[name]
            st = os.lstat(path)
            with open(path, "rb") as file:
                data = file.read()
            if len(data) != entry["size"] or st.st_size != entry["size"]:
                tell(name, f"{st.st_size} bytes, not {entry['size']}")
            elif hashlib.sha256(data).hexdigest() != entry["sha256"]:
                tell(name, "other contents")
            if st.st_mode != entry["mode"]:
                tell(name, f"mode {st.st_mode:o}, not {entry['mode']:o}")
            if entry["mtime"] is not None and st.st_mtime_ns != entry["mtime"]:
                tell(name, f"mtime {st.st_mtime_ns}, not {entry['mtime']}")
    for name in set(want) - have:
        tell(name, "is missing")
    return wrong


def umount_and_kill(mnt, pid):
    libc = ctypes.CDLL(None, use_errno=True)
    path = mnt.encode()
    result = libc.umount2(path, 0)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it was quicker
    if result:
        print(f"umount: {os.strerror(ctypes.get_errno())}")
    return result


def main():
    if sys.argv[1] == "--umount":
        return umount_and_kill(sys.argv[2], int(sys.argv[3])) != 0
    if sys.argv[1] == "--compare":
        return compare(sys.argv[2], sys.argv[3]) != 0
    write(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    return 0


sys.exit(main())
