"""Paths inside the namespace: absolute, bytes on the wire, ``str`` with surrogateescape for people. Pure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import cast

from ..common.errors import InvalidArgument, NameTooLong
from ..common.types import NAME_MAX, PATH_MAX

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Name = str | bytes


def encode(text: Name) -> bytes:
    """
    >>> encode("é"), encode(b"\\xff")
    (b'\\xc3\\xa9', b'\\xff')
    """
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def encode_all(texts: Sequence[Name]) -> Sequence[bytes]:
    """``encode`` of each; thousands of names of one type are not touched one by one.

    >>> encode_all(["é", "a"]), encode_all([b"a", "b"]), encode_all([])
    ([b'\\xc3\\xa9', b'a'], [b'a', b'b'], [])
    """
    kinds = set(map(type, texts))
    if kinds == {bytes}:
        return cast("Sequence[bytes]", texts)
    if kinds == {str}:
        parts = encode("\0".join(cast("Sequence[str]", texts))).split(b"\0")
        if len(parts) == len(texts):  # else one has a NUL itself
            return parts
    return [encode(text) for text in texts]


def decode(data: bytes) -> str:
    """The inverse of ``encode`` for any bytes."""
    return data.decode("utf-8", "surrogateescape")


def normalise(path: Path) -> bytes:
    """Without empty and ``.`` components and without a slash at the end. ``..`` stays: what it means depends on
    symlinks, so the master walks it.

    >>> normalise("//a/./b/")
    b'/a/b'

    Raises:
        InvalidArgument: relative, or with a NUL byte.
        NameTooLong: a component is over 255 bytes, or the path over 4096.
    """
    raw = encode(os.fspath(path))
    if not raw.startswith(b"/"):
        raise InvalidArgument(f"path {decode(raw)!r} is relative; paths of the namespace begin with /")
    if b"\0" in raw:
        raise InvalidArgument(f"path {decode(raw)!r} has a NUL byte")
    components = [part for part in raw.split(b"/") if part not in (b"", b".")]
    if any(len(part) > NAME_MAX for part in components):
        raise NameTooLong(f"path {decode(raw)!r} has a name of more than {NAME_MAX} bytes")
    result = b"/" + b"/".join(components)
    if len(result) > PATH_MAX:
        raise NameTooLong(f"path of {len(result)} bytes; at most {PATH_MAX}")
    return result


def split(path: Path) -> tuple[bytes, bytes]:
    """Parent and name.

    >>> split("/a/b")
    (b'/a', b'b')

    Raises:
        InvalidArgument: the root, or a name that is ``..``.
    """
    normal = normalise(path)
    parent, _, name = normal.rpartition(b"/")
    if name in (b"", b".."):
        raise InvalidArgument(f"path {decode(normal)!r} does not end in a name")
    return parent or b"/", name


def check_name(name: Name) -> bytes:
    """One directory entry's name as bytes.

    Raises:
        InvalidArgument, NameTooLong.
    """
    raw = encode(name)
    if len(raw) > NAME_MAX:
        raise NameTooLong(f"name {decode(raw)[:40]!r}… is {len(raw)} bytes long; at most {NAME_MAX}")
    if raw in (b"", b".", b"..") or b"/" in raw or b"\0" in raw:
        raise InvalidArgument(f"{decode(raw)!r} cannot be the name of a file")
    return raw


def join(directory: Path, name: Name) -> bytes:
    """
    >>> join("/", "a"), join("/a", b"b")
    (b'/a', b'/a/b')
    """
    return normalise(directory).rstrip(b"/") + b"/" + encode(name)
