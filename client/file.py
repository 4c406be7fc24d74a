"""The file object: ``io`` sees a raw file, the namespace whole versions.

Reading: the version that was there at open, whatever happens to the name. Writing: nothing is seen by others before
``close`` or ``fsync`` publishes it, and all of it then. Leaving a ``with`` block by an exception publishes nothing.
"""

from __future__ import annotations

import io
import sys
import threading
import warnings
from types import TracebackType
from typing import IO, Any, Self

from ..common.errors import InvalidArgument
from .core import Core
from .deadline import Deadline
from .draft_file import DraftFile
from .open_version import OpenVersion

BUFFER_BYTES = 128 << 10
"""Of the buffered layer: small reads and writes become some of this size. Bigger ones pass it by."""


class HearthFile(io.RawIOBase):
    """Thread-safe. Exactly one of ``version`` (reading) and ``draft`` (writing, and reading back) is given.

    Raises, from every method that moves bytes: BlockCorrupt, Unavailable, DeadlineExceeded, Stale; NoSpace when
    writing; ValueError when closed; ``io.UnsupportedOperation`` when the mode forbids it.
    """

    def __init__(
        self,
        core: Core,
        path: str,
        mode: str,
        *,
        version: OpenVersion | None = None,
        draft: DraftFile | None = None,
        readable: bool = False,
        append: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__()
        self.name = path
        self.mode = mode
        self._core = core
        self._version = version
        self._draft = draft
        self._readable = readable or version is not None
        self._append = append
        self._timeout_s = timeout_s
        self._aborted = False
        self._held_back = False
        self._lock = threading.RLock()
        self._position = draft.size_bytes if append and draft is not None else 0

    # -- what io asks for

    def readable(self) -> bool:
        return self._readable

    def writable(self) -> bool:
        return self._draft is not None

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._need_open()
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with self._lock:
            self._need_open()
            start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size_bytes}.get(whence)
            if start is None or start + offset < 0:
                raise InvalidArgument(f"cannot seek to {offset} from {whence} in {self.name!r}")
            self._position = start + offset
            return self._position

    @property
    def size_bytes(self) -> int:
        """Of the version being read, or of what has been written."""
        if self._draft is not None:
            return self._draft.size_bytes
        return self._version.version.size_bytes if self._version is not None else 0

    def readinto(self, buffer: Any) -> int:
        with self._lock, memoryview(buffer).cast("B") as view:
            done = self.pread_into(self._position, view)
            self._position += done
            return done

    def readall(self) -> bytes:
        with self._lock:
            buffer = bytearray(max(0, self.size_bytes - self._position))
            done = self.readinto(buffer)
            return bytes(buffer) if done == len(buffer) else bytes(buffer[:done])

    def pread_into(self, offset: int, buffer: Any) -> int:
        """Fills ``buffer`` from ``offset`` and returns how many bytes there were; the position does not matter and
        stays. Several threads may read one file at a time."""
        self._need_open()
        if not self._readable:
            raise io.UnsupportedOperation(f"{self.name!r} is open for writing only")
        with memoryview(buffer).cast("B") as view:
            if self._version is not None:
                return self._version.read(offset, view, self._deadline())
            with self._lock:
                return self._need_draft().read(offset, view, self._deadline())

    def write(self, data: Any) -> int:
        with self._lock, memoryview(data).cast("B") as view:
            draft = self._need_draft()
            if self._aborted:
                return len(view)  # what a buffered layer still had
            if self._append:
                self._position = draft.size_bytes
            draft.write(self._position, view, self._deadline())
            self._position += len(view)
            return len(view)

    def truncate(self, size: int | None = None) -> int:
        with self._lock:
            size = self._position if size is None else size
            if size < 0:
                raise InvalidArgument(f"cannot truncate to {size} bytes")
            self._need_draft().truncate(size, self._deadline())
            return size

    # -- publishing

    def fsync(self) -> None:
        """Publishes what was written so far and makes it durable."""
        with self._lock:
            if self._draft is not None:
                self._need_draft().publish(True, self._deadline())

    def abort(self) -> None:
        """Forgets what was written since the last publish, and all that is written from now on."""
        with self._lock:
            self._aborted = True
            if self._draft is not None and not self.closed:
                self._draft.abort()

    def close(self) -> None:
        """Publishes and lets go. If publishing fails the file is closed all the same, and the old version stays."""
        with self._lock:
            if self.closed:
                return
            super().close()
            if not self._held_back:
                self._end(publish=not self._aborted)

    def hold_back(self) -> None:
        """From now on ``close`` does not publish: one of ``commit`` and ``discard`` has to follow it."""
        self._held_back = True

    def commit(self) -> None:
        with self._lock:
            self._end(publish=not self._aborted)

    def discard(self) -> None:
        with self._lock:
            self._end(publish=False)

    def _end(self, *, publish: bool) -> None:
        draft, self._draft = self._draft, None
        version, self._version = self._version, None
        try:
            if draft is not None and publish:
                draft.publish(False, self._deadline())
            elif draft is not None:
                draft.abort()
        finally:
            if draft is not None:
                draft.close()
            if version is not None:
                version.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        self.close()

    def __del__(self) -> None:
        draft = getattr(self, "_draft", None)
        if draft is not None and sys.is_finalizing():
            self._draft = None  # gRPC's threads are gone: publishing would wait for its deadline
        elif draft is not None and self.closed:
            self.discard()  # held back, and nobody committed it
        elif draft is not None:
            warnings.warn(f"unclosed file {self.name!r}", ResourceWarning, source=self, stacklevel=2)
        self.close()

    def _need_open(self) -> None:
        if self.closed:
            raise ValueError(f"I/O operation on closed file {self.name!r}")

    def _need_draft(self) -> DraftFile:
        self._need_open()
        if self._draft is None:
            raise io.UnsupportedOperation(f"{self.name!r} is open for reading only")
        return self._draft

    def _deadline(self) -> Deadline:
        return self._core.deadline(self._timeout_s)


