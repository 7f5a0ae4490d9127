#!/usr/bin/env python3
"""sparse.py MNT SRC - holes and room of files below MNT, a mount of pacefs over SRC, where nothing
is written before it is asked for (but by hunt). One line for each check, as mount_test.sh has them.
sparse.py --hunt MNT SEED SECONDS - writes, cuts, punches and maps a file at random, and no hole it
shows hides data.
"""
import ctypes
import errno
import mmap
import os
import random
import subprocess
import sys
import time
import traceback

from ask import result, stat

PAGE = 4096
KEEP, PUNCH, COLLAPSE, ZERO, INSERT, UNSHARE = 1, 2, 8, 16, 32, 64
MIB = 1 << 20

libc = ctypes.CDLL(None, use_errno=True)
failed = 0


def fallocate(fd, mode, offset, length):
    if libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)) < 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def equal(got, want, what=""):
    assert got == want, "%s: got %r, want %r" % (what, got, want)


def create(name):
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)


def content(name):
    with open(name, "rb") as f:
        return f.read()


def extents(fd):
    """Where there is data, as seeking tells."""
    found, at = [], 0
    while True:
        try:
            data = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as e:
            equal(e.errno, errno.ENXIO)
            return found
        at = os.lseek(fd, data, os.SEEK_HOLE)
        assert at > data, (data, at)
        found.append((data, at))


def hidden(found, written):
    """Pages that are written but in no extent."""
    return [n for n in written if not any(lo <= n * PAGE < hi for lo, hi in found)]


