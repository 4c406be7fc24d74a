"""A worker's parts over a temporary directory, a master that is a few lines long, and a client of the socket."""

from __future__ import annotations

import array
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from hearthfs.common import checksums, data_stream
from hearthfs.common.errors import HearthError, WrongCluster, to_trailing_metadata
from hearthfs.common.types import BlockKey
from hearthfs.proto import master_pb2, master_pb2_grpc, worker_pb2
from hearthfs.worker.block_store import BlockStore
from hearthfs.worker.disk import Disk
from hearthfs.worker.identity import Identity
from hearthfs.worker.main import Worker
from hearthfs.worker.os_calls import OsCalls
from hearthfs.worker.reports import Changes
from hearthfs.worker.settings import Floor

BOOT = "boot-1"
NO_FLOOR = Floor(0.0, 0)


def pattern(size: int, seed: int = 1) -> bytes:
    """Bytes that differ from place to place and seed to seed."""
    unit = bytes((seed * 31 + i * 7) & 0xFF for i in range(251))
    return (unit * (size // len(unit) + 1))[:size]


def sums(data: bytes) -> bytes:
    step = checksums.CHUNK_BYTES
    return checksums.pack([checksums.checksum(data[at : at + step]) for at in range(0, len(data), step)])


class FailingCalls(OsCalls):
    """Raises the error set for a step, ``after`` so many calls of it; counts all calls."""

    def __init__(self) -> None:
        self.errors: dict[str, BaseException] = {}
        self.after: dict[str, int] = {}
        self.seen: list[str] = []

    def before(self, step: str) -> None:
        self.seen.append(step)
        if step in self.errors:
            if self.after.get(step, 0) == 0:
                raise self.errors[step]
            self.after[step] -= 1


class StoreMaker:
    """Opens and re-opens a store on the same directories, as a restart does."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.open: list[BlockStore] = []
        self.changes = Changes()
        self.calls = FailingCalls()
        self.sleep: Callable[[float], object] = lambda _: None

    def __call__(
        self,
        *,
        limit: int | None = None,
        boot: str = BOOT,
        disks: int = 1,
        floor: Floor = NO_FLOOR,
        crash: bool = False,
    ) -> BlockStore:
        for store in self.open:
            if crash:
                crash_store(store)
            else:
                store.close()
        self.open.clear()
        self.changes = Changes()
        self.calls = FailingCalls()
        made = []
        for number in range(disks):
            disk = Disk(self.directory / f"disk{number}", limit, floor, self.calls)
            disk.inspect("w1", "c1")
            disk.prepare(Identity("w1", "c1"), boot)
            made.append(disk)
        store = BlockStore(made, self.changes, boot, lambda seconds: self.sleep(seconds))
        self.open.append(store)
        return store


def crash_store(store: BlockStore) -> None:
    """Lets go of everything the way the kernel does at a kill: nothing is written any more."""
    for disk in store.disks:
        disk.index._environment.close()
        del disk.index
        disk.close()


def put(store: BlockStore, key: BlockKey, data: bytes, *, sync: bool = False) -> Any:
    """Creates, writes and commits a block."""
    working = store.create(key)
    os.pwrite(working.fd, data, 0)
    os.close(working.fd)
    return store.commit(key, len(data), sums(data), sync=sync)


def read_all(store: BlockStore, key: BlockKey) -> bytes:
    held = store.open_read(key)
    try:
        return os.pread(held.fd, held.record.length_bytes + 1, 0)
    finally:
        os.close(held.fd)


def block_path(store: BlockStore, key: BlockKey, disk: int = 0) -> Path:
    return store.disks[disk].path / "blocks" / f"{key.block & 0xFF:02x}" / str(key)


class FakeMaster(master_pb2_grpc.MasterServicer):
    """Remembers what the worker says and answers what the test sets."""

    def __init__(self, cluster_id: str = "c1") -> None:
        self.cluster_id = cluster_id
        self.epoch = 1
        self.heartbeat_ms = 50
        self.known: dict[BlockKey, Any] = {}
        self.full_reports: list[dict[BlockKey, Any]] = []
        self.registrations: list[master_pb2.RegisterWorkerRequest] = []
        self.heartbeats: list[master_pb2.HeartbeatRequest] = []
        self.delete: list[BlockKey] = []
        self.copy: dict[str, list[master_pb2.CopyOrder]] = {}  # by worker
        self.verify: list[BlockKey] = []
        self.copied: list[master_pb2.CopyResult] = []
        self.unknown: set[BlockKey] = set()
        self.report_all = False
        self.forget = False
        self.refusal: HearthError | None = None
        self.moved = threading.Condition()
        self._page: dict[BlockKey, Any] = {}
        self.stopped = threading.Event()
        self.nudge = threading.Event()
        self._pool = ThreadPoolExecutor(8)
        self._server = grpc.server(self._pool, options=data_stream.SERVER_OPTIONS)
        master_pb2_grpc.add_MasterServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def wait(self, condition: Callable[[], bool], timeout_s: float = 20) -> None:
        with self.moved:
            assert self.moved.wait_for(condition, timeout_s), "the master did not see it in time"

    def _fail(self, context: Any, error: HearthError) -> None:
        context.set_trailing_metadata(to_trailing_metadata(error))
        context.abort(error.code, str(error))

    def RegisterWorker(self, request: Any, context: Any) -> Any:
        if self.refusal:
            self._fail(context, self.refusal)
        if request.cluster_id not in ("", self.cluster_id):
            self._fail(context, WrongCluster(f"this is cluster {self.cluster_id}"))
        with self.moved:
            self.forget = False
            self.registrations.append(request)
            self.moved.notify_all()
        return master_pb2.RegisterWorkerReply(
            epoch=self.epoch, cluster_id=self.cluster_id, heartbeat_ms=self.heartbeat_ms
        )

    def Heartbeat(self, request: Any, context: Any) -> Any:
        if self.refusal:
            self._fail(context, self.refusal)
        with self.moved:
            for report in request.added:
                self.known[BlockKey(report.block, report.generation)] = report
            for key in request.removed:
                self.known.pop(BlockKey(key.block, key.generation), None)
            self.heartbeats.append(request)
            self.copied.extend(request.copied)
            reply = master_pb2.HeartbeatReply(
                epoch=self.epoch,
                delete=[master_pb2.BlockKey(block=k.block, generation=k.generation) for k in self.delete],
                report_all=self.report_all,
                register=self.forget,
                copy=self.copy.pop(request.worker_id, []),
                verify=[master_pb2.BlockKey(block=k.block, generation=k.generation) for k in self.verify],
            )
            self.delete, self.verify, self.report_all = [], [], False
            self.moved.notify_all()
        return reply

    def ReportBlocks(self, request: Any, context: Any) -> Any:
        with self.moved:
            if request.start:
                self._page = {}
            for report in request.blocks:
                self._page[BlockKey(report.block, report.generation)] = report
            if request.end:
                self.full_reports.append(self._page)
                self.known = {k: r for k, r in self._page.items() if not r.working}
            unknown = [BlockKey(r.block, r.generation) for r in request.blocks]
            self.moved.notify_all()
        return master_pb2.ReportBlocksReply(
            unknown=[master_pb2.BlockKey(block=k.block, generation=k.generation) for k in unknown if k in self.unknown]
        )

    def Nudges(self, request: Any, context: Any) -> Any:
        yield master_pb2.Nudge()
        while not self.stopped.wait(0.02) and context.is_active():
            if self.nudge.is_set():
                self.nudge.clear()
                yield master_pb2.Nudge()

    def stop(self) -> None:
        self.stopped.set()
        self._server.stop(0).wait(5)
        self._pool.shutdown()


WorkerMaker = Callable[..., Worker]


class SocketClient:
    """Talks to the unix socket, one request at a time."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(20)
        self.socket.connect(str(path))

    def call(self, **op: Any) -> tuple[worker_pb2.ControlReply, list[int]]:
        self.socket.send(worker_pb2.ControlRequest(request_id=7, **op).SerializeToString())
        return self.receive()

    def receive(self) -> tuple[worker_pb2.ControlReply, list[int]]:
        data, ancillary, _, _ = self.socket.recvmsg(4 << 20, socket.CMSG_SPACE(64 * 4))
        fds = array.array("i")
        for _, _, packed in ancillary:
            fds.frombytes(packed)
        return worker_pb2.ControlReply.FromString(data), list(fds)

    def close(self) -> None:
        self.socket.close()


def key_message(key: BlockKey) -> master_pb2.BlockKey:
    return master_pb2.BlockKey(block=key.block, generation=key.generation)
