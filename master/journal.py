"""The journal: every applied request, numbered without gaps, in the transaction that applied it.

A record is a msgpack map with a version of its own; the store puts the checksum before it. Requests that failed by the
rules stand in it too (``error`` names the kind): their result is remembered, so replaying must make it again.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ..common.errors import DataDamaged, NewerFormat
from .commands import Request
from .tables import PAGE_ROWS, Reader, Transaction, from_u64, rows, u64

RECORD_VERSION = 1


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    number: int
    request: Request
    version: int = RECORD_VERSION
    error: str = ""


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
