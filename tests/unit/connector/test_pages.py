import numpy as np
from hearthfs.connector.pages import PageMover, Pages
from hearthfs.connector.pieces import Piece


def layers(blocks: int, page: int, stride: int, count: int, seed: int) -> list[Pages]:
    random = np.random.default_rng(seed)
    return [random.integers(-128, 128, (blocks, stride), dtype=np.int8)[:, :page] for _ in range(count)]


def test_gather_then_scatter_is_the_identity_for_other_blocks() -> None:
    source, target = layers(10, 96, 128, 3, 1), layers(10, 96, 128, 3, 2)
    before = [pages.copy() for pages in target]
    there, back = PageMover([source], 4), PageMover([target], 4)
    payload = memoryview(bytearray(there.payload_bytes[0]))
    assert len(payload) == 4 * 3 * 96
    there.gather(Piece("a", 0, 0, (9, 2, 7, 4)), payload)
    back.scatter(Piece("a", 0, 0, (1, 3, 5, 8)), payload)
    for src, dst, old in zip(source, target, before, strict=True):
        assert (dst[[1, 3, 5, 8]] == src[[9, 2, 7, 4]]).all()
        assert (dst[[0, 2, 4, 6, 7, 9]] == old[[0, 2, 4, 6, 7, 9]]).all()


def test_part_of_a_chunk() -> None:
    source, target = layers(10, 8, 8, 2, 1), layers(10, 8, 8, 2, 2)
    payload = memoryview(bytearray(PageMover([source], 4).payload_bytes[0]))
    payload[:] = b"\xff" * len(payload)
    PageMover([source], 4).gather(Piece("a", 0, 2, (5, 6)), payload)
    assert bytes(payload[:16]) == bytes(16), "places without a block are zero, not what was there before"
    PageMover([target], 4).scatter(Piece("a", 0, 3, (1,)), payload)
    assert all((dst[1] == src[6]).all() for src, dst in zip(source, target, strict=True))


def test_the_placeholder_block_is_never_written() -> None:
    (pages,) = target = layers(4, 8, 8, 1, 1)
    before = pages.copy()
    mover = PageMover([target], 2)
    mover.scatter(Piece("a", 0, 0, (0, 3)), memoryview(bytes(mover.payload_bytes[0])))
    assert (pages[0] == before[0]).all()
    assert (pages[3] == 0).all()


def test_groups_have_their_own_layers() -> None:
    mover = PageMover([layers(4, 8, 8, 1, 1), layers(4, 16, 16, 2, 2)], 1)
    assert mover.payload_bytes == [8, 32]
