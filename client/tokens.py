"""Block tokens that the master gave this client, by block; see ``common.block_tokens``.

Nodes and operators get none, and this stays empty.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..common import block_tokens
from ..common.types import BlockKey
from ..proto import common_pb2 as common
from ..proto import master_pb2 as pb

EARLY_S = 30
"""So long before it expires a token is replaced."""

Renew = Callable[[Sequence[BlockKey]], Sequence[bytes]]


class Tokens:
    """Thread-safe. Of more than ``limit`` the one learned first goes."""

    def __init__(self, limit: int, wall_s: Callable[[], float] = time.time) -> None:
        self._limit = limit
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._tokens: OrderedDict[BlockKey, bytes] = OrderedDict()

    def learn(self, reply: Any) -> None:
        """From any reply of the master."""
        found: list[tuple[BlockKey, bytes]] = []
        if isinstance(reply, common.Entry):
            found += _of_entry(reply)
        elif isinstance(reply, pb.MutateReply):
            found += _of_entry(reply.entry)
            found += [(BlockKey(each.block, each.generation), each.token) for each in reply.blocks if each.token]
        elif isinstance(reply, pb.LookupManyReply) and reply.tokens:
            keys = map(BlockKey, reply.blocks, reply.generations)
            found += [(key, token) for key, token in zip(keys, reply.tokens, strict=True) if token]
        if found:
            self._put(found)

    def _put(self, found: Iterable[tuple[BlockKey, bytes]]) -> None:
        with self._lock:
            for key, token in found:
                self._tokens[key] = token
                self._tokens.move_to_end(key)
            while len(self._tokens) > self._limit:
                self._tokens.popitem(last=False)

    def of(self, keys: Sequence[BlockKey], renew: Renew) -> list[bytes]:
        """One for each block, empty where there is none; those about to expire are replaced by ``renew``, which
        may raise what it will."""
        if not self._tokens:
            return []
        now_s = self._wall_s()
        with self._lock:
            found = {key: self._tokens.get(key, b"") for key in keys}
        late = [key for key, token in found.items() if token and block_tokens.expires_s(token) - EARLY_S < now_s]
        if late:
            fresh = {key: token for key, token in zip(late, renew(late), strict=True) if token}
            self._put(fresh.items())
            found |= fresh
        return [found[key] for key in keys]


def _of_entry(entry: common.Entry) -> Iterable[tuple[BlockKey, bytes]]:
    return [(BlockKey(each.block, each.generation), each.token) for each in entry.extents if each.token]
