"""Wires the worker and runs it until it is told to stop."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import signal
import threading
from pathlib import Path

from ..common import allocation, credentials
from ..common.clock import SystemClock
from ..common.errors import SettingsError, WrongCluster
from ..common.notify import notify
from ..common.telemetry import Health, TelemetryServer, configure_logging, get_logger
from ..common.types import PROTOCOL
from ..common.version import VERSION
from ..proto import master_pb2, worker_pb2
from .access import Access
from .block_store import BlockStore
from .control import Control
from .copier import Copier
from .data_door import DataDoor
from .disk import Disk
from .fetch import CHANNEL_OPTIONS, Fetcher
from .identity import Identity
from .leases import Leases
from .local_socket import LocalSocket
from .master_link import MasterLink
from .metrics import Metrics
from .reconcile import reconcile
from .reports import Changes
from .scrubber import Scrubber
from .service import BlockStreams, GrpcDoor, WorkerService
from .settings import WorkerSettings
from .usage import ReadBlocks, Room

STOP_GRACE_S = 3.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
SWEEP_S = 1.0
ROOM_WAIT_S = 1.0
"""A writer waits so long for eviction to make room before it is told how much is left."""

log = get_logger("hearthfs.worker")


class Worker:
    """One worker. ``start`` takes it up, ``stop`` puts it down; what ``start`` took is given back when it fails.

    Attributes:
        address: host:port of the gRPC door, known after ``start``.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        """Raises: SettingsError: of the credentials."""
        self.settings = settings
        self.address = ""
        self._credentials = credentials.load(settings, serves=True)
        self._clock = SystemClock()
        self._metrics = Metrics()
        self._changes = Changes()
        self._undo = contextlib.ExitStack()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Checks everything that can be checked without a trace, registers, and only then touches the disks.

        Raises:
            HearthError, OSError: one line that says what is wrong and what to do; nothing was changed.
        """
        with contextlib.ExitStack() as undo:
            self._start(undo)
            self._undo = undo.pop_all()

    def _start(self, undo: contextlib.ExitStack) -> None:
        settings = self.settings
        credentials.check_listen(settings.listen, self._credentials, settings.allow_insecure)
        boot_id = _boot_id()
        leases = Leases(settings.lease_s, settings.max_leases, lambda: secrets.randbits(63) | 1)
        disks = []
        for disk_setting in settings.parsed_disks:
            disk = Disk(disk_setting.path, disk_setting.limit_bytes, settings.floor)
            undo.callback(disk.close)
            disk.inspect(settings.identity, settings.cluster_id)
            disks.append(disk)
        known = _one_cluster(disks) or settings.cluster_id
        undo.callback(leases.close)
        door = GrpcDoor(
            settings.listen, settings.rpc_threads, settings.stream_timeout_s, self._credentials, self._refused
        )
        undo.callback(door.stop, STOP_GRACE_S)
        data = self._data_door()
        if data is not None:
            undo.callback(data.stop, STOP_GRACE_S)
        local = LocalSocket(settings.socket_path, settings.max_connections, settings.socket_group)
        undo.callback(local.stop)
        self.address = settings.advertise or f"{settings.listen.rpartition(':')[0]}:{door.port}"
        link = self._link(known)
        undo.callback(link.stop)
        health = _Health(link, disks)
        if settings.telemetry_listen:
            undo.callback(self._telemetry(health).close)
        cluster_id = link.register_at_start(settings.start_timeout_s)

        for disk in disks:
            disk.bad_files_kept, disk.bad_bytes_kept = settings.bad_files_kept, settings.bad_bytes_kept
            disk.prepare(Identity(settings.identity, cluster_id), boot_id)
        store = BlockStore(disks, self._changes, boot_id)
        store.catalog.on_lost = leases.revoke
        self._metrics.watch(store, leases)
        fetcher = Fetcher(
            store,
            self._clock,
            settings.fetch_timeout_s,
            self._metrics.fetched_bytes.inc,
            connect=lambda source: self._credentials.channel(source, "worker", CHANNEL_OPTIONS),
        )
        reads = ReadBlocks()
        room = Room(lambda: store.available_bytes, self._clock, link.nudge, ROOM_WAIT_S)
        control = Control(
            store,
            leases,
            fetcher,
            self._clock,
            self._metrics,
            settings.identity,
            cluster_id,
            link.nudge,
            invite=data.invite if data is not None else None,
            reads=reads,
            room=room,
        )
        about = worker_pb2.StatsReply(
            worker_id=settings.identity, node_id=settings.node, cluster_id=cluster_id, version=VERSION
        )
        access = Access(lambda: link.block_secrets.known, leases, self._clock)
        streams = BlockStreams(store, leases, self._clock, self._metrics, access)
        if data is not None:
            data.start(streams, self._metrics)
        door.start(WorkerService(control, store, leases, about, access), streams)
        # Without certificates nobody is a user to the master, and nobody gets tokens.
        local.start(control, access if self._credentials.encrypted else None)
        copier = Copier(fetcher.fetch, self._clock, settings.copy_threads, link.nudge)
        scrubber = Scrubber(
            store,
            self._clock,
            self._metrics,
            cycle_s=settings.scrub_cycle_s,
            bytes_per_s=settings.scrub_bytes_per_s,
            pause_pressure=settings.scrub_pause_pressure,
            told=link.nudge,
        )
        link.start(store, copier, scrubber.doubt, reads, room)
        copier.start()
        undo.callback(copier.stop)
        scrubber.start()
        undo.callback(scrubber.stop)
        background = threading.Thread(target=self._background, args=(store, leases, link), name="background")
        background.start()
        undo.callback(background.join)
        undo.callback(fetcher.stop)
        undo.callback(self._stopping.set)

    def _data_door(self) -> DataDoor | None:
        settings = self.settings
        if settings.data_door == "off" or self._credentials.encrypted:  # what it sends would not be
            return None
        host = settings.listen.rpartition(":")[0]
        return DataDoor(host, settings.data_port, settings.data_connections, settings.identity)

    def _telemetry(self, health: Health) -> TelemetryServer:
        listen = self.settings.telemetry_listen
        try:
            return TelemetryServer(listen, health, self._metrics.registry)
        except (OSError, ValueError) as error:
            raise SettingsError(f"telemetry_listen {listen}: {error}: give another HOST:PORT") from None

    def _link(self, cluster_id: str) -> MasterLink:
        settings = self.settings
        request = master_pb2.RegisterWorkerRequest(
            worker_id=settings.identity,
            node_id=settings.node,
            address=self.address,
            cluster_id=cluster_id,
            incarnation=secrets.randbits(63) | 1,
            protocol=PROTOCOL,
            # The paths at least: a former process of this worker is told from another worker by them.
            disks=[master_pb2.Disk(path=str(disk.path)) for disk in settings.parsed_disks],
        )
        return MasterLink(
            settings.master,
            request,
            self._changes,
            self._clock,
            self._metrics,
            settings.unknown_delay_s,
            settings.report_s,
            connect=lambda address: self._credentials.channel(address, "master"),
        )

    def _background(self, store: BlockStore, leases: Leases, link: MasterLink) -> None:
        reconcile(store, self._stopping.is_set)
        if not self._stopping.is_set():
            link.scan_done()
        while not self._stopping.wait(SWEEP_S):
            leases.expire(self._clock.monotonic_s())

    def _refused(self, error: str) -> None:
        self._metrics.refused.labels(error).inc()

    def stop(self) -> None:
        self._undo.close()


def serve(settings: WorkerSettings) -> None:
    """Runs a worker until SIGTERM or SIGINT.

    Raises:
        HearthError, OSError: it could not start.
    """
    # Blocked here and in all threads to come, and waited for: a handler would miss the signal that comes between the
    # interpreter's last look and the wait itself, and the worker would serve on until the next one.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    configure_logging(settings.log_level, settings.log_format)
    os.umask(0o077)  # the socket alone is for others, and has its mode set
    _allow_many_files()
    allocation.keep_buffers()
    worker = Worker(settings)
    worker.start()
    log.info("serving", address=worker.address, socket=str(settings.socket_path), master=settings.master)
    notify("READY=1")
    signal.sigwait(STOP_SIGNALS)
    notify("STOPPING=1")
    worker.stop()


def _allow_many_files() -> None:
    """Each lease and each connection is a descriptor; the usual soft limit of 1024 is for programs with select()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _one_cluster(disks: list[Disk]) -> str:
    found = {disk.identity.cluster_id: disk for disk in disks if disk.identity and disk.identity.cluster_id}
    if len(found) > 1:
        names = ", ".join(f"{disk.path} to {cluster}" for cluster, disk in found.items())
        raise WrongCluster(f"the disks belong to different clusters: {names}: name those of one cluster")
    return next(iter(found), "")


class _Health:
    """Whether the worker does its work, for ``/healthz``."""

    def __init__(self, link: MasterLink, disks: list[Disk]) -> None:
        self._link = link
        self._disks = disks

    def __call__(self) -> tuple[bool, str]:
        if not self._link.healthy:
            return False, f"the master at {self._link.address} does not answer"
        failed = [str(disk.path) for disk in self._disks if disk.failed]
        if failed:
            return False, f"disks failed: {', '.join(failed)}"
        return True, "ok"
