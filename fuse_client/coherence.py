"""Keeps this mount's caches true: applies what the Watch stream says, drops everything when it breaks.

Laws:

- Events are applied on trio's thread, between two replies; the kernel is told by the notifier's thread; the master gets
  the ack after both.
- When stream or session is lost all caches are dropped, the daemon's and the kernel's, before the next session begins.
- A stream is bound to one session. A lost stream means a new session, also when the old one might still live.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from ..common.telemetry import get_logger
from ..proto import master_pb2 as pb
from . import background, metrics
from .files import Files
from .lease import Lease
from .tree import Tree
from .watch import Watch

log = get_logger(__name__)

RETRY_S = 0.5


class Coherence:
    def __init__(self, tree: Tree, files: Files, lease: Lease) -> None:
        self._tree = tree
        self._files = files
        self._lease = lease
        self._watch: Watch | None = None
        self._token = trio.lowlevel.current_trio_token()
        self._broken = trio.Event()
        self._dropped = False

    @property
    def healthy(self) -> bool:
        return self._lease.remaining_s() > 0

    def start(self) -> None:
        """A session has just been registered: watches it."""
        self.stop()
        self._broken = trio.Event()
        self._dropped = False
        self._tree.cache.clear()  # what the old session's last replies brought is not covered by the new one's grants
        link = self._tree.link
        self._lease.start(link.session.lease_s)
        self._watch = Watch(link.stub.Watch, link.session.context(), self._lease, self._on_event, self._on_lost)

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    async def drop_everything(self) -> None:
        """The session is not to be trusted any more."""
        self.stop()
        self._lease.end()
        self._tree.cache.clear()
        if self._dropped:
            return  # nothing was handed out since
        done = trio.Event()
        nodeids = [node.nodeid for node in self._tree.table if node.lookups]
        self._tree.notifier.submit(names=True, nodeids=nodeids, done=lambda: self._soon(done.set))
        await done.wait()
        self._dropped = True

    async def keep_watching(self) -> None:
        """Gets a new session whenever the stream breaks; runs for ever."""
        link = self._tree.link
        while True:
            broken = self._broken
            await broken.wait()
            if broken is not self._broken:
                continue  # a call found out first and has a new session already
            seen = link.session.ticket()
            await link.renew(seen, 60.0)
            if link.session.is_current(seen):
                await trio.sleep(RETRY_S)

    # -- on the stream's thread

    def _on_event(self, watch: Watch, event: pb.WatchEvent) -> None:
        self._soon(lambda: self._apply(watch, event))

    def _on_lost(self, watch: Watch, reason: str) -> None:
        self._soon(lambda: self._lost(watch, reason))

    def _soon(self, call: Callable[[], object]) -> None:
        try:
            self._token.run_sync_soon(background.call, call)
        except trio.RunFinishedError:
            return  # the mount is gone, and every cache with it

    # -- on trio's thread

    def _lost(self, watch: Watch, reason: str) -> None:
        if watch is not self._watch:
            return
        metrics.STREAMS_LOST.inc()
        log.warning("watch-lost", reason=reason)
        self._lease.end()
        self._broken.set()

    def _apply(self, watch: Watch, event: pb.WatchEvent) -> None:
        metrics.EVENTS.inc()
        metrics.INVALIDATIONS.inc(len(event.invalidations))
        tree, names, nodeids = self._tree, False, set()
        for item in event.invalidations:
            tree.cache.invalidate(item)
            for inode in filter(None, (item.directory, item.inode)):
                node = tree.table.current(inode)
                if node is not None and node.lookups:
                    nodeids.add(node.nodeid)
            names = names or bool(item.directory)
            if item.inode and item.content and self._files.replaced(item.inode):
                names = True  # the names lead to another node from now on
        tree.notifier.submit(names=names, nodeids=nodeids, done=lambda: watch.acknowledge(event.event))
