"""Tokens that open one block at a worker for one user, for minutes: an HMAC with a key that master and workers share.

A worker knows nothing of files and their modes. The master does, and puts a token into the layout that it gives to a
caller whose permissions it checked; the worker checks the token. Callers that act for any user (nodes, operators) need
none: the master would give them any.

A token is ``key number (u32), expiry (u32, seconds of Unix time), mode (1 byte), MAC (16 bytes)``, and the MAC is over
these and block, generation and uid.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from .errors import AccessDenied
from .types import BlockKey

Mode = Literal["r", "w"]
"""A writer may read what it writes; a reader may not write."""

SKEW_S = 60
"""So far the clocks of master and worker may differ."""
SETTLE_S = 10.0
"""A new key signs when workers have had it for so long."""
KEYS = 2
SECRET_BYTES = 32
_HEAD = struct.Struct("<IIc")
_SIGNED = struct.Struct("<IIcQII")
_MAC_BYTES = 16
LENGTH = _HEAD.size + _MAC_BYTES
DENIED = "no valid token for this block"
"""The same text whatever is wrong, so that nobody learns which blocks there are."""


class Secret(NamedTuple):
    number: int
    secret: bytes

    def __repr__(self) -> str:
        return f"Secret({self.number}, …)"


def sign(secret: Secret, key: BlockKey, mode: Mode, uid: int, expires_s: int) -> bytes:
    letter = mode.encode()
    head = _HEAD.pack(secret.number, expires_s, letter)
    return head + _mac(secret, _SIGNED.pack(secret.number, expires_s, letter, *key, uid))


def _mac(secret: Secret, signed: bytes) -> bytes:
    return hmac.digest(secret.secret, signed, hashlib.sha256)[:_MAC_BYTES]


def expires_s(token: bytes) -> int:
    """Unix time; 0 for what is no token."""
    return int(_HEAD.unpack_from(token)[1]) if len(token) == LENGTH else 0


def check(secrets: Mapping[int, Secret], token: bytes, key: BlockKey, mode: Mode, uid: int, now_s: float) -> None:
    """Raises: AccessDenied."""
    if len(token) != LENGTH:
        raise AccessDenied(DENIED)
    number, expiry, letter = _HEAD.unpack_from(token)
    secret = secrets.get(number)
    if secret is None or letter not in (b"w", mode.encode()):
        raise AccessDenied(DENIED)
    good = hmac.compare_digest(token[_HEAD.size :], _mac(secret, _SIGNED.pack(number, expiry, letter, *key, uid)))
    if not good or expiry + SKEW_S < now_s:
        raise AccessDenied(DENIED)


class Secrets:
    """The master's keys: a new one every ``life_s``, the one before is still known to workers. Told the time.

    Law: a token is good for ``life_s``, and its key is known to workers for at least as long after it signed.
    """

    def __init__(self, life_s: float, random_bytes: Callable[[int], bytes], now_s: float, first: int) -> None:
        self.life_s = life_s
        self._random_bytes = random_bytes
        self._made_s = [now_s]
        self._secrets = [Secret(first & 0xFFFF_FFFF, random_bytes(SECRET_BYTES))]

    def known(self, now_s: float) -> Sequence[Secret]:
        """What workers must know, the newest last; makes a new one when it is time."""
        if now_s - self._made_s[-1] >= self.life_s + SETTLE_S:
            number = (self._secrets[-1].number + 1) & 0xFFFF_FFFF
            self._secrets = [*self._secrets[1 - KEYS :], Secret(number, self._random_bytes(SECRET_BYTES))]
            self._made_s = [*self._made_s[1 - KEYS :], now_s]
        return self._secrets

    def signing(self, now_s: float) -> Secret:
        secrets = self.known(now_s)
        settled = len(secrets) == 1 or now_s - self._made_s[-1] >= SETTLE_S
        return secrets[-1 if settled else -2]


class Heard:
    """A worker's keys: the list that the master sent last. A master that was started anew has new keys; then those of
    the one before stay until the new one changes its keys for the first time, so that tokens outlive a restart."""

    def __init__(self) -> None:
        self._list: dict[int, Secret] = {}
        self.known: Mapping[int, Secret] = {}

    def hear(self, listed: Iterable[Secret]) -> None:
        found = by_number(listed)
        if not found or found.keys() == self._list.keys():
            return
        former = {} if found.keys() & self._list.keys() else self._list
        self._list = found
        self.known = {**former, **found}


def by_number(secrets: Iterable[Secret]) -> dict[int, Secret]:
    return {secret.number: secret for secret in secrets}
