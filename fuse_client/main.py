"""The mount daemon: connect, mount, serve, unmount."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
from collections.abc import Mapping

import pyfuse3
import trio

from ..client.session import Identity, Session
from ..common import allocation, credentials
from ..common.clock import SystemClock
from ..common.notify import notify
from ..common.telemetry import TelemetryServer, configure_logging, get_logger
from ..common.types import PROTOCOL
from ..common.version import VERSION
from . import background, handler, kernel_mount, metrics
from .blocks import Blocks
from .cache import MetadataCache
from .cluster_file import ClusterFile
from .coherence import Coherence
from .files import Files
from .handshake import Handshake
from .kernel_mount import KernelMount
from .lease import Lease
from .master_link import MasterLink
from .notifier import Notifier
from .operations import Operations
from .passing import Passing
from .publisher import Publisher
from .relay_link import MAX_READ_BYTES, RelayLink, has_fine_times
from .settings import MountSettings
from .tree import Tree
from .worker_link import WorkerLink

log = get_logger(__name__)

CONNECT_S = 10.0
POLL_S = 0.5
DRAIN_POLL_S = 0.05
DRAIN_S = 3.0
"""Requests in flight at the end get so long; their callers get an error then."""


def serve(settings: MountSettings) -> None:
    """Blocks until the mount is gone: unmounted from outside, aborted, SIGTERM or SIGINT.

    Raises:
        HearthError: it could not be mounted; nothing is left behind.
    """
    configure_logging(settings.log_level, settings.log_format)
    relay = RelayLink.from_environment(os.environ)
    allocation.keep_buffers()
    mountpoint = os.path.abspath(settings.mountpoint)
    kernel_mount.check_mountpoint(mountpoint)
    node_id = settings.node_id or socket.gethostname()
    identity = Identity(
        node_id, "mount", f"{socket.gethostname()}:{mountpoint}", settings.cluster_id, holds_grants=True
    )
    shown = credentials.load(settings)
    link = MasterLink(
        settings.master,
        Session(identity),
        settings.timeout_s,
        settings.attempt_timeout_s,
        connect=lambda address: shown.channel(address, "master"),
    )
    mount: KernelMount | None = None
    try:
        link.register_first(CONNECT_S)  # first: without a master no broken mount point is left behind
        mount = kernel_mount.mount(
            mountpoint,
            settings.master,
            allow_other=settings.allow_other,
            read_only=settings.read_only,
            max_read=kernel_mount.MAX_READ_BYTES if relay is None else MAX_READ_BYTES,
        )
        if relay is not None:
            relay.hand_over(mount.fd, max_background=settings.max_background, passthrough=settings.passthrough != "off")
        try:
            trio.run(functools.partial(_run, settings, shown, link, mount, node_id, relay))
        except BaseExceptionGroup as group:
            raise _first(group) from None
    finally:
        if mount is not None and not (relay is not None and relay.lost):
            mount.unmount()  # a relay that died leaves a dead mount, as a daemon does that is killed
        link.close()
    log.info("unmounted", mountpoint=mountpoint)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong first, without trio's wrapping."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


async def _run(
    settings: MountSettings,
    shown: credentials.Credentials,
    link: MasterLink,
    mount: KernelMount,
    node_id: str,
    relay: RelayLink | None,
) -> None:
    notifier = Notifier.for_descriptor(mount.fd)
    lease = Lease(SystemClock())
    cache = MetadataCache(lease, settings.cache_entries)
    tree = Tree(link, cache, notifier)
    async with trio.open_nursery() as nursery:
        worker = WorkerLink(settings.worker_socket, nursery, settings.timeout_s) if settings.worker_socket else None
        blocks = Blocks(settings, link, worker, node_id, nursery, lambda address: shown.channel(address, "worker"))
        passing = _passing(relay, blocks)
        files = Files(tree, blocks, Publisher(tree, blocks), SystemClock(), settings.warm_files, passing)
        coherence = Coherence(tree, files, lease)
        describe = functools.partial(_describe, settings, link, mount.mountpoint, node_id)
        operations = Operations(tree, files, ClusterFile(describe), node_id)
        telemetry = _telemetry(settings, coherence)
        _export(tree, files, blocks, lease)
        try:
            serving = trio.CancelScope()
            await _begin(nursery, serving, operations, mount.fd, settings.max_background, relay)
            notifier.start()
            link.on_stale = coherence.drop_everything
            link.on_session = coherence.start
            coherence.start()
            background.start(nursery, coherence.keep_watching)
            background.start(nursery, _stop_on_signal, mount)
            background.start(nursery, _get_ready, settings, mount)
            nursery.start_soon(_end_when_unmounted, mount, serving, relay)
            await trio.sleep_forever()
        finally:
            coherence.stop()
            notifier.close()
            blocks.close()
            if telemetry is not None:
                telemetry.close()
            pyfuse3.close(unmount=False)


def _passing(relay: RelayLink | None, blocks: Blocks) -> Passing | None:
    if relay is None:
        return None
    blocks.passing = Passing(relay.offer, lambda: relay.passthrough, blocks.worker_start, fine_times=has_fine_times())
    return blocks.passing


async def _begin(
    nursery: trio.Nursery,
    serving: trio.CancelScope,
    operations: Operations,
    device: int,
    max_background: int,
    relay: RelayLink | None,
) -> None:
    """Serves the kernel; returns after the INIT exchange."""
    middle = relay or Handshake(device, max_background)
    pyfuse3.init(operations, f"/dev/fd/{middle.number}", {"default_permissions"})
    nursery.start_soon(_serve_kernel, serving, nursery, relay)
    if relay is not None:
        background.start(nursery, relay.listen)
    await middle.run()


async def _serve_kernel(scope: trio.CancelScope, nursery: trio.Nursery, relay: RelayLink | None) -> None:
    """Until the connection ends; then everything else may end too."""
    with scope:
        try:
            await pyfuse3.main(max_tasks=256)
        except OSError:
            if relay is None:
                raise
            relay.lost = True  # the channel ended before the relay said that the mount did
    nursery.cancel_scope.cancel()


async def _get_ready(settings: MountSettings, mount: KernelMount) -> None:
    """Says so once the root answers: whoever waits for us may use the mount at once."""
    await trio.to_thread.run_sync(mount.tune, settings.read_ahead_kb)
    with trio.move_on_after(settings.timeout_s), contextlib.suppress(OSError):
        await trio.to_thread.run_sync(os.stat, mount.mountpoint, abandon_on_cancel=True)
    log.info("mounted", mountpoint=mount.mountpoint, master=settings.master)
    notify("READY=1")


async def _stop_on_signal(mount: KernelMount) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("stopping", signal=signal.Signals(number).name)
            notify("STOPPING=1")
            # In a thread: it waits for requests that this thread answers.
            await trio.to_thread.run_sync(mount.unmount, abandon_on_cancel=True)


async def _end_when_unmounted(mount: KernelMount, serving: trio.CancelScope, relay: RelayLink | None) -> None:
    """pyfuse3's loop ends when the kernel says ENODEV; requests that still wait for a master then get no more than
    ``DRAIN_S``. A lazily unmounted connection lives on until its last file is closed."""
    if relay is not None:
        await relay.ended.wait()
        for _ in range(round(DRAIN_S / DRAIN_POLL_S)):
            if handler.running and not relay.lost:
                await trio.sleep(DRAIN_POLL_S)
        serving.cancel()
        return
    while True:
        await trio.sleep(POLL_S)
        if mount.is_dead():
            await trio.sleep(DRAIN_S)
            serving.cancel()
            return


def _telemetry(settings: MountSettings, coherence: Coherence) -> TelemetryServer | None:
    if not settings.telemetry_listen:
        return None

    def health() -> tuple[bool, str]:
        return (True, "ok") if coherence.healthy else (False, f"no lease from the master at {settings.master}")

    return TelemetryServer(settings.telemetry_listen, health)


def _export(tree: Tree, files: Files, blocks: Blocks, lease: Lease) -> None:
    metrics.SESSIONS_STALE.set_function(lambda: tree.link.stale_sessions)
    metrics.CACHE_HITS.set_function(lambda: tree.cache.hits)
    metrics.CACHE_MISSES.set_function(lambda: tree.cache.misses)
    metrics.CACHE_ENTRIES.set_function(lambda: len(tree.cache))
    metrics.BYTES_READ.set_function(lambda: files.bytes_read)
    metrics.BYTES_WRITTEN.set_function(lambda: files.bytes_written)
    metrics.OPEN_HANDLES.set_function(lambda: len(files))
    metrics.INODES.set_function(lambda: len(tree.table))
    metrics.BAD_REPLICAS.set_function(lambda: blocks.bad_replicas)
    metrics.PUBLISHED.set_function(lambda: files.published)
    metrics.PASSTHROUGH_OPENS.set_function(lambda: files.passthrough_opens)
    metrics.LEASE_SECONDS.set_function(lease.remaining_s)


def _describe(settings: MountSettings, link: MasterLink, mountpoint: str, node_id: str) -> Mapping[str, object]:
    return {
        "cluster_id": link.session.cluster_id,
        "master": settings.master,
        "node_id": node_id,
        "worker_sockets": [settings.worker_socket] if settings.worker_socket else [],
        "mountpoint": mountpoint,
        "version": VERSION,
        "protocol": PROTOCOL,
    }
