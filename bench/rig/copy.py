#!/usr/bin/env python3
"""copy.py FROM TO - copy with write()s of 1 MiB, as cp and dd do, without a sync.

Prints one line: seconds= MBs= (10^6 bytes) max_ms= (the longest write()).
"""
import os
import sys
import time

CHUNK = 1 << 20


def write_all(fd, chunk):
    """Returns the time of the longest write()."""
    longest = 0.0
    view = memoryview(chunk)
    while view:
        before = time.monotonic()
        done = os.write(fd, view)
        longest = max(longest, time.monotonic() - before)
        view = view[done:]
    return longest


def main():
    source = open(sys.argv[1], "rb", buffering=0)
    target = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    copied, longest, start = 0, 0.0, time.monotonic()
    while chunk := source.read(CHUNK):
        longest = max(longest, write_all(target, chunk))
        copied += len(chunk)
    os.close(target)
    seconds = time.monotonic() - start
    print(f"seconds={seconds:.1f} MBs={copied / seconds / 1e6:.1f} max_ms={longest * 1e3:.0f}")


try:
    main()
except OSError as error:
    sys.exit(f"copy: {error}")
except KeyboardInterrupt:
    sys.exit(130)
