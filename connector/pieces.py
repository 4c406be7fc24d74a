"""Which KV blocks make up which chunk: pairing the block list of a transfer with its chunks.

vLLM gives a transfer's blocks as one flat list per KV cache group, contiguous in the sequence, and the index of the
first one; blocks that a sliding window has passed are left out without a mark. What does not add up is refused here,
since bytes at the wrong place of a chunk are the one error that nothing later would notice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Piece:
    """Some or all blocks of one chunk."""

    name: str
    group: int
    """Index into the engine's list of offloaded groups."""
    first: int
    """Place in the chunk of the first of ``blocks``."""
    blocks: tuple[int, ...]
    depth: int = 0
    """In its prompt: of equally old chunks the deepest is evicted first."""


def pair(
    names: Sequence[str],
    groups: Sequence[int],
    block_ids: Sequence[int],
    group_sizes: Sequence[int],
    block_indices: Sequence[int],
    blocks_per_chunk: int,
    whole: bool,
) -> tuple[list[Piece], list[str]]:
    """The pieces of a transfer, and the names whose blocks cannot be told.

    Args:
        names, groups: the chunks, grouped by group, in order of the sequence.
        block_ids: blocks of all groups, one group after the other.
        group_sizes: blocks per group.
        block_indices: for each group, the index in the sequence of its first block.
        whole: each chunk must be whole but for a missing beginning of the first (stores); else the last chunk may
            lack an end, too (loads).
    """
    pieces: list[Piece] = []
    unclear: list[str] = []
    begin = 0
    for group, (size, index) in enumerate(zip(group_sizes, block_indices, strict=True)):
        chunks = [name for name, of in zip(names, groups, strict=True) if of == group]
        blocks = block_ids[begin : begin + size]
        begin += size
        skip = index % blocks_per_chunk
        expected = len(chunks) * blocks_per_chunk - skip
        least = expected if whole else expected - blocks_per_chunk + 1
        if not chunks and not size:
            continue
        if not chunks or not max(1, least) <= size <= expected:
            unclear += chunks or [f"{size} blocks of group {group} without a chunk"]
            continue
        at = 0
        for nth, name in enumerate(chunks):
            first = skip if nth == 0 else 0
            taken = tuple(blocks[at : at + blocks_per_chunk - first])
            at += len(taken)
            pieces.append(Piece(name, group, first, taken))
    return pieces, unclear
