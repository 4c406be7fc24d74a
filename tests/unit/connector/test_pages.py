import numpy as np
from hearthfs.connector.pages import HostPages, Pages
from hearthfs.connector.pieces import Piece


def layers(blocks: int, page: int, stride: int, count: int, seed: int) -> list[Pages]:
    random = np.random.default_rng(seed)
    return [random.integers(-128, 128, (blocks, stride), dtype=np.int8)[:, :page] for _ in range(count)]


def test_gather_then_scatter_is_the_identity_for_other_blocks() -> None:
    source, target = layers(10, 96, 128, 3, 1), layers(10, 96, 128, 3, 2)
    before = [pages.copy() for pages in target]
    there, back = HostPages([source], 4), HostPages([target], 4)
    payload = memoryview(bytearray(there.payload_bytes[0]))
    assert len(payload) == 4 * 3 * 96
    there.gather([Piece("a", 0, 0, (9, 2, 7, 4))], [payload], None)
    back.scatter([Piece("a", 0, 0, (1, 3, 5, 8))], [payload], None)
    for src, dst, old in zip(source, target, before, strict=True):
        assert (dst[[1, 3, 5, 8]] == src[[9, 2, 7, 4]]).all()
        assert (dst[[0, 2, 4, 6, 7, 9]] == old[[0, 2, 4, 6, 7, 9]]).all()


def test_part_of_a_chunk() -> None:
    source, target = layers(10, 8, 8, 2, 1), layers(10, 8, 8, 2, 2)
    payload = memoryview(bytearray(HostPages([source], 4).payload_bytes[0]))
    payload[:] = b"\xff" * len(payload)
    HostPages([source], 4).gather([Piece("a", 0, 2, (5, 6))], [payload], None)
    assert bytes(payload[:16]) == bytes(16), "places without a block are zero, not what was there before"
    HostPages([target], 4).scatter([Piece("a", 0, 3, (1,))], [payload], None)
    assert all((dst[1] == src[6]).all() for src, dst in zip(source, target, strict=True))


def test_the_placeholder_block_is_never_written() -> None:
    (pages,) = target = layers(4, 8, 8, 1, 1)
    before = pages.copy()
    mover = HostPages([target], 2)
    mover.scatter([Piece("a", 0, 0, (0, 3))], [memoryview(bytes(mover.payload_bytes[0]))], None)
    assert (pages[0] == before[0]).all()
    assert (pages[3] == 0).all()


def test_groups_have_their_own_layers() -> None:
    mover = HostPages([layers(4, 8, 8, 1, 1), layers(4, 16, 16, 2, 2)], 1)
    assert mover.payload_bytes == [8, 32]


def test_layers_anywhere_in_memory_with_any_stride_and_page_length() -> None:
    """Against copying page by page: separate allocations, odd strides, pages of changing length."""
    random = np.random.default_rng(9)
    for _ in range(30):
        blocks, chunk = int(random.integers(4, 12)), int(random.integers(1, 4))
        shapes = [(int(random.integers(1, 5)) * 8, int(random.integers(0, 3)) * 8) for _ in range(4)]
        group = [layers(blocks, page, page + gap, 1, int(random.integers(1e9)))[0] for page, gap in shapes]
        chosen = tuple(int(block) for block in random.permutation(np.arange(1, blocks))[:chunk])
        mover = HostPages([group], chunk)
        payload = memoryview(bytearray(mover.payload_bytes[0]))
        mover.gather([Piece("a", 0, 0, chosen)], [payload], None)
        assert bytes(payload) == b"".join(pages[list(chosen)].tobytes() for pages in group)
        before = [pages.copy() for pages in group]
        new = random.bytes(len(payload))
        mover.scatter([Piece("a", 0, 0, chosen)], [memoryview(new)], None)
        mover.gather([Piece("a", 0, 0, chosen)], [payload], None)
        assert bytes(payload) == new
        others = [block for block in range(blocks) if block not in chosen]
        assert all((pages[others] == old[others]).all() for pages, old in zip(group, before, strict=True))
