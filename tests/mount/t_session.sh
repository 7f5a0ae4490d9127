#!/bin/bash
# Requests that wait (fsync) have readers of their own; when many of them end at once the mount
# stays.
# shellcheck source=../lib/mount_test.sh
. "$PACEFS_REPO/tests/lib/mount_test.sh"

src=$TEST_DIR/usb
mnt=$TEST_DIR/mnt

source_up usb ext4 512M 50000000 || exit 1
pacefs_start "$src" "$mnt" || exit 1
cat >"$TEST_DIR/fsyncs.py" <<'E2'
"""fsyncs.py DIRECTORY: a hundred threads that write and fsync a file each, all at the same time."""
import os
import sys
import threading

failed = []
start = threading.Barrier(100, timeout=60)


def run(i):
    try:
        fd = os.open(f"{sys.argv[1]}/f{i}", os.O_RDWR | os.O_CREAT)
        for _ in range(10):
            os.pwrite(fd, b"x" * 4096, 0)
            start.wait()
            os.fsync(fd)
    except (OSError, threading.BrokenBarrierError) as error:
        failed.append(error)
        start.abort()


threads = [threading.Thread(target=run, args=(i,)) for i in range(100)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit(str(failed[0]) if failed else 0)
E2
check "a hundred fsyncs end at once, ten times" python3 "$TEST_DIR/fsyncs.py" "$mnt"
check "the mount answers" stat "$mnt/f1"
check "umount" pacefs_stop
