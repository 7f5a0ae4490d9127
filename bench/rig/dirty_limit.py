"""dirty_limit.py - vm.dirty_bytes for the time of a run, and what was there before put back.

The sysctls are the whole machine's. A guard, a process outside of the lab's namespaces, waits
for the end of everybody who could still have them changed, however they end, and puts them back.
"""
import os
import signal
import sys

VM = "/proc/sys/vm"
PAIRS = (("dirty_bytes", "dirty_ratio"), ("dirty_background_bytes", "dirty_background_ratio"))


def read(name):
    with open(f"{VM}/{name}", encoding="ascii") as f:
        return int(f.read())


def write(name, value):
    with open(f"{VM}/{name}", "w", encoding="ascii") as f:
        f.write(str(value))


def current():
    return {name: read(name) for pair in PAIRS for name in pair}


def restore(saved):
    """Of a pair the one written last counts, and the kernel forgets the other."""
    if current() == saved:
        return
    for bytes_, ratio in PAIRS:
        if saved[bytes_]:
            write(bytes_, saved[bytes_])
        else:
            # 0 is accepted for a ratio only, and only a change of it makes it count
            write(ratio, 1)
            write(ratio, saved[ratio])
    if current() != saved:
        raise OSError(f"{VM}: {current()} and not {saved} as before")


class DirtyLimit:
    """The kernel's limit is thresh bytes, the background half of it, from begin() to end()."""

    def __init__(self, thresh):
        self.thresh, self.saved = thresh, None

    def begin(self):
        self.saved = current()
        try:
            write("dirty_background_bytes", self.thresh // 2)
            write("dirty_bytes", self.thresh)
        except OSError:
            self.end()
            raise

    def end(self):
        if self.saved:
            restore(self.saved)
            self.saved = None


class Guard:
    """Begin it before lab.enter(), with fd among its pass_fds; end() it after that."""

    def __init__(self):
        alive, self.fd = os.pipe()
        saved = self.saved = current()
        self.pid = os.fork()
        if self.pid > 0:
            os.close(alive)
            return
        status = 1
        try:
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            os.close(self.fd)
            os.read(alive, 1)  # nobody writes: it returns when all others have ended
            restore(saved)
            status = 0
        finally:
            os._exit(status)

    def end(self):
        os.close(self.fd)
        if os.waitpid(self.pid, 0)[1]:
            print(f"{VM} could not be put back: {self.saved}", file=sys.stderr)
