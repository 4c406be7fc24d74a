"""Other people's file system tests, on a mount: ``make suites SUITES=DIR``.

DIR holds what is built by hand, outside this repository; what is not there is said and passed over:

- ``pjdfstest/``: https://github.com/pjd/pjdfstest, built in place
- ``fsx``: ltp/fsx.c of https://github.com/kdave/xfstests
- ``fsstress``: of https://github.com/linux-test-project/ltp

``fio`` and ``stress-ng`` are taken from PATH. Prints one line for each part, with its time, and ``hearth fsck`` at the
end; exits with 1 if anything failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from hearthfs.tests.support.cluster import Cluster

SEEDS = (1, 2, 3)
STRESSOR_S = 5
PART_S = 7200.0
KNOWN_TO_FAIL = re.compile(r"not ok \d+.*#\s*todo", re.IGNORECASE)
"""In the Test Anything Protocol: an assertion that its author knows to fail on this system."""
LEFT_OUT = {
    "binderfs": "mounts a binder file system of its own",
    "chattr": "inode flags are not offered (ENOTTY)",
    "fiemap": "extents are not shown (EOPNOTSUPP)",
    "fanotify": "watches whole mounts, also those of other tests",
    "ramfs": "mounts a ramfs of its own",
    "dev-shm": "is about /dev/shm",
    "procfs": "is about /proc",
    "sysfs": "is about /sys",
}


class Result(NamedTuple):
    part: str
    ok: bool
    text: str


def pjdfstest(suites: Path, mount: Path, scale: float) -> Iterator[Result]:
    """Each script in a directory of its own. One that does nothing on this system prints a single ``ok``: counted
    apart."""
    scripts = sorted((suites / "pjdfstest" / "tests").rglob("*.t"))
    good = trivial = 0
    failed: list[str] = []
    for script in scripts[:: max(1, round(1 / scale))]:
        directory = Path(tempfile.mkdtemp(dir=mount))
        directory.chmod(0o755)  # other users work in it
        done = _run(["bash", str(script)], cwd=directory)
        lines = done.stdout.splitlines()
        passed = [line for line in lines if re.match(r"ok \d+", line)]
        expected = [line for line in lines if KNOWN_TO_FAIL.match(line)]
        bad = [line for line in lines if re.match(r"not ok \d+", line) and line not in expected]
        planned = next((int(line[3:].split()[0]) for line in lines if line.startswith("1..")), 0)
        name = str(script.relative_to(suites / "pjdfstest" / "tests"))
        failed += [f"{name}: {line}" for line in bad]
        ran = len(passed) + len(bad) + len(expected)
        if ran < planned:
            failed.append(f"{name}: {ran} of {planned} assertions ran: {done.stderr[-200:].strip()}")
        if planned == 1:
            trivial += len(passed)
        else:
            good += len(passed)
        shutil.rmtree(directory, ignore_errors=True)
    text = f"{len(scripts)} scripts, {good} assertions passed, {trivial} scripts with nothing to do here"
    yield Result("pjdfstest", not failed, "; ".join([text, f"{len(failed)} failed", *failed[:20]]))


def fsx(suites: Path, mount: Path, scale: float) -> Iterator[Result]:
    operations = round(1_000_000 * scale)
    for seed in SEEDS:
        command = [str(suites / "fsx"), "-q", "-N", str(operations), "-S", str(seed), str(mount / f"fsx{seed}")]
        done = _run(command)
        text = f"{operations} operations with mmap, seed {seed}"
        yield Result("fsx", not done.returncode, text if not done.returncode else _end(done))


def fsstress(suites: Path, mount: Path, scale: float) -> Iterator[Result]:
    directory = mount / "fsstress"
    directory.mkdir()
    count = round(20_000 * scale)
    done = _run([str(suites / "fsstress"), "-d", str(directory), "-n", str(count), "-p", "4", "-l", "1", "-s", "7"])
    shutil.rmtree(directory)
    yield Result("fsstress", not done.returncode, f"4 x {count}" if not done.returncode else _end(done))


def fio(suites: Path, mount: Path, scale: float) -> Iterator[Result]:
    for block in ("4k", "128k", "1m"):
        for kind in ("randwrite", "randrw"):
            directory = mount / f"fio-{block}-{kind}"
            directory.mkdir()
            size = max(4, round(64 * scale))
            options = f"--bs={block} --rw={kind} --numjobs=4 --fsync=64 --verify=crc32c --verify_fatal=1 --size={size}m"
            done = _run(
                ["fio", "--name=v", f"--directory={directory}", "--do_verify=1", *options.split()], cwd=directory
            )
            shutil.rmtree(directory)
            text = f"{kind} {block}, 4 jobs of {size} MiB, fsync=64"
            yield Result("fio verify", not done.returncode, text if not done.returncode else _end(done))


def stress_ng(suites: Path, mount: Path, scale: float) -> Iterator[Result]:
    listed = _run(["stress-ng", "--class", "filesystem?"]).stdout
    names = listed.partition(":")[2].split()
    seconds = max(1, round(STRESSOR_S * scale))
    bad, skipped, passed = [], [], []
    for name in (name for name in names if name not in LEFT_OUT):
        command = f"stress-ng --{name} 2 --verify --timeout {seconds}s --temp-path {mount} --metrics-brief"
        done = _run(command.split(), limit_s=seconds + 120.0)
        if done.returncode == 3 or "skipped: 2" in done.stderr + done.stdout:
            skipped.append(name)
        elif done.returncode:
            bad.append(f"{name}: {_reason(done)}")
        else:
            passed.append(name)
    text = f"{len(passed)} stressors passed; not for this system: {' '.join(skipped)}; left out: {' '.join(LEFT_OUT)}"
    yield Result("stress-ng", not bad, "; ".join([text, *bad]))


PARTS: dict[str, tuple[Callable[[Path, Path, float], Iterator[Result]], Callable[[Path], bool]]] = {
    "pjdfstest": (pjdfstest, lambda suites: (suites / "pjdfstest" / "pjdfstest").exists()),
    "fsx": (fsx, lambda suites: (suites / "fsx").exists()),
    "fsstress": (fsstress, lambda suites: (suites / "fsstress").exists()),
    "fio": (fio, lambda _: shutil.which("fio") is not None),
    "stress-ng": (stress_ng, lambda _: shutil.which("stress-ng") is not None),
}


def _run(command: list[str], *, cwd: Path | None = None, limit_s: float = PART_S) -> subprocess.CompletedProcess[str]:
    """A suite that does not end is a failure like others: exit status 124."""
    try:
        return subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(command, 124, "", f"did not end within {error.timeout:g} s")


def _end(done: subprocess.CompletedProcess[str]) -> str:
    return f"exit status {done.returncode}: {(done.stdout + done.stderr)[-600:].strip()}"


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "fail" in line.lower()]
    return lines[0].strip()[-160:] if lines else f"exit status {done.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", type=Path)
    parser.add_argument("--only", action="append", choices=PARTS, default=[])
    parser.add_argument("--scale", type=float, default=1.0, help="that share of operations, sizes and scripts")
    parser.add_argument("--relay", choices=["auto", "off"], default="auto")
    parser.add_argument("--log", type=Path, help="append the lines there, too")
    args = parser.parse_args()
    failed = False

    def say(line: str) -> None:
        print(line, flush=True)
        if args.log:
            with args.log.open("a") as log:
                log.write(line + "\n")

    with (
        tempfile.TemporaryDirectory(prefix="hearth-suites-") as directory,
        Cluster(directory, workers=1, mounts=1, settings={"mount": {"relay": args.relay}}) as cluster,
    ):
        for name in args.only or PARTS:
            work, is_there = PARTS[name]
            if not is_there(args.suites):
                say(f"{name:10} not there")
                continue
            begin = time.monotonic()
            for result in work(args.suites.absolute(), cluster.mountpoint(1), args.scale):
                seconds, begin = time.monotonic() - begin, time.monotonic()
                say(f"{result.part:10} {'passed' if result.ok else 'FAILED'} {seconds:7.1f} s  {result.text}")
                failed |= not result.ok
        found = cluster.fsck()
        say(f"{'fsck':10} {'passed' if not found else 'FAILED'}            {found or 'clean'}")
        alive = os.path.ismount(cluster.mountpoint(1)) and cluster.running("mount1")
        say(f"{'mount':10} {'passed' if alive else 'FAILED'}")
    return int(failed or bool(found) or not alive)


if __name__ == "__main__":
    sys.exit(main())
