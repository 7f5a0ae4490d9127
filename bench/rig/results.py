"""results.py - what the runs of bench/matrix found, in a file, and as tables."""
import hashlib
import json
import os
import statistics
import sys
import time

import lab


def build_now():
    """Which pacefs is measured."""
    with open(lab.PACEFS, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()[:12]


def has_build(record):
    return record["system"] != "kernel"


class Results:
    """Records by (case, system, repeat), and the file (or None) that keeps them, a line each.

    Only those of runs as long as wanted are seen, and of pacefs those of one build: of the one
    that is measured now, or, where nothing is measured, of the last one in the file."""

    def __init__(self, path, warm, seconds, only_read=False):
        self.records, self.path, self.text = {}, path, ""
        self.wanted = {"warm": warm, "seconds_wanted": seconds}
        if path:
            with open(path, "r" if only_read else "a+", encoding="utf-8") as f:
                f.seek(0)
                self.text = f.read()
        records = list(self._parse())
        builds = [r.get("build") for r in records if has_build(r)]
        self.build = build_now() if not only_read else builds[-1] if builds else None
        for record in records:
            self._take(record)
        others = sum(build != self.build for build in builds)
        if others:
            print(f"matrix: {others} runs in {path} are of other builds than {self.build}",
                  file=sys.stderr)

    def _parse(self):
        """Those of the file that are as long as wanted."""
        for nr, line in enumerate(self.text.splitlines(), 1):
            try:
                record = json.loads(line)
                self._key(record)
                if all(record[key] == value for key, value in self.wanted.items()):
                    yield record
            except (ValueError, TypeError, KeyError):
                print(f"matrix: {self.path}:{nr} is not a result", file=sys.stderr)

    @staticmethod
    def _key(record):
        return record["case"], record["system"], record["repeat"]

    def _take(self, record):
        if not has_build(record) or record.get("build") == self.build:
            self.records[self._key(record)] = record

    def has(self, case, system, repeat):
        return (case.name, system, repeat) in self.records

    def add(self, case, system, repeat, figures):
        record = {"case": case.name, "system": system, "repeat": repeat, **self.wanted,
                  "rate": case.profile.rate, "thresh": case.thresh,
                  "kernel": os.uname().release, "at": int(time.time()), **figures}
        if has_build(record):
            if build_now() != self.build:
                raise lab.Failed(f"{lab.PACEFS} was built anew meanwhile")
            record["build"] = self.build
        self._take(record)
        if self.path:
            line = json.dumps(record) + "\n"
            with open(self.path, "a", encoding="utf-8") as f:
                # a line that was cut off stays alone
                f.write(line if not self.text or self.text.endswith("\n") else "\n" + line)
            self.text = line

    def values(self, case, system, figure):
        return [r[figure] for (c, s, _), r in self.records.items()
                if c == case.name and s == system and figure in r]


# ---- tables ----

COLUMNS = (("MB/s", "durable_MBs", "{:.2f}"), ("Jain", "jain", "{:.4f}"),
           ("p50 ms", "p50_ms", "{:.2f}"), ("p99 ms", "p99_ms", "{:.0f}"),
           ("max ms", "max_ms", "{:.0f}"), ("written", "amplification", "{:.3f}"),
           ("umount s", "umount_s", "{:.2f}"), ("CPU s", "cpu_s", "{:.1f}"),
           ("daemon's", "daemon_cpu_s", "{:.1f}"))


def with_range(values):
    text = f"{statistics.median(values):.2f}"
    return text + (f" ({min(values):.2f}..{max(values):.2f})" if len(values) > 1 else "")


def throughput_table(cases, systems, results):
    """Medians with ranges, and over the first system's; of systems that have any."""
    systems = [s for s in systems if any(results.values(c, s, "durable_MBs") for c in cases)]
    if not systems:
        print("no results")
        return
    print("client bytes durable / time with the final fsync, MB/s: median (range), "
          f"ratio to {systems[0]}")
    print(" ".join(f"{s:>29}" for s in systems) + "  case")
    sums = dict.fromkeys(systems, 0.0)
    for case in cases:
        medians, cells = {}, []
        for system in systems:
            values = results.values(case, system, "durable_MBs")
            if values:
                medians[system] = statistics.median(values)
            ratio = (f"{medians[system] / medians[systems[0]]:6.3f}"
                     if system != systems[0] and values and systems[0] in medians else "")
            cells.append(f"{with_range(values) if values else 'nothing':>22} {ratio:6}")
        print(" ".join(cells) + f"  {case.name}")
        if len(medians) == len(systems):
            for system in systems:
                sums[system] += medians[system]
    if sums[systems[0]]:
        print(" ".join(f"{sums[s]:22.2f} " + (f"{sums[s] / sums[systems[0]]:6.3f}" if s !=
                                             systems[0] else " " * 6) for s in systems) +
              "  TOTAL durable_MBs (cases that all have)")


def figures_table(cases, systems, results):
    print("\nmedians; written: bytes at the disk over the clients'; CPU: of the whole machine")
    print(" ".join(f"{title:>8}" for title, _, _ in COLUMNS) + f"  {'system':13} case")
    for case in cases:
        for system in systems:
            columns = [(form, results.values(case, system, figure))
                       for _, figure, form in COLUMNS]
            if not columns[0][1]:
                continue
            cells = [form.format(statistics.median(values)) for form, values in columns]
            print(" ".join(f"{c:>8}" for c in cells) + f"  {system:13} {case.name}")
