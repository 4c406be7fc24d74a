"""The parent's side of ``batch_agent.py``: memory that it shares with its agents, and one agent per contender."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from .kv_files import Contents

PROGRAM = Path(__file__).with_name("batch_agent.py")
START_S, CALL_S = 90.0, 120.0


class AgentError(Exception):
    """An agent did not start, did not answer, or a call of its contender failed."""


class SharedMemory:
    """What is put comes from ``source``, what is got goes to ``target``."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.fds = [os.memfd_create(name) for name in ("source", "target")]
        for fd in self.fds:
            os.ftruncate(fd, size_bytes)
        self.source, self.target = (mmap.mmap(fd, size_bytes) for fd in self.fds)

    def contents(self, size_bytes: int, count: int) -> Contents:
        """Fills the source."""
        return Contents(size_bytes, count, self.source)

    def forget(self, size_bytes: int) -> None:
        """Nothing in the target may be left from the one before."""
        zeros = bytes(1 << 20)
        for at in range(0, size_bytes, len(zeros)):
            self.target[at : at + min(len(zeros), size_bytes - at)] = zeros[: size_bytes - at]

    def wrong(self, contents: Contents) -> list[int]:
        """Numbers of the files that did not come back as they were."""
        size = contents.size_bytes
        with memoryview(self.target) as whole:
            return [at for at in range(contents.count) if contents.wrong(at, whole[at * size : (at + 1) * size])]

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        for piece in (self.source, self.target):
            with contextlib.suppress(BufferError):  # somebody still has a view; its end will be the memory's
                piece.close()


class Agent:
    """One contender in its process.

    Args:
        kind: as ``batch_agent.make`` knows it.
        options: its arguments.
        python: interpreter of the environment that it lives in.
    """

    def __init__(
        self,
        kind: str,
        options: Mapping[str, Any],
        memory: SharedMemory,
        log: Path,
        *,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [python, str(PROGRAM), json.dumps({"kind": kind, **options}), *map(str, memory.fds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                pass_fds=memory.fds,
                env={**os.environ, "HEARTH_CONFIG": os.devnull, **(environment or {})},
                start_new_session=True,
            )
        self._buffer = b""
        try:
            self._answer(START_S)
        except AgentError:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, act: str, prefix: str, count: int, size_bytes: int = 0, threads: int = 1) -> dict[str, Any]:
        """Raises: AgentError."""
        task = {"act": act, "prefix": prefix, "count": count, "size_bytes": size_bytes, "threads": threads}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(task).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer(CALL_S)

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                raise AgentError(f"{self.kind} did not answer within {timeout_s:g} s")
            some = os.read(fd, 1 << 16)
            if not some:
                raise AgentError(f"{self.kind} ended with exit status {self._process.wait()}")
            self._buffer += some
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if answer["error"]:
            raise AgentError(f"{self.kind}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Ends the process; safe to call twice."""
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
