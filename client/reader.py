"""Gets verified bytes of a block: from this node's disk by descriptor, else from any replica by gRPC.

A replica whose bytes are missing or wrong is reported to the master and not asked again; the next one serves.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Collection, Sequence

from ..common.checksums import CHUNK_BYTES, Verifier, read_exactly
from ..common.errors import BlockCorrupt, BlockMissing, HearthError, TooBig, Unavailable
from ..common.telemetry import get_logger
from ..common.types import BlockKey
from ..proto import master_pb2
from ..proto import worker_pb2 as pb
from .crew import Crew
from .deadline import Deadline
from .layout import Replica, Version, in_order, version_of
from .local_socket import MAX_BLOCKS, LocalReply
from .metadata import Metadata
from .silence import patience_s
from .workers import Lost, Workers, left_for_replica

log = get_logger(__name__)

RANGE_BYTES = 16 * CHUNK_BYTES
"""What one gRPC stream fetches: a longer read is several streams side by side."""
REPORT_S = 5.0
SLOW_BYTES_PER_S = 50 << 20
"""A transfer between nodes that is slower is given up as long as there is another way."""


RWF_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
PAGE_BYTES = 4096
DIRECT_BYTES = 4 * CHUNK_BYTES
"""What one read past the page cache asks the disk for."""


class LocalBlock:
    """A descriptor of a committed block and what its bytes must be. Reads are thread-safe; ``close`` is the owner's.

    Args:
        direct: what the page cache does not have is read past it (O_DIRECT), where the memory is aligned for that.
    """

    def __init__(self, fd: int, verifier: Verifier | None, *, direct: bool = False) -> None:
        self._fd = fd
        self._verifier = verifier
        self._direct = direct
        self._direct_fd = -1
        self._lock = threading.Lock()

    def read(self, start: int, view: memoryview) -> None:
        """Whole chunks from ``start``.

        Raises:
            BlockCorrupt: a chunk differs, the file is too short, or the disk failed.
        """
        try:
            done = 0
            while done < len(view):
                # Chunk by chunk: the hash finds the bytes in the core's cache.
                part = view[done : done + CHUNK_BYTES]
                if not self._direct:
                    read_exactly(self._fd, start + done, part)
                elif not self._read_cached(start + done, part):
                    part = view[done : done + DIRECT_BYTES]
                    self._read_past_cache(start + done, part)
                if self._verifier is not None:
                    self._verifier.check(start + done, part)
                done += len(part)
        except HearthError:
            raise
        except OSError as error:
            raise BlockCorrupt(f"local disk: {error.strerror}") from None

    def _read_cached(self, offset: int, part: memoryview) -> bool:
        try:
            return os.preadv(self._fd, [part], offset, RWF_NOWAIT) == len(part)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return False
            raise

    def _read_past_cache(self, offset: int, part: memoryview) -> None:
        aligned = len(part) - len(part) % PAGE_BYTES
        fd = self._direct_descriptor() if aligned and address_of(part) % PAGE_BYTES == 0 else -1
        try:
            if fd >= 0:
                read_exactly(fd, offset, part[:aligned])
                offset, part = offset + aligned, part[aligned:]
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._direct = False  # not on this disk
        read_exactly(self._fd, offset, part)

    def _direct_descriptor(self) -> int:
        with self._lock:
            if self._direct_fd < 0 and self._direct:
                try:
                    self._direct_fd = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
                except OSError:
                    self._direct = False
            return self._direct_fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        direct_fd, self._direct_fd = self._direct_fd, -1
        for each in (fd, direct_fd):
            if each >= 0:
                os.close(each)


def address_of(view: memoryview) -> int:
    """Of writable memory."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


