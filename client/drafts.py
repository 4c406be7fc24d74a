"""A draft: a block that is being filled, not part of any file yet. Three kinds, by where its bytes go meanwhile:

- ``LocalDraft``: into the block file of this node's worker, by descriptor.
- ``StreamDraft``: to another node's worker, in pieces, as they come. What was sent cannot be read or cut here.
- ``SpoolDraft``: into a temporary file, sent at commit: for random access on a node without a worker.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..common import checksums
from ..common.checksums import CHUNK_BYTES, Accumulator
from ..common.errors import BlockMissing, HearthError, NoSpace, NotFound, NotSupported, Unavailable
from ..common.types import BlockKey
from ..proto import worker_pb2 as pb
from ..proto.master_pb2 import BlockKey as WireKey
from .deadline import Deadline
from .layout import Replica
from .local_socket import LocalReply
from .workers import Workers

PIECE_BYTES = 8 * CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class Allocated:
    """A working block that the master gave to this session, and the worker it is placed on."""

    key: BlockKey
    worker: Replica


@dataclass(frozen=True, slots=True)
class Committed:
    """A block whose bytes are final and known to the worker; ready to be published."""

    key: BlockKey
    worker_id: str
    length_bytes: int
    digest: int


class Draft(Protocol):
    """One thread at a time."""

    place: Allocated
    length_bytes: int
    """The end of what was written or copied."""

    def write(self, offset: int, view: memoryview, deadline: Deadline) -> None:
        """Raises: NoSpace, Unavailable, DeadlineExceeded."""

    def read(self, offset: int, view: memoryview) -> None:
        """Own bytes below ``length_bytes``. Raises: NotSupported."""

    def truncate(self, length_bytes: int) -> None:
        """Cuts; never extends. Raises: NotSupported."""

    def commit(self, sync: bool, deadline: Deadline) -> Committed:
        """Ends the draft: the bytes are what they are. Raises: HearthError."""

    def close(self) -> None:
        """Lets go of descriptors; the block itself is the writer's to discard."""


class _FileDraft:
    """What both kinds with a descriptor share."""

    def __init__(self, place: Allocated, fd: int) -> None:
        self.place = place
        self.length_bytes = 0
        self._fd = fd
        self._accumulator = Accumulator()
        self._final: bytes | None = None

    def write(self, offset: int, view: memoryview, deadline: Deadline) -> None:
        self._final = None
        done = 0
        while done < len(view):
            part = view[done : done + self._room(offset + done, deadline)]
            written = self._pwrite(part, offset + done)
            self._accumulator.update(offset + done, part[:written])
            done += written
            self.length_bytes = max(self.length_bytes, offset + done)

    def _room(self, offset: int, deadline: Deadline) -> int:
        """How many bytes to write at ``offset`` in one step: to the chunk's end, so that the hash and the kernel's copy
        find them in the core's cache. More than 0."""
        return CHUNK_BYTES - offset % CHUNK_BYTES

    def _pwrite(self, part: memoryview, offset: int) -> int:
        try:
            return os.pwritev(self._fd, [part], offset)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpace(f"block {self.place.key}: disk of worker {self.place.worker.worker_id} is full") from None
            raise HearthError(f"block {self.place.key}: {error.strerror}") from None

    def read(self, offset: int, view: memoryview) -> None:
        checksums.read_exactly(self._fd, offset, view)

    def truncate(self, length_bytes: int) -> None:
        if length_bytes < self.length_bytes:
            self._final = None
            os.ftruncate(self._fd, length_bytes)
            self._accumulator.truncate(length_bytes)
            self.length_bytes = length_bytes

    def packed(self) -> bytes:
        """The checksums; once, so that a commit that failed can be repeated."""
        if self._final is None:
            self._final = self._finish()
        return self._final

    def _finish(self) -> bytes:
        def pread(offset: int, size: int) -> memoryview:
            view = memoryview(bytearray(size))
            self.read(offset, view)
            return view

        return self._accumulator.finish(self.length_bytes, pread)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class LocalDraft(_FileDraft):
    """``length_bytes``: the block may begin as a copy of so many bytes of another."""

    def __init__(self, place: Allocated, fd: int, length_bytes: int, limit_bytes: int, workers: Workers) -> None:
        super().__init__(place, fd)
        self.length_bytes = length_bytes
        self._limit = limit_bytes
        self._workers = workers

    def _room(self, offset: int, deadline: Deadline) -> int:
        if offset >= self._limit:
            with self._workers.local_call(create_request([self.place.key]), deadline) as reply:
                if error := reply.error(0):
                    raise error
                self._limit = reply.message.blocks[0].limit_bytes
            if offset >= self._limit:
                worker_id = self.place.worker.worker_id
                raise NoSpace(f"block {self.place.key}: worker {worker_id} has no room beyond {self._limit} bytes")
        return min(super()._room(offset, deadline), self._limit - offset)

    def commit(self, sync: bool, deadline: Deadline) -> Committed:
        packed = self.packed()
        self._stop_writing()
        return commit(self._workers, self.place, self.length_bytes, packed, sync, deadline)

    def _stop_writing(self) -> None:
        """Makes the descriptor read-only, because a writer keeps the worker from sealing the file. The bytes can still
        be read, should they have to move."""
        try:
            fd = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            fd = -1
        self.close()
        self._fd = fd


