#!/usr/bin/env python3
"""kill.py PACEFS SOURCE MOUNTPOINT WORK [cycles=N] [seed=N] - kill -9 of the daemon at random
moments of a workload, of a start, of umount and of umount -f; after each the next start, and then
the source against the side logs: what was acknowledged as durable is there, the rest is old or new,
names are right, and the start has named every file that lost something, and no other.
Prints a line per violation and a summary; exit status 1 if there was any.
"""
import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
import time

import model
import workload

REPORT = re.compile(r"^pacefs: (.*): (up to (\d+) bytes written last were lost|"
                    r"that it was made shorter)")
MORE = re.compile(r"^pacefs: .*: and (\d+) more files lost their last writes")
OPTIONS = ("", "flush", "max_bytes=2M", "flush,io_engine=sync", "io_engine=sync",
           "dirty_background_centisecs=10,dirty_centisecs=50")
KEPT = 3  # cycles whose files are looked at again


class Daemon:
    def __init__(self, test, options=""):
        self.test = test
        command = [test.pacefs, "-f", test.source, test.mount]
        self.log = open(test.work + "/daemon.log", "w+")
        self.process = subprocess.Popen(command + (["-o", options] if options else []),
                                        stderr=self.log, stdin=subprocess.DEVNULL)

    def answers(self):
        try:
            return os.statvfs(self.test.mount) and self.test.mounted()
        except OSError:
            return False

    def wait(self):
        end = time.monotonic() + 30
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > end:
                self.test.violation("the daemon does not start: " + self.text())
                sys.exit(1)
            time.sleep(0.005)

    def kill(self):
        self.process.kill()
        self.process.wait()
        if re.search(r"Sanitizer|runtime error:|[Aa]ssertion", self.text()):
            self.test.violation("the daemon: " + self.text())

    def text(self):
        self.log.flush()
        with open(self.log.name) as f:
            return f.read()


