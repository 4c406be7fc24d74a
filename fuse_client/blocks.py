"""Blocks for the mount: where the bytes of a published one come from, where a new one is written, how it is sealed."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
import tempfile
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import trio

from ..client.silence import Silence, patience_s
from ..common.checksums import Verifier
from ..common.credentials import Connect
from ..common.data_socket import DataLink
from ..common.data_stream import write_from
from ..common.errors import BlockCorrupt, DeadlineExceeded, HearthError, NoSpace, NotFound, Unavailable
from ..common.telemetry import get_logger
from ..common.types import BlockKey
from ..proto import common_pb2 as common
from ..proto import master_pb2 as master
from ..proto import worker_pb2 as pb
from . import background
from .chunks import LocalFile, VerifiedChunks
from .kernel_file import KernelFile
from .master_link import MasterLink
from .passing import Passing
from .remote_block import AHEAD_BYTES, RemoteBlock, control
from .sealed_block import SealedBlock, Source, in_turn
from .settings import MountSettings
from .worker_link import WorkerLink
from .working_file import WorkingFile

log = get_logger(__name__)

MAX_CHANNELS = 64
MAX_PLACES = 4
"""So many workers are tried for a new block before the writer gets the error."""
SEND_BYTES = 64 << 20
COPY_BYTES = 4 << 20
LOCAL = ""
"""Stands for this node's worker among those that were silent."""


class LocalBlock(LocalFile):
    def __init__(self, identity: int, fd: int, length_bytes: int, verifier: Verifier, worker_id: str) -> None:
        super().__init__(identity, fd, length_bytes, verifier)
        self.worker_id = worker_id

    @property
    def local_fd(self) -> int | None:
        return self.fd


