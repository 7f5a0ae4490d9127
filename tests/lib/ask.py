"""What programs inside mount tests ask the system, a slow disk and a mount of pacefs for."""

import ctypes
import errno
import os
import time

_libc = ctypes.CDLL(None, use_errno=True)


def result(call, *args):
    """"ok", or the name of the error."""
    try:
        call(*args)
        return "ok"
    except OSError as e:
        return errno.errorcode[e.errno]


def syncfs(fd):
    if _libc.syncfs(fd) < 0:
        raise OSError(ctypes.get_errno(), "syncfs")


def tell(ctl, *lines):
    """The slow disk with this control file does so from now on."""
    with open(ctl, "a") as f:
        f.write("".join(line + "\n" for line in lines))


def stat(mnt, key):
    """One of the mount's statistics, its first word."""
    for line in os.getxattr(mnt, "user.pacefs.stats").decode().splitlines():
        if line.startswith(key + ": "):
            return line.split()[1]
    raise KeyError(key)


def until_healthy(mnt, write, *args, seconds=30):
    """Writes, whatever comes of it, until they are buffered again: some seconds after the last
    error."""
    end = time.time() + seconds
    while stat(mnt, "health") != "healthy":
        assert time.time() < end, "does not recover"
        result(write, *args)
        time.sleep(0.1)


def run_checks(checks, test):
    """Calls each (name, check) with test, a line for each; whether any of them failed."""
    failed = 0
    for name, check in checks:
        try:
            check(test)
            print(f"ok {name}", flush=True)
        except (AssertionError, OSError) as e:
            failed += 1
            print(f"not ok {name}: {type(e).__name__} {e}", flush=True)
    return failed > 0