class SpoolDraft(_FileDraft):
    def __init__(self, place: Allocated, workers: Workers) -> None:
        with tempfile.TemporaryFile(prefix="hearth-") as file:
            super().__init__(place, os.dup(file.fileno()))
        self._workers = workers

    def commit(self, sync: bool, deadline: Deadline) -> Committed:
        packed = self.packed()
        piece = memoryview(bytearray(min(PIECE_BYTES, self.length_bytes)))
        for at in range(0, self.length_bytes, PIECE_BYTES):
            part = piece[: min(PIECE_BYTES, self.length_bytes - at)]
            self.read(at, part)
            self._workers.write(self.place.worker, self.place.key, at, part, deadline)
        return commit(self._workers, self.place, self.length_bytes, packed, sync, deadline)


class StreamDraft:
    def __init__(self, place: Allocated, workers: Workers) -> None:
        self.place = place
        self.length_bytes = 0
        self._workers = workers
        self._accumulator = Accumulator()
        self._piece = bytearray()
        self._piece_start = 0

    def write(self, offset: int, view: memoryview, deadline: Deadline) -> None:
        if offset != self._piece_start + len(self._piece):
            self._send(deadline)
            self._piece_start = offset
        at = 0
        while at < len(view):
            part = view[at : at + PIECE_BYTES - len(self._piece)]
            self._piece += part
            self._accumulator.update(offset + at, part)
            at += len(part)
            self.length_bytes = max(self.length_bytes, offset + at)
            if len(self._piece) == PIECE_BYTES:
                self._send(deadline)

    def _send(self, deadline: Deadline) -> None:
        if self._piece:
            with memoryview(self._piece) as view:
                self._workers.write(self.place.worker, self.place.key, self._piece_start, view, deadline)
            self._piece_start += len(self._piece)
            self._piece = bytearray()

    def read(self, offset: int, view: memoryview) -> None:
        raise NotSupported("bytes that were already sent to another node cannot be read back; open the file anew")

    def truncate(self, length_bytes: int) -> None:
        if length_bytes < self.length_bytes:
            raise NotSupported("bytes that were already sent to another node cannot be cut; open with mode r+b")

    def commit(self, sync: bool, deadline: Deadline) -> Committed:
        self._send(deadline)
        try:
            packed = self._accumulator.finish(self.length_bytes, _cannot_read)
        except NotSupported:
            packed = b""  # not written in order: the worker computes them; each piece was verified on its way
        return commit(self._workers, self.place, self.length_bytes, packed, sync, deadline)

    def close(self) -> None:
        self._piece = bytearray()


def _cannot_read(_offset: int, _size: int) -> memoryview:
    raise NotSupported("not kept here")


def create_request(
    keys: Sequence[BlockKey], copy_from: BlockKey | None = None, copy_bytes: int = 0
) -> pb.ControlRequest:
    """Working blocks; ``copy_from`` fills the one new block with the first ``copy_bytes`` of another."""
    create = pb.CreateBlocks(blocks=[wire_key(key) for key in keys])
    if copy_from is not None:
        create.copy_from.CopyFrom(wire_key(copy_from))
        create.copy_bytes = copy_bytes
    return pb.ControlRequest(create=create)


def wire_key(key: BlockKey) -> WireKey:
    return WireKey(block=key.block, generation=key.generation)


def commit(
    workers: Workers, place: Allocated, length_bytes: int, packed: bytes, sync: bool, deadline: Deadline
) -> Committed:
    """Tells the worker that the block is complete. ``packed`` empty: it computes the checksums.

    Raises:
        Unavailable, DeadlineExceeded, NoSpace; BlockMissing: the worker has no such working block any more.
    """
    item = pb.CommitItem(key=wire_key(place.key), length_bytes=length_bytes, checksums=packed)
    request = pb.ControlRequest(commit=pb.CommitBlocks(items=[item], sync=sync))
    with workers.persist(place.worker, request, deadline) as reply:
        if error := commit_error(reply, 0, place):
            raise error
        return committed(place, length_bytes, packed, reply.message.blocks[0] if reply.message.blocks else None)


def commit_error(reply: LocalReply, index: int, place: Allocated) -> HearthError | None:
    error = reply.error(index)
    if isinstance(error, NotFound):
        return BlockMissing(f"worker {place.worker.worker_id} has lost block {place.key}, which was being written")
    return error


def committed(place: Allocated, length_bytes: int, packed: bytes, file: pb.BlockFile | None) -> Committed:
    if packed or not length_bytes:
        digest = checksums.digest(packed, length_bytes)
    elif file is not None and file.checksums:
        digest = checksums.digest(file.checksums, length_bytes)
    else:
        raise Unavailable(f"worker {place.worker.worker_id} committed block {place.key} without telling its checksums")
    return Committed(place.key, place.worker.worker_id, length_bytes, digest)
