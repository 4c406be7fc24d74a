from hearthfs.client import packed_names
from hearthfs.client.layout import Replica, Version
from hearthfs.client.packed_names import LookupResult
from hearthfs.common.types import BlockKey
from hearthfs.proto import common_pb2 as common
from hearthfs.proto import master_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.booleans(), max_size=70))
def test_bits_are_read_least_significant_first(flags: list[bool]) -> None:
    bitmap = bytearray((len(flags) + 7) // 8)
    for index, flag in enumerate(flags):
        bitmap[index // 8] |= flag << index % 8
    assert packed_names.bits(bytes(bitmap), len(flags)) == flags


def test_a_short_bitmap_is_misses_and_a_long_one_is_cut() -> None:
    assert packed_names.bits(b"", 3) == [False] * 3
    assert packed_names.bits(b"\xff\xff", 3) == [True] * 3


@given(st.lists(st.binary(min_size=1, max_size=255), max_size=60))
def test_groups_hold_all_names_in_order(names: list[bytes]) -> None:
    assert [name for group in packed_names.split(names) for name in group] == names


def test_groups_are_bounded() -> None:
    many = packed_names.split([b"x" * 255] * 20_000)
    assert max(len(group) for group in many) <= packed_names.MAX_NAMES
    assert max(sum(map(len, group)) for group in many) <= packed_names.MAX_BYTES


def test_names_of_one_width_have_no_separator() -> None:
    assert packed_names.pack([b"aa", b"bb"]) == common.PackedNames(width=2, packed=b"aabb")
    assert packed_names.pack([b"a", b"bb"]) == common.PackedNames(names=[b"a", b"bb"])


def test_layouts_go_to_the_hits() -> None:
    reply = pb.LookupManyReply(
        found=b"\x05",
        inodes=[10, 11],
        blocks=[20, 0],
        generations=[1, 0],
        lengths_bytes=[5, 0],
        digests=[9, 0],
        sizes_bytes=[5, 3],
        worker_indexes=[0, 0],
        valid_bytes=[5, 0],
        workers=[common.WorkerAddress(worker_id="w", address="h:1")],
    )
    result = packed_names.result(reply, 3, True)
    assert result.found == [True, False, True]
    assert result.versions == [
        Version(10, 5, BlockKey(20, 1), 5, 5, 9, (Replica("w", "", "h:1"),)),
        None,
        Version(11, 3, None),
    ]


def test_leading_hits_stop_at_the_first_gap() -> None:
    assert LookupResult([True, True, False, True], []).leading_hits == 2
    assert LookupResult([True, True], []).leading_hits == 2
    assert LookupResult([False], []).leading_hits == 0
    assert LookupResult([], []).leading_hits == 0
