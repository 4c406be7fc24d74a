"""The worker's side of its talk with the master: register, report all, then heartbeats; and what the master orders.

One thread, so that reports and changes cannot overtake each other. While the master is away the worker serves on and
tries again with growing pauses. A master whose epoch is older than one already seen was replaced: its orders are
refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

import grpc

from ..common.block_tokens import Heard, Secret
from ..common.clock import Clock
from ..common.credentials import Connect, plain
from ..common.errors import HearthError, StaleEpoch, Unavailable, WrongCluster, from_rpc_error
from ..common.telemetry import TRACE_KEY, get_logger, trace
from ..common.types import BlockKey
from ..proto import common_pb2, master_pb2, master_pb2_grpc
from .block_store import BlockStore
from .copier import Copier, Order, Source
from .messages import copy_result_message, disk_messages, key_from, key_message, report_message
from .metrics import Metrics
from .nudges import NudgeListener
from .orders import Unknown
from .reports import PAGE_BLOCKS, Changes, pages
from .usage import ReadBlocks, Room

CALL_TIMEOUT_S = 5.0
REPORT_TIMEOUT_S = 20.0
COALESCE_S = 0.01
"""How long a heartbeat that was asked for waits for more to report."""
MAX_PAUSE_S = 1.0
DELETE_SLICE_S = 0.5
"""So long deletions may hold up the next heartbeat: freeing a large file takes a disk a while."""

Reply = TypeVar("Reply")

log = get_logger("hearthfs.worker.master")


class MasterLink:
    """
    Attributes:
        healthy: the last call was answered.
        block_secrets: by which the master's block tokens are known.
    """

    def __init__(
        self,
        address: str,
        request: master_pb2.RegisterWorkerRequest,
        changes: Changes,
        clock: Clock,
        metrics: Metrics,
        unknown_delay_s: float,
        report_s: float,
        connect: Connect = plain,
    ) -> None:
        self.address = address
        self.healthy = False
        self.epoch = 0
        self.block_secrets = Heard()
        self._identity = request
        self._changes = changes
        self._clock = clock
        self._metrics = metrics
        self._unknown = Unknown(unknown_delay_s)
        self._to_delete: dict[BlockKey, None] = {}  # in the order of the orders
        self._heartbeat_s = 1.0
        self._registered = False
        self._report_due = False
        self._report_s = report_s
        self._reported_s = 0.0
        self._failures = 0
        self._nudged = threading.Event()
        self._stopping = threading.Event()
        self._scanned = threading.Event()
        self._channel = connect(address)
        self._stub = master_pb2_grpc.MasterStub(self._channel)
        self._store: BlockStore | None = None
        self._thread: threading.Thread | None = None
        self._copier: Copier | None = None
        self._doubt: Callable[[Iterable[BlockKey]], None] = lambda _: None
        self._reads = ReadBlocks()
        self._room: Room | None = None
        self._question = 0
        self._asked: list[BlockKey] = []
        self._listener = NudgeListener(self._stub, self._nudges_request, self.nudge)

    # ------------------------------------------------------------ start and stop

    def register(self) -> str:
        """Registers once and returns the cluster id.

        Raises:
            WrongCluster, Conflict, StaleEpoch, Unavailable, ...
        """
        if self._store is not None:
            del self._identity.disks[:]
            self._identity.disks.extend(disk_messages(self._store))
        # Epoch 0: a worker that registers asks which one it is.
        reply = self._call("RegisterWorker", self._stub.RegisterWorker, self._identity, CALL_TIMEOUT_S)
        if self._identity.cluster_id and reply.cluster_id != self._identity.cluster_id:
            raise WrongCluster(
                f"the master at {self.address} is of cluster {reply.cluster_id}, this worker of "
                f"{self._identity.cluster_id}: name the right --master"
            )
        self._see_epoch(reply.epoch)
        self._identity.cluster_id = reply.cluster_id
        self._learn_secrets(reply.block_secrets)
        self._heartbeat_s = max(0.05, reply.heartbeat_ms / 1000)
        self._registered = True
        self._report_due = True
        return reply.cluster_id

    def register_at_start(self, timeout_s: float) -> str:
        """As ``register``, but waits for a master that is just starting.

        Raises:
            Unavailable: nobody answered in time; and what a retry does not mend.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        while True:
            try:
                return self.register()
            except HearthError as error:
                if not error.retryable:
                    raise
                if self._clock.monotonic_s() >= deadline_s or self._stopping.wait(0.2):
                    if isinstance(error, Unavailable):
                        raise Unavailable(
                            f"no master answers at {self.address} ({error}): start it, or name another --master"
                        ) from None
                    raise

    def start(
        self,
        store: BlockStore,
        copier: Copier | None = None,
        doubt: Callable[[Iterable[BlockKey]], None] | None = None,
        reads: ReadBlocks | None = None,
        room: Room | None = None,
    ) -> None:
        """``copier`` gets orders to copy, ``doubt`` blocks that somebody says are not right, ``room`` what the master
        says of it; ``reads`` has what the master is told was read."""
        self._store = store
        self._copier = copier
        self._doubt = doubt or self._doubt
        self._reads = reads or self._reads
        self._room = room
        self._listener.start()
        self._thread = threading.Thread(target=self._run, args=(store,), name="master-link", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._nudged.set()
        self._listener.stop()
        if self._thread is not None:
            self._thread.join(CALL_TIMEOUT_S)
        self._channel.close()

    def nudge(self) -> None:
        """There is something to report: do not wait for the next heartbeat."""
        self._nudged.set()

    def scan_done(self) -> None:
        """All files have records now: a full report can name every block."""
        self._scanned.set()
        self.nudge()

    # ------------------------------------------------------------ the thread

    def _run(self, store: BlockStore) -> None:
        while not self._stopping.is_set():
            with trace():
                try:
                    self._step(store)
                    self.healthy = True
                    self._failures = 0
                except HearthError as error:
                    self.healthy = False
                    self._failures += 1
                    self._metrics.heartbeat_failures.inc()
                    if self._failures in (1, 10) or self._failures % 100 == 0:
                        log.warning(
                            "master-call-failed", master=self.address, failures=self._failures, error=str(error)
                        )
                except Exception:
                    # A bug must not end the only thread that tells the master of this worker.
                    self._failures += 1
                    log.exception("master-link-bug")
            self._pause()

    def _pause(self) -> None:
        if self._failures:
            self._stopping.wait(min(MAX_PAUSE_S, 0.1 * 2 ** min(self._failures, 10)))
        elif self._nudged.wait(self._heartbeat_s):
            self._stopping.wait(COALESCE_S)
        self._nudged.clear()

    def _step(self, store: BlockStore) -> None:
        if not self._registered:
            self.register()
            log.info("registered", master=self.address, epoch=self.epoch)
        try:
            self._heartbeat(store)
            if self._registered and self._scanned.is_set() and self._must_report_all():
                self._report_all(store)
                self._heartbeat(store)
        except StaleEpoch:
            self._registered = False
            self.nudge()
            return
        self._order_deletion(self._unknown.due(self._clock.monotonic_s()))
        self._work_off(store)
        if len(self._changes) >= PAGE_BLOCKS:
            self.nudge()

    def _must_report_all(self) -> bool:
        late = self._clock.monotonic_s() - self._reported_s >= self._report_s
        return self._report_due or self._changes.overflowed or late

    def _heartbeat(self, store: BlockStore) -> None:
        store.refresh_working()
        results = self._copier.results() if self._copier is not None else []
        batch, read = self._changes.take(), self._reads.take()
        question, in_use = self._question, store.in_use(self._asked)
        reply = self._call(
            "Heartbeat",
            self._stub.Heartbeat,
            master_pb2.HeartbeatRequest(
                context=self._context(),
                worker_id=self._identity.worker_id,
                incarnation=self._identity.incarnation,
                disks=disk_messages(store),
                added=[report_message(report) for report in batch.added],
                removed=[key_message(key) for key in batch.removed],
                copied=[copy_result_message(result) for result in results],
                read_blocks=read,
                answered=question,
                in_use=[key.block for key in in_use],
            ),
            CALL_TIMEOUT_S,
        )
        self._see_epoch(reply.epoch)
        self._learn_secrets(reply.block_secrets)
        if reply.register:
            self._registered = False
            self.nudge()
            return
        self._changes.acknowledge(batch)
        self._reads.acknowledge(read)
        self._take_question(reply)
        if self._copier is not None:
            self._copier.acknowledge(len(results))
            now_s = self._clock.monotonic_s()
            self._copier.take(_order(each, now_s) for each in reply.copy)
        for result in results:
            self._metrics.copies.labels("failed" if result.error else "ok").inc()
        self._doubt([key_from(key) for key in reply.verify])
        self._report_due = self._report_due or reply.report_all
        self._order_deletion(key_from(key) for key in reply.delete)

    def _take_question(self, reply: master_pb2.HeartbeatReply) -> None:
        """The answer goes with the next heartbeat, which does not wait for its time."""
        self._question = reply.question
        self._asked = [key_from(key) for key in reply.may_evict]
        if reply.question:
            self.nudge()
        if self._room is not None:
            self._room.set(reply.reserve_bytes, made=reply.makes_room)

    def _report_all(self, store: BlockStore) -> None:
        begun_s = self._clock.monotonic_s()
        self._changes.begin_full_report()
        unknown: dict[BlockKey, bool] = {}
        for page in pages(store.reports()):
            if self._stopping.is_set():
                return
            reply = self._call(
                "ReportBlocks",
                self._stub.ReportBlocks,
                master_pb2.ReportBlocksRequest(
                    context=self._context(),
                    worker_id=self._identity.worker_id,
                    incarnation=self._identity.incarnation,
                    start=page.start,
                    end=page.end,
                    blocks=[report_message(report) for report in page.blocks],
                ),
                REPORT_TIMEOUT_S,
            )
            working = {report.key for report in page.blocks if report.working}
            for key in reply.unknown:
                named = key_from(key)
                unknown[named] = named in working
        self._report_due = False
        self._reported_s = begun_s
        if unknown:
            log.warning("blocks-unknown-to-master", count=len(unknown))
        self._order_deletion(self._unknown.replace(unknown, self._clock.monotonic_s()))

    def _order_deletion(self, keys: Iterable[BlockKey]) -> None:
        self._to_delete.update(dict.fromkeys(keys))

    def _work_off(self, store: BlockStore) -> None:
        """Deletes what was ordered, for a slice of time; the master hears of it at once, and goes on ordering what it
        did not hear of."""
        if not self._to_delete:
            return
        until_s = self._clock.monotonic_s() + DELETE_SLICE_S
        while self._to_delete and self._clock.monotonic_s() < until_s:
            key = next(iter(self._to_delete))
            del self._to_delete[key]
            try:
                store.delete(key)
                self._metrics.deletes.inc()
            except HearthError as error:
                log.error("delete-failed", block=str(key), error=str(error))
        if self._room is not None:
            self._room.freed()
        self.nudge()

    # ------------------------------------------------------------ calls

    def _nudges_request(self) -> master_pb2.NudgesRequest | None:
        if not self._registered:
            return None
        return master_pb2.NudgesRequest(
            context=self._context(), worker_id=self._identity.worker_id, incarnation=self._identity.incarnation
        )

    def _context(self) -> common_pb2.Context:
        return common_pb2.Context(epoch=self.epoch)

    def _learn_secrets(self, listed: Iterable[master_pb2.BlockSecret]) -> None:
        self.block_secrets.hear(Secret(each.number, each.secret) for each in listed)

    def _see_epoch(self, epoch: int) -> None:
        """
        Raises:
            Unavailable: an older master than one already seen: whatever it says does not count.
        """
        if epoch < self.epoch:
            raise Unavailable(f"the master at {self.address} has epoch {epoch}, a newer one had {self.epoch}: replaced")
        self.epoch = epoch

    def _call(self, name: str, method: Callable[..., Reply], request: object, timeout_s: float) -> Reply:
        with trace() as trace_id:
            try:
                return method(request, timeout=timeout_s, metadata=((TRACE_KEY, trace_id),))
            except grpc.RpcError as error:
                raise from_rpc_error(error, f"{name} to {self.address}") from None


def _order(message: master_pb2.CopyOrder, now_s: float) -> Order:
    return Order(
        key=BlockKey(message.block, message.generation),
        length_bytes=message.length_bytes,
        digest=message.digest,
        sources=tuple(Source(each.worker_id, each.address) for each in message.sources),
        deadline_s=now_s + message.deadline_ms / 1000,
    )
