import pytest
from hearthfs.common.errors import Conflict, DataDamaged, Unavailable, WrongCluster
from hearthfs.master import segment
from hearthfs.master.archive import PARTIAL_NAME, Archive
from hearthfs.master.journal import Stored

CLUSTER = "c"
MANY = 1 << 30


def records(first, last):
    return [Stored(number, b"%100d" % number) for number in range(first, last + 1)]


def ranges(directory):
    return [(each.first, each.last) for each in segment.listed(directory)]


def test_it_goes_on_after_the_last_whole_segment(tmp_path):
    place = tmp_path / "archive"
    with Archive(place, MANY) as archive:
        assert archive.last_record(CLUSTER) is None
        assert len(list(archive.write(CLUSTER, records(3, 5)))) == 1
    with Archive(place, MANY) as archive:
        assert archive.last_record(CLUSTER) == records(5, 5)[0]
        list(archive.write(CLUSTER, records(6, 6)))
        assert list(archive.write(CLUSTER, [])) == []
    assert ranges(place) == [(3, 5), (6, 6)]
    assert place.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o600}


def test_segments_have_a_bounded_size(tmp_path):
    with Archive(tmp_path, 300) as archive:
        made = list(archive.write(CLUSTER, records(1, 10)))
    assert ranges(tmp_path) == [(each.first, each.last) for each in made]
    assert made[-1].last == 10
    assert all(each.path.stat().st_size < 300 + 120 for each in made)
    assert [record for each in made for record in each.records(CLUSTER)] == records(1, 10)


@pytest.mark.parametrize("segment_bytes", [0, 1, 50])
def test_a_record_larger_than_a_segment_has_one_of_its_own(tmp_path, segment_bytes):
    with Archive(tmp_path, segment_bytes) as archive:
        list(archive.write(CLUSTER, records(1, 3)))
    assert ranges(tmp_path) == [(1, 1), (2, 2), (3, 3)]


def test_what_came_before_the_master_went_is_kept(tmp_path):
    def broken():
        yield from records(1, 4)
        raise Unavailable("gone")

    with Archive(tmp_path, MANY) as archive, pytest.raises(Unavailable):
        list(archive.write(CLUSTER, broken()))
    assert ranges(tmp_path) == [(1, 4)]


def test_a_gap_is_not_archived(tmp_path):
    for segment_bytes in (MANY, 50):
        with Archive(tmp_path / str(segment_bytes), segment_bytes) as archive:
            with pytest.raises(DataDamaged, match="record 5 where 3 belongs"):
                list(archive.write(CLUSTER, [*records(1, 2), *records(5, 6)]))
            assert ranges(tmp_path / str(segment_bytes))[-1][1] == 2


def test_nothing_is_left_of_a_segment_that_was_not_finished(tmp_path):
    def bug():
        yield from records(1, 4)
        raise RuntimeError

    (tmp_path / PARTIAL_NAME).write_bytes(b"of one that was killed")
    with Archive(tmp_path, MANY) as archive:
        with pytest.raises(RuntimeError):
            list(archive.write(CLUSTER, bug()))
        assert list(tmp_path.iterdir()) == []


def test_two_at_a_time_are_refused(tmp_path):
    with Archive(tmp_path, MANY), pytest.raises(Conflict, match="another process"):
        Archive(tmp_path, MANY)
    Archive(tmp_path, MANY).__exit__()


def test_a_damaged_or_foreign_last_segment_is_refused_by_name(tmp_path):
    with Archive(tmp_path, MANY) as archive:
        (made,) = archive.write(CLUSTER, records(1, 4))
        assert archive.last_record(CLUSTER) == records(4, 4)[0]
        with pytest.raises(WrongCluster, match=made.path.name):
            archive.last_record("other")
    made.path.write_bytes(made.path.read_bytes()[:-1])
    with Archive(tmp_path, MANY) as archive, pytest.raises(DataDamaged, match=made.path.name):
        archive.last_record(CLUSTER)
