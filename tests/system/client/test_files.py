import io
import os
import random
import time
from collections.abc import Callable

import pytest
from hearthfs.client.client import Client
from hearthfs.common.checksums import CHUNK_BYTES
from hearthfs.common.errors import Exists, InvalidArgument, IsADirectory, NotFound, NotSupported, Stale
from hearthfs.tests.support.cluster import Cluster

NODES = pytest.mark.parametrize("node", [1, 2, None], ids=["writer's node", "other node", "node without worker"])
SIZES = [0, 1, 4095, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, 9 * CHUNK_BYTES + 12345]


@NODES
@pytest.mark.parametrize("size", SIZES)
def test_written_here_read_there(on: Callable[..., Client], client: Client, root: str, node: int, size: int) -> None:
    data = random.randbytes(size)
    with on(node).open(f"{root}/f", "wb") as file:
        file.write(data[: size // 3])
        file.write(data[size // 3 :])
    for reader in (client, on(node), on(None)):
        with reader.open(f"{root}/f", "rb") as file:
            assert file.read() == data
            assert file.read() == b""


@NODES
def test_small_reads_anywhere(on: Callable[..., Client], client: Client, root: str, node: int) -> None:
    data = random.randbytes(3 * CHUNK_BYTES + 777)
    client.write_bytes(f"{root}/f", data)
    with on(node).open(f"{root}/f", "rb", buffering=0) as file:
        for _ in range(50):
            at, size = random.randrange(len(data) + 100), random.choice([1, 100, CHUNK_BYTES, 2 * CHUNK_BYTES])
            file.seek(at)
            assert file.read(size) == data[at : at + size]
        assert file.seek(-7, io.SEEK_END) == len(data) - 7
        assert file.read() == data[-7:]


def test_nobody_sees_half_a_file(on: Callable[..., Client], client: Client, root: str) -> None:
    other = on(2)
    with client.open(f"{root}/f", "wb") as file:
        file.write(b"x" * (2 * CHUNK_BYTES))
        assert not other.exists(f"{root}/f")
    assert other.stat(f"{root}/f").st_size == 2 * CHUNK_BYTES
    with client.open(f"{root}/f", "wb") as file:
        file.write(b"y")
        file.flush()
        assert other.stat(f"{root}/f").st_size == 2 * CHUNK_BYTES
    assert other.read_bytes(f"{root}/f") == b"y"


@NODES
@pytest.mark.parametrize("mode", ["wb", "xb", "w", "r+b", "ab"])
def test_an_exception_publishes_nothing(on: Callable[..., Client], root: str, node: int, mode: str) -> None:
    client = on(node)
    existing = mode in ("r+b", "ab")
    if existing:
        client.write_bytes(f"{root}/f", b"old")

    def write_half() -> None:
        with client.open(f"{root}/f", mode) as file:
            file.write("half" if mode == "w" else b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert client.listdir(root) == (["f"] if existing else [])
    assert not existing or client.read_bytes(f"{root}/f") == b"old"
    assert client.statvfs()  # the session is fine


def test_fsync_publishes_and_writing_goes_on(on: Callable[..., Client], client: Client, root: str) -> None:
    other = on(2)
    with client.open(f"{root}/f", "wb") as file:
        file.write(b"one")
        file.fsync()  # type: ignore[attr-defined]
        assert other.read_bytes(f"{root}/f") == b"one"
        file.write(b"two")
        file.fsync()  # type: ignore[attr-defined]
        file.fsync()  # type: ignore[attr-defined]
        assert other.read_bytes(f"{root}/f") == b"onetwo"
        inode = other.stat(f"{root}/f").st_ino
    assert other.stat(f"{root}/f").st_ino == inode


@NODES
def test_a_reader_keeps_the_version_it_opened(on: Callable[..., Client], client: Client, root: str, node: int) -> None:
    old = random.randbytes(2 * CHUNK_BYTES)
    client.write_bytes(f"{root}/f", old)
    with on(node).open(f"{root}/f", "rb", buffering=0) as file:
        client.write_bytes(f"{root}/f", b"new")
        client.remove(f"{root}/f")
        assert file.read() == old


@NODES
def test_update_in_place(on: Callable[..., Client], client: Client, root: str, node: int) -> None:
    data = bytearray(random.randbytes(2 * CHUNK_BYTES + 5))
    client.write_bytes(f"{root}/f", data)
    with on(node).open(f"{root}/f", "r+b") as file:
        for _ in range(20):
            at, some = random.randrange(len(data)), random.randbytes(random.choice([1, 5000, 200_000]))
            file.seek(at)
            file.write(some)
            data[at : at + len(some)] = some
        file.seek(100)
        assert file.read(50) == data[100:150]
    assert client.read_bytes(f"{root}/f") == data


@NODES
def test_append(on: Callable[..., Client], client: Client, root: str, node: int) -> None:
    for part in (b"one ", b"two ", b"three"):
        with on(node).open(f"{root}/log", "ab") as file:
            assert file.tell() == client.stat(f"{root}/log").st_size if client.exists(f"{root}/log") else 0 == 0
            file.write(part)
    assert client.read_bytes(f"{root}/log") == b"one two three"


@NODES
def test_holes_and_cuts(on: Callable[..., Client], client: Client, root: str, node: int) -> None:
    writer = on(node)
    with writer.open(f"{root}/f", "w+b") as file:
        file.seek(CHUNK_BYTES + 10)
        file.write(b"end")
        file.truncate(CHUNK_BYTES + 12)
        file.truncate(CHUNK_BYTES + 20)
    assert client.read_bytes(f"{root}/f") == bytes(CHUNK_BYTES + 10) + b"en" + bytes(8)
    with writer.open(f"{root}/f", "r+b") as file:
        file.truncate(CHUNK_BYTES + 11)
    assert client.read_bytes(f"{root}/f") == bytes(CHUNK_BYTES + 10) + b"e"
    with writer.open(f"{root}/f", "r+b") as file:
        file.truncate(3)
        file.truncate(5)
        file.seek(7)
        file.write(b"x")
    assert client.read_bytes(f"{root}/f") == bytes(7) + b"x"
    with writer.open(f"{root}/hole", "wb") as file:
        file.truncate(100)
    assert client.read_bytes(f"{root}/hole") == bytes(100)
    assert client.locate(f"{root}/hole") == ()


def test_a_stream_to_another_node_may_jump(on: Callable[..., Client], root: str) -> None:
    remote = on(None)
    with remote.open(f"{root}/f", "wb", buffering=0) as file:
        file.seek(9 * CHUNK_BYTES)
        file.write(b"last")
        file.seek(0)
        file.write(b"first")
        with pytest.raises(NotSupported):
            file.truncate(2)
    assert remote.read_bytes(f"{root}/f") == b"first" + bytes(9 * CHUNK_BYTES - 5) + b"last"


def test_text(client: Client, root: str) -> None:
    with client.open(f"{root}/t", "w", newline="\r\n") as file:
        file.write("héllo\nworld\n")
    assert client.read_bytes(f"{root}/t") == "héllo\r\nworld\r\n".encode()
    with client.open(f"{root}/t", "r") as file:
        assert list(file) == ["héllo\n", "world\n"]
    with client.open(f"{root}/t", "rt", encoding="latin-1") as file:
        assert file.read(2) == "hÃ"


def test_modes_and_what_they_refuse(client: Client, root: str) -> None:
    client.write_bytes(f"{root}/f", b"x")
    with pytest.raises(NotFound):
        client.open(f"{root}/no", "rb")
    with pytest.raises(NotFound):
        client.open(f"{root}/no", "r+b")
    with pytest.raises(NotFound):
        client.open(f"{root}/no/f", "wb")
    with pytest.raises(Exists):
        client.open(f"{root}/f", "xb")
    for mode in ("rb", "wb", "ab", "r+b"):
        with pytest.raises(IsADirectory):
            client.open(root, mode)
    for mode in ("", "b", "rw", "rbt", "rr", "z"):
        with pytest.raises(InvalidArgument):
            client.open(f"{root}/f", mode)
    with pytest.raises(InvalidArgument):
        client.open(f"{root}/f", "rb", encoding="utf-8")
    with client.open(f"{root}/f", "rb") as file, pytest.raises(io.UnsupportedOperation):
        file.write(b"")
    with client.open(f"{root}/f", "ab") as file, pytest.raises(io.UnsupportedOperation):
        file.read()
    with pytest.raises(ValueError, match="closed"):
        file.write(b"")


def test_a_name_that_was_deleted_while_written_comes_back_whole(client: Client, root: str) -> None:
    client.write_bytes(f"{root}/f", b"old")
    with client.open(f"{root}/f", "wb") as file:
        file.write(b"new")
        client.remove(f"{root}/f")
    assert client.read_bytes(f"{root}/f") == b"new"


def test_an_update_of_a_deleted_file_says_so(client: Client, root: str) -> None:
    client.write_bytes(f"{root}/f", b"old")
    file = client.open(f"{root}/f", "r+b")
    file.write(b"new")
    client.remove(f"{root}/f")
    with pytest.raises(Stale):
        file.close()
    assert not client.exists(f"{root}/f")


def test_an_update_of_a_file_whose_bytes_are_gone_says_so(small_cluster: Cluster, client: Client, root: str) -> None:
    client.write_bytes(f"{root}/f", b"old")
    block = f"??/{client.entry(f'{root}/f').extents[0].block:016x}.*"
    assert [*(small_cluster.disk(1) / "blocks").glob(block)]
    file = client.open(f"{root}/f", "r+b")
    file.write(b"new")
    client.remove(f"{root}/f")
    deadline = time.monotonic() + 10
    while [*(small_cluster.disk(1) / "blocks").glob(block)]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(Stale):
        file.close()


def test_an_unclosed_file_is_published_when_it_is_dropped(client: Client, root: str) -> None:
    with pytest.warns(ResourceWarning, match="unclosed"):
        client.open(f"{root}/f", "wb", buffering=0).write(b"x")
    assert client.read_bytes(f"{root}/f") == b"x"


def test_readinto_fills_the_callers_memory(client: Client, root: str) -> None:
    data = random.randbytes(3 * CHUNK_BYTES)
    client.write_bytes(f"{root}/f", data)
    memory = bytearray(4 * CHUNK_BYTES)
    with client.open(f"{root}/f", "rb", buffering=0) as file:
        assert file.readinto(memory) == len(data)  # type: ignore[attr-defined]
        assert memory[: len(data)] == data
        assert file.pread_into(CHUNK_BYTES + 1, memoryview(memory)[:5]) == 5  # type: ignore[attr-defined]
        assert memory[:5] == data[CHUNK_BYTES + 1 : CHUNK_BYTES + 6]
        assert file.readinto(memory) == 0  # type: ignore[attr-defined]


def test_close_then_rename_keeps_every_byte(on: Callable[..., Client], client: Client, root: str) -> None:
    other = on(2)
    for size in (1, 1000, CHUNK_BYTES, 3 * CHUNK_BYTES + 1):
        data = os.urandom(size)
        with client.open(f"{root}/f.tmp", "wb") as file:
            file.write(data)
        client.rename(f"{root}/f.tmp", f"{root}/f")
        assert other.read_bytes(f"{root}/f") == data
