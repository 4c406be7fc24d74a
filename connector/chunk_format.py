"""How a chunk lies in its file: the KV pages from offset 0, then one trailer of 4 KiB at the end.

Pages first, so that a direct or mapped read of the file is a read of pages. The trailer lets a reader refuse whatever
is not exactly its own: another format or key, another length, a torn or altered payload. All integers little-endian:

    offset  size  field
         0     8  magic "HearthKV"
         8     4  format version
        12     4  first_block: blocks of the chunk before this one hold nothing (a window had passed them)
        16     8  payload length in bytes
        24    16  directory: sha256, cut, of the chunk's directory below the root (model, weights, layout, rank)
        40     8  xxh3-64 of the payload
        48     8  length of the name, then the chunk's name itself at 64
      4088     8  xxh3-64 of the trailer's first 4088 bytes

The payload holds, for each layer of the group in order, the pages of the chunk's blocks in order.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct

import xxhash

from ..common.errors import BlockCorrupt, Stale
from ..common.types import Buffer

TRAILER_BYTES = 4096
FORMAT_VERSION = 1
_MAGIC = b"HearthKV"
_FIELDS = struct.Struct("<8sIIQ16sQQ8x")
_SEAL = struct.Struct("<Q")
_MAX_NAME_BYTES = TRAILER_BYTES - _FIELDS.size - _SEAL.size


def file_bytes(payload_bytes: int) -> int:
    """The whole file's length: the payload rounded up to 4 KiB, and the trailer."""
    return -(-payload_bytes // TRAILER_BYTES) * TRAILER_BYTES + TRAILER_BYTES


def seal(file: Buffer, payload_bytes: int, name: str, directory: str, first_block: int = 0) -> None:
    """Completes ``file``, whose first ``payload_bytes`` are in place: padding and trailer.

    Raises:
        ValueError: the buffer has not exactly ``file_bytes(payload_bytes)``.
    """
    view = memoryview(file)
    if len(view) != file_bytes(payload_bytes):
        raise ValueError(f"a chunk file of {len(view)} bytes for a payload of {payload_bytes}")
    encoded = name.encode()
    if len(encoded) > _MAX_NAME_BYTES:
        raise ValueError(f"a chunk name of {len(encoded)} bytes")
    view[payload_bytes:-TRAILER_BYTES] = bytes(len(view) - TRAILER_BYTES - payload_bytes)
    checksum = xxhash.xxh3_64_intdigest(view[:payload_bytes])
    head = _FIELDS.pack(_MAGIC, FORMAT_VERSION, first_block, payload_bytes, _mark(directory), checksum, len(encoded))
    body = (head + encoded).ljust(TRAILER_BYTES - _SEAL.size, b"\0")
    view[-TRAILER_BYTES:] = body + _SEAL.pack(xxhash.xxh3_64_intdigest(body))


def open_sealed(file: Buffer, payload_bytes: int, name: str, directory: str, verify_payload: bool = True) -> int:
    """Checks that ``file`` is the chunk ``name`` of ``directory``; gives its ``first_block``.

    Args:
        verify_payload: False only where the bytes were verified on their way here.

    Raises:
        Stale: a chunk, but of another key, directory, length or format version.
        BlockCorrupt: not a chunk, or altered.
    """
    view = memoryview(file)
    if len(view) != file_bytes(payload_bytes):
        raise BlockCorrupt(f"{name}: {len(view)} bytes, not {file_bytes(payload_bytes)}")
    body = view[-TRAILER_BYTES : -_SEAL.size]
    magic, version, first_block, length, mark, checksum, name_bytes = _FIELDS.unpack_from(body)
    if magic != _MAGIC or _SEAL.unpack(view[-_SEAL.size :])[0] != xxhash.xxh3_64_intdigest(body):
        raise BlockCorrupt(f"{name}: its trailer is damaged")
    if version != FORMAT_VERSION:
        raise Stale(f"{name}: format {version}, this version reads {FORMAT_VERSION}")
    stored_name = bytes(body[_FIELDS.size : _FIELDS.size + min(name_bytes, _MAX_NAME_BYTES)])
    if stored_name != name.encode() or mark != _mark(directory) or length != payload_bytes:
        raise Stale(f"{name}: the file holds {stored_name!r}, {length} bytes, of directory {mark.hex()}")
    if verify_payload and xxhash.xxh3_64_intdigest(view[:payload_bytes]) != checksum:
        raise BlockCorrupt(f"{name}: the payload does not match its checksum")
    return int(first_block)


@dataclasses.dataclass(frozen=True)
class Trailer:
    """What a chunk says of itself."""

    version: int
    first_block: int
    payload_bytes: int
    directory_mark: bytes
    checksum: int
    name: str

    def belongs_to(self, directory: str, name: str) -> bool:
        return (self.directory_mark, self.name) == (_mark(directory), name)


def read_trailer(end: Buffer) -> Trailer:
    """
    Args:
        end: the last 4 KiB of a file.

    Raises:
        BlockCorrupt: no chunk's end, or altered.
    """
    body = memoryview(end)[: -_SEAL.size]
    if len(body) != TRAILER_BYTES - _SEAL.size:
        raise BlockCorrupt(f"{len(body) + _SEAL.size} bytes are no trailer")
    magic, version, first_block, length, mark, checksum, name_bytes = _FIELDS.unpack_from(body)
    if magic != _MAGIC or _SEAL.unpack(memoryview(end)[-_SEAL.size :])[0] != xxhash.xxh3_64_intdigest(body):
        raise BlockCorrupt("its trailer is damaged")
    name = bytes(body[_FIELDS.size : _FIELDS.size + min(name_bytes, _MAX_NAME_BYTES)])
    return Trailer(version, first_block, length, mark, checksum, name.decode(errors="replace"))


def check_file(file: Buffer, directory: str, name: str) -> Trailer:
    """Checks a whole file of any payload length.

    Raises:
        Stale, BlockCorrupt: as ``open_sealed``.
    """
    view = memoryview(file)
    if len(view) < TRAILER_BYTES:
        raise BlockCorrupt(f"{name}: {len(view)} bytes are less than a trailer")
    trailer = read_trailer(view[-TRAILER_BYTES:])
    open_sealed(view, trailer.payload_bytes, name, directory)
    return trailer


def _mark(directory: str) -> bytes:
    return hashlib.sha256(directory.encode()).digest()[:16]
