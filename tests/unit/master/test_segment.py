"""Segments of the journal: what was written comes back, or is refused by name at the record that is not whole."""

import re

import pytest
from hearthfs.common.errors import DataDamaged, NewerFormat, WrongCluster
from hearthfs.master import segment
from hearthfs.master.journal import Stored
from hypothesis import given
from hypothesis import strategies as st

CLUSTER = "c0ffee"
RECORDS = [Stored(number, bytes([number]) * number) for number in range(7, 12)]


def whole(records=tuple(RECORDS), cluster=CLUSTER):
    return segment.header(cluster) + b"".join(map(segment.packed, records))


@pytest.fixture
def written(tmp_path):
    """``written(data)``: a file of these bytes under the name of records 7 to 11."""

    def write(data, first=7, last=11):
        made = segment.named(tmp_path, first, last)
        made.path.write_bytes(data)
        return made

    return write


def prefix(made):
    """The records that came before the refusal, and its text."""
    found = []
    try:
        found.extend(made.records(CLUSTER))
    except DataDamaged as error:
        return found, str(error)
    return found, ""


@given(st.integers(1, 1 << 50), st.lists(st.binary(max_size=300), min_size=1), st.text(min_size=1, max_size=60))
def test_what_was_written_comes_back(tmp_path_factory, first, bodies, cluster):
    directory = tmp_path_factory.mktemp("segments")
    records = [Stored(number, body) for number, body in enumerate(bodies, first)]
    made = segment.named(directory, first, first + len(bodies) - 1)
    made.path.write_bytes(whole(records, cluster))
    assert list(made.records(cluster)) == records
    assert made.last_record(cluster) == records[-1]
    assert segment.listed(directory) == [made]


def test_every_cut_is_refused_by_name_at_the_record_that_is_not_whole(written):
    data, start = whole(), len(segment.header(CLUSTER))
    for cut in range(len(data)):
        found, refusal = prefix(written(data[:cut]))
        assert str(written(data[:cut]).path) in refusal
        complete = [n for n in range(len(RECORDS)) if cut >= len(whole(RECORDS[: n + 1]))]
        assert found == RECORDS[: len(complete)]
        if cut >= start:
            assert f"at record {7 + len(complete)} of 7 to 11" in refusal
            assert f"restore --to {6 + len(complete)} " in refusal
        assert "archive again" in refusal


def test_every_flipped_byte_of_the_last_record_is_refused_by_name_after_those_before(written):
    data, start = whole(), len(whole(RECORDS[:-1]))
    for place in range(start, len(data)):
        for flip in (1, 0x80, 0xFF):
            changed = bytearray(data)
            changed[place] ^= flip
            found, refusal = prefix(written(changed))
            assert found == RECORDS[:-1]
            assert "cut or damaged at record 11" in refusal
            assert "journal" in refusal


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_flipped_byte_anywhere_is_never_another_record(tmp_path_factory, place, flip):
    data = bytearray(whole())
    data[place % len(data)] ^= flip
    made = segment.named(tmp_path_factory.mktemp("segments"), 7, 11)
    made.path.write_bytes(data)
    found = []
    with pytest.raises((DataDamaged, NewerFormat), match=re.escape(str(made.path))):
        found.extend(made.records(CLUSTER))
    assert found == RECORDS[: len(found)]


@given(st.binary(max_size=400))
def test_any_bytes_are_refused(tmp_path_factory, data):
    made = segment.named(tmp_path_factory.mktemp("segments"), 7, 11)
    for start in (b"", segment.MAGIC, segment.header(CLUSTER)):
        made.path.write_bytes(start + data)
        with pytest.raises((DataDamaged, NewerFormat)):
            list(made.records(CLUSTER))


def test_the_segment_of_another_cluster_is_refused(written):
    with pytest.raises(WrongCluster, match="'other', not of 'c0ffee'"):
        list(written(whole(cluster="other")).records(CLUSTER))


def test_a_newer_format_is_not_called_damage(written):
    data = bytearray(whole())
    data[11] = 2
    with pytest.raises(NewerFormat, match="version 2"):
        list(written(data).records(CLUSTER))


def test_more_or_other_records_than_the_name_says_are_refused(written):
    assert "goes on after record 10" in prefix(written(whole(), 7, 10))[1]
    assert "at record 12" in prefix(written(whole(), 7, 12))[1]
    assert "at record 6" in prefix(written(whole(), 6, 11))[1]
    gap = [*RECORDS[:2], *RECORDS[3:]]
    assert "at record 9" in prefix(written(whole(gap)))[1]


def test_only_names_of_segments_are_listed(tmp_path):
    for name in ("segment.partial", "1-2.journal", f"{0:020d}-{1:020d}.journal", f"{5:020d}-{4:020d}.journal", "x"):
        (tmp_path / name).touch()
    names = [(11, 20), (1, 10), (21, 21)]
    for first, last in names:
        segment.named(tmp_path, first, last).path.touch()
    assert [(each.first, each.last) for each in segment.listed(tmp_path)] == sorted(names)
