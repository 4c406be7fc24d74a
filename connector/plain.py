"""Chunks as plain files of any file system: for tests, and where no HearthFS is."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import time
from collections.abc import Callable, Sequence

from ..common.errors import BlockCorrupt, DeadlineExceeded, HearthError, NotFound, Unavailable, from_errno
from .backend import NOWHERE, Located
from .identity import MANIFEST

TEMPORARY = ".tmp"
"""Directory, beside the chunks, of files that are being written: readers never look there."""
ORPHAN_AGE_S = 3600.0


class PlainStore:
    """Files below ``root``. A chunk appears by rename, so whatever has its final name is whole."""

    verifies_bytes = False

    def __init__(self, root: str) -> None:
        """
        Raises:
            Unavailable: ``root`` is no directory. It is never created: a missing volume must not become a full disk.
        """
        if not os.path.isdir(root):
            raise Unavailable(f"{root} does not exist or is no directory; create it")
        self._root = root
        self._prepared: set[str] = set()

    def lookup(self, directory: str, names: Sequence[str], timeout_s: float) -> list[bool]:
        deadline = time.monotonic() + timeout_s
        base = os.path.join(self._root, directory)
        found: list[bool] = []
        for name in names:
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"{base}: looked up {len(found)} of {len(names)} files in {timeout_s} s")
            found.append(os.access(os.path.join(base, name), os.R_OK))
        return found

    def locate(self, directory: str, names: Sequence[str], timeout_s: float) -> Located:
        return NOWHERE

    def load(
        self,
        directory: str,
        names: Sequence[str],
        buffers: Sequence[memoryview],
        timeout_s: float,
        located: Located = NOWHERE,
    ) -> list[HearthError | None]:
        deadline = time.monotonic() + timeout_s
        base = os.path.join(self._root, directory)
        return [
            _outcome(deadline, _read, os.path.join(base, name), buffer)
            for name, buffer in zip(names, buffers, strict=True)
        ]

    def store(
        self,
        directory: str,
        names: Sequence[str],
        buffers: Sequence[memoryview],
        timeout_s: float,
        replace: bool,
        depths: Sequence[int] = (),
    ) -> list[HearthError | None]:
        deadline = time.monotonic() + timeout_s
        base = os.path.join(self._root, directory)
        try:
            self._prepare(base)
        except OSError as error:
            return [from_errno(error.errno or 0, f"{base}: {error.strerror}")] * len(names)
        return [
            _outcome(deadline, _write, base, name, buffer, replace) for name, buffer in zip(names, buffers, strict=True)
        ]

    def put_manifest(self, directory: str, name: str, data: bytes, timeout_s: float) -> None:
        (error,) = self.store(directory, [name], [memoryview(data)], timeout_s, replace=False)
        if error is not None:
            raise error

    def manifests(self, model: str, limit: int) -> list[bytes]:
        found: list[bytes] = []
        for path in glob.iglob(f"{glob.escape(os.path.join(self._root, model))}-*/*/{MANIFEST}"):
            if len(found) == limit:
                break
            with contextlib.suppress(OSError), open(path, "rb") as file:
                found.append(file.read())
        return found

    def moved(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def _prepare(self, base: str) -> None:
        """Makes the directories once, and removes what writers left that died an hour ago or more."""
        if base in self._prepared:
            return
        os.makedirs(os.path.join(base, TEMPORARY), exist_ok=True)
        horizon = time.time() - ORPHAN_AGE_S
        for entry in os.scandir(os.path.join(base, TEMPORARY)):
            try:
                if entry.stat().st_mtime < horizon:
                    os.unlink(entry.path)
            except FileNotFoundError:
                continue
        self._prepared.add(base)


def _outcome(deadline: float, act: Callable[..., object], *arguments: object) -> HearthError | None:
    if time.monotonic() > deadline:
        return DeadlineExceeded("no time left")
    try:
        act(*arguments)
    except HearthError as error:
        return error
    except OSError as error:
        return from_errno(error.errno or 0, f"{error.filename or arguments[0]}: {error.strerror or error}")
    return None


def _read(path: str, buffer: memoryview) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(path) from None
    try:
        size = os.fstat(descriptor).st_size
        if size != len(buffer):
            raise BlockCorrupt(f"{path}: {size} bytes, not {len(buffer)}")
        done = 0
        while done < len(buffer):
            count = os.preadv(descriptor, [buffer[done:]], done)
            if count == 0:
                raise BlockCorrupt(f"{path}: ends at byte {done} of {len(buffer)}")
            done += count
    finally:
        os.close(descriptor)


def _write(base: str, name: str, buffer: memoryview, replace: bool) -> None:
    final = os.path.join(base, name)
    if not replace and os.path.exists(final):
        return
    temporary = os.path.join(base, TEMPORARY, f"{os.getpid()}-{secrets.token_hex(12)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        try:
            done = 0
            while done < len(buffer):
                done += os.write(descriptor, buffer[done:])
        finally:
            os.close(descriptor)
        os.replace(temporary, final)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
