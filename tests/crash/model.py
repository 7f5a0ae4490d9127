"""model.py - what a file tree may look like after a crash, given what was done and acknowledged.

A worker writes a line into its side log before each operation and one after it. From these lines a
Model follows, for each page of each file, all contents it may have: what was there when the file
was last known to be durable, and whatever was written since. The same for sizes and for names.
check() holds a tree against that.

Contents tell where they belong: each 64 bytes name the file, their place in it and the write they
came from, so that neither garbage nor another file's data can pass.
"""
import json
import os
import stat
import struct

PAGE = 4096
UNIT = 64  # of contents; every offset and length is a multiple of it
SECTOR = 512  # the least that a disk writes at once
ZERO = bytes(PAGE)


def contents(fid, offset, length, version):
    pack = struct.Struct("<IIII").pack
    return b"".join(pack(fid, unit, version, 0x5AFEDA7A) * 4
                    for unit in range(offset // UNIT, (offset + length) // UNIT))


class File:
    def __init__(self, fid, append):
        self.fid = fid
        self.append = append  # only ever made longer: no zeroes in it are anybody's
        self.pages = {}  # index -> contents it may have; the last one is the latest
        self.sizes = [0]
        self.placed = False  # its name was durable once
        self.fresh = True  # not renamed yet
        self.may_vanish = False
        self.mapped = False  # changed through a mapping since it was durable
        self.acked = ({}, 0)  # changes of the operation under way, for "as acknowledged"

    def size(self):
        return self.sizes[-1]

    def latest(self, index):
        return self.pages.get(index, (ZERO,))[-1]

    def unsynced(self):
        return len(self.sizes) > 1 or any(len(v) > 1 for v in self.pages.values())

    def change(self, index, data):
        self.acked[0].setdefault(index, self.latest(index))
        self.pages.setdefault(index, [ZERO]).append(data)

    def begin(self):
        self.acked = ({}, self.size())

    def write(self, offset, length, version):
        data = contents(self.fid, offset, length, version)
        end = offset + length
        for index in range(offset // PAGE, (end - 1) // PAGE + 1):
            start = max(offset, index * PAGE)
            stop = min(end, (index + 1) * PAGE)
            page = bytearray(self.latest(index))
            page[start - index * PAGE:stop - index * PAGE] = data[start - offset:stop - offset]
            self.change(index, bytes(page))
        if end > self.size():
            self.sizes.append(end)
        return data

    def truncate(self, size):
        for index in [i for i in self.pages if (i + 1) * PAGE > size]:
            keep = max(0, size - index * PAGE)
            self.change(index, self.latest(index)[:keep] + bytes(PAGE - keep))
        self.sizes.append(size)

    def durable(self):
        self.pages = {i: [v[-1]] for i, v in self.pages.items()}
        self.sizes = [self.size()]
        self.mapped = False

    def wrong(self, data):
        """Why the file cannot look like this, or None."""
        if not min(self.sizes) <= len(data) <= max(self.sizes):
            return f"size {len(data)}, not {min(self.sizes)}..{max(self.sizes)}"
        for index in range((len(data) + PAGE - 1) // PAGE):
            got = data[index * PAGE:(index + 1) * PAGE]
            may = self.pages.get(index, (ZERO,))
            if any(got == m[:len(got)] for m in may):
                continue
            for at in range(0, len(got), SECTOR):
                part = got[at:at + SECTOR]
                if not any(part == m[at:at + len(part)] for m in may):
                    where = index * PAGE + at
                    return f"bytes at {where}: {describe(part)}, not " + " or ".join(
                        describe(m[at:at + SECTOR]) for m in may[-4:])
        return None

    def lost(self, data):
        """Something acknowledged is not there."""
        before, size = self.acked
        if len(data) != self.size() and len(data) != size:
            return True
        for index in range((len(data) + PAGE - 1) // PAGE):
            got = data[index * PAGE:(index + 1) * PAGE]
            may = (self.latest(index), before.get(index, self.latest(index)))
            if got not in (may[0][:len(got)], may[1][:len(got)]):
                for at in range(0, len(got), SECTOR):
                    part = got[at:at + SECTOR]
                    if all(part != m[at:at + len(part)] for m in may):
                        return True
        return False


def describe(data):
    if not data.strip(b"\0"):
        return "zeroes"
    fid, unit, version, magic = struct.unpack("<IIII", data[:16].ljust(16, b"\0"))
    if magic != 0x5AFEDA7A:
        return "garbage " + data[:16].hex()
    return f"file {fid} version {version} place {unit * UNIT}"


class Model:
    """strict: names are as acknowledged (the daemon died, the machine did not).
    flush: close() makes durable.
    fsync_names: fsync(2) of a file or directory settles names; otherwise only a sync of all does."""

    def __init__(self, strict, flush, fsync_names=True):
        self.strict = strict
        self.flush = flush
        self.fsync_names = fsync_names
        self.files = {}
        self.names = {}  # path -> what may be there: a fid, "D" or None; the last is the latest
        self.pending = None

    def name(self, path, what):
        self.names.setdefault(path, [None]).append(what)

    def at(self, path):
        return self.names.get(path, (None,))[-1]

    def move(self, old, new):
        for path in [p for p in self.names if p == old or p.startswith(old + "/")]:
            what = self.at(path)
            if what is None:
                continue
            target = new + path[len(old):]
            victim = self.at(target)
            if victim in self.files:
                self.files[victim].may_vanish = True
            if what in self.files:
                self.files[what].fresh = False
            self.name(target, what)
            self.name(path, None)

    def begin(self, kind, *args):
        self.pending = (kind, args)
        file = self.files.get(args[0]) if args and isinstance(args[0], int) else None
        if file:
            file.begin()
        if kind == "create":
            path, fid, append = args
            self.files[fid] = File(fid, append)
            self.name(path, fid)
        elif kind in ("write", "syncwrite", "mwrite"):
            file.write(*args[1:])
            file.mapped |= kind == "mwrite"
        elif kind == "truncate":
            file.truncate(args[1])
        elif kind == "mkdir":
            self.name(args[0], "D")
        elif kind == "rename":
            self.move(*args)
        elif kind == "unlink":
            self.files[self.at(args[0])].may_vanish = True
            self.name(args[0], None)

    def durable(self, file):
        file.durable()
        if file.fresh and self.fsync_names:
            for path, may in self.names.items():
                if may[-1] == file.fid:
                    self.names[path] = [file.fid]
                    file.placed = True

    def settle_names(self, below):
        for path, may in self.names.items():
            if below is None or os.path.dirname(path) == below:
                self.names[path] = [may[-1]]
                if may[-1] in self.files:
                    self.files[may[-1]].placed = True

    def done(self):
        kind, args = self.pending
        self.pending = None
        file = self.files.get(args[0]) if args and isinstance(args[0], int) else None
        if file:
            file.begin()
        if kind in ("fsync", "syncwrite", "msync") or (kind == "close" and self.flush):
            self.durable(file)
        elif kind == "syncdir" and self.fsync_names:
            self.settle_names(args[0])
        elif kind == "syncall":
            self.all_durable()
        elif self.strict and kind in ("create", "mkdir", "rename", "unlink"):
            self.settle_names(None)

    def all_durable(self):
        for file in self.files.values():
            file.durable()
        self.settle_names(None)

    # ---- against a tree ----

    def check_path(self, root, path, may, result):
        full = os.path.join(root, path)
        try:
            mode = os.lstat(full).st_mode
        except FileNotFoundError:
            if None not in may:
                result.violations.append(f"{path}: is not there, must be {may}")
            return
        if stat.S_ISDIR(mode):
            if "D" not in may:
                result.violations.append(f"{path}: a directory, not {may}")
            return
        with open(full, "rb") as f:
            data = f.read()
        reasons = []
        for fid in [m for m in reversed(may) if isinstance(m, int)]:
            why = self.files[fid].wrong(data)
            if why is None:
                result.found[fid] = (path, data)
                return
            reasons.append(f"as file {fid}: {why}")
        result.violations.append(f"{path}: {'; '.join(reasons) or 'should not be there'}")

    def check(self, root):
        result = Result()
        for path, may in sorted(self.names.items()):
            self.check_path(root, path, may, result)
        for file in self.files.values():
            if file.placed and not file.may_vanish and file.fid not in result.found:
                result.violations.append(f"file {file.fid} has no name any more")
        return result


class Result:
    def __init__(self):
        self.violations = []
        self.found = {}  # fid -> (path, data)




class Replay:
    """Feeds a side log into a model: what was begun, and acknowledged, until a moment."""

    def __init__(self, log, model):
        self.model = model
        self.at = 0
        self.entries = []
        if os.path.exists(log):
            with open(log) as lines:
                # the last line may be half a one
                self.entries = [json.loads(line) for line in lines if line.endswith("\n")]

    def until(self, when_us=None):
        """The model then. Moments must not go back."""
        while self.at < len(self.entries):
            when, *what = self.entries[self.at]
            if when_us is not None and when > when_us:
                break
            if what == ["ok"]:
                self.model.done()
            else:
                self.model.begin(*what)
            self.at += 1
        return self.model


def strangers(root, models):
    """Names below root that nobody ever made."""
    known = set()
    for prefix, model in models:
        known |= {os.path.normpath(os.path.join(prefix, p)) for p in model.names}
        known.add(prefix)
    found = []
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.relpath(os.path.join(folder, name), root)
            if path not in known and path.split("/")[0] != "lost+found":
                found.append(path)
    return found
