"""A block file that was published once and belongs to this mount alone now: the backing of an inode that the kernel
reads by passthrough and that somebody here writes as well.

Laws:

- It is never committed: the kernel, or a shared mapping, may write into it at any time. Publishing copies it.
- Nobody else may have the file open: whoever does sees bytes change that should not. Every descriptor of a block file
  that a worker gives away carries a shared lock; ours becomes exclusive, or the file cannot be ours.
"""

from __future__ import annotations

import contextlib
import fcntl
import os

from ..common.errors import Busy
from .sealed_block import SealedBlock
from .working_file import WorkingFile


class PrivateFile(WorkingFile):
    """Owns ``sealed``, whose descriptor holds the lock.

    Attributes:
        digest: of the bytes as they were published last.

    Raises:
        Busy: somebody else has the file open, or it cannot be opened for writing.
    """

    private = True

    def __init__(self, sealed: SealedBlock) -> None:
        held = sealed.local_fd
        if held is None:
            raise Busy(f"block {sealed.key} is not on this node")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fd = os.open(f"/proc/self/fd/{held}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            with contextlib.suppress(OSError):
                fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)  # one that could not be raised is lost
            raise Busy(f"block {sealed.key}: others read its file: {error.strerror}") from None
        super().__init__(sealed.key, fd, worker_id="", address="", limit_bytes=0, local=False)
        self.length_bytes = sealed.length_bytes
        self.digest = 0
        self._sealed = sealed

    @property
    def mtime_ns(self) -> int:
        return os.fstat(self.fd).st_mtime_ns

    def truncate(self, length_bytes: int) -> None:
        """Also to a greater length: the kernel's readers go by the file's."""
        os.ftruncate(self.fd, length_bytes)
        self.length_bytes = length_bytes

    def close(self) -> None:
        super().close()
        self._sealed.close()
