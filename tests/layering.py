#!/usr/bin/env python3
"""layering.py [BUILD_DIR] - the arrows between the rooms of the source tree.

Every #include of util/, throttle/, backend/ and fuse/ is held against the table below. The objects
of throttle/ in BUILD_DIR may need nothing from outside but arithmetic, those that the simulator
runs (SIMULATED) nothing but that, memory and each other. Prints one "ok", "not ok" or "skip" line
per check.
"""
import pathlib
import re
import subprocess
import sys

# A room may include its own headers and those named here. "backend" stands for all of it.
ARROWS = {
    "util": [],
    "throttle": [],
    "backend/cache": ["util", "backend"],
    "backend/flush": ["util", "backend"],
    "backend/store": ["util", "backend"],
    "backend": ["util", "backend"],
    "fuse": ["util", "throttle", "backend", "fuse"],
}
FORBIDDEN = {"backend/cache": ["backend/flush", "backend/store"]}

# Rooms whose system headers are limited to a list, and headers that only one room may have.
SYSTEM_ONLY = {"throttle": {"stdbool.h", "stdint.h", "stddef.h", "math.h", "string.h"}}
SYSTEM_OWNED = {re.compile(r"(fuse3?/.*|fuse.*\.h|linux/fuse\.h)$"): "fuse"}

# What an object of throttle/ may leave undefined: libm, mem* and str*, the compiler's own.
PURE = re.compile(
    r"""^(
    (ceil|floor|round|trunc|rint|lrint|llrint|lround|llround|sqrt|cbrt|pow|exp|exp2|expm1|log
     |log2|log10|log1p|logb|ilogb|fabs|fmin|fmax|fmod|ldexp|frexp|scalbn|hypot|nearbyint|copysign)f?
    |(mem|str)[a-z]+ | __(mem|str)[a-z]+_chk
    |_GLOBAL_OFFSET_TABLE_ | __stack_chk_fail(_local)?
    |__(asan|ubsan|tsan|gcov|llvm|cyg|sanitizer)_.* | _Unwind_.*
    )$""",
    re.VERBOSE,
)

# Step functions that a mount drives with threads and the simulator with events: no clock, thread
# or system call of their own.
SIMULATED = ["pacefs.p/fuse_pacer.c.o", "pacefs.p/fuse_held.c.o", "pacefs.p/fuse_writer.c.o",
             "backend/libbackend.a.p/flush_plan.c.o", "backend/libbackend.a.p/flush_pick.c.o"]
SIMULATED_NEEDS = re.compile(
    r"(throttle_\w+|node_\w+|malloc|calloc|realloc|free|exit|__assert_fail)$")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')

REPO = pathlib.Path(__file__).resolve().parent.parent


def within(path, room):
    return path == room or path.startswith(room + "/")


def room_of(path):
    """The innermost room of the table that a path lies in, or None."""
    return max((room for room in ARROWS if within(path, room)), key=len, default=None)


def wrong_own(room, header):
    """Why a room may not include "header", or None."""
    target = room_of(header)
    if target is None:
        return "names no room"
    if any(within(header, other) for other in FORBIDDEN.get(room, [])):
        return "is not open to this room"
    if not any(within(header, other) for other in [room, *ARROWS[room]]):
        return "is not open to this room"
    if not (REPO / header).exists():
        return "does not exist"
    return None


def wrong_system(room, header):
    """Why a room may not include <header>, or None."""
    if room in SYSTEM_ONLY and header not in SYSTEM_ONLY[room]:
        return "is not arithmetic"
    if room_of(header) is not None:
        return "is ours: write it in quotes"
    for pattern, owner in SYSTEM_OWNED.items():
        if pattern.match(header) and not within(room, owner):
            return f"belongs to {owner}/"
    return None


def violations(path, room):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        own, system = match.groups()
        why = wrong_own(room, own) if own else wrong_system(room, system)
        if why:
            yield f"{path.relative_to(REPO)}:{number}: {own or system} {why}"


def report(name, problems):
    for problem in problems:
        print(f"not ok {name}: {problem}")
    if not problems:
        print(f"ok {name}")
    return not problems


def check_room(room):
    files = [
        path
        for path in sorted((REPO / room).rglob("*.[ch]"))
        if room_of(str(path.relative_to(REPO).parent)) == room
    ]
    if not files:
        if room != "backend":
            print(f"skip includes of {room}/: no files")
        return True
    problems = [problem for path in files for problem in violations(path, room)]
    return report(f"includes of {room}/", problems)


def symbols(objects, *flags):
    out = subprocess.run(
        ["nm", "-P", *flags, *objects], check=True, capture_output=True, text=True
    ).stdout
    return {line.split()[0] for line in out.splitlines() if len(line.split()) > 1}


def check_needs(name, objects, allowed):
    if not objects:
        print(f"skip {name}: no objects")
        return True
    needed = symbols(objects, "-u") - symbols(objects, "--defined-only", "-g")
    return report(name, sorted(f"needs {s}" for s in needed if not allowed(s)))


def check_purity(build):
    return check_needs("throttle/ needs only arithmetic",
                       sorted(build.glob("throttle/**/*.o")), PURE.match)


def check_simulated(build):
    objects = [build / name for name in SIMULATED]
    missing = [f"{o.name} is not there" for o in objects if not o.exists()]
    if missing:
        return report("what the simulator runs", missing)
    return check_needs("what the simulator runs needs no clock, thread or system call", objects,
                       lambda s: PURE.match(s) or SIMULATED_NEEDS.match(s))


def main():
    results = [check_room(room) for room in ARROWS]
    if len(sys.argv) > 1:
        build = pathlib.Path(sys.argv[1])
        results += [check_purity(build), check_simulated(build)]
    else:
        print("skip objects: no BUILD_DIR")
    sys.exit(0 if all(results) else 1)


main()
