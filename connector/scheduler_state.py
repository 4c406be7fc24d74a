"""The reaches into vLLM's scheduler half that its interface does not offer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Prefix:
    """What of a request may be in the store, in the scheduler's terms; made in microseconds, ``keys`` is for others."""

    hashes: tuple[bytes, ...]
    """Of the request's blocks, from its beginning."""
    computed: int
    """Tokens that need no lookup."""
    tokens: int
    """The most that could be loaded."""
    groups: tuple[tuple[bytes, int, int], ...]
    """KV cache groups: the end of their keys, tokens and hashes per chunk."""
    all_boundaries: bool
    """Chunks may end within a block (recurrent state): every hash may be one's key."""

    @classmethod
    def of(cls, scheduler: Any, request: Any, computed: int) -> Prefix | None:
        """None: there is less than a chunk."""
        config = scheduler.config
        smallest = min(group.tokens_per_chunk for group in config.kv_group_configs)
        if config.supports_partial_tail:
            smallest = config.tokens_per_hash
        tokens = request.num_tokens - computed
        if tokens < smallest:
            return None
        groups = tuple(
            (group.group_idx.to_bytes(4, "big"), group.tokens_per_chunk, group.hashes_per_chunk)
            for group in config.kv_group_configs
        )
        return cls(tuple(request.block_hashes), computed, tokens, groups, config.supports_partial_tail)

    def keys(self) -> list[bytes]:
        """Of all chunks past ``computed``, as ``make_offload_key`` makes them."""
        found: list[bytes] = []
        for ending, tokens_per_chunk, hashes_per_chunk in self.groups:
            chunk = self.computed // tokens_per_chunk
            begin, step = hashes_per_chunk * (chunk + 1) - 1, hashes_per_chunk
            if self.all_boundaries:
                begin, step = hashes_per_chunk * chunk, 1
            found += [block_hash + ending for block_hash in self.hashes[begin::step]]
        return found


def offer_again(scheduler: Any, request_ids: Iterable[str]) -> None:
    """Makes the scheduler offer all chunks of these requests to be stored.

    It takes chunks that a request was to load for stored, and would never offer them again, though the load failed and
    the request computes them: a bad file would stay until another request came by.
    """
    for request_id in request_ids:
        status = scheduler._req_status.get(request_id)
        for group in status.group_states if status is not None else ():
            group.next_stored_chunk_idx = 0
