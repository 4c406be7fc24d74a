"""What the caller of one call may see, and the tokens that it gets. Nothing is checked for nodes and operators."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from ..common import block_tokens
from ..common.clock import Clock
from ..common.credentials import Caller
from ..common.errors import AccessDenied, HearthError, NotPermitted
from ..common.types import BlockKey
from . import permissions
from .codec import Sign, no_tokens
from .commands import User
from .lookups import Hit, Walk
from .records import Inode, Modes
from .tables import u64
from .view import View

_modes = msgspec.msgpack.Decoder(Modes).decode


class Rights:
    """Attributes:
    user: whose permissions hold; None: nobody's.
    """

    def __init__(self, caller: Caller, secrets: block_tokens.Secrets, clock: Clock) -> None:
        self.caller = caller
        self.user = None if caller.trusted else User(caller.uid, caller.gid)
        self._secrets = secrets
        self._clock = clock

    def need_node(self, node_id: str) -> None:
        """Raises: NotPermitted: the caller is another node's daemon."""
        if self.caller.role == "node" and self.caller.name != f"node {node_id}":
            raise NotPermitted(f"the certificate of {self.caller.name!r} does not speak for node {node_id!r}")

    # ---------------------------------------------------------------- reads; each raises AccessDenied

    def search(self, view: View, directory: int) -> None:
        if self.user is not None:
            permissions.reach_directory(view, self.user, directory)

    def reach(self, view: View, inode: int, wanted: int = 0) -> None:
        """Also of the inode itself, ``wanted`` as of access(2)."""
        if self.user is not None:
            found = permissions.reach(view, self.user, inode)
            permissions.need(found, self.user, wanted, f"use inode {inode}")

    def walked(self, view: View, walk: Walk, end: Inode | None, wanted: int) -> None:
        """``end``: where the walk led, None if it failed: then a directory that may not be searched is all that the
        caller learns."""
        if self.user is None:
            return
        permissions.check_walk(view, self.user, walk.visited - ({walk.inode} if end is not None else set()))
        if end is not None:
            permissions.need(end, self.user, wanted, "open the file")

    def readable(self, view: View, bitmap: bytes, hits: list[Hit]) -> tuple[bytes, list[Hit]]:
        """A file that may not be read is a miss."""
        if self.user is None or self.user.uid == 0:
            return bitmap, hits
        bits, kept = bytearray(bitmap), []
        positions = (index for index in range(8 * len(bitmap)) if bitmap[index >> 3] >> (index & 7) & 1)
        found = view.reader.get_many("inodes", [u64(hit[0]) for hit in hits], _modes)
        for index, hit, modes in zip(positions, hits, found, strict=True):
            if modes is not None and permissions.allows(modes, self.user, permissions.READ):
                kept.append(hit)
            else:
                bits[index >> 3] &= ~(1 << (index & 7))
        return bytes(bits), kept

    # ---------------------------------------------------------------- tokens

    def _sign(self, mode: block_tokens.Mode) -> Sign:
        user = self.user
        assert user is not None
        now_s = self._clock.wall_ns() / 1e9
        secret, expires_s = self._secrets.signing(now_s), int(now_s + self._secrets.life_s)
        return lambda block, generation: block_tokens.sign(
            secret, BlockKey(block, generation), mode, user.uid, expires_s
        )

    def reading(self, inode: Inode | None) -> Sign:
        """For the blocks of that file; None: of files that were found to be readable."""
        if self.user is None or (inode is not None and not permissions.allows(inode, self.user, permissions.READ)):
            return no_tokens
        return self._sign("r")

    def writing(self) -> Sign:
        return no_tokens if self.user is None else self._sign("w")

    def renewed(self, view: View, keys: Collection[BlockKey], client_id: int) -> list[bytes]:
        """One for each block, empty where the caller has no right to it."""
        if self.user is None:
            return [b""] * len(keys)
        read, write = self._sign("r"), self._sign("w")
        return [
            write(*key) if self._own(view, key, client_id) else read(*key) if self._may_read(view, key) else b""
            for key in keys
        ]

    @staticmethod
    def _own(view: View, key: BlockKey, client_id: int) -> bool:
        working = view.find_working(key.block)
        return working is not None and (working.client_id, working.generation) == (client_id, key.generation)

    def _may_read(self, view: View, key: BlockKey) -> bool:
        found = view.extent_of(*key)
        if found is None:
            return False
        try:
            self.reach(view, found[0], permissions.READ)
        except (AccessDenied, HearthError):
            return False
        return True
