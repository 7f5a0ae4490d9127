#!/usr/bin/env python3
"""reap.py STATUS_FILE COMMAND... - run a command that may go to the background.

When the command itself has ended its exit status is written to STATUS_FILE. Everything it
left running becomes our child; we end when the last of it has, with its exit status (128 + N
for signal N), or with the command's own if that was not 0.
"""
import ctypes
import os
import sys

PR_SET_CHILD_SUBREAPER = 36


def exit_status(raw):
    code = os.waitstatus_to_exitcode(raw)
    return 128 - code if code < 0 else code


def main():
    status_file, command = sys.argv[1], sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    launcher = os.fork()
    if launcher == 0:
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr)
            os._exit(127)
    launched = last = 0
    while True:
        try:
            pid, raw = os.wait()
        except ChildProcessError:
            sys.exit(launched or last)
        last = exit_status(raw)
        if pid == launcher:
            launched = last
            with open(status_file + ".new", "w") as out:
                out.write(f"{launched}\n")
            os.rename(status_file + ".new", status_file)


main()