class Blocks:
    """Args:
    worker: this node's, None on a node without one.
    node_id: which replicas are ours.
    """

    def __init__(
        self,
        settings: MountSettings,
        link: MasterLink,
        worker: WorkerLink | None,
        node_id: str,
        nursery: trio.Nursery,
        connect: Connect,
    ) -> None:
        self._settings = settings
        self._connect = connect
        self._link = link
        self._worker = worker
        self._node_id = node_id
        self._nursery = nursery
        self._chunks = VerifiedChunks()
        self._identities = itertools.count(1)
        self._channels: OrderedDict[str, grpc.Channel] = OrderedDict()
        self._link_to_workers = DataLink()
        self._spare: deque[common.WorkingBlock] = deque()
        self.bad_replicas = 0
        self._silence = Silence()
        self.passing: Passing | None = None  # told of what was sealed here

    def worker_start(self) -> int:
        """Changes when this node's worker was started anew."""
        return 0 if self._worker is None else self._worker.reconnects

    # -- reading

    def sealed(self, entry: common.Entry) -> SealedBlock | None:
        """The content of a file, None when it has no bytes."""
        if not entry.extents or not entry.extents[0].valid_bytes:
            return None
        extent = entry.extents[0]
        key = BlockKey(extent.block, extent.generation)
        sources = self._sources(key, extent, list(entry.replicas))
        return SealedBlock(key, extent.length_bytes, self._chunks, in_turn(sources), self._report)

    async def _sources(
        self, key: BlockKey, extent: common.Extent, replicas: list[common.WorkerAddress]
    ) -> AsyncIterator[Source]:
        """Best first: this node's file, a copy brought to this node, ranges from elsewhere."""
        replicas.sort(key=lambda replica: (replica.suspect, replica.worker_id in self._silence))
        ours = [replica for replica in replicas if replica.node_id == self._node_id]
        others = [replica for replica in replicas if replica.node_id != self._node_id]
        is_small = extent.length_bytes <= self._settings.fetch_limit_bytes
        if ours and (not others or await self._local_answers()):
            local = await self._open_local(key, extent, ours[0].worker_id, patient=not others)
            if local is not None:
                yield local
        elif others and not ours and is_small and await self._local_answers():
            local = await self._fetch(key, extent, others)
            if local is not None:
                yield local
        all_s = self._settings.timeout_s
        # One that hangs costs seconds as long as there is another; when none was quick, all get their time.
        limits_s = (min(all_s, patience_s(AHEAD_BYTES)), all_s) if len(replicas) > 1 else (all_s,)
        for timeout_s, replica in itertools.product(limits_s, others + ours):
            remote = RemoteBlock(
                next(self._identities),
                self._link_to_workers,
                replica.address,
                self.channel(replica.address),
                replica.worker_id,
                key,
                extent.length_bytes,
                extent.digest,
                timeout_s,
            )
            try:
                await remote.hold(self._nursery)
            except HearthError as error:
                self._silence.note(replica.worker_id)
                log.warning("replica-unreachable", block=str(key), worker=replica.worker_id, reason=str(error))
                continue
            yield remote

    async def _local_answers(self) -> bool:
        """Whether this node's worker is there and not hanging: what it is asked next may take as long as it needs."""
        if self._worker is None or LOCAL in self._silence:
            return False
        try:
            await self._worker.hello(patience_s())
        except HearthError as error:
            log.warning("local-worker-silent", reason=str(error))
            self._silence.note(LOCAL)
            return False
        return True

    async def _open_local(
        self, key: BlockKey, extent: common.Extent, worker_id: str, *, patient: bool = True
    ) -> LocalBlock | None:
        if self._worker is None:
            return None
        try:
            fd, file = await self._worker.open(key, None if patient else patience_s(extent.length_bytes))
        except HearthError as error:
            if isinstance(error, DeadlineExceeded):
                self._silence.note(LOCAL)
            log.warning("local-block-not-opened", block=str(key), reason=str(error))
            if isinstance(error, NotFound):
                self._report(key, worker_id, error)
            return None
        return self._local_block(key, extent, worker_id, fd, file)

    def _local_block(
        self, key: BlockKey, extent: common.Extent, worker_id: str, fd: int, file: pb.BlockFile
    ) -> LocalBlock | None:
        try:
            verifier = Verifier(file.checksums, extent.length_bytes, extent.digest, f"block {key} on {worker_id}")
        except BlockCorrupt as error:
            os.close(fd)
            self._report(key, worker_id, error)
            return None
        return LocalBlock(next(self._identities), fd, extent.length_bytes, verifier, worker_id)

    async def _fetch(
        self, key: BlockKey, extent: common.Extent, replicas: list[common.WorkerAddress]
    ) -> LocalBlock | None:
        assert self._worker is not None
        sources = [replica.address for replica in replicas]
        timeout_s = self._settings.data_timeout_s
        try:
            fd, file = await self._worker.fetch(key, extent.length_bytes, extent.digest, sources, timeout_s)
        except HearthError as error:  # no room here, source gone: ranges from elsewhere are the next try
            log.warning("block-not-fetched", block=str(key), reason=str(error))
            return None
        local = self._local_block(key, extent, self._node_id, fd, file)
        if local is not None and file.verified and self.passing is not None:
            self.passing.verified_here(key, local.fd)
        return local

    def _report(self, key: BlockKey, worker_id: str, error: HearthError) -> None:
        self.bad_replicas += 1
        background.start(self._nursery, self._report_bad_replica, key, worker_id, str(error))

    async def _report_bad_replica(self, key: BlockKey, worker_id: str, reason: str) -> None:
        report = master.ReportBadReplica(
            block=key.block, generation=key.generation, worker_id=worker_id, reason=reason[:500]
        )
        try:
            await self._link.mutate(master.MutateRequest(no_wait=True, report_bad_replica=report))
        except HearthError as problem:
            log.warning("bad-replica-not-reported", block=str(key), worker=worker_id, reason=str(problem))

    # -- writing

    def wants_block(self) -> bool:
        """Whether the next Create should allocate a block too."""
        return not self._spare

    def keep(self, blocks: list[common.WorkingBlock]) -> None:
        """Allocated to us and not used: the next new files get them."""
        self._spare.extend(blocks)
        while len(self._spare) > self._settings.spare_blocks:
            background.start(self._nursery, self._discard, self._spare.popleft())

    def drop(self, working: WorkingFile) -> None:
        """A working file that nobody needs. An empty one serves the next new file. Its room is free at once,
        not when the order to delete it came by way of the master: a writer who tries again would fill the disk so.
        """
        reusable = not (working.length_bytes or working.shared)
        working.empty()
        working.close()
        if not working.worker_id:
            return  # its block is garbage already
        place = common.WorkerAddress(worker_id=working.worker_id, address=working.address)
        if working.local:
            place.node_id = self._node_id
        block = common.WorkingBlock(block=working.key.block, generation=working.key.generation, worker=place)
        if reusable:
            self.keep([block])
        else:
            background.start(self._nursery, self._discard, block)

    def forget(self, key: BlockKey) -> None:
        """A committed block that will not be published."""
        background.start(self._nursery, self._discard, common.WorkingBlock(block=key.block, generation=key.generation))

    async def _discard(self, block: common.WorkingBlock) -> None:
        try:
            await self._link.mutate(master.MutateRequest(no_wait=True, discard=master.Discard(blocks=[block.block])))
        except HearthError as error:
            log.warning("block-not-discarded", block=f"{block.block:016x}", reason=str(error))

    async def new_file(self) -> WorkingFile:
        """An empty working file, on this node when there is room.

        Raises:
            NoSpace: nowhere is room. HearthError: the master does not answer.
        """
        avoid: list[str] = []
        while True:
            block = self._spare.popleft() if self._spare else await self._allocate(avoid)
            try:
                return await self._create(block)
            except HearthError as error:
                log.warning("block-not-created", worker=block.worker.worker_id, reason=str(error))
                avoid.append(block.worker.worker_id)
                background.start(self._nursery, self._discard, block)
                if len(avoid) >= MAX_PLACES:
                    raise

    async def _allocate(self, avoid: list[str]) -> common.WorkingBlock:
        allocate = master.Allocate(count=1, prefer_node=self._node_id, avoid_workers=avoid)
        reply = await self._link.mutate(master.MutateRequest(no_wait=True, allocate=allocate))
        return reply.blocks[0]

    async def _create(self, block: common.WorkingBlock) -> WorkingFile:
        key = BlockKey(block.block, block.generation)
        local = self._worker is not None and block.worker.node_id == self._node_id
        if local:
            assert self._worker is not None
            fd, file = await self._worker.create(key)
            limit = file.limit_bytes
        else:
            fd = _temporary_file(self._settings.temporary_directory)
            limit = 0
        return WorkingFile(
            key,
            fd,
            worker_id=block.worker.worker_id,
            address=block.worker.address,
            limit_bytes=limit,
            local=local,
        )

    async def ensure_room(self, working: WorkingFile, end: int) -> None:
        """Before bytes up to ``end`` are written.

        Raises:
            NoSpace: the worker gives no more.
        """
        if end <= working.limit_bytes or not working.local or not working.limit_bytes:
            return
        assert self._worker is not None
        try:
            fd, file = await self._worker.create(working.key)
        except (Unavailable, DeadlineExceeded, NotFound):
            return  # the worker restarts or is gone; its disk still says ENOSPC, and commit whether it kept the block
        os.close(fd)
        working.limit_bytes = file.limit_bytes
        if end > working.limit_bytes:
            raise NoSpace(f"worker {working.worker_id} has no room for {end} bytes")

    async def copy(self, sealed: SealedBlock, length: int) -> WorkingFile:
        """A working file that begins with the first ``length`` bytes of a sealed block, verified."""
        working = await self.new_file()
        try:
            for offset in range(0, length, COPY_BYTES):
                size = min(COPY_BYTES, length - offset)
                await self.ensure_room(working, offset + size)
                await working.write(offset, bytes(await sealed.read(offset, size)))
        except BaseException:
            working.close()
            raise
        return working

    async def duplicate(self, working: WorkingFile) -> WorkingFile:
        """The same bytes in another block: the first one was lost to the master or the worker."""
        fresh = await self.new_file()
        buffer = memoryview(bytearray(COPY_BYTES))
        for offset in range(0, working.length_bytes, COPY_BYTES):
            got = working.read_into(offset, buffer[: min(COPY_BYTES, working.length_bytes - offset)])
            await fresh.write(offset, bytes(buffer[:got]))
        return fresh

    async def commit(self, working: WorkingFile, *, sync: bool) -> tuple[bytes, int]:
        """Makes the working file immutable on its worker; (packed checksums, digest).

        Raises:
            HearthError: it is as it was.
        """
        packed, digest = await working.checksums()
        if working.local:
            await self.commit_local(working, working.length_bytes, packed, sync=sync)
        else:
            await trio.to_thread.run_sync(self._send, working, packed, sync)
        return packed, digest

    async def commit_local(self, working: WorkingFile, length_bytes: int, packed: bytes, *, sync: bool) -> None:
        """Makes a file of this node's worker a block, as it is.

        Raises:
            InvalidArgument: it has another length. HearthError: it is as it was.
        """
        assert self._worker is not None
        await self._worker.commit(working.key, length_bytes, packed, sync=sync)

    async def part(self, key: BlockKey) -> None:
        """Gives a committed block a file of its own, where we hold the one that it has.

        Raises:
            Stale: the bytes are not those that were committed any more. HearthError: no answer.
        """
        assert self._worker is not None
        fd, _ = await self._worker.open(key)
        os.close(fd)

    def start(self, task: Callable[..., Awaitable[object]], *arguments: object) -> None:
        background.start(self._nursery, task, *arguments)

    def _send(self, working: WorkingFile, packed: bytes, sync: bool) -> None:
        channel = self.channel(working.address)
        what = f"block {working.key} to {working.worker_id}"
        timeout_s = self._settings.data_timeout_s
        with mmap.mmap(working.fd, working.length_bytes, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as view:
            for offset in range(0, working.length_bytes, SEND_BYTES):
                with view[offset : offset + SEND_BYTES] as part:
                    write_from(channel, working.key, offset, part, timeout_s=timeout_s, what=what)
        key = master.BlockKey(block=working.key.block, generation=working.key.generation)
        item = pb.CommitItem(key=key, length_bytes=working.length_bytes, checksums=packed)
        control(channel, pb.ControlRequest(commit=pb.CommitBlocks(items=[item], sync=sync)), timeout_s, what)

    async def sync(self, sealed: SealedBlock, length_bytes: int) -> None:
        """fsync of a block that was committed without: commit is idempotent."""
        if sealed.written_at:
            channel, what = self.channel(sealed.written_at), f"block {sealed.key} at {sealed.written_at}"
            key = master.BlockKey(block=sealed.key.block, generation=sealed.key.generation)
            commit = pb.CommitBlocks(items=[pb.CommitItem(key=key, length_bytes=length_bytes)], sync=True)
            request, timeout_s = pb.ControlRequest(commit=commit), self._settings.data_timeout_s
            await trio.to_thread.run_sync(control, channel, request, timeout_s, what)
        else:
            assert self._worker is not None, "what was not sent elsewhere was written here"
            await self._worker.commit(sealed.key, length_bytes, b"", sync=True)
        sealed.synced = True

    def seal_kernel_file(self, file: KernelFile) -> SealedBlock:
        """As ``seal``, of one that nobody here writes any more. Others may have it from now on."""
        fcntl.flock(file.fd, fcntl.LOCK_UN)  # of the kernel's descriptor too
        return self.seal(file, file.packed, file.digest, synced=file.synced)

    def seal(self, working: WorkingFile, packed: bytes, digest: int, *, synced: bool) -> SealedBlock:
        """What was committed, readable by the descriptor that wrote it. The working file is used up."""
        length = working.length_bytes
        verifier = Verifier(packed, length, digest, f"block {working.key}")
        try:
            # A descriptor open for writing would count as a writer of the block.
            fd = os.open(f"/proc/self/fd/{working.fd}", os.O_RDONLY | os.O_CLOEXEC)
            working.close()
        except OSError:
            fd = working.fd
        with contextlib.suppress(OSError):  # as the worker does for descriptors that it gives away
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        local = LocalBlock(next(self._identities), fd, length, verifier, working.worker_id)
        sealed = SealedBlock(working.key, length, self._chunks, _nothing_more, self._report, local)
        sealed.synced = synced
        sealed.written_at = "" if working.local else working.address
        if self.passing is not None:
            self.passing.verified_here(sealed.key, local.fd)
        return sealed

    # -- connections

    def channel(self, address: str) -> grpc.Channel:
        channel = self._channels.pop(address, None)
        if channel is None:
            channel = self._connect(address)
        self._channels[address] = channel
        while len(self._channels) > MAX_CHANNELS:
            self._channels.popitem(last=False)[1].close()
        return channel

    def close(self) -> None:
        self._link_to_workers.close()
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()


async def _nothing_more() -> Source | None:
    return None


def _temporary_file(directory: str) -> int:
    fd, path = tempfile.mkstemp(prefix="hearth-", dir=directory or None)
    os.unlink(path)
    return fd
