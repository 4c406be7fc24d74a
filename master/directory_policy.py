"""What a directory asks for the files in it: extended attributes ``hearth.*`` of the directory. Pure.

Laws:
- A directory that is made gets a copy of the inheritable attributes of the one it is made in. So its own attributes say
  all, and nothing walks up the tree. Setting one later changes this directory, not those that exist below it.
- A file has no policy of its own: that of the directory of its (first) name holds, also after a rename.
- An attribute that is not set has its default. A value that does not parse is refused when it is set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from ..common.errors import InvalidArgument
from ..common.settings import parse_bytes

PREFIX = b"hearth."
ALIAS = b"user.hearth."
"""Under this prefix they can be set as well: some tools know attributes of users only."""
REPLICAS_MAX = 16
TTL_MAX_S = 1 << 40
CACHE = b"hearth.cache"
PIN = b"hearth.pin"
TTL = b"hearth.ttl"
QUOTA = b"hearth.quota"
REPLICAS = b"hearth.replicas"
REPLICATE = b"hearth.replicate"
REPLICATE_ON_READ = b"hearth.replicate_on_read"


class DirectoryPolicy(msgspec.Struct, frozen=True):
    """
    Attributes:
        cache: its files may be evicted.
        pinned: for now they may not, nor do they expire.
        ttl_s: they expire so long after their last change; 0: never.
        quota_bytes: all below it have so much together (``quotas``); 0: no limit.
        replicas: so many of each file, on workers of their own.
        before_close: a writer's close waits until they are there; else they are made in the background.
        on_read: a batch read by an SDK leaves a copy on the reader's node, as each read through a mount does.
    """

    cache: bool = False
    replicas: int = 1
    before_close: bool = False
    pinned: bool = False
    ttl_s: int = 0
    quota_bytes: int = 0
    on_read: bool = False


DEFAULT = DirectoryPolicy()


def _flag(text: str) -> bool:
    return {"0": False, "1": True}[text]


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= REPLICAS_MAX:
        raise ValueError(text)
    return number


_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _duration_s(text: str) -> int:
    """
    >>> _duration_s("90"), _duration_s("36h")
    (90, 129600)
    """
    unit = _UNITS_S.get(text[-1:])
    seconds = int(text if unit is None else text[:-1]) * (unit or 1)
    if not 0 <= seconds <= TTL_MAX_S:
        raise ValueError(text)
    return seconds


def _size_bytes(text: str) -> int:
    try:
        size = parse_bytes(text)
    except OverflowError:
        size = -1
    if not 0 <= size < 1 << 62:
        raise ValueError(text)
    return size


def _when(text: str) -> bool:
    return {"background": False, "before_close": True}[text]


class Attribute(NamedTuple):
    """``parse`` raises ValueError or KeyError; ``wanted`` says in words what it takes."""

    field: str
    parse: Callable[[str], object]
    wanted: str
    inherited: bool = True
    on_files: bool = False  # a file may have it for itself


ATTRIBUTES: dict[bytes, Attribute] = {
    CACHE: Attribute("cache", _flag, "0 or 1"),
    PIN: Attribute("pinned", _flag, "0 or 1", on_files=True),
    TTL: Attribute("ttl_s", _duration_s, "seconds, or a number with s, m, h or d"),
    QUOTA: Attribute(
        "quota_bytes", _size_bytes, "a number of bytes, or one with KiB, MiB, GiB or TiB", inherited=False
    ),
    REPLICAS: Attribute("replicas", _count, f"1 to {REPLICAS_MAX}"),
    REPLICATE: Attribute("before_close", _when, "background or before_close"),
    REPLICATE_ON_READ: Attribute("on_read", _flag, "0 or 1"),
}


def canonical(name: bytes) -> bytes:
    """
    >>> canonical(b"user.hearth.cache"), canonical(b"user.colour")
    (b'hearth.cache', b'user.colour')
    """
    return PREFIX + name.removeprefix(ALIAS) if name.startswith(ALIAS) else name


def check(name: bytes, value: bytes, *, is_directory: bool) -> None:
    """Whether this attribute may be set; those without our prefix are not looked at.

    Raises:
        InvalidArgument: not one of ours, not on a directory, or a value that means nothing.
    """
    if not name.startswith(PREFIX):
        return
    attribute = ATTRIBUTES.get(name)
    if attribute is None:
        known = ", ".join(sorted(each.decode() for each in ATTRIBUTES))
        raise InvalidArgument(f"{name!r} is no attribute of HearthFS; there are {known}")
    if not is_directory and not attribute.on_files:
        raise InvalidArgument(f"{name.decode()} belongs to directories: set it on the one that the file is in")
    try:
        attribute.parse(value.decode("ascii"))
    except (ValueError, KeyError):
        raise InvalidArgument(f"{name.decode()}: {value[:40]!r} is not {attribute.wanted}") from None


def inherited(xattrs: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Of a directory's attributes those that a directory made in it gets."""
    return {name: value for name, value in xattrs.items() if name in ATTRIBUTES and ATTRIBUTES[name].inherited}


def policy_of(xattrs: Mapping[bytes, bytes]) -> DirectoryPolicy:
    """What a directory's attributes say. One that means nothing (to this version) counts as not set.

    >>> policy_of({b"hearth.replicas": b"2", b"user.colour": b"red"}).replicas
    2
    """
    fields: dict[str, object] = {}
    for name, attribute in ATTRIBUTES.items():
        if name in xattrs:
            try:
                fields[attribute.field] = attribute.parse(xattrs[name].decode("ascii"))
            except (ValueError, KeyError):
                continue
    return msgspec.structs.replace(DEFAULT, **fields)