class Test:
    def __init__(self, pacefs, source, mount, work, cycles="5", seed=None):
        self.pacefs, self.source, self.mount, self.work = pacefs, source, mount, work
        self.cycles = int(cycles)
        self.seed = int(seed) if seed else random.randrange(1, 2000)
        self.random = random.Random(self.seed)
        self.violations = 0
        self.named = self.lost = self.trimmed = self.complete = 0
        self.past = []  # (directory, digests)
        self.last = None
        self.how = ""
        self.kinds = {}

    def violation(self, text):
        self.violations += 1
        print(f"violation: {text}", flush=True)

    def mounted(self):
        with open("/proc/self/mountinfo") as f:
            return any(line.split()[4] == self.mount and " fuse" in line for line in f)

    # ---- checking ----

    def models(self):
        cycle, flush = self.last[:2]
        for work in workload.WORKERS:
            name = work.__name__
            log = f"{self.work}/{cycle}/{name}"
            yield name, model.Replay(log, model.Model(True, flush)).until()

    def check(self, report):
        """The last cycle's directory, after the start that printed the report."""
        cycle, _, complete = self.last
        root = f"{self.source}/{cycle}"
        models = list(self.models())
        found = {}
        for name, m in models:
            result = m.check(f"{root}/{name}")
            for text in result.violations:
                self.violation(f"{cycle}/{name}: {text}")
            for fid, (path, data) in result.found.items():
                found[f"{root}/{name}/{path}"] = (m.files[fid], data)
        for path in model.strangers(root, models):
            self.violation(f"{cycle}/{path}: nobody made it")
        self.check_report(models, found, report, complete, root)
        self.past.append((cycle, digests(root)))

    def check_report(self, models, found, report, complete, root):
        named, silent, more = {}, [], 0
        for line in report.splitlines():
            match = REPORT.match(line)
            if match:
                named[match.group(1)] = line
                self.trimmed += "it ends at" in line
            match = MORE.match(line)
            more += int(match.group(1)) if match else 0
        self.named += len(named)
        for path, (file, data) in found.items():
            lost = file.lost(data) and not file.mapped
            self.lost += lost
            if lost and complete:
                self.violation(f"{path}: not complete after a complete end")
            elif lost and path not in named:
                silent.append(path)
            if file.append and data and not data[-model.SECTOR:].strip(b"\0"):
                self.violation(f"{path}: ends in zeroes at {len(data)}")
        if len(silent) > more:
            self.violation(f"lost in silence, beside {more} that were counted: {silent}")
        for path, line in named.items():
            if path in found:
                if not found[path][0].unsynced():
                    self.violation(f"named, but everything was durable: {line}")
            elif not self.may_be_gone(models, path, root):
                self.violation(f"named, but there is no such file: {line}")

    def may_be_gone(self, models, path, root):
        for name, m in models:
            prefix = f"{root}/{name}/"
            if path.startswith(prefix) and len(m.names.get(path[len(prefix):], ())) > 1:
                return True
        return False

    def check_past(self):
        for cycle, want in self.past:
            got = digests(f"{self.source}/{cycle}")
            for path in sorted(set(want) | set(got)):
                if want.get(path) != got.get(path):
                    self.violation(f"{cycle}/{path}: was changed later")

    def forget(self):
        while len(self.past) > KEPT:
            cycle, _ = self.past.pop(0)
            shutil.rmtree(f"{self.mount}/{cycle}")
            shutil.rmtree(f"{self.work}/{cycle}")

    # ---- one cycle ----

    def start(self, options=""):
        """A daemon that serves; returns it and all that was said about the last one's end."""
        report = ""
        while self.random.random() < 0.15:
            daemon = Daemon(self)
            time.sleep(self.random.random() * 0.08)
            daemon.kill()
            report += daemon.text()
            self.count("killed while starting")
        daemon = Daemon(self, options)
        daemon.wait()
        return daemon, report + daemon.text()

    def count(self, kind):
        self.kinds[kind] = self.kinds.get(kind, 0) + 1

    def kill_plain(self, daemon):
        time.sleep(self.random.random() * 2)
        daemon.kill()
        return False

    def kill_draining(self, daemon, pids):
        for pid in pids:
            os.waitpid(pid, 0)
        umount = subprocess.Popen(["umount", self.mount], stderr=subprocess.DEVNULL)
        time.sleep(self.random.random() * 1)
        complete = umount.poll() == 0
        daemon.kill()
        umount.wait()
        return complete

    def kill_forced(self, daemon):
        time.sleep(self.random.random() * 1)
        umount = subprocess.Popen(["umount", "-f", "-l", self.mount], stderr=subprocess.DEVNULL)
        time.sleep(self.random.random() * 0.6)
        complete = daemon.process.poll() == 0
        daemon.kill()
        umount.wait()
        return complete

    def cycle(self, number):
        options = self.random.choice(OPTIONS)
        kind = self.random.choices(("plain", "draining", "umount -f"), (7, 2, 1))[0]
        daemon, report = self.start(options)
        if self.last:
            before = self.violations
            self.check(report)
            self.check_past()
            self.forget()
            if self.violations > before:
                print(f"  {self.how}; repro: seed={self.seed}; the start said:\n{report}",
                      flush=True)
        self.how = f"cycle {number}: {kind}, options '{options}'"
        name = f"c{number}"
        os.makedirs(f"{self.mount}/{name}")
        os.makedirs(f"{self.work}/{name}")
        seconds = 1 if kind == "draining" else 60
        pids = workload.run(f"{self.mount}/{name}", f"{self.work}/{name}",
                            self.seed + number, seconds, [self.pacefs, "flush", self.mount])
        if kind == "plain":
            complete = self.kill_plain(daemon)
        elif kind == "draining":
            complete = self.kill_draining(daemon, pids)
            pids = []
        else:
            complete = self.kill_forced(daemon)
        for pid in pids:
            os.waitpid(pid, 0)
        self.count(kind)
        self.complete += complete
        self.last = (name, "flush" in options.split(","), complete)

    def run(self):
        for number in range(self.cycles):
            self.cycle(number)
        daemon, report = self.start()
        self.check(report)
        self.check_past()
        subprocess.run(["umount", self.mount], check=True)
        if daemon.process.wait() != 0:
            self.violation("the last daemon failed: " + daemon.text())
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(self.kinds.items()))
        print(f"seed {self.seed}: {self.cycles} cycles ({kinds}; {self.complete} had ended well "
              f"before): {self.violations} violations; {self.lost} files lost something, "
              f"{self.named} were named, {self.trimmed} of them shortened")
        return 1 if self.violations else 0


def digests(root):
    found = {}
    for folder, folders, files in os.walk(root):
        for name in folders:
            found[os.path.relpath(os.path.join(folder, name), root)] = "directory"
        for name in files:
            path = os.path.join(folder, name)
            with open(path, "rb") as f:
                found[os.path.relpath(path, root)] = hashlib.sha1(f.read()).hexdigest()
    return found


sys.exit(Test(*sys.argv[1:5], **dict(word.split("=", 1) for word in sys.argv[5:])).run())
