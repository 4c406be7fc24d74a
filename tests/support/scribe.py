"""Writers that note, outside the mount, every file they closed; and the check that all of it is still there.

A scribe is a process of its own (`python scribe.py DIRECTORY NOTES SEED NAME`), so that whatever happens to the mount
happens to it and not to the test. Its notes are lines ``try NAME VERSION SIZE`` before it opens a file and ``done NAME
VERSION SIZE`` after close() returned. What a file holds follows from seed, name and version.

Errors are allowed: a daemon may be dead. A file that was noted as done must hold that version, or one that was tried
after it, whole. A file that was never done may be absent, empty (created, not published yet) or whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple, Self

MAX_BYTES = 3 << 20
PAUSE_AFTER_ERROR_S = 0.05


class Version(NamedTuple):
    version: int
    size_bytes: int


class History(NamedTuple):
    """What may be in a file: the last version that was done (None: none was) and those tried since."""

    done: Version | None
    later: list[Version]


def content(seed: int, name: str, version: Version) -> bytes:
    return random.Random(f"{seed}/{name}/{version.version}").randbytes(version.size_bytes)


def read_notes(notes: Path) -> dict[str, History]:
    found: dict[str, History] = {}
    for line in notes.read_text().splitlines():
        kind, name, number, size = line.split()
        version = Version(int(number), int(size))
        before = found.get(name, History(None, []))
        if kind == "try":
            before.later.append(version)
            found[name] = before
        else:
            found[name] = History(version, [])
    return found


def noted(notes: Path) -> int:
    """How many versions were closed and noted so far."""
    return notes.read_bytes().count(b"done ") if notes.exists() else 0


def problem(seed: int, name: str, history: History, data: bytes | None) -> str:
    """What is wrong with ``data`` (None: no such file) as the content of ``name``; empty: nothing."""
    allowed = [*([history.done] if history.done else []), *history.later]
    if data is None:
        return f"{name}: lost; {history.done} was noted" if history.done else ""
    if history.done is None and not data:
        return ""
    if any(len(data) == each.size_bytes and data == content(seed, name, each) for each in allowed):
        return ""
    return f"{name}: its {len(data)} bytes are none of {allowed}"


def problems(seed: int, notes: Path, directory: Path) -> list[str]:
    """Reads all that was noted. An error of reading is a problem, too."""
    found = []
    for name, history in read_notes(notes).items():
        try:
            text = problem(seed, name, history, (directory / name).read_bytes())
        except FileNotFoundError:
            text = problem(seed, name, history, None)
        except OSError as error:
            text = f"{name}: {error}"
        found.append(text)
    return [text for text in found if text]


class Scribe:
    """One writing process; a context manager that ends it."""

    def __init__(self, directory: Path, notes: Path, seed: int, name: str) -> None:
        self.notes = notes
        self.process = subprocess.Popen(
            [sys.executable, "-I", __file__, str(directory), str(notes), str(seed), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.report: dict[str, int] = {}

    @property
    def noted(self) -> int:
        return noted(self.notes)

    def wait_noted(self, count: int, timeout_s: float) -> None:
        """Until ``count`` files in all were noted. Raises: AssertionError."""
        deadline = time.monotonic() + timeout_s
        while self.noted < count:
            assert self.process.poll() is None, f"the writer ended with {self.process.returncode}"
            assert time.monotonic() < deadline, f"{self.noted} files noted after {timeout_s:g} s, not {count}"
            time.sleep(0.005)

    def stop(self, timeout_s: float = 60.0) -> dict[str, int]:
        """Lets it finish its file and returns {"noted", "errors", "slowest_ms"}. Raises: TimeoutExpired: it hangs."""
        if self.process.returncode is None:
            out, _ = self.process.communicate("", timeout=timeout_s)
            self.report = json.loads(out)
        return self.report

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


# ---------------------------------------------------------------- the process


def write(directory: str, notes: int, seed: int, name: str) -> None:
    """Until standard input ends."""
    chance = random.Random(f"{seed}/{name}")
    report = {"noted": 0, "errors": 0, "slowest_ms": 0}
    number = 0
    done: list[tuple[str, int]] = []
    os.set_blocking(0, False)
    while not _ended():
        number += 1
        again = bool(done) and chance.random() < 0.15
        path, version = chance.choice(done) if again else (f"{name}-{number}", 0)
        version = max([version, *(v for n, v in done if n == path)]) + 1
        what = Version(version, chance.choice([0, chance.randrange(4096), chance.randrange(MAX_BYTES)]))
        line = f"{path} {what.version} {what.size_bytes}\n"
        os.write(notes, b"try " + line.encode())
        begin = time.monotonic()
        try:
            _write_file(f"{directory}/{path}", content(seed, path, what), chance)
        except OSError:
            report["errors"] += 1
            time.sleep(PAUSE_AFTER_ERROR_S)
        else:
            os.write(notes, b"done " + line.encode())
            report["noted"] += 1
        done.append((path, version))  # a version that failed may be there: never use its number again
        report["slowest_ms"] = max(report["slowest_ms"], int(1000 * (time.monotonic() - begin)))
    print(json.dumps(report))


def _ended() -> bool:
    with contextlib.suppress(BlockingIOError):
        return os.read(0, 1) == b""
    return False


def _write_file(path: str, data: bytes, chance: random.Random) -> None:
    """In place or under another name that is then renamed; now and then with fsync."""
    renamed, synced, size = chance.random() < 0.3, chance.random() < 0.2, chance.choice([1 << 16, 1 << 20])
    target = path + ".new" if renamed else path
    with open(target, "wb", buffering=0) as file:
        for start in range(0, len(data), size):
            view = memoryview(data)[start : start + size]
            while view:
                view = view[file.write(view) :]
        if synced:
            os.fsync(file.fileno())
    if renamed:
        os.rename(target, path)


if __name__ == "__main__":
    _directory, _notes, _seed, _name = sys.argv[1:]
    write(_directory, os.open(_notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), int(_seed), _name)
