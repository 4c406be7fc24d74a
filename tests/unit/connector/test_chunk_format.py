import pytest
from hearthfs.common.errors import BlockCorrupt, HearthError, Stale
from hearthfs.connector.chunk_format import TRAILER_BYTES, file_bytes, open_sealed, seal
from hypothesis import given
from hypothesis import strategies as st

DIRECTORY = "model-0123/abcd/0"


def sealed(payload: bytes, name: str = "aa.kv", directory: str = DIRECTORY, first_block: int = 0) -> bytearray:
    file = bytearray(file_bytes(len(payload)))
    file[: len(payload)] = payload
    seal(file, len(payload), name, directory, first_block)
    return file


@given(st.binary(max_size=9000), st.integers(0, 100))
def test_round_trip(payload: bytes, first_block: int) -> None:
    file = sealed(payload, first_block=first_block)
    assert open_sealed(file, len(payload), "aa.kv", DIRECTORY) == first_block
    assert file[: len(payload)] == payload
    assert len(file) % 4096 == 0


@given(st.data())
def test_no_flipped_bit_passes(data: st.DataObject) -> None:
    payload = b"kv" * 3000
    file = sealed(payload)
    where = data.draw(st.sampled_from([*range(0, 6000, 7), *range(len(file) - TRAILER_BYTES, len(file), 5)]))
    file[where] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(HearthError):
        open_sealed(file, len(payload), "aa.kv", DIRECTORY)


def test_another_chunk_is_refused() -> None:
    with pytest.raises(Stale, match=r"b'bb\.kv'"):
        open_sealed(sealed(b"x" * 100, name="bb.kv"), 100, "aa.kv", DIRECTORY)


def test_another_directory_is_refused() -> None:
    with pytest.raises(Stale):
        open_sealed(sealed(b"x" * 100, directory="model-0123/abcd/1"), 100, "aa.kv", DIRECTORY)


def test_another_payload_length_of_the_same_file_length_is_refused() -> None:
    with pytest.raises(Stale):
        open_sealed(sealed(b"x" * 101), 100, "aa.kv", DIRECTORY)


@pytest.mark.parametrize("file", [b"", bytes(8191), bytes(8192), bytes(12288)])
def test_other_files_are_refused(file: bytes) -> None:
    with pytest.raises(BlockCorrupt):
        open_sealed(file, 100, "aa.kv", DIRECTORY)


def test_unverified_payload_still_checks_whose_it_is() -> None:
    file = sealed(b"x" * 100)
    file[0] ^= 1
    assert open_sealed(file, 100, "aa.kv", DIRECTORY, verify_payload=False) == 0
    with pytest.raises(BlockCorrupt):
        open_sealed(file, 100, "aa.kv", DIRECTORY)


def test_wrong_buffer_is_a_bug() -> None:
    with pytest.raises(ValueError, match="payload of 100"):
        seal(bytearray(100), 100, "aa.kv", DIRECTORY)
