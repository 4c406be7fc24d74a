"""Moving KV pages between the engine's memory and chunks' payloads. The one place that knows both layouts.

``PageMover`` is the interface; ``HostPages`` is for pages in host memory, ``DevicePages`` (``device_pages.py``) for
those of a GPU. A chunk is moved by one gather or scatter over all its layers and blocks: the row numbers of its pages
are computed, not looped over.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from .pieces import Piece

Pages = np.ndarray[tuple[int, int], np.dtype[np.int8]]
"""One layer's pages: (blocks, page bytes), rows may be further apart than a page is long."""
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Rows = np.ndarray[Any, np.dtype[np.int64]]


class PageMover(Protocol):
    """Moves whole chunks or parts of them. ``gather`` and ``scatter`` return when the bytes are there; any thread."""

    payload_bytes: list[int]
    """Of a chunk, for each KV cache group."""

    def fence(self) -> Any:
        """A point in the engine's own work; called by the engine's thread when it orders a transfer."""

    def pin(self, memory: memoryview) -> None:
        """Prepares memory that payloads will lie in; it stays where it is."""

    def gather(self, pieces: Sequence[Piece], payloads: Sequence[memoryview], fence: Any) -> None:
        """Copies each piece's pages, as they are after ``fence``, out of the engine; places of missing blocks are
        zeroed."""

    def scatter(self, pieces: Sequence[Piece], payloads: Sequence[memoryview], fence: Any) -> None:
        """Copies each piece's pages into the engine, after ``fence``. Block 0 is the engine's placeholder and never
        written."""


class PageRun:
    """Consecutive layers with pages of one length: rows of one table of ``granule`` bytes that begins at ``base``.

    Args:
        layers: for each, the address of its first page, the distance of pages, and their length, in bytes.
    """

    def __init__(self, layers: Sequence[tuple[int, int, int]]) -> None:
        self.base = min(address for address, _, _ in layers)
        self.page_bytes = layers[0][2]
        self.layers = len(layers)
        distances = [address - self.base for address, _, _ in layers]
        strides = [stride for _, stride, _ in layers]
        self.granule = math.gcd(self.page_bytes, *distances, *strides)
        self._first: Rows = np.array(distances, dtype=np.int64) // self.granule
        self._step: Rows = np.array(strides, dtype=np.int64) // self.granule
        self._within: Rows = np.arange(self.page_bytes // self.granule, dtype=np.int64)

    def rows(self, blocks: Sequence[int]) -> Rows:
        """Of the pages of these blocks: (layers, blocks, rows of a page)."""
        pages = self._first[:, None] + self._step[:, None] * np.asarray(blocks, dtype=np.int64)
        return pages[:, :, None] + self._within

    def bytes_for(self, blocks_per_chunk: int) -> int:
        return self.layers * self.page_bytes * blocks_per_chunk


def runs_of(layers: Sequence[tuple[int, int, int]]) -> list[PageRun]:
    """Splits a group's layers where the length of pages changes."""
    runs: list[list[tuple[int, int, int]]] = []
    for layer in layers:
        if runs and runs[-1][0][2] == layer[2]:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return [PageRun(run) for run in runs]


class HostPages:
    """Pages in host memory.

    Args:
        groups: for each KV cache group, its layers' pages.
        blocks_per_chunk: how many blocks a chunk spans.
    """

    def __init__(self, groups: list[list[Pages]], blocks_per_chunk: int) -> None:
        self._groups = groups  # keeps the memory
        self._blocks_per_chunk = blocks_per_chunk
        self._runs = [[(run, _table(run, group)) for run in runs_of(_places(group))] for group in groups]
        self.payload_bytes = [sum(run.bytes_for(blocks_per_chunk) for run, _ in runs) for runs in self._runs]

    def fence(self) -> None:
        return None

    def pin(self, memory: memoryview) -> None:
        pass

    def gather(self, pieces: Sequence[Piece], payloads: Sequence[memoryview], fence: None) -> None:
        for piece, payload in zip(pieces, payloads, strict=True):
            at = 0
            for run, table in self._runs[piece.group]:
                place, rows = self._place(run, payload, at), run.rows(piece.blocks)
                at += place.nbytes
                if len(piece.blocks) == self._blocks_per_chunk:
                    np.take(table, rows.ravel(), axis=0, out=place.reshape(-1, run.granule), mode="clip")
                else:
                    place[:] = 0
                    taken = table[rows].reshape(run.layers, -1, run.page_bytes)
                    place[:, piece.first : piece.first + len(piece.blocks)] = taken

    def scatter(self, pieces: Sequence[Piece], payloads: Sequence[memoryview], fence: None) -> None:
        for piece, payload in zip(pieces, payloads, strict=True):
            chosen = np.flatnonzero(piece.blocks)
            blocks = [piece.blocks[nth] for nth in chosen]
            at = 0
            for run, table in self._runs[piece.group]:
                place = self._place(run, payload, at)
                at += place.nbytes
                pages = place if len(blocks) == self._blocks_per_chunk else place[:, chosen + piece.first]
                table[run.rows(blocks).ravel()] = pages.reshape(-1, run.granule)

    def _place(self, run: PageRun, payload: memoryview, at: int) -> Bytes:
        size = run.bytes_for(self._blocks_per_chunk)
        flat = np.frombuffer(payload[at : at + size], dtype=np.uint8)
        return flat.reshape(run.layers, self._blocks_per_chunk, run.page_bytes)


def _places(group: Sequence[Pages]) -> list[tuple[int, int, int]]:
    return [(pages.ctypes.data, pages.strides[0], pages.shape[1]) for pages in group]


def _table(run: PageRun, group: Sequence[Pages]) -> Bytes:
    """All memory between the run's first and last page as rows; only rows that are pages are ever touched."""
    end = max(pages.ctypes.data + (pages.shape[0] - 1) * pages.strides[0] + pages.shape[1] for pages in group)
    rows = -(-(end - run.base) // run.granule)
    memory = (ctypes.c_uint8 * (rows * run.granule)).from_address(run.base)
    return np.frombuffer(memoryview(memory).cast("B"), dtype=np.uint8).reshape(rows, run.granule)
