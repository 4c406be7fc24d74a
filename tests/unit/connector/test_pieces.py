from hearthfs.connector.pieces import Piece, pair
from hypothesis import given
from hypothesis import strategies as st


def test_one_block_per_chunk() -> None:
    pieces, unclear = pair(["a", "b"], [0, 0], [7, 3], [2], [4], 1, whole=True)
    assert pieces == [Piece("a", 0, 0, (7,)), Piece("b", 0, 0, (3,))]
    assert unclear == []


def test_a_load_may_begin_and_end_inside_chunks() -> None:
    pieces, unclear = pair(["a", "b"], [0, 0], [5, 6, 7], [3], [2], 4, whole=False)
    assert pieces == [Piece("a", 0, 2, (5, 6)), Piece("b", 0, 0, (7,))]
    assert unclear == []


def test_several_groups() -> None:
    pieces, _ = pair(["a", "b", "c"], [0, 0, 1], [1, 2, 3], [2, 1], [0, 1], 1, whole=True)
    assert [(p.name, p.group, p.blocks) for p in pieces] == [("a", 0, (1,)), ("b", 0, (2,)), ("c", 1, (3,))]


def test_a_group_without_chunks() -> None:
    assert pair(["c"], [1], [3], [0, 1], [0, 1], 1, whole=True) == ([Piece("c", 1, 0, (3,))], [])


def test_a_hole_makes_a_store_unclear() -> None:
    """Four blocks per chunk, two chunks, one block of the second left out: it may be any of them."""
    pieces, unclear = pair(["a", "b"], [0, 0], [1, 2, 3, 4, 6, 7, 8], [7], [0], 4, whole=True)
    assert (pieces, unclear) == ([], ["a", "b"])


def test_other_groups_survive_an_unclear_one() -> None:
    pieces, unclear = pair(["a", "b", "c"], [0, 0, 1], [1, 2, 3, 4], [3, 1], [0, 0], 2, whole=True)
    assert (pieces, unclear) == ([], ["a", "b", "c"]), "one block of c is half a chunk"
    pieces, unclear = pair(["a", "b", "c"], [0, 0, 1], [1, 2, 3, 4, 5], [3, 2], [0, 0], 2, whole=True)
    assert [p.name for p in pieces] == ["c"]
    assert unclear == ["a", "b"]


def test_blocks_without_a_chunk_are_unclear() -> None:
    assert pair([], [], [1], [1], [0], 1, whole=False)[1] == ["1 blocks of group 0 without a chunk"]


@given(st.integers(1, 5), st.integers(1, 6), st.data())
def test_every_block_lands_at_its_place(blocks_per_chunk: int, chunks: int, data: st.DataObject) -> None:
    """What is stored whole and loaded from any start, to any end, meets its own place in its own chunk."""
    skip = data.draw(st.integers(0, blocks_per_chunk - 1))
    cut = data.draw(st.integers(0, blocks_per_chunk - 1))
    begin = blocks_per_chunk * data.draw(st.integers(0, 3))
    indices = list(range(begin + skip, begin + chunks * blocks_per_chunk - cut))
    names = [f"c{begin // blocks_per_chunk + n}" for n in range(chunks)]
    pieces, unclear = pair(names, [0] * chunks, indices, [len(indices)], [begin + skip], blocks_per_chunk, whole=False)
    if not indices:
        assert unclear == names
        return
    assert unclear == []
    placed = [(p.name, p.first + n, block) for p in pieces for n, block in enumerate(p.blocks)]
    assert placed == [(f"c{i // blocks_per_chunk}", i % blocks_per_chunk, i) for i in indices]
