"""Leases for clients on other nodes: while one lives, the bytes of its blocks stay readable, whatever is deleted.

A lease holds an open descriptor per block: the file may be unlinked, its bytes stay. (A client on this node holds
such a descriptor itself and needs no lease.) Time is an argument.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ..common.errors import Busy, NotFound
from ..common.types import BlockKey
from .disk import OpenBlock


@dataclass
class _Lease:
    expires_s: float
    blocks: dict[BlockKey, OpenBlock]


class Leases:
    """Thread-safe.

    Args:
        new_id: makes a fresh, never zero lease id.
    """

    def __init__(self, duration_s: float, max_blocks: int, new_id: Callable[[], int]) -> None:
        self.duration_s = duration_s
        self._max_blocks = max_blocks
        self._new_id = new_id
        self._lock = threading.Lock()
        self._leases: dict[int, _Lease] = {}
        self._count = 0

    def grant(self, blocks: dict[BlockKey, OpenBlock], now_s: float) -> int:
        """Takes over the descriptors and returns the lease's id.

        Raises:
            Busy: too many blocks are leased. The descriptors are closed.
        """
        with self._lock:
            self._drop_expired(now_s)
            if self._count + len(blocks) > self._max_blocks:
                for held in blocks.values():
                    held.close()
                raise Busy(f"{self._count} blocks are leased, {self._max_blocks} is the limit: try again later")
            lease_id = self._new_id()
            self._leases[lease_id] = _Lease(now_s + self.duration_s, dict(blocks))
            self._count += len(blocks)
            return lease_id

    def renew(self, lease_id: int, now_s: float) -> None:
        """
        Raises:
            NotFound: it ended, or never was: open the blocks again.
        """
        with self._lock:
            self._drop_expired(now_s)
            lease = self._leases.get(lease_id)
            if lease is None:
                raise NotFound(f"lease {lease_id:016x} has ended: open the blocks again")
            lease.expires_s = now_s + self.duration_s

    def covers(self, lease_id: int, key: BlockKey, now_s: float) -> bool:
        """Whether that lease is good, and for this block."""
        with self._lock:
            self._drop_expired(now_s)
            lease = self._leases.get(lease_id)
            return lease is not None and key in lease.blocks

    def borrow(self, key: BlockKey, now_s: float) -> OpenBlock | None:
        """A descriptor of its own for a block under any lease, to be closed by the caller."""
        with self._lock:
            self._drop_expired(now_s)
            for lease in self._leases.values():
                held = lease.blocks.get(key)
                if held is not None:
                    return held.dup()
        return None

    def revoke(self, key: BlockKey) -> None:
        """The block's bytes are not right: no lease keeps them."""
        with self._lock:
            for lease in self._leases.values():
                held = lease.blocks.pop(key, None)
                if held is not None:
                    self._count -= 1
                    held.close()

    def expire(self, now_s: float) -> None:
        with self._lock:
            self._drop_expired(now_s)

    def _drop_expired(self, now_s: float) -> None:
        for lease_id in [i for i, lease in self._leases.items() if lease.expires_s <= now_s]:
            self._drop(lease_id)

    def _drop(self, lease_id: int) -> None:
        lease = self._leases.pop(lease_id)
        self._count -= len(lease.blocks)
        for held in lease.blocks.values():
            held.close()

    def close(self) -> None:
        with self._lock:
            for lease_id in list(self._leases):
                self._drop(lease_id)

    def __len__(self) -> int:
        return len(self._leases)
