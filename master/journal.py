"""The journal: every applied request, numbered without gaps, in the transaction that applied it.

A record is a msgpack map with a version of its own; the store puts the checksum before it. Requests that failed by the
rules stand in it too (``error`` names the kind): their result is remembered, so replaying must make it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from ..common.errors import DataDamaged, InvalidArgument, NewerFormat, NotFound
from .commands import Request
from .tables import PAGE_ROWS, Reader, Transaction, from_u64, rows, u64

RECORD_VERSION = 1
PAGE_BYTES = 1 << 20
SCAN_ROWS = 32
"""A record may have a megabyte: so few are read before their bytes are counted."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    number: int
    request: Request
    version: int = RECORD_VERSION
    error: str = ""


class Stored(NamedTuple):
    """A record as its bytes: what the master sends, and segments hold."""

    number: int
    body: bytes


class _Envelope(msgspec.Struct, frozen=True):
    number: int
    version: int = RECORD_VERSION


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)
_envelope_decoder = msgspec.msgpack.Decoder(_Envelope)


def last_number(reader: Reader) -> int:
    """Number of the newest record; 0 when nothing was ever journalled."""
    value = reader.get("meta", b"journal")
    return 0 if value is None else from_u64(value)


def append(txn: Transaction, request: Request, error: str = "") -> int:
    """Writes the next record and returns its number."""
    number = last_number(txn) + 1
    txn.put("journal", u64(number), _encoder.encode(Record(number=number, request=request, error=error)))
    txn.put("meta", b"journal", u64(number))
    return number


def decode(value: bytes) -> Record:
    """Raises: NewerFormat, DataDamaged."""
    try:
        envelope = _envelope_decoder.decode(value)
        if envelope.version > RECORD_VERSION:
            raise NewerFormat(f"journal record {envelope.number}: version {envelope.version}, known: {RECORD_VERSION}")
        return _decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise DataDamaged(f"journal record cannot be decoded: {error}") from None


def iterate(reader: Reader, after: int = 0) -> Iterator[Record]:
    """Records with a number above ``after``, in order.

    Raises:
        DataDamaged: a record is damaged, or one is missing between two others.
    """
    expected = 0
    for key, value in rows(reader, "journal", start=u64(after + 1)):
        record = decode(value)
        if record.number != from_u64(key) or (expected and record.number != expected):
            raise DataDamaged(f"journal: record {record.number} stands where {expected or from_u64(key)} belongs")
        expected = record.number + 1
        yield record


def oldest_number(reader: Reader) -> int:
    """Number of the oldest record that was not trimmed; 0 when there is none."""
    first = reader.scan("journal", limit=1)
    return from_u64(first[0][0]) if first else 0


def page(reader: Reader, after: int, up_to: int) -> list[Stored]:
    """The next records above ``after``, up to ``up_to``: about a megabyte of them, and at least one if there is any.

    Raises:
        InvalidArgument: the journal has never come as far as ``after``.
        NotFound: the next record was trimmed.
        DataDamaged: a record is missing between two others, or damaged.
    """
    newest = last_number(reader)
    if after > newest:
        raise InvalidArgument(
            f"the journal ends at record {newest}, there is nothing after {after}: "
            "was this cluster restored from a backup since? Its journal goes into a new archive"
        )
    up_to = min(up_to, newest)
    if after < up_to and not 0 < oldest_number(reader) <= after + 1:
        kept_from = oldest_number(reader) or newest + 1
        raise NotFound(
            f"journal record {after + 1} is gone, the master has those from {kept_from} on: make a new backup "
            "(hearth backup), begin a new archive, and archive more often or raise journal_retention_records"
        )
    found: list[Stored] = []
    size_bytes = 0
    while after < up_to and size_bytes < PAGE_BYTES:
        some = reader.scan("journal", start=u64(after + 1), limit=min(SCAN_ROWS, up_to - after))
        for key, body in some:
            if from_u64(key) != after + 1:
                raise DataDamaged(f"journal: record {from_u64(key)} stands where {after + 1} belongs")
            if found and size_bytes + len(body) > PAGE_BYTES:
                return found
            found.append(Stored(after + 1, body))
            size_bytes += len(body)
            after += 1
        if not some:
            raise DataDamaged(f"journal: record {after + 1} is missing, {newest} should be the last")
    return found


def trim(txn: Transaction, keep_records: int) -> int:
    """Deletes at most a page of the records that are older than the newest ``keep_records``; returns how many."""
    keep_from = last_number(txn) - keep_records + 1
    oldest = txn.scan("journal", limit=1)
    if not oldest or (excess := keep_from - from_u64(oldest[0][0])) <= 0:
        return 0
    old = txn.scan("journal", limit=min(excess, PAGE_ROWS))
    for key, _ in old:
        txn.delete("journal", key)
    return len(old)
