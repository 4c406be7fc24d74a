"""Moving KV pages between the engine's memory and a chunk's payload. The one place that knows both layouts."""

from __future__ import annotations

import numpy as np

from .pieces import Piece

Pages = np.ndarray[tuple[int, int], np.dtype[np.int8]]
"""One layer's pages: (blocks, page bytes), rows may be further apart than a page is long."""


class PageMover:
    """Gathers and scatters the pages of one worker.

    Args:
        groups: for each KV cache group, its layers' pages.
        blocks_per_chunk: how many blocks a chunk spans.
    """

    def __init__(self, groups: list[list[Pages]], blocks_per_chunk: int) -> None:
        self._groups = groups
        self._blocks_per_chunk = blocks_per_chunk
        self.payload_bytes = [blocks_per_chunk * sum(pages.shape[1] for pages in group) for group in groups]
        """Of a chunk, for each group."""

    def gather(self, piece: Piece, payload: memoryview) -> None:
        """Copies the piece's pages out of the engine; the places of missing blocks are zeroed."""
        for pages, target in self._places(piece.group, payload):
            target[: piece.first] = 0
            for nth, block in enumerate(piece.blocks, piece.first):
                target[nth] = pages[block]
            target[piece.first + len(piece.blocks) :] = 0

    def scatter(self, piece: Piece, payload: memoryview) -> None:
        """Copies the piece's pages into the engine. Block 0 is the engine's placeholder and never written."""
        for pages, source in self._places(piece.group, payload):
            for nth, block in enumerate(piece.blocks, piece.first):
                if block:
                    pages[block] = source[nth]

    def _places(self, group: int, payload: memoryview) -> list[tuple[Pages, Pages]]:
        flat = np.frombuffer(payload, dtype=np.int8)
        places, at = [], 0
        for pages in self._groups[group]:
            size = self._blocks_per_chunk * pages.shape[1]
            places.append((pages, flat[at : at + size].reshape(self._blocks_per_chunk, pages.shape[1])))
            at += size
        return places
