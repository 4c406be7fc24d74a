"""The state machine: one request in, one outcome out.

Laws:
- What a request does depends on the tables and the request alone: no clock, no randomness, no process state. The same
  requests in the same order make the same tables, byte for byte, wherever they are applied.
- Applied once: a request with a client id leaves its result under (client_id, request_id), in the transaction that
  makes its change and its journal record. The same request again finds the result and changes nothing.
- A failure by the rules (``HearthError``) is a result like any other. A failure of the store (``NoSpace`` raised by
  it, ``DataDamaged``) or a bug is not: nothing is remembered, and the request may be sent again.
- Results below the client's watermark ``acked_below`` are forgotten; a request from below it is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from ..common.errors import KINDS, DataDamaged, HearthError, InvalidArgument, WrongCluster
from . import (
    attributes,
    batches,
    blocks,
    commands,
    evicting,
    journal,
    namespace,
    permissions,
    quotas,
    registry,
    renaming,
)
from .change import Change, Freed, Stored, Touch
from .records import Client, Result
from .tables import Batch, Transaction, pair, u64
from .view import View

MAX_UNACKED = 100_000
"""A client may have this many requests above its watermark: so many results the table keeps for it."""

Rule = Callable[[Change, Any], Any]

RULES: dict[type[commands.Command], Rule] = {
    commands.BeginEpoch: registry.begin_epoch,
    commands.Restored: registry.restored,
    commands.RegisterSession: registry.register_session,
    commands.EndSessions: registry.end_sessions,
    commands.ForgetClients: registry.forget_clients,
    commands.RegisterWorker: registry.register_worker,
    commands.DrainWorker: registry.drain_worker,
    commands.ForgetWorker: registry.forget_worker,
    commands.Rebalance: registry.rebalance,
    commands.UpdateReplicas: blocks.update_replicas,
    commands.DropWorking: blocks.drop_orphans,
    commands.Create: namespace.create,
    commands.CreateMany: namespace.create_many,
    commands.Mkdir: namespace.mkdir,
    commands.Mknod: namespace.mknod,
    commands.Symlink: namespace.symlink,
    commands.Link: namespace.link,
    commands.Unlink: namespace.unlink,
    commands.UnlinkMany: namespace.unlink_many,
    commands.Rmdir: namespace.rmdir,
    commands.Rename: renaming.rename,
    commands.Setattr: attributes.setattr_,
    commands.SetXattr: attributes.set_xattr,
    commands.RemoveXattr: attributes.remove_xattr,
    commands.Allocate: blocks.allocate,
    commands.Discard: blocks.discard,
    commands.Publish: lambda change, command: blocks.publish(change, command.item),
    commands.PublishMany: batches.publish_many,
    commands.PutMany: batches.put_many,
    commands.ReportBadReplica: blocks.report_bad_replica,
    commands.DropReplicas: blocks.drop_replicas,
    commands.Evict: evicting.evict,
    commands.EvictMany: evicting.evict_many,
    commands.Expire: evicting.expire,
    commands.SettleQuota: quotas.settle,
    commands.FinishQuota: quotas.finish,
}

_encode = msgspec.msgpack.Encoder().encode
_result_decoder = msgspec.msgpack.Decoder(Result)


class Outcome(NamedTuple):
    result: Result
    touched: tuple[Touch, ...] = ()
    moved: tuple[Stored | Freed, ...] = ()
    replayed: bool = False  # the request had been applied before


class _Refused(Exception):
    """Carries a failure by the rules out of the step, which then leaves nothing behind."""

    def __init__(self, error: HearthError) -> None:
        self.error = error


def apply(batch: Batch, request: commands.Request) -> Outcome:
    """Applies one request in two steps at most: the change, or only the memory of its failure.

    Raises:
        InvalidArgument: the request's numbers make no sense; nothing is remembered.
        NoSpace, DataDamaged: of the store.
    """
    try:
        with batch.step() as txn:
            known = find_result(
                View(txn), request.client_id, request.request_id, request.acked_below, _operation(request)
            )
            if known is not None:
                return Outcome(known, replayed=True)
            change = Change(txn, now_ns=request.now_ns, client_id=request.client_id)
            try:
                command = request.command
                if request.user is not None:
                    command = permissions.permitted(change, request.user, command)
                    permissions.drop_special_bits(change, request.user, command)
                reply = RULES[type(command)](change, command)
            except DataDamaged:
                raise
            except HearthError as error:
                raise _Refused(error) from None
            change.flush()
            result = Result(_operation(request), reply=reply)
            _remember(txn, request, result)
            journal.append(txn, request)
            return Outcome(result, tuple(change.touched), tuple(change.moved))
    except _Refused as refused:
        result = Result(_operation(request), error=type(refused.error).__name__, message=refused.error.message)
        with batch.step() as txn:
            _remember(txn, request, result)
            if request.client_id:
                journal.append(txn, request, result.error)
        return Outcome(result)


def find_result(view: View, client_id: int, request_id: int, acked_below: int, operation: str) -> Result | None:
    """The remembered answer: a repeated request needs no worker, no room, no queue.

    Raises:
        InvalidArgument: numbers that make no sense or stood for another operation, a result that was acknowledged.
    """
    if not client_id:
        return None
    if request_id <= 0 or acked_below > request_id:
        raise InvalidArgument(f"request {request_id} with results acknowledged below {acked_below}")
    value = view.reader.get("results", pair(client_id, request_id))
    if value is not None:
        result = _result_decoder.decode(value)
        if result.operation != operation:
            raise InvalidArgument(f"request {request_id} was {result.operation} before and is {operation} now")
        return result
    client = view.find_client(client_id)
    low = max(acked_below, client.acked_below if client else 1)
    if request_id < low:
        raise InvalidArgument(f"request {request_id}: its result was acknowledged (all below {low} were)")
    if request_id - low > MAX_UNACKED:
        raise InvalidArgument(f"request {request_id} is too far above the watermark {low}; acknowledge results")
    return None


def _remember(txn: Transaction, request: commands.Request, result: Result) -> None:
    if not request.client_id:
        return
    txn.put("results", pair(request.client_id, request.request_id), _encode(result))
    client = View(txn).find_client(request.client_id) or Client(request.session_id, request.now_ns)
    if request.acked_below <= client.acked_below:
        return
    first = pair(request.client_id, client.acked_below)
    last = pair(request.client_id, request.acked_below)
    while old := [key for key, _ in txn.scan("results", u64(request.client_id), first) if key < last]:
        for key in old:
            txn.delete("results", key)
    advanced = msgspec.structs.replace(client, acked_below=request.acked_below)
    txn.put("clients", u64(request.client_id), _encode(advanced))


def _operation(request: commands.Request) -> str:
    return type(request.command).__name__


def error_of(result: Result) -> HearthError | None:
    """The failure that a result stands for."""
    return KINDS.get(result.error, HearthError)(result.message) if result.error else None


def replay(batch: Batch, record: journal.Record) -> None:
    """Applies a journal record to the tables that the records before it made.

    Raises:
        DataDamaged: it did not end as it did when it was journalled.
    """
    try:
        outcome = apply(batch, record.request)
    except (WrongCluster, struct.error, OverflowError) as error:  # or numbers that no record can have
        raise DataDamaged(f"journal record {record.number}: {error}") from None
    if outcome.result.error != record.error or outcome.replayed:
        raise DataDamaged(
            f"journal record {record.number} ({outcome.result.operation}): ended with "
            f"{outcome.result.error or 'success'}, in the journal with {record.error or 'success'}"
        )
