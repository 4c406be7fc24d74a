"""A process that loads KV files and nothing else, in a memory group. This file is also its program; lines of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Self

from .kv_files import Contents, KvFiles, WrongBytesError
from .memory_limit import MemoryGroup
from .rounds import Sample


class Reader:
    """The parent's side."""

    def __init__(self, group: MemoryGroup) -> None:
        self._group = group

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "hearthfs.bench.reader"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._group.add(self._process.pid)
        return self

    def load(self, directory: Path, contents: Contents, threads: int) -> Sample:
        """The second time that it reads all; the first time it compares.

        Raises:
            WrongBytesError: what it read is not what was stored; or it died.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        task = {
            "directory": str(directory),
            "threads": threads,
            "size_bytes": contents.size_bytes,
            "digests": contents.digests,
        }
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise WrongBytesError(f"the reader ended with exit status {self._process.wait()}")
        answer = json.loads(line)
        if answer["error"]:
            raise WrongBytesError(answer["error"])
        return Sample(answer["value"], answer["calls_s"])

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]  # a pipe
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]  # a pipe


class _Expected(Contents):
    """Only what loading and checking need."""

    def __init__(self, size_bytes: int, digests: list[int]) -> None:
        self.size_bytes, self.count, self.digests = size_bytes, len(digests), digests


def main() -> None:
    for line in sys.stdin:
        task = json.loads(line)
        files = KvFiles(Path(task["directory"]), _Expected(task["size_bytes"], task["digests"]), task["threads"])
        try:
            files.verify()
            sample = files.load()
            answer = {"value": sample.value, "calls_s": list(sample.calls_s), "error": ""}
        except (OSError, WrongBytesError) as error:
            answer = {"value": 0.0, "calls_s": [], "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
