import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hearthfs.common.errors import Busy
from hearthfs.common.types import BlockKey
from hearthfs.fuse_client.private_file import PrivateFile


class Sealed:
    """What a private file needs of a sealed block."""

    def __init__(self, path: Path) -> None:
        self.key = BlockKey(7, 1)
        self.length_bytes = path.stat().st_size
        self.local_fd: int | None = os.open(path, os.O_RDONLY)
        fcntl.flock(self.local_fd, fcntl.LOCK_SH)
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "block"
    path.write_bytes(b"0123456789")
    return path


@pytest.fixture
def sealed(path: Path) -> Iterator[Sealed]:
    sealed = Sealed(path)
    fd = sealed.local_fd
    yield sealed
    assert fd is not None
    os.close(fd)


def test_a_file_that_others_have_open_cannot_be_ours(path: Path, sealed: Sealed) -> None:
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        with pytest.raises(Busy, match="others read its file"):
            PrivateFile(sealed)  # type: ignore[arg-type]
        fcntl.flock(other, fcntl.LOCK_UN)
        with pytest.raises(BlockingIOError):  # ours is there still
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    private = PrivateFile(sealed)  # type: ignore[arg-type]
    with path.open("rb") as late, pytest.raises(BlockingIOError):
        fcntl.flock(late, fcntl.LOCK_SH | fcntl.LOCK_NB)
    private.close()
    assert sealed.closed


def test_a_block_elsewhere_cannot_be_ours(sealed: Sealed) -> None:
    fd, sealed.local_fd = sealed.local_fd, None
    with pytest.raises(Busy, match="not on this node"):
        PrivateFile(sealed)  # type: ignore[arg-type]
    sealed.local_fd = fd


def test_its_length_is_the_file_s(path: Path, sealed: Sealed) -> None:
    private = PrivateFile(sealed)  # type: ignore[arg-type]
    assert private.length_bytes == 10
    private.truncate(20)
    assert path.read_bytes() == b"0123456789" + bytes(10)
    private.truncate(4)
    assert path.read_bytes() == b"0123"
    assert private.length_bytes == 4
    private.close()
