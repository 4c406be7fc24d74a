import pytest
from hearthfs.client.layout import Replica, Version, in_order, pieces, present_bytes, version_of
from hearthfs.common.checksums import CHUNK_BYTES
from hearthfs.common.types import BlockKey
from hearthfs.proto import common_pb2 as common
from hypothesis import given
from hypothesis import strategies as st

HERE = Replica("w1", "n1", "h:1")
SAME_NODE = Replica("w2", "n1", "h:2")
FAR = Replica("w3", "n3", "h:3")
SUSPECT = Replica("w1", "n1", "h:1", suspect=True)


def test_this_nodes_worker_first_then_this_node_then_the_rest() -> None:
    assert in_order([FAR, SAME_NODE, HERE], "w1", "n1") == [HERE, SAME_NODE, FAR]


def test_suspect_last_even_when_it_is_here() -> None:
    assert in_order([SUSPECT, FAR], "w1", "n1") == [FAR, SUSPECT]


def test_tried_ones_are_left_out() -> None:
    assert in_order([FAR, HERE], "w1", "n1", {"w1"}) == [FAR]


def test_unnamed_nodes_are_not_one_node() -> None:
    assert in_order([FAR, Replica("w9", "", "h:9")], "", "") == [FAR, Replica("w9", "", "h:9")]


@given(st.integers(0, 5 * CHUNK_BYTES), st.integers(0, 5 * CHUNK_BYTES), st.integers(0, 5 * CHUNK_BYTES))
def test_pieces_cover_the_range_once_in_whole_chunks(offset: int, size: int, length: int) -> None:
    size = max(0, min(size, length - offset))
    offset = min(offset, length)
    at = offset
    for piece in pieces(offset, size, length):
        assert piece.start % CHUNK_BYTES == 0
        end = piece.start + piece.size
        assert end % CHUNK_BYTES == 0 or end == length
        assert piece.skip >= 0
        assert piece.take > 0
        assert piece.skip + piece.take <= piece.size
        assert piece.start + piece.skip == at
        assert piece.into == at - offset
        assert piece.direct or piece.size <= CHUNK_BYTES
        at += piece.take
    assert at == offset + size


def test_a_whole_file_is_one_direct_piece() -> None:
    (piece,) = pieces(0, 3 * CHUNK_BYTES + 7, 3 * CHUNK_BYTES + 7)
    assert piece.direct


@pytest.mark.parametrize(
    ("offset", "size", "expected"),
    [(0, 100, (50, 30)), (20, 20, (20, 10)), (30, 20, (20, 0)), (45, 100, (5, 0)), (50, 1, (0, 0)), (99, 1, (0, 0))],
)
def test_what_lies_beyond_the_valid_bytes_is_zeros(offset: int, size: int, expected: tuple[int, int]) -> None:
    version = Version(1, size_bytes=50, key=BlockKey(1, 1), length_bytes=40, valid_bytes=30)
    assert present_bytes(version, offset, size) == expected


def test_a_file_without_block_is_all_zeros() -> None:
    assert present_bytes(Version(1, 50, None), 0, 100) == (50, 0)


def test_version_of_an_entry() -> None:
    entry = common.Entry(
        attributes=common.Attributes(inode=7, size_bytes=9),
        extents=[common.Extent(block=1, generation=2, length_bytes=8, valid_bytes=8, digest=3, sealed=True)],
        replicas=[common.WorkerAddress(worker_id="w", node_id="n", address="h:1", suspect=True)],
    )
    assert version_of(entry) == Version(7, 9, BlockKey(1, 2), 8, 8, 3, (Replica("w", "n", "h:1", True),))
    assert version_of(common.Entry(attributes=common.Attributes(inode=7))) == Version(7, 0, None)
