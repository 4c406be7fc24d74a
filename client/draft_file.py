"""The writing half of an open file: starts a draft with the first write, moves it when its worker fills up, publishes.

States: nothing written (``draft`` None) -> drafting -> published (None again; the next write drafts a copy).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..common.errors import FileTooBig, HearthError, NoSpace, NotFound, Stale, from_errno
from ..common.telemetry import get_logger
from ..common.types import FILE_MAX_BYTES
from ..proto import common_pb2 as common
from ..proto import master_pb2 as pb
from . import packed_names
from .core import Core
from .deadline import Deadline
from .drafts import Committed, Draft
from .layout import Version, version_of
from .open_version import OpenVersion, fill_zeros
from .writer import PLACES

log = get_logger(__name__)


@dataclass(frozen=True)
class Place:
    """The name that a new file is to get."""

    parent: int
    name: bytes
    mode: int
    uid: int
    gid: int


class DraftFile:
    """One thread at a time.

    ``inode`` 0: the file does not exist yet and gets its ``place`` with the first publish, whole. ``base``: what the
    file contains before the first write; None for one that begins empty. ``made_now``: the name was made for this
    file, so ``abort`` takes it away.
    """

    def __init__(
        self,
        core: Core,
        inode: int,
        place: Place | None,
        base: OpenVersion | None,
        *,
        random_access: bool,
        made_now: bool = False,
    ) -> None:
        self._core = core
        self._inode = inode
        self._place = place
        self._base = base
        self._random_access = random_access
        self._draft: Draft | None = None
        self.size_bytes = base.version.size_bytes if base is not None else 0
        self._dirty = base is None
        self._made_now = made_now
        self._moves = 0
        core.keep_session()

    def write(self, offset: int, view: memoryview, deadline: Deadline) -> None:
        """Raises: NoSpace, Unavailable, DeadlineExceeded; what was written before is still there."""
        if offset + len(view) > FILE_MAX_BYTES:
            raise FileTooBig(f"a file of {offset + len(view)} bytes; at most {FILE_MAX_BYTES}")
        draft = self._drafting(deadline)
        while True:
            try:
                draft.write(offset, view, deadline)
                break
            except NoSpace as error:
                draft = self._move(draft, error, deadline)
        self._dirty = True
        self.size_bytes = max(self.size_bytes, offset + len(view))

    def _drafting(self, deadline: Deadline) -> Draft:
        if self._draft is None:
            base = self._base if self.size_bytes else None
            try:
                draft = self._core.writer.draft(self.size_bytes, deadline, random_access=self._random_access, base=base)
            except HearthError:
                if base is not None and self._is_gone(deadline):
                    raise Stale(f"inode {self._inode} was deleted, and its bytes with it") from None
                raise
            draft.truncate(min(draft.length_bytes, self.size_bytes))
            self._draft = draft
        return self._draft

    def _is_gone(self, deadline: Deadline) -> bool:
        try:
            self._core.metadata.getattr(self._inode, deadline)
        except (NotFound, Stale):
            return True
        except HearthError:
            pass  # nobody knows
        return False

    def _move(self, old: Draft, error: NoSpace, deadline: Deadline) -> Draft:
        """The same bytes on another worker, because this one's disk is full."""
        self._moves += 1
        if self._moves >= PLACES:
            raise error
        worker_id = old.place.worker.worker_id
        log.warning("draft-moves", worker=worker_id, reason=error.message)
        writer = self._core.writer
        try:
            new = writer.draft(old.length_bytes, deadline, random_access=self._random_access, avoid=[worker_id])
        except NoSpace:
            raise error from None
        buffer = memoryview(bytearray(min(4 << 20, old.length_bytes)))
        try:
            for at in range(0, old.length_bytes, len(buffer) or 1):
                part = buffer[: old.length_bytes - at]
                old.read(at, part)
                new.write(at, part, deadline)
        except HearthError:
            new.close()
            writer.discard([new.place.key])
            raise error from None
        old.close()
        writer.discard([old.place.key])
        self._draft = new
        return new

    def read(self, offset: int, view: memoryview, deadline: Deadline) -> int:
        """What the file would contain if it were published now."""
        size = max(0, min(len(view), self.size_bytes - offset))
        view = view[:size]
        done = 0
        if self._draft is not None:
            done = max(0, min(size, self._draft.length_bytes - offset))
            self._draft.read(offset, view[:done])
        elif self._base is not None:
            done = self._base.read(offset, view, deadline)
        fill_zeros(view[done:])
        return size

    def truncate(self, size_bytes: int, deadline: Deadline) -> None:
        if size_bytes < self.size_bytes:
            draft = self._drafting(deadline)
            if size_bytes < draft.length_bytes:
                draft.truncate(size_bytes)
        self._dirty = self._dirty or size_bytes != self.size_bytes
        self.size_bytes = size_bytes

    def publish(self, sync: bool, deadline: Deadline) -> None:
        """Makes what was written the file's content, in one step. Does nothing when nothing changed.

        Raises:
            Stale: the file was deleted meanwhile, or the master gave the block up: what was written is lost.
            NoSpace, Unavailable, DeadlineExceeded.
        """
        if not self._dirty:
            return
        draft, block = self._draft, None
        if draft is None and self._base is not None and self.size_bytes:
            draft = self._drafting(deadline)
        if draft is not None:
            block = self._commit(draft, sync, deadline)
        entry = self._attach(block, deadline)
        if self._draft is not None:
            self._draft.close()
        self._draft = None
        self._dirty = self._made_now = False
        self._inode = entry.attributes.inode
        self._rebase(version_of(entry))

    def _commit(self, draft: Draft, sync: bool, deadline: Deadline) -> Committed:
        while True:
            try:
                return draft.commit(sync, deadline)
            except NoSpace as error:
                draft = self._move(draft, error, deadline)

    def _attach(self, block: Committed | None, deadline: Deadline) -> common.Entry:
        if self._inode:
            try:
                return self._core.writer.publish(self._inode, block, self.size_bytes, deadline)
            except (Stale, NotFound):
                if self._place is None:
                    raise
        place = self._place
        assert place is not None
        if block is not None and block.length_bytes == self.size_bytes:
            return self._put(place, block, deadline)
        made = pb.Create(parent=place.parent, name=place.name, mode=place.mode, uid=place.uid, gid=place.gid)
        inode = self._core.metadata.mutate(pb.MutateRequest(create=made), deadline).entry.attributes.inode
        return self._core.writer.publish(inode, block, self.size_bytes, deadline)

    def _put(self, place: Place, block: Committed, deadline: Deadline) -> common.Entry:
        put = pb.PutMany(
            parent=place.parent,
            names=packed_names.pack([place.name]),
            mode=place.mode,
            uid=place.uid,
            gid=place.gid,
            blocks=[block.key.block],
            generations=[block.key.generation],
            lengths_bytes=[block.length_bytes],
            digests=[block.digest],
            worker_id=block.worker_id,
        )
        reply = self._core.metadata.mutate(pb.MutateRequest(put_many=put), deadline)
        if reply.errnos and reply.errnos[0]:
            number = reply.errnos[0]
            raise from_errno(number, f"cannot put {place.name!r}: {os.strerror(number)}")
        return self._core.metadata.getattr(reply.inodes[0], deadline)

    def _rebase(self, version: Version) -> None:
        if self._base is not None:
            self._base.close()
        self._base = self._core.open_version(version, self._core.deadline())

    def abort(self) -> None:
        """Forgets what was written and not published."""
        self._dirty = False
        draft, self._draft = self._draft, None
        if draft is not None:
            draft.close()
            self._core.writer.discard([draft.place.key])
        if self._made_now and self._place is not None:
            self._made_now = False
            self._unmake(self._place)

    def _unmake(self, place: Place) -> None:
        deadline = self._core.deadline()
        try:
            now = self._core.metadata.lookup(place.parent, place.name, deadline)
            if now.attributes.inode == self._inode:
                unlink = pb.Unlink(parent=place.parent, name=place.name)
                self._core.metadata.mutate(pb.MutateRequest(unlink=unlink), deadline)
        except HearthError as error:
            log.warning("empty-file-left", name=place.name, reason=error.message)

    def close(self) -> None:
        """Lets go, once; what was not published is given back."""
        self._core.release_session()
        draft, self._draft = self._draft, None
        if draft is not None:
            draft.close()
            self._core.writer.discard([draft.place.key])
        if self._base is not None:
            self._base.close()
