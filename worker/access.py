"""Which blocks a caller may open here: by the master's tokens, for callers that act for one user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..common import block_tokens
from ..common.block_tokens import DENIED, Mode, Secret
from ..common.clock import Clock
from ..common.credentials import Caller
from ..common.errors import AccessDenied
from ..common.types import BlockKey
from ..proto import worker_pb2
from .leases import Leases
from .messages import key_from


class Access:
    """``secrets``: the master's keys, as this worker heard of them last."""

    def __init__(self, secrets: Callable[[], Mapping[int, Secret]], leases: Leases, clock: Clock) -> None:
        self._secrets = secrets
        self._leases = leases
        self._clock = clock

    def read(self, who: Caller, request: worker_pb2.ReadRequest) -> None:
        """By a token or by a lease that the caller was given: who has a file open goes on reading it. Raises:
        AccessDenied."""
        if who.trusted:
            return
        key = BlockKey(request.block, request.generation)
        if request.lease_id and self._leases.covers(request.lease_id, key, self._clock.monotonic_s()):
            return
        self._check(who, key, request.token, "r")

    def write(self, who: Caller, header: worker_pb2.WriteHeader) -> None:
        """Raises: AccessDenied."""
        if not who.trusted:
            self._check(who, BlockKey(header.block, header.generation), header.token, "w")

    def control(self, who: Caller, request: worker_pb2.ControlRequest) -> None:
        """Raises: AccessDenied."""
        if who.trusted:
            return
        wanted = blocks_of(request)
        tokens: Sequence[bytes] = request.tokens
        if len(tokens) != len(wanted):
            raise AccessDenied(DENIED)
        for (key, mode), token in zip(wanted, tokens, strict=True):
            self._check(who, key, token, mode)

    def _check(self, who: Caller, key: BlockKey, token: bytes, mode: Mode) -> None:
        if who.role != "user":
            raise AccessDenied(DENIED)
        block_tokens.check(self._secrets(), token, key, mode, who.uid, self._clock.wall_ns() / 1e9)


def blocks_of(request: worker_pb2.ControlRequest) -> list[tuple[BlockKey, Mode]]:
    """What a request touches, in the order of its tokens. (A lease's id is nobody's who was not given it.)

    Raises:
        AccessDenied: an operation that has no rule here.
    """
    op = request.WhichOneof("op")
    if op == "open":
        return [(key_from(key), "r") for key in request.open.blocks]
    if op == "create":
        made: list[tuple[BlockKey, Mode]] = [(key_from(key), "w") for key in request.create.blocks]
        if request.create.HasField("copy_from"):
            made.append((key_from(request.create.copy_from), "r"))
        return made
    if op == "commit":
        return [(key_from(item.key), "w") for item in request.commit.items]
    if op == "discard":
        return [(key_from(key), "w") for key in request.discard.blocks]
    if op == "fetch":
        return [(key_from(request.fetch.key), "r")]
    if op in ("renew", "hello", None):
        return []
    raise AccessDenied(DENIED)
