import os

import pytest
import trio
from hearthfs.common.checksums import CHUNK_BYTES, Verifier, digest, of_file
from hearthfs.common.errors import BlockCorrupt
from hearthfs.fuse_client.chunks import LocalFile, VerifiedChunks

LENGTH = 3 * CHUNK_BYTES + 1234


class Memory:
    """A source that serves from memory, at once or only when waited for."""

    def __init__(self, data: bytes, *, waits: bool = False, identity: int = 1) -> None:
        self.data, self.waits, self.identity = data, waits, identity
        self.length_bytes = len(data)
        self.loads = 0
        self.error: Exception | None = None

    def try_load(self, start: int, view: memoryview) -> bool:
        if self.waits:
            return False
        self._fill(start, view)
        return True

    async def load(self, start: int, view: memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self._fill(start, view)

    def _fill(self, start: int, view: memoryview) -> None:
        self.loads += 1
        if self.error is not None:
            raise self.error
        view[:] = self.data[start : start + len(view)]


@pytest.mark.parametrize("waits", [False, True])
def test_any_range_is_right(waits: bool) -> None:
    data = os.urandom(LENGTH)
    source, chunks = Memory(data, waits=waits), VerifiedChunks(limit=2)

    async def main() -> None:
        for offset, size in [(0, 1), (0, LENGTH), (CHUNK_BYTES - 5, 10), (CHUNK_BYTES, CHUNK_BYTES), (LENGTH - 7, 7)]:
            assert bytes(await chunks.read(source, offset, size)) == data[offset : offset + size]

    trio.run(main)


def test_sequential_parts_load_a_chunk_once() -> None:
    source, chunks = Memory(os.urandom(LENGTH)), VerifiedChunks()

    async def main() -> None:
        for offset in range(0, CHUNK_BYTES, 128 << 10):
            await chunks.read(source, offset, 128 << 10)

    trio.run(main)
    assert source.loads == 1


def test_parallel_readers_of_one_chunk_load_it_once() -> None:
    data = os.urandom(LENGTH)
    source, chunks = Memory(data, waits=True), VerifiedChunks()

    async def read(at: int) -> None:
        assert bytes(await chunks.read(source, at * 1000, 1000)) == data[at * 1000 : at * 1000 + 1000]

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for at in range(8):
                nursery.start_soon(read, at)

    trio.run(main)
    assert source.loads == 1


def test_parallel_whole_chunks_do_not_share_a_buffer() -> None:
    data = os.urandom(LENGTH)
    source, chunks = Memory(data, waits=True), VerifiedChunks()

    async def read(index: int) -> None:
        start = index * CHUNK_BYTES
        assert bytes(await chunks.read(source, start, CHUNK_BYTES)) == data[start : start + CHUNK_BYTES]

    async def main() -> None:
        for _ in range(20):
            async with trio.open_nursery() as nursery:
                for index in range(3):
                    nursery.start_soon(read, index)

    trio.run(main)


def test_failed_load_is_not_kept_and_waiters_try_themselves() -> None:
    data = os.urandom(LENGTH)
    source, chunks = Memory(data, waits=True), VerifiedChunks()
    source.error = BlockCorrupt("bad")
    failures = []

    async def read() -> None:
        try:
            await chunks.read(source, 0, 10)
        except BlockCorrupt:
            failures.append(1)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(read)
        source.error = None
        assert bytes(await chunks.read(source, 0, 10)) == data[:10]

    trio.run(main)
    assert len(failures) == 3


def test_kept_chunks_are_bounded_and_dropped() -> None:
    source = Memory(os.urandom(LENGTH))
    chunks = VerifiedChunks(limit=2)

    async def main() -> None:
        for index in range(3):
            await chunks.read(source, index * CHUNK_BYTES, 10)
        await chunks.read(source, CHUNK_BYTES, 10)
        assert source.loads == 3
        await chunks.read(source, 0, 10)
        assert source.loads == 4
        chunks.drop(source.identity)
        await chunks.read(source, 0, 10)
        assert source.loads == 5

    trio.run(main)


@pytest.mark.leaks("trio keeps an idle thread for a while")
def test_local_file_refuses_a_flipped_bit(tmp_path: object) -> None:
    path = os.path.join(str(tmp_path), "block")
    with open(path, "wb") as file:
        file.write(os.urandom(LENGTH))
    fd = os.open(path, os.O_RDWR)
    packed = of_file(fd, LENGTH)
    local = LocalFile(1, fd, LENGTH, Verifier(packed, LENGTH, digest(packed, LENGTH)))
    os.pwrite(fd, bytes([os.pread(fd, 1, CHUNK_BYTES + 5)[0] ^ 1]), CHUNK_BYTES + 5)
    chunks = VerifiedChunks()

    async def main() -> None:
        await chunks.read(local, 0, CHUNK_BYTES)
        with pytest.raises(BlockCorrupt):
            await chunks.read(local, CHUNK_BYTES, 10)
        with pytest.raises(BlockCorrupt):
            await local.load(CHUNK_BYTES, memoryview(bytearray(CHUNK_BYTES)))

    trio.run(main)
    local.close()