class _Abortable:
    """``with`` for the layers above: an exception inside publishes nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            raw_of(self).abort()
        self.close()  # type: ignore[attr-defined]  # of the io class beside it

    def fsync(self) -> None:
        """Publishes what was written so far and makes it durable."""
        self.flush()  # type: ignore[attr-defined]  # of the io class beside it
        raw_of(self).fsync()

    def abort(self) -> None:
        """Forgets what was written since the last publish, and all that is written from now on."""
        raw_of(self).abort()

    def commit(self) -> None:
        """Publishes a file that was held back and is closed."""
        raw_of(self).commit()

    def discard(self) -> None:
        """Drops a file that was held back and is closed."""
        raw_of(self).discard()


class BufferedHearthWriter(_Abortable, io.BufferedWriter):
    def __enter__(self) -> Self:
        return self


class BufferedHearthRandom(_Abortable, io.BufferedRandom):
    def __enter__(self) -> Self:
        return self


class HearthText(_Abortable, io.TextIOWrapper):
    def __enter__(self) -> Self:
        return self


def hold_back(file: Any) -> Any:
    """Makes ``close`` of a binary file publish nothing until its ``commit`` is called; see ``HearthFile.hold_back``."""
    raw_of(file).hold_back()
    return file


def raw_of(file: Any) -> HearthFile:
    """The raw file below a text or buffered layer."""
    while not isinstance(file, HearthFile):
        file = file.raw if hasattr(file, "raw") else file.buffer
    return file


def wrap(
    raw: HearthFile, mode: str, buffering: int, encoding: str | None, errors: str | None, newline: str | None
) -> IO[Any]:
    """What ``io.open`` would return for this mode."""
    text = "b" not in mode
    if text and buffering == 0:
        raise InvalidArgument("text files are buffered; use buffering=-1 or a binary mode")
    if buffering == 0:
        return raw  # type: ignore[return-value]  # RawIOBase is no IO to mypy
    size = buffering if buffering > 1 else BUFFER_BYTES
    buffered: Any
    if not raw.writable():
        buffered = io.BufferedReader(raw, size)
    elif raw.readable():
        buffered = BufferedHearthRandom(raw, size)
    else:
        buffered = BufferedHearthWriter(raw, size)
    if not text:
        return buffered  # type: ignore[no-any-return]  # one of three io classes
    return HearthText(buffered, encoding or "utf-8", errors, newline, line_buffering=buffering == 1)
