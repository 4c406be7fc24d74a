"""``hearth master``: wires the parts and runs them until a signal or a failure ends it."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import time

import grpc
import uvloop

from ..common import credentials
from ..common.clock import Clock, SystemClock
from ..common.data_stream import SERVER_OPTIONS
from ..common.errors import SettingsError, Unavailable, WrongCluster
from ..common.gate import AsyncGate
from ..common.notify import notify
from ..common.telemetry import TelemetryServer, configure_logging, get_logger
from ..proto import master_pb2_grpc
from . import metrics
from .backups import Backups
from .capacity import Capacity
from .core import Core
from .feed import Feed
from .repairer import Repairer
from .service import MasterService
from .settings import MasterSettings
from .store import LmdbStore
from .upkeep import Upkeep
from .view import View
from .workers import Workers

CALLS_MAX = 4096
"""More calls at once are refused (RESOURCE_EXHAUSTED): the memory that waiting ones take is bounded."""
SWITCH_INTERVAL_S = 0.001
"""The writer's thread computes while the loop answers reads: let them take turns quickly."""
log = get_logger("hearthfs.master")


class MasterServer:
    """One master in the running loop: ``start``, then ``wait`` for its end, then ``stop``."""

    def __init__(
        self,
        settings: MasterSettings,
        clock: Clock | None = None,
        shown: credentials.Credentials | None = None,
    ) -> None:
        """``shown``: instead of those that the settings name. Raises: SettingsError."""
        self._settings = settings
        self._clock = clock or SystemClock()
        self._credentials = shown or credentials.load(settings, serves=True)
        self._server = grpc.aio.server(
            options=SERVER_OPTIONS,
            maximum_concurrent_rpcs=CALLS_MAX,
            interceptors=[AsyncGate(self._credentials, lambda error: metrics.REFUSED.labels(error).inc())],
        )
        self._telemetry: TelemetryServer | None = None
        self._store: LmdbStore | None = None
        self._upkeep: Upkeep | None = None
        self._backups: Backups | None = None
        self._feed: Feed | None = None
        self.core: Core | None = None
        self.port = 0
        self._started = False
        self._ended = asyncio.Event()
        self._failure = ""

    async def start(self) -> None:
        """Serves when it returns. Ports come first, so that a start that cannot succeed leaves the data untouched.

        Raises:
            SettingsError, OSError: an address or the directory cannot be used.
            Conflict, WrongCluster, NewerFormat, DataDamaged: this data is not for this master.
        """
        settings = self._settings
        try:
            self.port = self._bind(settings.listen)
            if settings.telemetry_listen:
                self._telemetry = TelemetryServer(settings.telemetry_listen, self.health)
            self._store = LmdbStore(settings.data, settings.map_size_bytes, settings.reserve_bytes)
            cluster_id = self._cluster_id(self._store)
            core = Core(settings, self._store, self._clock, asyncio.get_running_loop(), self.end)
            await core.begin(cluster_id)
            repairer = Repairer(core)
            capacity = Capacity(core)
            workers = Workers(core, repairer, capacity)
            self.core = core
            self._upkeep = Upkeep(core, repairer, capacity)
            self._backups = Backups(self._store)
            self._feed = Feed(self._store)
            core.observers.append(self._feed.committed)
            service = MasterService(core, workers, repairer, capacity, self._backups, self._feed)
            master_pb2_grpc.add_MasterServicer_to_server(service, self._server)
            await self._server.start()
            self._started = True
            self._upkeep.start()
        except BaseException:
            await self.stop()
            raise
        log.info("serving", listen=settings.listen, port=self.port, cluster=core.cluster.cluster_id, epoch=core.epoch)

    def _bind(self, listen: str) -> int:
        credentials.check_listen(listen, self._credentials, self._settings.allow_insecure)
        try:
            return self._credentials.listen(self._server, listen)
        except RuntimeError:
            raise SettingsError(f"cannot listen on {listen}: the address is in use or not ours") from None

    def _cluster_id(self, store: LmdbStore) -> str:
        """That of the data, or one to found a cluster with. Raises: WrongCluster."""
        with store.snapshot() as reader:
            cluster = View(reader).cluster()
        wanted = self._settings.cluster_id
        if cluster is not None and wanted and cluster.cluster_id != wanted:
            raise WrongCluster(f"{self._settings.data} belongs to cluster {cluster.cluster_id!r}, not to {wanted!r}")
        return cluster.cluster_id if cluster else wanted or secrets.token_hex(8)

    def health(self) -> tuple[bool, str]:
        """For ``/healthz``: called in another thread."""
        core = self.core
        if core is None or core.stopping:
            return False, "starting" if core is None else "stopping"
        if self._failure:
            return False, self._failure
        if not core.store.has_room():
            return False, "no room for more metadata: only deletes are served"
        return True, "ok"

    def end(self, failure: str = "") -> None:
        """Lets ``wait`` return; with a failure it raises."""
        if failure and not self._failure:
            self._failure = failure
            log.error("stopping", reason=failure)
        self._ended.set()

    async def wait(self) -> None:
        """Until ``end``. Raises: Unavailable: the failure that ended it."""
        await self._ended.wait()
        if self._failure:
            raise Unavailable(self._failure)

    async def stop(self) -> None:
        """Lets calls end (at most the grace time), commits what is queued, closes everything. Idempotent."""
        core, store = self.core, self._store
        self._store = None
        if core is not None:
            core.stopping = True
            core.watches.close()
            core.nudges.close()
        if self._feed is not None:
            self._feed.close()
        if self._backups is not None:
            self._backups.close()
        if self._upkeep is not None:
            await self._upkeep.stop()
        if self.port and not self._started:
            self._started = True
            await self._server.start()  # a gRPC server that never ran does not give its port back
        await self._server.stop(self._settings.stop_grace_s)
        written = core is None or await asyncio.to_thread(core.committer.close, self._settings.stop_grace_s)
        read = self._backups is None or await self._backups.stop(self._settings.stop_grace_s)
        if store is not None and written and read:  # who hangs in the disk may not lose the store under its feet
            store.close()
        if self._telemetry is not None:
            telemetry, self._telemetry = self._telemetry, None
            await asyncio.to_thread(telemetry.close)


async def _run(settings: MasterSettings) -> None:
    server = MasterServer(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.end)
    started_s = time.monotonic()
    await server.start()
    notify("READY=1")
    log.info("ready", seconds=round(time.monotonic() - started_s, 3))
    try:
        await server.wait()
    finally:
        notify("STOPPING=1")
        await server.stop()
        log.info("stopped")


def serve(settings: MasterSettings) -> None:
    """Runs a master until SIGTERM or SIGINT.

    Raises:
        HearthError, OSError: it could not start, or had to stop; the text says why in one line.
    """
    configure_logging(settings.log_level, settings.log_format)
    os.umask(0o077)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings))
