"""Reads LMDB's file as it lies on disk, without LMDB, which trusts every page that it maps.

Layout (LMDB 0.9, ``mdb.c``: MDB_page, MDB_node, MDB_db, MDB_meta; little-endian, 64 bits): pages 0 and 1 are metas,
the one with the higher transaction id counts. A page begins with 16 bytes: number u64, pad u16, flags u16, lower u16,
upper u16 (an overflow page: its count of pages, u32, instead of the last two); then u16 offsets of its nodes, up to
``lower``. A node is u16 lo, u16 hi, u16 flags, u16 key size, key, data.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

MAGIC = 0xBEEFC0DE
HEAD_BYTES = 16
BRANCH, LEAF, OVERFLOW = 1, 2, 4
BIG_DATA, SUB_TABLE = 1, 2
NO_PAGE = (1 << 64) - 1
PAGE_BYTES_AT, ROOTS_AT, LAST_PAGE_AT, TRANSACTION_AT = 40, (80, 128), 136, 144
"""In a meta page: the page size stands in the pad of the first table's record; each record ends with its root."""
ROOT_IN_TABLE_AT = 40


class CutError(Exception):
    """A page that is referred to is not in the file, or is no page. The text says which."""


def is_short(file: BinaryIO, size_bytes: int) -> bool:
    """Whether the file has fewer pages than one of its transactions counted. A head that is no head is for LMDB to
    refuse. Raises: CutError: it has no head."""
    head = _read(file, 0, 256, size_bytes)
    magic, (page_bytes,) = struct.unpack_from("<I", head, HEAD_BYTES)[0], struct.unpack_from("<I", head, PAGE_BYTES_AT)
    if magic != MAGIC or not page_bytes:
        return False
    counted = (struct.unpack_from("<Q", _read(file, at, 256, size_bytes), LAST_PAGE_AT)[0] for at in (0, page_bytes))
    return any((last + 1) * page_bytes > size_bytes for last in counted)


def check(file: BinaryIO, size_bytes: int) -> None:
    """Follows every reference of the newest transaction, in all tables and in the list of free pages. Takes time in
    proportion to the file; pages that nobody refers to may be missing.

    Raises:
        CutError.
    """
    head = _read(file, 0, 2 * HEAD_BYTES + 256, size_bytes)
    (page_bytes,) = struct.unpack_from("<I", head, PAGE_BYTES_AT)
    if not 512 <= page_bytes <= 1 << 16 or page_bytes & (page_bytes - 1):
        raise CutError(f"its pages cannot have {page_bytes} bytes")
    metas = [_read(file, number * page_bytes, 256, size_bytes) for number in (0, 1)]
    newest = max(metas, key=lambda meta: int(struct.unpack_from("<Q", meta, TRANSACTION_AT)[0]))
    left = [root for at in ROOTS_AT if (root := struct.unpack_from("<Q", newest, at)[0]) != NO_PAGE]
    pages = size_bytes // page_bytes
    seen = 0
    while left:
        number = left.pop()
        seen += 1
        if seen > pages:
            raise CutError("its pages refer to each other in a circle")
        page = _read(file, number * page_bytes, page_bytes, size_bytes)
        try:
            left += _references(page, number, page_bytes, size_bytes)
        except struct.error:  # an offset that leads out of the page
            raise CutError(f"page {number} is none") from None


def _references(page: bytes, number: int, page_bytes: int, size_bytes: int) -> Iterator[int]:
    """Pages below this one. Overflow pages are looked at here: nothing is below them."""
    own, _, flags, lower, _ = struct.unpack_from("<QHHHH", page)
    if own != number or not flags & (BRANCH | LEAF) or not HEAD_BYTES <= lower <= page_bytes:
        raise CutError(f"page {number} is none")
    for (at,) in struct.iter_unpack("<H", page[HEAD_BYTES:lower]):
        low, high, node_flags, key_bytes = struct.unpack_from("<HHHH", page, at)
        if flags & BRANCH:
            yield low | high << 16 | node_flags << 32
            continue
        data_at = at + 8 + key_bytes
        if node_flags & BIG_DATA:
            (first,) = struct.unpack_from("<Q", page, data_at)
            count = -(-(HEAD_BYTES + (low | high << 16)) // page_bytes)
            if (first + count) * page_bytes > size_bytes:
                raise CutError(f"page {first + count - 1} is beyond its end")
        elif node_flags & SUB_TABLE:
            (root,) = struct.unpack_from("<Q", page, data_at + ROOT_IN_TABLE_AT)
            if root != NO_PAGE:
                yield root


def _read(file: BinaryIO, offset: int, count: int, size_bytes: int) -> bytes:
    if offset + count > size_bytes:
        raise CutError(f"byte {offset + count - 1} is beyond its end")
    file.seek(offset)
    data = file.read(count)
    if len(data) < count:
        raise CutError(f"byte {offset + count - 1} is beyond its end")
    return data
