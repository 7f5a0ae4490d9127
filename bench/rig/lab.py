"""lab.py - slow disks, mounts, writers and probes for measuring programs.

A measuring program calls enter() first: it runs again in a mount and PID namespace of its own,
on a private tmpfs, so that nothing of it can stay behind, however it ends.
"""
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("PACEFS_BUILD", os.path.join(REPO, "build")))
PACEFS = os.environ.get("PACEFS", os.path.join(BUILD, "pacefs"))
BENCH = os.path.join(BUILD, "bench")
INSIDE = "PACEFS_LAB"
STOP_TIMEOUT_S = 60


class Failed(Exception):
    """A measurement could not be made; says why."""


def enter(pass_fds=()):
    """Returns only inside the namespaces, in an empty directory. pass_fds stay open there."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if os.environ.get(INSIDE):
        work = os.environ[INSIDE]
        for place in (work, "/var/lib/pacefs"):
            os.makedirs(place, exist_ok=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "pacefs-lab", place],
                           check=True)
        os.environ["TMPDIR"] = work
        os.chdir(work)
        return
    if os.geteuid() != 0:
        sys.exit(f"{os.path.basename(sys.argv[0])}: run me as root: I mount file systems")
    work = subprocess.check_output(["mktemp", "-d", "-t", "pacefs-lab.XXXXXX"], text=True).strip()
    try:
        # setpriv: nothing outlives a kill -9 of this process either.
        sys.exit(subprocess.call(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "-mp", "--propagation", "private",
             "--fork", "--kill-child", "--mount-proc", sys.executable,
             os.path.abspath(sys.argv[0]), *sys.argv[1:]],
            env={**os.environ, INSIDE: work}, pass_fds=pass_fds))
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        os.rmdir(work)


def run(*command, timeout=60, **kwargs):
    """Output of a command; Failed if it fails."""
    done = subprocess.run([str(c) for c in command], timeout=timeout, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, **kwargs)
    if done.returncode != 0:
        raise Failed(f"{shlex.join(map(str, command))}: {done.stderr.strip() or done.stdout.strip()[-200:]} ({done.returncode})")
    return done.stdout


def wait_until(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {seconds} s")
        time.sleep(0.01)


# ---- disks ----

class Disk:
    """An emulated slow disk (slowdisk.sh); with a file system it is mounted at self.path.

    seek: seekmin, seekmax and rot in ms, where the head has a way to go."""

    def __init__(self, name, size, rate, fs=None, log=None, **seek):
        self.name, self.rate, self.fs = name, rate, fs
        self.knobs = {"rate": rate, **seek}
        self.path = os.path.abspath(name)
        self.dir = os.path.abspath(f"disks/{name}")
        self.log = os.path.abspath(log) if log else None
        # nbdkit ends with the shell that started it.
        self.shell = subprocess.Popen(
            ["bash", "-c", f". {shlex.quote(REPO)}/bench/rig/slowdisk.sh\n"
             f"slowdisk_up {name} {size} {0 if fs else rate}" +
             (f" log={self.log}" if log else "") + " && echo up || exit 1\n"
             f"read -r _; slowdisk_down {name}"],
            env={**os.environ, "SLOWDISK_DIR": os.path.dirname(self.dir), "PACEFS_BUILD": BUILD},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if not self.shell.stdout.readline():
            raise Failed("no disk")
        with open(f"{self.dir}/dev", encoding="ascii") as f:
            self.device = f.read().strip()
        # As such a disk would say of itself.
        rotational = f"/sys/block/{os.path.basename(self.device)}/queue/rotational"
        with open(rotational, "w", encoding="ascii") as f:
            f.write("1" if seek else "0")
        if fs:
            self.mkfs()
            self.slow()

    def mkfs(self):
        options = {"ext4": ["-qF", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"]}
        run(f"mkfs.{self.fs}", *options.get(self.fs, ["-qf"]), self.device)
        os.makedirs(self.path, exist_ok=True)
        self.mount()
        run("sync", "-f", self.path)

    def mount(self):
        run("mount", "-t", self.fs, "-o", "noatime", self.device, self.path)

    def umount(self):
        run("umount", self.path)

    def set(self, **knobs):
        with open(f"{self.dir}/ctl", "a", encoding="ascii") as f:
            f.writelines(f"{k}={v}\n" for k, v in knobs.items())

    def fast(self):
        self.set(**dict.fromkeys(self.knobs, 0))

    def slow(self):
        self.set(**self.knobs)

    def empty(self):
        """All files go, at full speed."""
        self.fast()
        run("find", self.path, "-mindepth", "1", "-maxdepth", "1", "!", "-name", "lost+found",
            "-delete")
        run("sync", "-f", self.path)
        self.slow()

    def touch(self):
        """Writes all of it once (before mkfs): memory used for the first time is slow."""
        self.fast()
        size = run("blockdev", "--getsize64", self.device).strip()
        run("fio", "--name=touch", f"--filename={self.device}", "--rw=write", "--direct=1",
            "--bs=1M", "--ioengine=io_uring", "--iodepth=8", f"--size={size}")
        self.slow()

    def sectors_written(self):
        with open(f"/sys/block/{os.path.basename(self.device)}/stat", encoding="ascii") as f:
            return int(f.read().split()[6])

    def measured_rate(self, seconds=3):
        """Bytes/s of sequential direct writes, several at once. Overwrites the disk."""
        out = json.loads(run(
            "fio", "--name=rate", f"--filename={self.device}", "--rw=write", "--direct=1",
            "--bs=512k", "--ioengine=io_uring", "--iodepth=8", "--time_based",
            f"--runtime={seconds}", "--output-format=json"))
        return out["jobs"][0]["write"]["bw_bytes"]

    def writes(self):
        """The log: (arrived_s, offset, bytes) of each write, in seconds of time.monotonic()."""
        with open(self.log, encoding="ascii") as f:
            rows = [line.split() for line in f if line.endswith("\n")]
        return [(int(r[0]) / 1e6, int(r[3]), int(r[4])) for r in rows if r[2] == "write"]

    def down(self):
        self.shell.communicate("down\n", timeout=60)


# ---- mounts ----

class Mount:
    """A FUSE daemon that stays in the foreground: command's last words name the mountpoint."""

    def __init__(self, command, path):
        self.path = os.path.abspath(path)
        self.log_name = f"{self.path}.log"
        os.makedirs(self.path, exist_ok=True)
        with open(self.log_name, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log)
        try:
            wait_until(self._answers, 15, command[0])
        except Failed:
            self.kill()
            raise Failed(f"{command[0]} did not mount: {self.log()}") from None

    def _answers(self):
        if self.process.poll() is not None:
            raise Failed("it ended")
        return os.path.ismount(self.path)

    def log(self):
        with open(self.log_name, encoding="utf-8", errors="replace") as f:
            return f.read().strip()

    def pin(self, cpus):
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            os.sched_setaffinity(int(task), cpus)

    def cpu_s(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as f:
            words = f.read().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        """umount and wait for the daemon: Failed unless it exits 0."""
        try:
            run("umount", self.path, timeout=STOP_TIMEOUT_S)
            status = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise Failed(f"umount {self.path}: {error}") from None
        if status != 0:
            raise Failed(f"the daemon exited {status}: {self.log()}")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        subprocess.run(["umount", "-l", self.path], stderr=subprocess.DEVNULL, check=False)


class Pacefs(Mount):
    def __init__(self, source, path, **options):
        words = ",".join(f"{k}={v}" for k, v in options.items())
        command = [PACEFS, "-f", source, os.path.abspath(path)]
        super().__init__(command + (["-o", words] if words else []), path)

    def get(self, name):
        return os.getxattr(self.path, f"user.pacefs.{name}").decode()

    def set(self, name, value):
        os.setxattr(self.path, f"user.pacefs.{name}", str(value).encode())

    def stats(self):
        """The first value of each key; numbers as numbers."""
        stats = {}
        for line in self.get("stats").splitlines():
            key, _, value = line.partition(": ")
            try:
                stats.setdefault(key, float(value))
            except ValueError:
                stats.setdefault(key, value)
        return stats


class Sampler(threading.Thread):
    """Statistics of a mount at 20 Hz, from the with statement's begin to its end."""

    def __init__(self, mount, hertz=20):
        super().__init__(daemon=True)
        self.mount, self.period_s = mount, 1 / hertz
        self.rows = []
        self.ended = threading.Event()

    def run(self):
        while not self.ended.wait(self.period_s):
            self.rows.append(self.mount.stats())

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()


# ---- writers and probes ----

def value_of(key, text):
    if key == "op":
        return text
    return [int(n) for n in text.split(",")] if key == "each_bytes" else float(text)


def key_values(line):
    pairs = (word.split("=", 1) for word in line.split() if "=" in word)
    return {k: value_of(k, v) for k, v in pairs}


def pinned(command, cpus):
    if not cpus:
        return command
    return ["taskset", "-c", ",".join(map(str, sorted(cpus))), *command]


def load_command(directory, *options):
    return [f"{BENCH}/load", *map(str, options), directory]


def load(directory, *options, cpus=None, timeout=180):
    """What bench/load found out, by name."""
    return key_values(run(*pinned(load_command(directory, *options), cpus), timeout=timeout))


class Load:
    """bench/load in the background."""

    def __init__(self, directory, *options):
        self.process = subprocess.Popen(load_command(directory, *options), text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        start_new_session=True)

    def result(self, timeout=180):
        out, _ = self.process.communicate(timeout=timeout)
        if self.process.returncode != 0:
            raise Failed(f"load: {out.strip() or self.process.returncode}")
        return key_values(out)

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()


def probe(operation, directory, seconds, interval_ms):
    return key_values(run(f"{BENCH}/probe", "-t", seconds, "-i", interval_ms, operation,
                          directory, timeout=seconds * 10 + 60))
