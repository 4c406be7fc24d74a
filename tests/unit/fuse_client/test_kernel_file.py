import fcntl
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from hearthfs.common import checksums
from hearthfs.common.errors import Busy
from hearthfs.common.types import BlockKey
from hearthfs.fuse_client.content import Content
from hearthfs.fuse_client.kernel_file import KernelFile
from hearthfs.fuse_client.working_file import WorkingFile

SIZE = (2 << 20) + 77


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "working"


@pytest.fixture
def working(path: Path) -> WorkingFile:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    return WorkingFile(BlockKey(7, 1), fd, worker_id="w", address="", limit_bytes=0, local=True)


@pytest.fixture
def file(working: WorkingFile) -> Iterator[KernelFile]:
    file = KernelFile.of(working, fine_time=True, cached=True)
    yield file
    file.close()


def write(path: Path, data: bytes, at: int = 0) -> None:
    """As the kernel does: behind our back."""
    with path.open("r+b") as stream:
        stream.seek(at)
        stream.write(data)


def test_others_are_locked_out(path: Path, file: KernelFile) -> None:
    with path.open("rb") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_a_file_that_others_have_is_not_taken(path: Path, working: WorkingFile) -> None:
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        with pytest.raises(Busy, match="others have its file"):
            KernelFile.of(working, fine_time=True, cached=True)
    working.close()


@pytest.mark.parametrize("size", [0, 1, SIZE, 1 << 20])
@pytest.mark.parametrize("cached", [True, False])
def test_its_bytes_are_hashed_as_everybody_s(path: Path, working: WorkingFile, size: int, cached: bool) -> None:
    file = KernelFile.of(working, fine_time=True, cached=cached)
    data = os.urandom(size)
    write(path, data)
    packed, digest = trio.run(file.checksums)
    with path.open("rb") as other:
        assert packed == checksums.of_file(other.fileno(), size)
    assert digest == checksums.digest(packed, size)
    assert file.seen.length_bytes == file.length_bytes == size
    file.close()


def test_each_write_after_a_look_shows(path: Path, file: KernelFile) -> None:
    """On this kernel, also two within one tick of the clock."""
    for turn in range(200):
        write(path, bytes([turn]))
        assert file.changed
        file.seen = file.look()
        assert not file.changed


def test_a_descriptor_that_may_map_it_is_not_trusted(path: Path, file: KernelFile) -> None:
    write(path, b"x" * SIZE)
    trio.run(file.checksums)
    file.join(os.O_RDONLY)
    assert file.shared
    assert file.tells
    with path.open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as mapped:
        file.join(os.O_RDWR)
        assert not file.tells
        assert file.private
        assert trio.run(file.same_bytes)
        mapped[5] = 0
    assert not trio.run(file.same_bytes)


def test_a_time_that_is_set_is_no_change(path: Path, file: KernelFile) -> None:
    write(path, b"data")
    file.seen = file.look()
    file.set_mtime(123_000_000_000)
    assert not file.changed
    assert file.look().mtime_ns == 123_000_000_000
    write(path, b"more", 4)
    file.set_mtime(456_000_000_000)
    assert file.changed


def test_what_may_be_a_block_by_now_is_not_emptied(path: Path, file: KernelFile) -> None:
    write(path, b"data")
    file.committed = True
    file.empty()
    assert path.read_bytes() == b"data"
    file.committed = False
    file.empty()
    assert path.read_bytes() == b""
    write(path, b"data")
    file.join(os.O_RDONLY)
    file.empty()
    assert path.read_bytes() == b"data"


def test_content_takes_length_and_time_from_it(path: Path, file: KernelFile) -> None:
    content = Content(1, 0)
    content.working = file
    content.look()
    assert (content.size, content.dirty) == (0, False)
    write(path, b"data")
    content.look()
    assert (content.size, content.dirty, content.mtime_ns) == (4, True, os.stat(path).st_mtime_ns)
    assert bytes(trio.run(content.read, 1, 10)) == b"ata"
