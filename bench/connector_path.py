"""The connector's worker half on a prompt of 3,000 tokens: an engine's pages in memory to chunk files and back, by the
same threads and staging memory as in an engine. Beside it what cannot be saved: the same chunks by plain calls and the
same copies of pages; and vLLM's ``fs`` tier with the same copies.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..connector import chunk_format
from ..connector.notices import Notices
from ..connector.pieces import Piece
from ..connector.settings import ConnectorSettings
from ..connector.staging import Arena, slots_for
from .contenders import Lab
from .kv_files import WrongBytesError, read_all
from .names_of_rows import CONNECTOR_LOAD, CONNECTOR_STORE, OVERHEAD
from .rounds import Sample, Visit, interleave
from .rows import Row, make

if TYPE_CHECKING:
    import numpy as np

    from ..connector.pages import PageMover

TOKENS, CHUNK_TOKENS = 3000, 128
CHUNKS = TOKENS // CHUNK_TOKENS
LAYERS, BLOCKS_PER_CHUNK, PAGE_BYTES = 32, 8, 32 << 10
CHUNK_BYTES = LAYERS * BLOCKS_PER_CHUNK * PAGE_BYTES
"""8 MiB: a model of 8 billion parameters, its KV heads on two GPUs."""
DIRECTORY = "model/layout/0"
WAIT_S = 60.0


class Way(Protocol):
    """One way from pages to chunks and back."""

    def store(self, pieces: list[Piece]) -> None: ...

    def load(self, pieces: list[Piece]) -> None: ...

    def forget(self) -> None:
        """Removes what was stored."""

    def close(self) -> None: ...


class Engine:
    """KV pages as an engine has them: per layer, by block."""

    def __init__(self) -> None:
        import numpy

        from ..connector.pages import HostPages

        generator = numpy.random.default_rng(1)
        self.blocks = CHUNKS * BLOCKS_PER_CHUNK + 1  # block 0 is the engine's placeholder
        shape = (self.blocks, PAGE_BYTES)
        self.layers: list[np.ndarray[tuple[int, int], np.dtype[np.int8]]] = [
            generator.integers(-128, 128, shape, dtype=numpy.int8) for _ in range(LAYERS)
        ]
        self.expected = [layer.copy() for layer in self.layers]
        self.mover: PageMover = HostPages([self.layers], BLOCKS_PER_CHUNK)

    def pieces(self, prefix: str) -> list[Piece]:
        return [
            Piece(
                f"{prefix}{nth:032x}.kv",
                0,
                0,
                tuple(range(nth * BLOCKS_PER_CHUNK + 1, (nth + 1) * BLOCKS_PER_CHUNK + 1)),
            )
            for nth in range(CHUNKS)
        ]

    def wipe(self) -> None:
        for layer in self.layers:
            layer[1:] = 0

    def check(self, who: str) -> None:
        """Raises: WrongBytesError."""
        for layer, expected in zip(self.layers, self.expected, strict=True):
            if (layer[1:] != expected[1:]).any():
                raise WrongBytesError(f"{who}: pages are not what they were")


class Connector:
    """Our own loader and storer, on the mount's cluster or, with backend ``plain``, on files."""

    def __init__(self, engine: Engine, settings: ConnectorSettings, log: logging.Logger) -> None:
        from ..connector.loads import Loader
        from ..connector.storage import Storage
        from ..connector.stores import Storer

        notices = Notices(log)
        self._root = settings.root
        self._storage = Storage(settings, notices)
        self._settings = settings
        if not self._storage.probe():
            raise RuntimeError(f"the connector does not reach its store in {settings.root}")
        slots = slots_for(settings.staging_bytes // 2, chunk_format.file_bytes(CHUNK_BYTES))
        arenas = [Arena(slots, chunk_format.file_bytes(CHUNK_BYTES)) for _ in range(2)]
        self._loader = Loader(self._storage, DIRECTORY, engine.mover, arenas[0], settings, notices)
        self._storer = Storer(self._storage, DIRECTORY, engine.mover, arenas[1], self._loader, settings, notices)
        self._loader.start()
        self._storer.start()
        self._jobs = 0

    def store(self, pieces: list[Piece]) -> None:
        self._jobs += 1
        self._storer.submit(self._jobs, pieces, [], frozenset())
        left, deadline = len(pieces), time.monotonic() + WAIT_S
        while left:
            for name, reason in self._storer.outcomes():
                if reason:
                    raise RuntimeError(f"{name} was not stored: {reason}")
                left -= 1
            if time.monotonic() > deadline:
                raise TimeoutError(f"{left} chunks not stored within {WAIT_S:g} s")
            time.sleep(0.0002)
        self._storer.finished()

    def load(self, pieces: list[Piece]) -> None:
        self._jobs += 1
        self._loader.submit(self._jobs, "r", pieces, [])
        while not (results := self._loader.finished()):
            self._loader.linger(1.0)
        if results[0].failed:
            raise RuntimeError(f"not loaded: {next(iter(results[0].failed.values()))}")

    def forget(self) -> None:
        directory = f"{self._root}/{DIRECTORY}"
        for name in os.listdir(directory):
            if name.endswith(".kv"):
                os.unlink(f"{directory}/{name}")

    def close(self) -> None:
        self._loader.stop()
        self._storer.stop(1.0)
        self._storage.close()


class Bare:
    """Threads that only do what must be done: copy pages, move files by plain calls or by vLLM's own."""

    def __init__(
        self,
        engine: Engine,
        directory: Path,
        settings: ConnectorSettings,
        write: Callable[[str, memoryview], None],
        read: Callable[[str, memoryview], None],
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._mover, self._write, self._read = os.fspath(directory), engine.mover, write, read
        slots = slots_for(settings.staging_bytes // 2, chunk_format.file_bytes(CHUNK_BYTES))
        self._arena = Arena(slots, chunk_format.file_bytes(CHUNK_BYTES))
        self._loaders = ThreadPoolExecutor(settings.load_threads)

    def store(self, pieces: list[Piece]) -> None:
        """One after the other on this thread: two would wait for each other's interpreter lock."""
        for piece in pieces:
            (slot,) = self._arena.acquire(1, WAIT_S)
            view = self._arena.view(slot, CHUNK_BYTES)
            self._mover.gather([piece], [view], None)
            self._write(f"{self._directory}/{piece.name}", view)
            self._arena.release([slot])

    def load(self, pieces: list[Piece]) -> None:
        list(self._loaders.map(self._load_one, pieces))

    def _load_one(self, piece: Piece) -> None:
        (slot,) = self._arena.acquire(1, WAIT_S)
        view = self._arena.view(slot, CHUNK_BYTES)
        self._read(f"{self._directory}/{piece.name}", view)
        self._mover.scatter([piece], [view], None)
        self._arena.release([slot])

    def forget(self) -> None:
        for name in os.listdir(self._directory):
            os.unlink(f"{self._directory}/{name}")

    def close(self) -> None:
        self._loaders.shutdown()


def rows(lab: Lab) -> Iterator[Row]:
    if not (importlib.util.find_spec("numpy") and lab.mounts):
        yield Row("connector", CONNECTOR_LOAD, "GB/s", {}, note="skipped: it needs numpy and a mount")
        return
    engine = Engine()
    log = logging.getLogger("hearthfs.bench")
    with ExitStack() as stack:
        paths = _paths(lab, engine, log)
        for path in paths.values():
            stack.callback(path.close)
        results = interleave({who: _visit(who, path, engine) for who, path in paths.items()}, lab.rounds)
    note = f"{CHUNKS} chunks of {CHUNK_BYTES >> 20} MiB in {LAYERS} layers; stored: until the last chunk is published"
    note = "; ".join([note, *results.reasons()])
    threads = ConnectorSettings(root="/").load_threads
    for step in (CONNECTOR_STORE, CONNECTOR_LOAD):
        yield results.row("connector", step, "GB/s", mib=CHUNK_BYTES >> 20, threads=threads, note=note)
    times = {who: [CHUNKS * CHUNK_BYTES / 1e9 * (1 / store.value + 1 / load.value)
                   for store, load in zip(results.samples[CONNECTOR_STORE][who], samples, strict=True)]
             for who, samples in results.samples[CONNECTOR_LOAD].items()}  # fmt: skip
    yield make("connector", OVERHEAD, "%", overhead(times), note="1 - (time of raw / time), store and load together")


def overhead(times: Mapping[str, list[float]], base: str = "raw") -> dict[str, list[float]]:
    """For each contender but the base, which part of its time the base does not need; by rounds.

    >>> overhead({"raw": [1.0], "hearthfs": [1.25]})
    {'hearthfs': [19.999999999999996]}
    """
    return {
        who: [100 * (1 - least / one) for one, least in zip(values, times[base], strict=True)]
        for who, values in times.items()
        if who != base
    }


def _paths(lab: Lab, engine: Engine, log: logging.Logger) -> dict[str, Way]:
    settings = ConnectorSettings(root=os.fspath(lab.nodes.mountpoint() / "kv"))
    plain = ConnectorSettings(root=os.fspath(lab.raw / "plain"), backend="plain")
    os.makedirs(plain.root)
    paths: dict[str, Way] = {
        "raw": Bare(engine, lab.raw / "bare", settings, write_file, read_file),
        "hearthfs": Connector(engine, settings, log),
        "hearthfs plain files": Connector(engine, plain, log),
    }
    if lab.want_rivals and importlib.util.find_spec("vllm"):
        from vllm.v1.kv_offload.tiering.fs import io

        for who, direct in (("vllm_fs", True), ("vllm_fs buffered", False)):

            def write(path: str, view: memoryview, direct: bool = direct) -> None:
                io.batch_store_block([path], view, [0], len(view), direct)

            def read(path: str, view: memoryview, direct: bool = direct) -> None:
                io.batch_load_block([path], view, [0], len(view), direct)

            paths[who] = Bare(engine, lab.raw / who.replace(" ", "-"), settings, write, read)
    return paths


def write_file(path: str, view: memoryview) -> None:
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        done = 0
        while done < len(view):
            done += os.pwritev(fd, [view[done:]], done)
    finally:
        os.close(fd)


def read_file(path: str, view: memoryview) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        read_all(fd, view)
    finally:
        os.close(fd)


def _visit(who: str, path: Way, engine: Engine) -> Visit:
    def visit(number: int) -> Mapping[str, Sample]:
        os.sync()
        pieces = engine.pieces(f"{number + 1:x}-")
        size = CHUNKS * CHUNK_BYTES / 1e9
        begin = time.perf_counter()
        path.store(pieces)
        stored = time.perf_counter() - begin
        engine.wipe()
        begin = time.perf_counter()
        path.load(pieces)
        loaded = time.perf_counter() - begin
        engine.check(who)
        path.forget()
        return {CONNECTOR_STORE: Sample(size / stored), CONNECTOR_LOAD: Sample(size / loaded)}

    return visit
