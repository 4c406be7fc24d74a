"""What one client is made of, put together in one place; its parts know each other, nobody else's globals."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from ..common import credentials
from ..common.errors import HearthError
from ..common.telemetry import get_logger
from .channels import OPTIONS, Channels
from .crew import Crew
from .deadline import Deadline
from .keeper import Keeper
from .layout import Version
from .local_socket import LocalWorker
from .metadata import Metadata
from .open_version import OpenVersion
from .read_lease import ReadLease
from .reader import Reader
from .retry import RetryPolicy
from .session import Identity, Session
from .settings import ClientSettings
from .silence import patience_s
from .tokens import Tokens
from .workers import Workers
from .writer import Writer

SIGN_S = 5.0
"""For new block tokens, when those that are known expire."""
log = get_logger(__name__)


@dataclass(frozen=True)
class Core:
    settings: ClientSettings
    session: Session
    metadata: Metadata
    workers: Workers
    crew: Crew
    reader: Reader
    writer: Writer
    keeper: Keeper

    def deadline(self, timeout_s: float | None = None) -> Deadline:
        """From now; the client's own timeout when None."""
        return Deadline(self.settings.timeout_s if timeout_s is None else timeout_s)

    def open_version(self, version: Version, deadline: Deadline) -> OpenVersion:
        """Holds the bytes of ``version`` by a local descriptor, else by a lease. Where neither can be had now, reading
        may still succeed, or say why not."""
        block = self.reader.open(version, deadline)
        if block is not None:
            return OpenVersion(self.reader, version, block, block)
        for worker in self.reader.candidates(version) if version.key is not None else ():
            lease = ReadLease(self.workers, self.keeper, worker, version)
            try:
                lease.take(deadline.part(0.0, patience_s(version.length_bytes)))
                return OpenVersion(self.reader, version, hold=lease)
            except HearthError as error:
                log.info("no-lease", block=str(version.key), worker=worker.worker_id, reason=error.message)
        return OpenVersion(self.reader, version)

    def keep_session(self) -> None:
        """Keeps the session alive though no call is made, until ``release_session``: working blocks end with it."""
        every_s = max(1.0, self.session.lease_s / 3)
        self.keeper.keep("session", every_s, lambda: self._touch(every_s))

    def release_session(self) -> None:
        self.keeper.release("session")

    def _touch(self, timeout_s: float) -> None:
        self.metadata.statfs(Deadline(min(timeout_s, self.settings.timeout_s)))

    def close(self) -> None:
        """Ends threads and connections. Calls that are under way fail with Unavailable."""
        self.metadata.close()
        self.workers.close()
        self.keeper.close()
        self.crew.close()


def build(settings: ClientSettings, kind: str) -> Core:
    """No connection is made yet: the first call does. Raises: SettingsError: of the certificates."""
    shown = credentials.load(settings)
    node_id = settings.node_id or socket.gethostname()
    name = f"{socket.gethostname()}:{os.getpid()}"
    tokens = Tokens(settings.tokens)
    policy = RetryPolicy(settings.first_retry_s, settings.max_retry_s)
    session = Session(Identity(node_id, kind, name, settings.cluster_id))
    metadata = Metadata(
        settings.master,
        session,
        policy=policy,
        attempt_limit_s=settings.attempt_timeout_s,
        connect=lambda address: shown.channel(address, "master", OPTIONS),
        learn=tokens.learn,
    )
    local = None
    if settings.worker_socket:
        local = LocalWorker(
            settings.worker_socket, cluster_id=lambda: session.cluster_id, connections=settings.local_connections
        )
    channels = Channels(settings.max_channels, lambda address: shown.channel(address, "worker", OPTIONS))
    renew_s = min(SIGN_S, settings.timeout_s)
    workers = Workers(
        channels,
        local,
        node_id,
        use_port=settings.data_port == "auto",
        policy=policy,
        tokens=lambda keys: tokens.of(keys, lambda late: metadata.sign_blocks(late, Deadline(renew_s))),
    )
    crew = Crew(settings.thread_count())
    reader = Reader(metadata, workers, crew, direct=settings.direct_reads)
    return Core(settings, session, metadata, workers, crew, reader, Writer(metadata, workers), Keeper())


def process_umask() -> int:
    """Without changing it for other threads even for a moment, as ``os.umask`` would."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022
