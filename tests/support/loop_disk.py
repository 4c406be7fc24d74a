"""A filesystem in a file, whose power can be cut: what it had not written to the file is lost."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

EXT4_IOC_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32), linux/ext4.h
NO_LOG_FLUSH = 2
UNMOUNT_S = 20.0


class LoopDisk:
    """ext4 on a loop device, mounted at ``path``.

    Raises: RuntimeError, by all methods: a command failed.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self.image = path.with_name(f"{path.name}.ext4")
        path.mkdir(parents=True)
        with self.image.open("wb") as file:
            file.truncate(size_bytes)
        _run("mkfs.ext4", "-q", "-m", "0", str(self.image))
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self.image), str(self.path))

    def cut(self) -> None:
        """From now on everything on it fails with EIO; the journal's transaction in hand is lost."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def power_on(self) -> None:
        """Once all that had files open are gone: what is in the image is what there is."""
        self.unmount()
        self.mount()

    def unmount(self) -> None:
        deadline = time.monotonic() + UNMOUNT_S
        while True:
            try:
                return _run("umount", str(self.path))
            except RuntimeError:  # a process that was killed still ends
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.path.ismount(self.path):
            subprocess.run(["umount", "--lazy", str(self.path)], check=False)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
