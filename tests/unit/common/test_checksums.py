"""The accumulator against a naive twin; the verifier against every way to be wrong."""

import io
import random

import pytest
import xxhash
from hearthfs.common import checksums
from hearthfs.common.checksums import Accumulator, Verifier, chunk_count, digest, pack, unpack
from hearthfs.common.errors import BlockCorrupt
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

CHUNK = checksums.CHUNK_BYTES
SOURCE = random.Random(7).randbytes(4 << 20)


def naive(data: bytes) -> bytes:
    return pack([xxhash.xxh3_64_intdigest(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK)])


@pytest.mark.parametrize(("length", "count"), [(0, 0), (1, 1), (CHUNK - 1, 1), (CHUNK, 1), (CHUNK + 1, 2)])
def test_a_block_has_one_checksum_for_each_begun_chunk(length, count):
    assert chunk_count(length) == count


@given(st.lists(st.integers(0, (1 << 64) - 1)))
def test_packing_is_reversible(numbers):
    assert list(unpack(pack(numbers))) == numbers


def test_the_digest_depends_on_bytes_and_length_and_is_never_zero():
    packed = naive(b"x" * 100)
    assert digest(packed, 100) != digest(packed, 99)
    assert digest(packed, 100) != digest(naive(b"y" * 100), 100)
    assert digest(b"", 0) != 0


# ---------------------------------------------------------------- verifier


@pytest.fixture
def block() -> bytes:
    return SOURCE[: 2 * CHUNK + 1000]


@pytest.fixture
def verifier(block) -> Verifier:
    packed = naive(block)
    return Verifier(packed, len(block), digest(packed, len(block)))


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, CHUNK), (CHUNK, 2 * CHUNK), (0, 2 * CHUNK), (2 * CHUNK, None), (0, None), (CHUNK, None), (0, 0)],
)
def test_right_bytes_pass(block, verifier, start, end):
    verifier.check(start, block[start:end])


@given(st.data())
def test_any_flipped_bit_is_noticed(data):
    length = data.draw(st.integers(1, 2 * CHUNK + 1000))
    block = bytearray(SOURCE[:length])
    packed = naive(bytes(block))
    position = data.draw(st.integers(0, length - 1))
    block[position] ^= 1 << data.draw(st.integers(0, 7))
    verifier = Verifier(packed, length, digest(packed, length), "block 7")
    with pytest.raises(BlockCorrupt, match=rf"block 7: chunk {position // CHUNK} "):
        verifier.check(0, block)


@pytest.mark.parametrize(
    ("start", "end"),
    [(1, CHUNK), (0, CHUNK - 1), (0, 100), (2 * CHUNK, 2 * CHUNK + 999), (CHUNK, CHUNK + 5)],
)
def test_a_range_that_is_not_whole_chunks_is_refused_even_when_its_bytes_are_right(block, verifier, start, end):
    with pytest.raises(BlockCorrupt, match="not whole chunks"):
        verifier.check(start, block[start:end])


def test_bytes_beyond_the_end_are_refused(block, verifier):
    with pytest.raises(BlockCorrupt):
        verifier.check(2 * CHUNK, block[2 * CHUNK :] + b"x")
    with pytest.raises(BlockCorrupt):
        verifier.check(3 * CHUNK, b"x" * CHUNK)


def test_chunks_in_the_wrong_place_are_noticed(block, verifier):
    with pytest.raises(BlockCorrupt):
        verifier.check(0, block[CHUNK : 2 * CHUNK])


def test_a_list_of_the_wrong_length_is_refused_at_once(block):
    packed = naive(block)
    for wrong in (packed[:-8], packed + b"x" * 8, packed[:-1], b""):
        with pytest.raises(BlockCorrupt):
            Verifier(wrong, len(block), 0)


def test_a_list_of_another_version_is_refused_at_once(block):
    packed, other = naive(block), naive(block[:-1] + b"!")
    with pytest.raises(BlockCorrupt, match="digest"):
        Verifier(other, len(block), digest(packed, len(block)))


def test_an_unsealed_block_has_no_digest_to_compare(block):
    Verifier(naive(block), len(block), 0).check(0, block)


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("length", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_of_file_is_the_naive_list(tmp_path, length):
    path = tmp_path / "block"
    path.write_bytes(SOURCE[:length])
    with path.open("rb") as file:
        assert checksums.of_file(file.fileno(), length) == naive(SOURCE[:length])


def test_a_file_that_is_too_short_is_corrupt(tmp_path):
    path = tmp_path / "block"
    path.write_bytes(b"x" * 10)
    with path.open("rb") as file, pytest.raises(BlockCorrupt, match="ends at 10, 1 bytes are missing"):
        checksums.of_file(file.fileno(), 11)


# ---------------------------------------------------------------- accumulator

offsets = st.one_of(
    st.integers(0, 3 * CHUNK),
    st.sampled_from([0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK - 1]),
)
sizes = st.one_of(st.sampled_from([0, 1, 4096, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK]), st.integers(0, CHUNK * 2))


class AccumulatorAgainstAFile(RuleBasedStateMachine):
    """Any writes and truncations: the list is that of the bytes that are there, and nothing hashed too early stays."""

    @initialize()
    def begin(self) -> None:
        self.file = io.BytesIO()
        self.accumulator = Accumulator()
        self.end = 0

    def write(self, offset: int, size: int, salt: int) -> None:
        data = SOURCE[salt : salt + size]
        self.file.seek(0, io.SEEK_END)
        self.file.write(bytes(max(0, offset - self.file.tell())))
        self.file.seek(offset)
        self.file.write(data)
        self.accumulator.update(offset, data)
        self.end = offset + size

    @rule(offset=offsets, size=sizes, salt=st.integers(0, 1 << 16))
    def write_anywhere(self, offset: int, size: int, salt: int) -> None:
        self.write(offset, size, salt)

    @precondition(lambda self: self.end < 3 * CHUNK)
    @rule(size=sizes, salt=st.integers(0, 1 << 16))
    def write_on(self, size: int, salt: int) -> None:
        self.write(self.end, size, salt)

    @rule(length=offsets)
    def truncate(self, length: int) -> None:
        self.file.seek(0, io.SEEK_END)
        self.file.write(bytes(max(0, length - self.file.tell())))
        self.file.truncate(length)
        self.accumulator.truncate(length)

    @invariant()
    def the_list_is_the_naive_one(self) -> None:
        content = self.file.getvalue()
        got = self.accumulator.finish(len(content), lambda at, size: memoryview(content)[at : at + size])
        assert got == naive(content)


TestAccumulatorAgainstAFile = AccumulatorAgainstAFile.TestCase


@pytest.mark.parametrize("size", [1000, 4096, CHUNK - 1, CHUNK, 3 * CHUNK])
def test_what_is_written_in_order_is_not_read_back(size):
    accumulator, data = Accumulator(), SOURCE[: 3 * CHUNK + 500]
    for at in range(0, len(data), size):
        accumulator.update(at, data[at : at + size])

    def read_back(at: int, count: int) -> memoryview:
        raise AssertionError(f"{count} bytes at {at} were read back")

    assert accumulator.finish(len(data), read_back) == naive(data)


def test_a_short_read_back_is_an_error_not_a_checksum():
    accumulator = Accumulator()
    accumulator.update(10, b"x")
    with pytest.raises(BlockCorrupt, match="read 3 bytes of 11"):
        accumulator.finish(11, lambda at, size: memoryview(b"abc"))