class Reader:
    """Thread-safe."""

    def __init__(self, metadata: Metadata, workers: Workers, crew: Crew, *, direct: bool = False) -> None:
        self._direct = direct
        self._metadata = metadata
        self._workers = workers
        self._crew = crew

    def local_worker_id(self) -> str:
        return self._workers.local_id()

    def is_local(self, version: Version) -> bool:
        local = self._workers.local_id()
        return bool(local) and any(each.worker_id == local for each in version.replicas)

    def open(self, version: Version, deadline: Deadline) -> LocalBlock | None:
        """A descriptor of ``version`` where this node has it; None: read it by gRPC."""
        if version.key is None or not self.is_local(version):
            return None
        if self._workers.local_id() in self._workers.silence and len(version.replicas) > 1:
            return None
        try:
            (block,) = self.open_local([version], deadline)
        except (*Lost, TooBig):
            return None
        return block if isinstance(block, LocalBlock) else None

    def open_local(self, versions: Sequence[Version], deadline: Deadline) -> list[LocalBlock | HearthError]:
        """Descriptors of up to 64 blocks of this node, one call. Bad ones are reported.

        Raises:
            Unavailable, DeadlineExceeded, Busy, TooBig: the worker as a whole.
        """
        assert len(versions) <= MAX_BLOCKS
        keys = [_key(version) for version in versions]
        request = pb.ControlRequest(open=pb.OpenBlocks(blocks=keys))
        # A batch is told of one replica of each file: there may be others. Opening may mean reading all of a block.
        limit_s = patience_s(sum(version.length_bytes for version in versions))
        with self._workers.local_call(request, deadline.part(0.0, limit_s)) as reply:
            return [self._opened(reply, index, version) for index, version in enumerate(versions)]

    def bring_here(self, version: Version, deadline: Deadline) -> LocalBlock | None:
        """Lets this node's worker fetch a replica and opens that; None: no worker, no room, no source that answers it.
        Many readers of one block cost one transfer."""
        local = self._workers.local_id()
        sources = [worker.address for worker in self.candidates(version) if worker.worker_id != local]
        if version.key is None or not version.length_bytes or not local or not sources:
            return None
        fetch = pb.FetchBlock(
            key=_key(version), length_bytes=version.length_bytes, digest=version.digest, sources=sources
        )
        try:
            part = deadline.part(0.5, 2.0 + version.length_bytes / SLOW_BYTES_PER_S)
            with self._workers.local_call(pb.ControlRequest(fetch=fetch), part) as reply:
                if error := reply.error(0):
                    raise error
                block = self._opened(reply, 0, version)
                return block if isinstance(block, LocalBlock) else None
        except HearthError as error:
            log.info("no-copy-left-here", block=str(version.key), reason=error.message)
            return None

    def _opened(self, reply: LocalReply, index: int, version: Version) -> LocalBlock | HearthError:
        number = reply.message.errnos[index] if index < len(reply.message.errnos) else 0
        try:
            if number == errno.ENOENT:
                raise BlockMissing(f"{version.what}: {reply.message.message}")
            if number == errno.EIO:
                raise BlockCorrupt(f"{version.what}: {reply.message.message}")
            if number:
                raise reply.error(index) or Unavailable(version.what)
            file = reply.message.blocks[index]
            if file.length_bytes != version.length_bytes:
                raise BlockCorrupt(f"{version.what}: is {file.length_bytes} bytes long, not {version.length_bytes}")
            unsealed = not version.digest and not file.checksums
            verifier = (
                None if unsealed else Verifier(file.checksums, version.length_bytes, version.digest, version.what)
            )
            return LocalBlock(reply.take(index), verifier, direct=self._direct)
        except (BlockMissing, BlockCorrupt) as error:
            self.report(version, self._workers.local_id(), error)
            return error
        except HearthError as error:
            return error

    def report(self, version: Version, worker_id: str, error: HearthError) -> None:
        """Tells the master of a replica that is not what it should be; best effort, a reader must go on."""
        log.warning("bad-replica", block=str(version.key), worker=worker_id, reason=error.message)
        key = version.key or BlockKey(0, 0)
        report = master_pb2.ReportBadReplica(
            block=key.block, generation=key.generation, worker_id=worker_id, reason=error.message[:500]
        )
        try:
            self._metadata.mutate(master_pb2.MutateRequest(report_bad_replica=report, no_wait=True), Deadline(REPORT_S))
        except HearthError as failed:
            log.warning("bad-replica-not-reported", block=str(key), worker=worker_id, reason=failed.message)

    def fetch(
        self,
        version: Version,
        start: int,
        view: memoryview,
        deadline: Deadline,
        bad: set[str],
        *,
        patient: bool = True,
    ) -> None:
        """Fills ``view`` with whole chunks from ``start`` by gRPC, in parallel ranges where it is long.

        ``bad`` holds ids of workers that are not to be asked, and gets those that turn out so. A caller that is not
        ``patient`` asks the master for others, if the only replica that is known does not answer soon.

        Raises:
            BlockCorrupt, BlockMissing: no replica has the right bytes.
            Unavailable, DeadlineExceeded: a replica that might have them did not answer in time.
        """
        count = -(-len(view) // RANGE_BYTES)

        def one(index: int) -> None:
            at = index * RANGE_BYTES
            self._fetch_range(version, start + at, view[at : at + RANGE_BYTES], deadline, bad, patient)

        self._crew.for_each(count, one)

    def _fetch_range(
        self, version: Version, start: int, view: memoryview, deadline: Deadline, bad: set[str], patient: bool
    ) -> None:
        candidates = self.candidates(version, bad)
        wrong: HearthError | None = None
        lost: HearthError | None = None
        for position, worker in enumerate(candidates):
            others = position + 1 < len(candidates) or not (patient or len(version.replicas) > 1)
            try:
                timeout_s = left_for_replica(deadline, len(view), others, version.what)
                self._workers.read(worker, version, start, view, timeout_s)
                return
            except (BlockMissing, BlockCorrupt) as error:
                wrong = error
                if worker.worker_id not in bad:
                    bad.add(worker.worker_id)
                    self.report(version, worker.worker_id, error)
            except Lost as error:
                lost = error
        if lost is not None:
            raise lost
        raise wrong or Unavailable(f"{version.what}: no live replica")

    def candidates(self, version: Version, bad: Collection[str] = ()) -> list[Replica]:
        """Whom to ask, best first."""
        found = in_order(version.replicas, self._workers.local_id(), self._workers.node_id, bad)
        return sorted(found, key=lambda each: each.worker_id in self._workers.silence)

    def is_answered(self, version: Version, bad: Collection[str] = ()) -> bool:
        """Whether any of its workers is not known to be silent."""
        return any(
            each.worker_id not in self._workers.silence for each in version.replicas if each.worker_id not in bad
        )

    def refresh(self, version: Version, deadline: Deadline) -> Version | None:
        """The inode's version of now, when it differs from ``version`` in content or in where it is; else None.

        Raises:
            NotFound, Stale: the inode is gone.
        """
        now = version_of(self._metadata.getattr(version.inode, deadline))
        return now if (now.key, now.replicas) != (version.key, version.replicas) else None


def _key(version: Version) -> master_pb2.BlockKey:
    assert version.key is not None
    return master_pb2.BlockKey(block=version.key.block, generation=version.key.generation)
