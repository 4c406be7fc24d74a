"""The work of an engine's file tier on a directory: files of one size, stored under a temporary name and renamed,
looked up, loaded whole into memory that was used before.

``Contents`` makes bytes of which no page occurs twice, so that a page of another file, or from another place of the
same file, is told apart; a digest of each file says whether all came back.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from .rounds import Sample

PAGE_BYTES = 4096
_LINE_BYTES = 64


def shift_bytes(size_bytes: int) -> int:
    """How far file N+1 starts behind file N in the noise that both are cut from: an odd number of cache lines, more
    than a file has pages; then no page of one file is at the place of a page of another.

    >>> shift_bytes(1 << 20)
    16448
    """
    return _LINE_BYTES * ((-(-size_bytes // PAGE_BYTES) + 1) | 1)


class Contents:
    """``count`` files of ``size_bytes`` in memory that was written to once."""

    def __init__(self, size_bytes: int, count: int, memory: mmap.mmap | None = None) -> None:
        self.size_bytes, self.count = size_bytes, count
        shift = shift_bytes(size_bytes)
        noise = os.urandom(size_bytes + shift * count)
        self.memory = memory or mmap.mmap(-1, size_bytes * count)
        self.views = [memoryview(self.memory)[at * size_bytes : (at + 1) * size_bytes] for at in range(count)]
        for at, view in enumerate(self.views):
            view[:] = noise[at * shift : at * shift + size_bytes]
        self.digests = [xxhash.xxh3_64_intdigest(view) for view in self.views]

    @property
    def total_bytes(self) -> int:
        return self.size_bytes * self.count

    def wrong(self, number: int, loaded: memoryview) -> bool:
        return xxhash.xxh3_64_intdigest(loaded) != self.digests[number]


class WrongBytesError(Exception):
    """A file came back with other bytes than were stored."""


class KvFiles:
    """The files of one visit, below ``directory``.

    Args:
        directory: made when missing; where files are stored and, without ``read_directory``, loaded.
        contents: what is stored; shared by all contenders.
        threads: that store and load at one time.
        read_directory: the same directory by another mount.
    """

    def __init__(self, directory: Path, contents: Contents, threads: int, read_directory: Path | None = None) -> None:
        self.directory = os.fspath(directory)
        self.read_directory = os.fspath(read_directory or directory)
        self.contents = contents
        self.threads = threads
        os.makedirs(self.directory, exist_ok=True)

    def name(self, number: int) -> str:
        return f"{number:016x}.kv"

    def store(self, *, sync: bool = False) -> Sample:
        """GB/s. ``sync``: each file is fsynced before it is renamed."""

        def one(number: int, _: memoryview) -> None:
            path = f"{self.directory}/{self.name(number)}"
            temporary = f"{path}.{threading.get_native_id()}.tmp"
            fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
            try:
                _write_all(fd, self.contents.views[number])
                if sync:
                    os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(temporary, path)

        return self._timed(one)

    def load(self, *, directory: str | None = None) -> Sample:
        """GB/s, each file into the same buffer of its thread."""
        place = directory or self.read_directory

        def one(number: int, buffer: memoryview) -> None:
            self._read(place, number, buffer)

        return self._timed(one)

    def verify(self, *, directory: str | None = None) -> None:
        """Outside the clock.

        Raises:
            WrongBytesError.
        """
        buffer = _buffer(self.contents.size_bytes)
        for number in range(self.contents.count):
            self._read(directory or self.read_directory, number, buffer)
            if self.contents.wrong(number, buffer):
                raise WrongBytesError(f"{place_of(directory or self.read_directory)}: file {number} has other bytes")

    def _read(self, place: str, number: int, buffer: memoryview) -> None:
        fd = os.open(f"{place}/{self.name(number)}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            read_all(fd, buffer)
        finally:
            os.close(fd)

    def _timed(self, one: Callable[[int, memoryview], None]) -> Sample:
        begin = time.perf_counter()
        calls = spread(one, range(self.contents.count), self.threads, self.contents.size_bytes)
        return Sample(self.contents.total_bytes / (time.perf_counter() - begin) / 1e9, calls)


_memory = threading.local()
_pools: dict[int, ThreadPoolExecutor] = {}


def spread(
    one: Callable[[int, memoryview], None], numbers: Sequence[int], threads: int, buffer_bytes: int
) -> list[float]:
    """Does all numbers on so many threads, which live on for the next time; the seconds that each took."""

    def timed(number: int) -> float:
        buffer = _buffer(buffer_bytes)
        begin = time.perf_counter()
        one(number, buffer)
        return time.perf_counter() - begin

    if threads == 1:
        return [timed(number) for number in numbers]
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads)
    return list(_pools[threads].map(timed, numbers))


def end_threads() -> None:
    """Of all numbers; the next ``spread`` starts new ones."""
    while _pools:
        _pools.popitem()[1].shutdown()


def _buffer(size_bytes: int) -> memoryview:
    """This thread's own memory, touched before."""
    held = getattr(_memory, "buffer", None)
    if held is None or len(held) < size_bytes:
        memory = mmap.mmap(-1, size_bytes)
        for at in range(0, size_bytes, PAGE_BYTES):
            memory[at] = 1
        held = _memory.buffer = memoryview(memory)
    return memoryview(held)[:size_bytes]


def _write_all(fd: int, view: memoryview) -> None:
    done = 0
    while done < len(view):
        done += os.write(fd, view[done:])


def read_all(fd: int, view: memoryview) -> None:
    """Raises: WrongBytesError: the file is shorter."""
    done = 0
    while done < len(view):
        got = os.readv(fd, [view[done:]])
        if not got:
            raise WrongBytesError(f"a file ended after {done} of {len(view)} bytes")
        done += got


def place_of(directory: str) -> str:
    """The last parts of a path: reports do not name this machine's directories."""
    return "/".join(Path(directory).parts[-2:])


def drop_caches() -> None:
    """All dirty pages to disk, then all clean ones out of memory, for everybody on this machine. Needs root."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def sizes(quick: bool) -> Iterator[tuple[float, int]]:
    """(MiB of a file, how many of them)."""
    yield from ((8, 24), (64, 4)) if quick else ((1, 128), (8, 40), (64, 6))


def thread_counts(quick: bool) -> tuple[int, ...]:
    return (4,) if quick else (1, 4)
