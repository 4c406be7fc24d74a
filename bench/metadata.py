"""Names found, made, listed and removed: the metadata part of the benchmark.

Each function does one thing once and returns seconds: of the whole, or of each call. Those that take a ``directory``
run against any file system: the raw disk, a HearthFS mount, a rival's mount; those that take a ``client`` are what only
the SDK has. Nothing here starts or mounts anything, and nothing is cleaned up but what a function made to remove.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hearthfs.client.client import Client

PREFIX_KEYS = 3600
"""Chunks of one long prompt: what the scheduler asks for at once."""
TINY = b"x" * 16


def keys(count: int, seed: str = "") -> list[str]:
    """Names as the connector gives them: 64 hexadecimal digits and a suffix."""
    return [hashlib.sha256(f"{seed}{number}".encode()).hexdigest() + ".kv" for number in range(count)]


def timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def percentile(seconds: Sequence[float], share: float) -> float:
    """The value below which that share of them lies: nearest rank."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# ---------------------------------------------------------------- looking up


def exists_each(directory: Path, names: Sequence[str]) -> float:
    """What a connector without batches does."""
    paths = [f"{directory}/{name}" for name in names]
    exists = os.path.exists
    return timed(lambda: [exists(path) for path in paths])


def lookup_batch(client: Client, directory: str, names: Sequence[str]) -> float:
    raw = [name.encode() for name in names]
    return timed(lambda: client.lookup_many(directory, raw))


def stat_each(directory: Path, names: Sequence[str]) -> float:
    """Of names that exist, or do not."""
    paths = [f"{directory}/{name}" for name in names]

    def each() -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.stat(path)

    return timed(each)


def stat_calls(directory: Path, names: Sequence[str]) -> list[float]:
    """As ``stat_each``, each call by itself."""
    return [stat_each(directory, [name]) for name in names]


def stat_after_read(directory: Path, names: Sequence[str]) -> list[float]:
    """Each file is opened, read and closed; then its ``stat`` is timed."""
    result = []
    for name in names:
        path = f"{directory}/{name}"
        with open(path, "rb", buffering=0) as file:
            file.read()
        result.append(timed(partial(os.stat, path)))
    return result


# ---------------------------------------------------------------- making


def create_each(directory: Path, names: Sequence[str]) -> list[float]:
    """An empty file by one ``open`` and ``close`` each."""

    def create(path: str) -> None:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))

    return [timed(partial(create, f"{directory}/{name}")) for name in names]


def put_batch(client: Client, directory: str, names: Sequence[str], payload: bytes = TINY) -> float:
    """Create, write and publish of all of them in one call."""
    buffers = [payload] * len(names)

    def put() -> None:
        errors = [error for error in client.put_many(names, buffers, directory=directory) if error]
        if errors:
            raise errors[0]

    return timed(put)


def write_each(directory: Path, names: Sequence[str], payload: bytes = TINY) -> list[float]:
    """One small file after the other, as a program without batches writes them."""

    def write(path: str) -> None:
        with open(path, "xb", buffering=0) as file:
            file.write(payload)

    return [timed(partial(write, f"{directory}/{name}")) for name in names]


def make_names(client: Client, directory: str, count: int, at_once: int = 4000) -> Iterator[int]:
    """Empty files ``0000000000`` and on, in batches; gives the number so far after each."""
    from hearthfs.proto import common_pb2 as common
    from hearthfs.proto import master_pb2 as pb

    client.makedirs(directory, exist_ok=True)
    parent = client.directory(directory.encode())
    for start in range(0, count, at_once):
        end = min(count, start + at_once)
        names = common.PackedNames(width=10, packed=b"".join(b"%010d" % number for number in range(start, end)))
        many = pb.CreateMany(parent=parent, names=names, mode=0o644)
        client.core.metadata.mutate(pb.MutateRequest(create_many=many), client.core.deadline())
        yield end


# ---------------------------------------------------------------- listing and removing


def run(*command: str) -> float:
    """Seconds of a program whose output nobody reads."""
    return timed(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=True))


def list_names(directory: Path) -> float:
    return run("ls", "-f", str(directory))


def find_names(directory: Path) -> float:
    return run("find", str(directory))
