"""The system calls that touch a disk, each labelled with the step it belongs to, so that a test can fail just one."""

from __future__ import annotations

import fcntl
import os

from ..common.types import Buffer

FICLONE = 0x40049409


class OsCalls:
    """The real thing. A test overrides ``before`` to raise at a step."""

    def before(self, step: str) -> None:
        """Called with the label ahead of each call."""

    def open(self, step: str, name: str, flags: int, mode: int = 0o600, dir_fd: int | None = None) -> int:
        """Never follows a link in the last component, never leaks into a child process."""
        self.before(step)
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=dir_fd)

    def rename(self, step: str, name: str, dir_fd: int, new_name: str, new_dir_fd: int) -> None:
        self.before(step)
        os.rename(name, new_name, src_dir_fd=dir_fd, dst_dir_fd=new_dir_fd)

    def unlink(self, step: str, name: str, dir_fd: int) -> None:
        self.before(step)
        os.unlink(name, dir_fd=dir_fd)

    def fsync(self, step: str, fd: int) -> None:
        self.before(step)
        os.fsync(fd)

    def flock(self, step: str, fd: int, operation: int) -> None:
        self.before(step)
        fcntl.flock(fd, operation)

    def fchmod(self, step: str, fd: int, mode: int) -> None:
        self.before(step)
        os.fchmod(fd, mode)

    def ftruncate(self, step: str, fd: int, length_bytes: int) -> None:
        self.before(step)
        os.ftruncate(fd, length_bytes)

    def fstat(self, step: str, fd: int) -> os.stat_result:
        self.before(step)
        return os.fstat(fd)

    def statvfs(self, step: str, fd: int) -> os.statvfs_result:
        self.before(step)
        return os.statvfs(fd)

    def pread(self, step: str, fd: int, size: int, offset: int) -> bytes:
        """Exactly ``size`` bytes, or fewer where the file ends."""
        self.before(step)
        data = os.pread(fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        done = len(data)
        while done < size:
            part = os.pread(fd, size - done, offset + done)
            if not part:
                break
            parts.append(part)
            done += len(part)
        return b"".join(parts)

    def reopen(self, step: str, fd: int, flags: int) -> int:
        """Another descriptor of the same file, with flags of its own."""
        self.before(step)
        return os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)

    def pread_into(self, step: str, fd: int, view: memoryview, offset: int) -> int:
        """Fills ``view``, or less where the file ends; returns how much."""
        self.before(step)
        done = 0
        while done < len(view):
            got = os.preadv(fd, [view[done:]], offset + done)
            if not got:
                break
            done += got
        return done

    def pwrite(self, step: str, fd: int, data: Buffer, offset: int) -> None:
        """All of ``data``."""
        self.before(step)
        view = memoryview(data)
        while view:
            done = os.pwrite(fd, view, offset)
            view, offset = view[done:], offset + done

    def clone(self, step: str, source_fd: int, fd: int) -> None:
        """Makes ``fd`` share all bytes of ``source_fd`` (reflink)."""
        self.before(step)
        fcntl.ioctl(fd, FICLONE, source_fd)

    def copy_range(self, step: str, source_fd: int, fd: int, size: int, offset: int) -> int:
        self.before(step)
        return os.copy_file_range(source_fd, fd, size, offset, offset)
