#!/usr/bin/env python3
"""powercut.py RECORD WORK MOUNTPOINT FS size=BYTES points=N [seed=N] [flush=1] [ended=US] - the disk
of a recorded run (slowdisk's record=) after power cuts at N random moments, each mounted without
pacefs and held against the workload's side logs in WORK.

After a cut the disk has all writes that were answered before the last completed flush arrived, and
of those that came later none, some or all, whole or torn. flush: the mount had -o
flush. ended: when umount had returned; everything is to be there then.
Prints a line per violation and a summary; exit status 1 if there was any.
"""
import bisect
import mmap
import os
import random
import struct
import subprocess
import sys

import model
import workload

RECORD = struct.Struct("=qqQII")
WRITE, TRIM, FLUSH = 1, 2, 3
# The least that is written whole. Half blocks of their own are too much for the others: btrfs alone,
# without pacefs, did not mount after 2 of 300 cuts, xfs below pacefs after 1 of 400.
ATOM = {"ext4": 512, "xfs": 4096, "btrfs": 4096}
# btrfs alone may show a name of before a rename over it although both were fsynced (some of 100 cuts).
FSYNC_NAMES = {"ext4": True, "xfs": True, "btrfs": False}


class Event:
    def __init__(self, fields, data_at):
        arrived, done, self.offset, self.length, self.kind = fields
        self.arrived_us, self.done_us = arrived // 1000, done // 1000
        self.data_at = data_at


class Disk:
    """The recorded run, and the image of what is certain at a moment."""

    def __init__(self, path, image, size, atom):
        self.atom = atom
        with open(path, "rb") as f:
            self.data = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        self.writes, self.flushes = [], []
        at = 0
        while at + RECORD.size <= len(self.data):
            event = Event(RECORD.unpack_from(self.data, at), at + RECORD.size)
            at += RECORD.size + (event.length if event.kind == WRITE else 0)
            (self.flushes if event.kind == FLUSH else self.writes).append(event)
        self.writes.sort(key=lambda e: e.done_us)
        self.flushes.sort(key=lambda e: e.done_us)
        self.image = image
        self.fd = os.open(image, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.ftruncate(self.fd, size)
        self.applied = 0
        # the latest arrival of all flushes that are done, by when they were
        self.covered = []
        for event in self.flushes:
            before = self.covered[-1] if self.covered else 0
            self.covered.append(max(before, event.arrived_us))
        self.flush_done = [e.done_us for e in self.flushes]

    def bytes_of(self, event):
        if event.kind == TRIM:
            return bytes(event.length)
        return self.data[event.data_at:event.data_at + event.length]

    def cut(self, when_us, rng, target):
        """The image of a power cut then, in target. Moments must not go back."""
        nr = bisect.bisect_right(self.flush_done, when_us)
        certain_us = self.covered[nr - 1] if nr else 0
        while (self.applied < len(self.writes) and
               self.writes[self.applied].done_us < certain_us):
            event = self.writes[self.applied]
            os.pwrite(self.fd, self.bytes_of(event), event.offset)
            self.applied += 1
        subprocess.run(["cp", "--sparse=auto", self.image, target], check=True)
        later = [e for e in self.writes[self.applied:] if e.arrived_us <= when_us]
        share = rng.choice((0, 0.2, 0.5, 0.8, 1))
        torn = rng.choice((0, 0, 0.3, 1))
        fd = os.open(target, os.O_RDWR)
        for event in later:
            if rng.random() >= share:
                continue
            data = self.bytes_of(event)
            if rng.random() >= torn:
                os.pwrite(fd, data, event.offset)
                continue
            for at in range(0, len(data), self.atom):
                if rng.random() < 0.5:
                    os.pwrite(fd, data[at:at + self.atom], event.offset + at)
        os.close(fd)
        return f"{len(later)} writes uncertain, {share:.0%} of them there, {torn:.0%} torn"


class Cuts:
    def __init__(self, record, work, mountpoint, fs, size, points, seed=None, flush="0",
                 ended="0"):
        self.work, self.mountpoint, self.fs = work, mountpoint, fs
        self.ended_us = int(ended)
        self.replays = [(w.__name__, model.Replay(f"{work}/{w.__name__}",
                                                  model.Model(False, flush == "1",
                                                              FSYNC_NAMES[fs])))
                        for w in workload.WORKERS]
        self.seed = int(seed) if seed else random.randrange(1, 1000000)
        self.random = random.Random(self.seed)
        self.points = int(points)
        self.disk = Disk(record, work + "/certain.img", int(size), ATOM[fs])
        self.violations = self.bad = 0

    def moments(self):
        first = min(r.entries[0][0] for _, r in self.replays)
        events = [e.done_us for e in self.disk.writes + self.disk.flushes if e.done_us > first]
        # some after the end: there umount has promised everything
        last = max(events) + 1
        late = max(1, self.points // 20)
        return sorted([self.random.choice(events) + self.random.randrange(2)
                       for _ in range(self.points - late)] + [last] * late)

    def check(self, when_us):
        found = []
        for name, replay in self.replays:
            m = replay.until(when_us)
            if self.ended_us and when_us >= self.ended_us:
                m.all_durable()
            found += [f"{name}/{v}" for v in m.check(f"{self.mountpoint}/{name}").violations]
        return found

    def mount_and_check(self, image, when_us):
        loop = subprocess.run(["losetup", "-f", "--show", image], check=True, text=True,
                              stdout=subprocess.PIPE).stdout.strip()
        try:
            mount = subprocess.run(["mount", "-t", self.fs, loop, self.mountpoint], text=True,
                                   stderr=subprocess.PIPE)
            if mount.returncode:
                return ["it does not mount: " + mount.stderr.strip()]
            try:
                return self.check(when_us)
            finally:
                subprocess.run(["umount", self.mountpoint], check=True)
        finally:
            subprocess.run(["losetup", "-d", loop], check=True)

    def run(self):
        image = self.work + "/cut.img"
        for when_us in self.moments():
            how = self.disk.cut(when_us, self.random, image)
            found = self.mount_and_check(image, when_us)
            for text in found[:10]:
                print(f"violation: at {when_us}: {text}", flush=True)
            if found:
                print(f"  {how}", flush=True)
            self.violations += len(found)
            self.bad += bool(found)
        print(f"{self.fs}, seed {self.seed}: {self.points} cuts in {len(self.disk.writes)} writes "
              f"and {len(self.disk.flushes)} flushes: {self.violations} violations in "
              f"{self.bad} of them")
        return 1 if self.violations else 0


sys.exit(Cuts(*sys.argv[1:5], **dict(word.split("=", 1) for word in sys.argv[5:])).run())
