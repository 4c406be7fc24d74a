import pytest
import trio
from hearthfs.common.errors import BlockCorrupt, BlockMissing, HearthError, Unavailable
from hearthfs.common.types import BlockKey
from hearthfs.fuse_client.chunks import VerifiedChunks
from hearthfs.fuse_client.sealed_block import SealedBlock, Source

KEY = BlockKey(7, 1)


class Memory:
    local_fd: int | None = None

    def __init__(self, identity: int, data: bytes, error: HearthError | None = None) -> None:
        self.identity, self.data, self.error = identity, data, error
        self.length_bytes = len(data)
        self.worker_id = f"w{identity}"
        self.closed = False
        self.gate = trio.Event()
        self.gate.set()

    def try_load(self, start: int, view: memoryview) -> bool:
        return False

    async def load(self, start: int, view: memoryview) -> None:
        await self.gate.wait()
        assert not self.closed
        if self.error is not None:
            raise self.error
        view[:] = self.data[start : start + len(view)]

    def close(self) -> None:
        self.closed = True


def block(*sources: Memory) -> tuple[SealedBlock, list[str]]:
    left, reported = list(sources), []

    async def next_source() -> Source | None:
        return left.pop(0) if left else None

    return SealedBlock(KEY, 5, VerifiedChunks(), next_source, lambda key, who, why: reported.append(who)), reported


def test_next_source_serves_when_the_first_has_bad_bytes() -> None:
    bad, good = Memory(1, b"xxxxx", BlockCorrupt("bad")), Memory(2, b"hello")
    sealed, reported = block(bad, good)

    async def main() -> None:
        assert bytes(await sealed.read(1, 3)) == b"ell"
        assert reported == ["w1"]
        assert bad.closed
        assert not sealed.broken

    trio.run(main)


def test_unreachable_source_is_not_reported() -> None:
    sealed, reported = block(Memory(1, b"hello", Unavailable("gone")), Memory(2, b"hello"))
    assert bytes(trio.run(sealed.read, 0, 5)) == b"hello"
    assert reported == []


def test_without_any_good_source_the_read_fails() -> None:
    sealed, _ = block(Memory(1, b"hello", BlockMissing("gone")))
    with pytest.raises(Unavailable):
        trio.run(sealed.read, 0, 5)
    assert sealed.broken


def test_source_is_not_closed_under_a_reader() -> None:
    source = Memory(1, b"hello")
    sealed, _ = block(source)

    async def main() -> None:
        source.gate = trio.Event()
        result = []

        async def read() -> None:
            result.append(bytes(await sealed.read(0, 5)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            sealed.close()
            assert not source.closed
            source.gate.set()
        assert result == [b"hello"]
        assert source.closed

    trio.run(main)


def test_verify_reads_it_all_and_goes_on_with_the_next_source() -> None:
    bad, good = Memory(1, b"xxxxx", BlockCorrupt("bad")), Memory(2, b"hello")
    bad.local_fd = 9
    sealed, reported = block(bad, good)

    async def main() -> None:
        await sealed.prepare()
        assert sealed.local_fd == 9
        await sealed.verify()
        assert sealed.local_fd is None
        assert reported == ["w1"]

    trio.run(main)
