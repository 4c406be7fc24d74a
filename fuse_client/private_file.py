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
from .kernel_file import KernelFile, lock_alone
from .sealed_block import SealedBlock


class PrivateFile(KernelFile):
    """Owns ``sealed``, whose descriptor holds the lock.

    Raises:
        Busy: somebody else has the file open, or it cannot be opened for writing.
    """

    def __init__(self, sealed: SealedBlock) -> None:
        held = sealed.local_fd
        if held is None:
            raise Busy(f"block {sealed.key} is not on this node")
        try:
            lock_alone(held, sealed.key)
            fd = os.open(f"/proc/self/fd/{held}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            with contextlib.suppress(OSError):
                fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)  # one that could not be raised is lost
            raise Busy(f"block {sealed.key}: others read its file: {error.strerror or error}") from None
        super().__init__(
            sealed.key, fd, worker_id="", address="", limit_bytes=0, local=False, fine_time=False, cached=False
        )
        self.private = self.shared = True
        self._sealed = sealed

    def close(self) -> None:
        super().close()
        self._sealed.close()
