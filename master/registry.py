"""Who takes part: the cluster's epoch, sessions, clients, workers."""

from __future__ import annotations

import msgspec

from ..common.errors import Busy, InvalidArgument, NotFound
from . import namespace
from .change import Change
from .commands import (
    BeginEpoch,
    DrainWorker,
    EndSessions,
    ForgetClients,
    ForgetWorker,
    Rebalance,
    RegisterSession,
    RegisterWorker,
    Restored,
)
from .records import WORKER_ID_MAX, Client, Cluster, Epoch, Rebalancing, Reply, Session, Worker
from .tables import of_worker, u64

REBALANCE_PERCENT_MAX = 50


def begin_epoch(change: Change, command: BeginEpoch) -> Reply:
    """A master starts. On empty tables it founds the cluster; all older sessions stay until they end."""
    if change.cluster() is None:
        change.put("meta", b"cluster", Cluster(command.cluster_id, change.now_ns))
        namespace.make_root(change)
    last = change.epoch()
    change.put("meta", b"epoch", Epoch(1 if last is None else last.epoch + 1, change.now_ns))
    return Reply()


def restored(change: Change, command: Restored) -> Reply:
    """Passes over what the lost commits may have given out: epochs (and so generations), inodes, cookies, blocks.

    Workers still have blocks of then, and clients remember inodes; none of these may come to mean something else.

    Raises: InvalidArgument: it passes over nothing, or there is no cluster in the tables.
    """
    last = change.epoch()
    if last is None or command.epochs <= 0 or command.numbers <= 0:
        raise InvalidArgument(f"cannot pass over {command.epochs} epochs and {command.numbers} numbers")
    change.put("meta", b"epoch", Epoch(last.epoch + command.epochs, change.now_ns))
    change.count.next_inode += command.numbers
    change.count.next_cookie += command.numbers
    change.count.next_block += command.numbers
    return Reply()


def register_session(change: Change, command: RegisterSession) -> Reply:
    """A client's new session ends its old one; results and working blocks are the client's and stay.

    Raises: InvalidArgument.
    """
    if not command.client_id or not command.session_id:
        raise InvalidArgument("a session needs a client id and a session id that are not 0")
    client = change.find_client(command.client_id) or Client(0, change.now_ns)
    if client.session_id:
        change.delete("sessions", u64(client.session_id))
    epoch = change.epoch()
    session = Session(
        client_id=command.client_id,
        node_id=command.node_id,
        kind=command.kind,
        name=command.name,
        holds_grants=command.holds_grants,
        epoch=epoch.epoch if epoch else 0,
        opened_ns=change.now_ns,
    )
    change.put("sessions", u64(command.session_id), session)
    current = msgspec.structs.replace(client, session_id=command.session_id, seen_ns=change.now_ns)
    change.put("clients", u64(command.client_id), current)
    return Reply()


def end_sessions(change: Change, command: EndSessions) -> Reply:
    for session_id in command.session_ids:
        session = change.find_session(session_id)
        if session is None:
            continue
        change.delete("sessions", u64(session_id))
        client = change.find_client(session.client_id)
        if client is not None and client.session_id == session_id:
            ended = msgspec.structs.replace(client, session_id=0, seen_ns=change.now_ns)
            change.put("clients", u64(session.client_id), ended)
    return Reply()


def forget_clients(change: Change, command: ForgetClients) -> Reply:
    """Passes over those that have registered again meanwhile."""
    for client_id in command.client_ids:
        client = change.find_client(client_id)
        if client is None or client.session_id:
            continue
        while page := change.txn.scan("results", u64(client_id)):
            for key, _ in page:
                change.delete("results", key)
        change.delete("clients", u64(client_id))
    return Reply()


def register_worker(change: Change, command: RegisterWorker) -> Reply:
    """Raises: InvalidArgument."""
    check_worker_id(command.worker_id)
    known = change.find_worker(command.worker_id)
    worker = Worker(
        command.node_id,
        command.address,
        command.incarnation,
        command.disks,
        change.now_ns,
        draining=known is not None and known.draining,
    )
    change.put("workers", command.worker_id.encode(), worker)
    return Reply()


def drain_worker(change: Change, command: DrainWorker) -> Reply:
    """Raises: NotFound."""
    worker = _known_worker(change, command.worker_id)
    change.put("workers", command.worker_id.encode(), msgspec.structs.replace(worker, draining=command.draining))
    return Reply()


def forget_worker(change: Change, command: ForgetWorker) -> Reply:
    """Its orders go with it. Raises: NotFound, Busy (files count on it)."""
    _known_worker(change, command.worker_id)
    if change.held(command.worker_id, 0, 1):
        raise Busy(f"worker {command.worker_id!r} has replicas that files count on: drain it first")
    while page := change.txn.scan("garbage", of_worker(command.worker_id)):
        for key, _ in page:
            change.delete("garbage", key)
    change.delete("workers", command.worker_id.encode())
    return Reply()


def _known_worker(change: Change, worker_id: str) -> Worker:
    worker = change.find_worker(worker_id)
    if worker is None:
        raise NotFound(f"worker {worker_id!r} is not known: hearth status lists those that are")
    return worker


def rebalance(change: Change, command: Rebalance) -> Reply:
    """Raises: InvalidArgument."""
    if not 0 <= command.percent <= REBALANCE_PERCENT_MAX:
        raise InvalidArgument(f"cannot rebalance to {command.percent} %: 1 to {REBALANCE_PERCENT_MAX}, or 0 to stop")
    if command.percent:
        change.put("meta", b"rebalancing", Rebalancing(command.percent))
    else:
        change.delete("meta", b"rebalancing")
    return Reply()


def check_worker_id(worker_id: str) -> None:
    """Raises: InvalidArgument."""
    size = len(worker_id.encode(errors="surrogatepass"))
    if not 0 < size <= WORKER_ID_MAX or not worker_id.isprintable():
        raise InvalidArgument(f"{worker_id!r} is not a worker id: 1 to {WORKER_ID_MAX} bytes of printable text")