class Checks:
    def __init__(self, mnt, src):
        self.mnt, self.src = mnt, src
        kind = subprocess.check_output(["stat", "-f", "-c", "%T", src], text=True).strip()
        self.zeroes = kind != "tmpfs"
        os.chdir(mnt)

    def below(self, name):
        fd = os.open(name, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        return os.path.join(self.src, name)

    def dirty_data_is_no_hole(self):
        fd = create("dirty")
        os.pwrite(fd, b"a" * PAGE, 0)
        os.pwrite(fd, b"b" * 100, MIB + 200)
        os.ftruncate(fd, 3 * MIB)
        want = [(0, PAGE), (MIB, MIB + PAGE)]
        equal(extents(fd), want, "dirty")
        equal(os.lseek(fd, MIB + 50, os.SEEK_DATA), MIB + 50)
        equal(os.lseek(fd, 2 * MIB, os.SEEK_HOLE), 2 * MIB)
        equal(os.lseek(fd, 3 * MIB - 1, os.SEEK_HOLE), 3 * MIB - 1)
        for at in 3 * MIB, 3 * MIB + 1, 1 << 40:
            for whence in os.SEEK_DATA, os.SEEK_HOLE:
                equal(result(os.lseek, fd, at, whence), "ENXIO", at)
        equal(result(os.lseek, fd, 2 * MIB, os.SEEK_DATA), "ENXIO")
        full = create("full")
        os.pwrite(full, b"x" * 10000, 0)
        equal(os.lseek(full, 0, os.SEEK_HOLE), 10000, "the hole at the end")
        empty = create("empty")
        equal(result(os.lseek, empty, 0, os.SEEK_DATA), "ENXIO")
        os.fsync(fd)
        equal(extents(fd), want, "written")
        with open(self.below("dirty"), "rb") as f:
            equal(extents(f.fileno()), want, "below")

    def mapped_data_is_no_hole(self):
        fd = create("mapped")
        os.ftruncate(fd, MIB)
        os.pwrite(fd, b"w" * PAGE, 0)
        with mmap.mmap(fd, MIB) as memory:
            memory[PAGE:PAGE + 4] = b"next"
            memory[20 * PAGE:20 * PAGE + 3] = b"far"
            written = [0, 1, 20]
            equal(hidden(extents(fd), written), [], "mapped pages in holes")
            equal(os.lseek(fd, 10 * PAGE, os.SEEK_DATA), 20 * PAGE)
            memory[30 * PAGE] = 1
            reader = os.open("mapped", os.O_RDONLY)
            os.close(fd)
            equal(hidden(extents(reader), written + [30]), [], "by another open")
            subprocess.check_call(["cp", "--sparse=always", "mapped", "mapped.copy"])
            equal(content("mapped.copy"), bytes(memory))
        assert extents(reader)[-1][1] <= 31 * PAGE

    def cut_and_grown(self):
        fd = create("cut")
        os.pwrite(fd, b"d" * 64 * PAGE, 0)
        os.fsync(fd)
        os.ftruncate(fd, 4 * PAGE)
        os.ftruncate(fd, 64 * PAGE)
        equal(extents(fd), [(0, 4 * PAGE)])
        os.ftruncate(fd, 2 * PAGE)
        os.pwrite(fd, b"e", 32 * PAGE)
        equal(extents(fd), [(0, 2 * PAGE), (32 * PAGE, 32 * PAGE + 1)])
        want = b"d" * 2 * PAGE + bytes(30 * PAGE) + b"e"
        equal(content("cut"), want)
        equal(content(self.below("cut")), want)

    def punched(self):
        fd = create("punched")
        data = bytearray(os.urandom(64 * PAGE))
        os.pwrite(fd, data, 0)
        for at, length in (3 * PAGE, 5 * PAGE), (20 * PAGE + 100, 3 * PAGE), (40 * PAGE + 9, 50):
            fallocate(fd, PUNCH | KEEP, at, length)
            data[at:at + length] = bytes(length)
            equal(os.pread(fd, len(data), 0), bytes(data), "dirty")
        assert os.lseek(fd, 3 * PAGE, os.SEEK_HOLE) == 3 * PAGE
        os.pwrite(fd, b"again", 4 * PAGE)
        data[4 * PAGE:4 * PAGE + 5] = b"again"
        fallocate(fd, PUNCH | KEEP, 60 * PAGE, 10 * PAGE)
        data[60 * PAGE:] = bytes(4 * PAGE)
        equal(os.fstat(fd).st_size, 64 * PAGE, "size")
        equal(os.lseek(fd, 3 * PAGE, os.SEEK_DATA), 4 * PAGE)
        equal(content("punched"), bytes(data))
        equal(content(self.below("punched")), bytes(data), "below")

    def zeroed(self):
        fd = create("zeroed")
        data = bytearray(os.urandom(32 * PAGE))
        os.pwrite(fd, data, 0)
        if not self.zeroes:
            equal(result(fallocate, fd, ZERO, 0, PAGE), "ENOTSUP")
            equal(content("zeroed"), bytes(data))
            return
        for at, length in (2 * PAGE, 4 * PAGE), (10 * PAGE + 7, 3 * PAGE), (20 * PAGE, 5):
            fallocate(fd, ZERO, at, length)
            data[at:at + length] = bytes(length)
            equal(os.pread(fd, len(data), 0), bytes(data), "dirty")
        fallocate(fd, ZERO | KEEP, 30 * PAGE, 10 * PAGE)
        data[30 * PAGE:] = bytes(2 * PAGE)
        equal(os.fstat(fd).st_size, 32 * PAGE, "kept size")
        fallocate(fd, ZERO, 31 * PAGE, 4 * PAGE)
        data.extend(bytes(3 * PAGE))
        equal(os.fstat(fd).st_size, 35 * PAGE, "grown size")
        equal(content("zeroed"), bytes(data))
        equal(content(self.below("zeroed")), bytes(data), "below")
        assert os.stat(os.path.join(self.src, "zeroed")).st_blocks >= 35 * 8, "room was kept"

    def modes_that_no_source_has(self):
        fd = create("modes")
        data = os.urandom(16 * PAGE)
        os.pwrite(fd, data, 0)
        for mode in COLLAPSE, INSERT, UNSHARE, UNSHARE | KEEP, PUNCH, 0x4000:
            equal(result(fallocate, fd, mode, 4 * PAGE, 4 * PAGE), "ENOTSUP", mode)
        equal(result(fallocate, fd, 0, -1, PAGE), "EINVAL")
        equal(result(fallocate, fd, PUNCH | KEEP, 0, 0), "EINVAL")
        equal(content("modes"), data)
        reader = os.open("modes", os.O_RDONLY)
        equal(result(fallocate, reader, PUNCH | KEEP, 0, PAGE), "EBADF")

    def copied_by_programs(self):
        fd = create("image")
        for at in 0, 5 * MIB, 9 * MIB + 123, 15 * MIB:
            os.pwrite(fd, os.urandom(70000), at)
        os.pwrite(fd, bytes(MIB), 12 * MIB)
        os.ftruncate(fd, 20 * MIB)
        want = content("image")
        for dirty in True, False:
            for how, allocated in (
                    ("cp --sparse=always image %s", 400 << 10),
                    ("cp --sparse=auto image %s", 1500 << 10),
                    ("cp --sparse=never image %s", None),
                    ("cp --reflink=auto image %s", 1500 << 10),
                    ("rsync -S image %s", 600 << 10),
                    ("dd if=image of=%s bs=64K conv=sparse status=none", 1000 << 10),
                    ("tar -cSf - image | tar -xf - --transform s/image/%s/", 1500 << 10)):
                copy = "copy%d" % dirty
                subprocess.check_call(how % copy, shell=True)
                got = content(copy)
                assert got == want, how
                below = self.below(copy)
                assert content(below) == want, how
                room = os.stat(below).st_blocks * 512
                assert allocated is None or room <= allocated, (how, dirty, room)
                os.unlink(copy)
            self.below("image")

    def copied_by_range(self):
        data = os.urandom(64 * PAGE)
        for clean in False, True:
            fd, to = create("from"), create("to")
            os.pwrite(fd, data, 0)
            os.pwrite(to, b"t" * 80 * PAGE, 0)
            if clean:
                os.fsync(fd)
                os.fsync(to)
            want = bytearray(b"t" * 80 * PAGE)
            for at, length, dest in ((8 * PAGE, 16 * PAGE, 32 * PAGE), (100, 5000, 7),
                                     (60 * PAGE, 4 * PAGE, 78 * PAGE)):
                left = length
                while left:
                    done = length - left
                    n = os.copy_file_range(fd, to, left, at + done, dest + done)
                    assert 0 < n <= left
                    left -= n
                want[dest:dest + length] = data[at:at + length]
            equal(os.copy_file_range(fd, to, PAGE, 64 * PAGE, 0), 0, "from the end on")
            equal(os.copy_file_range(fd, to, 9 * PAGE, 63 * PAGE, 0), PAGE, "short at the end")
            want[:PAGE] = data[63 * PAGE:]
            equal(os.fstat(to).st_size, len(want))
            assert content("to") == want
            assert content(self.below("to")) == want
            assert os.copy_file_range(fd, fd, 4 * PAGE, 0, 70 * PAGE) == 4 * PAGE, "same file"
            assert content("from") == data + bytes(6 * PAGE) + data[:4 * PAGE]
            equal(result(os.copy_file_range, fd, fd, 4 * PAGE, 0, PAGE), "EINVAL", "overlap")
            assert content(self.below("from")) == data + bytes(6 * PAGE) + data[:4 * PAGE]

    def copied_without_waiting(self):
        """What cannot be shared is not brought below to be told so."""
        fd, to = create("odd.from"), create("odd.to")
        os.pwrite(fd, b"o" * 64 * PAGE, 0)
        for at in range(0, 20000, 1000):
            equal(os.copy_file_range(fd, to, 1000, at, at), 1000)
        assert int(stat(self.mnt, "dirty_bytes")) >= 64 * PAGE, "it waited"
        equal(content("odd.to"), b"o" * 20000)

    def copied_from_a_mapping(self):
        fd, to = create("map.from"), create("map.to")
        os.pwrite(fd, b"o" * 16 * PAGE, 0)
        os.fsync(fd)
        with mmap.mmap(fd, 16 * PAGE) as memory:
            memory[5 * PAGE:5 * PAGE + 3] = b"new"
            equal(os.copy_file_range(fd, to, 16 * PAGE, 0, 0), 16 * PAGE)
            assert content("map.to") == bytes(memory)

    def reflink_always_fails_cleanly(self):
        os.close(create("linked"))
        code = subprocess.call(["cp", "--reflink=always", "image", "linked"],
                               stderr=subprocess.DEVNULL)
        assert code != 0
        equal(os.stat("linked").st_size, 0)

    def set_user_id_goes(self):
        """As the kernel would use it at once: stat asks for nothing but the mode."""
        os.chmod(".", 0o777)
        nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
        for how in ("fallocate -l 9000 suid", "fallocate -p -o 0 -l 4096 suid",
                    "fallocate -z -o 0 -l 4096 suid" if self.zeroes else "truncate -s 9 suid",
                    "dd if=/dev/zero of=suid bs=4096 count=1 conv=notrunc status=none",
                    "dd if=/dev/zero of=suid bs=4096 count=1 conv=notrunc oflag=direct "
                    "status=none"):
            fd = create("suid")
            os.pwrite(fd, b"s" * 8192, 0)
            os.fchown(fd, 65534, 65534)
            os.fchmod(fd, 0o6755)
            equal(subprocess.check_output(["stat", "-c", "%a", "suid"]), b"6755\n")
            subprocess.check_call(nobody + how.split())
            equal(subprocess.check_output(["stat", "-c", "%a", "suid"]), b"755\n", how)
        # Of a group that may not execute it, set-group-id stays for its members.
        for group, kept in (65534, b"2644\n"), (1, b"644\n"):
            os.fchown(fd, 65534, group)
            os.fchmod(fd, 0o6644)
            subprocess.check_call(nobody + "fallocate -p -o 0 -l 4096 suid".split())
            equal(subprocess.check_output(["stat", "-c", "%a", "suid"]), kept, group)
        os.fchmod(fd, 0o6644)
        os.fchown(fd, 0, 1)  # and for root
        equal(subprocess.check_output(["stat", "-c", "%a", "suid"]), b"2644\n", "chown")


def check(name, call):
    global failed
    try:
        call()
        print("ok", name)
    except Exception:
        failed += 1
        print("not ok %s: %s" % (name, traceback.format_exc().replace("\n", " | ")))


def hunt(mnt, seed, seconds):
    """Against the flusher, in a cache smaller than the file."""
    print("hunt seed", seed)
    rng = random.Random(seed)
    os.chdir(mnt)
    fd = create("hunted")
    pages = 8192
    os.ftruncate(fd, pages * PAGE)
    memory = mmap.mmap(fd, pages * PAGE)
    written = {}
    end, rounds = time.time() + seconds, 0
    while time.time() < end:
        rounds += 1
        for _ in range(rng.randrange(1, 40)):
            n = rng.randrange(pages)
            value = rng.randrange(1, 256)
            if rng.random() < 0.1:
                memory[n * PAGE] = value
            else:
                os.pwrite(fd, bytes([value]) * rng.choice([1, 1, 700, PAGE]), n * PAGE)
            written[n] = value
        if rng.random() < 0.05:
            n, length = rng.randrange(pages), rng.randrange(1, 500)
            fallocate(fd, PUNCH | KEEP, n * PAGE, length * PAGE)
            written = {i: v for i, v in written.items() if not n <= i < n + length}
        if rng.random() < 0.05:
            keep = rng.randrange(pages)
            os.ftruncate(fd, keep * PAGE)
            os.ftruncate(fd, pages * PAGE)
            written = {i: v for i, v in written.items() if i < keep}
        found = extents(fd)
        missing = hidden(found, written) if rounds % 20 == 0 else hidden(
            found, rng.sample(sorted(written), min(len(written), 50)))
        assert not missing, "round %d: pages %r in holes" % (rounds, missing[:5])
        for n in rng.sample(sorted(written), min(len(written), 5)):
            equal(os.pread(fd, 1, n * PAGE)[0], written[n], "page %d" % n)
    data = sum(hi - lo for lo, hi in extents(fd)) // PAGE
    assert len(written) <= data <= len(written) + pages // 4, (len(written), data)
    print("hunt rounds", rounds, "pages", len(written), "in data", data)


if __name__ == "__main__":
    if sys.argv[1] == "--hunt":
        hunt(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    else:
        checks = Checks(*sys.argv[1:])
        for name in vars(Checks):
            if not name.startswith("_") and name != "below":
                check(name.replace("_", " "), getattr(checks, name))
        sys.exit(failed > 0)
