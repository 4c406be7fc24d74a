"""The model itself: each promise once, in the words of its docstring."""

from __future__ import annotations

from hearthfs.tests.model.promises import File, resized


def file(*versions: bytes) -> File:
    return File([b"", *versions])


def test_opens_in_one_mount_share_a_view() -> None:
    f = file(b"1")
    one = f.open(1)
    assert f.open(1) is one
    assert f.open(2) is not one
    one.close()
    assert f.view(1) is one
    one.close()
    assert f.view(1) is None


def test_a_change_is_published_by_the_first_close() -> None:
    f = file(b"1")
    view = f.open(1)
    assert not view.publish(b"1", named=True)
    view.dirty = True
    assert f.published == b"1"
    assert view.publish(b"2", named=True)
    assert f.published == b"2"
    assert not view.publish(b"2", named=True)
    assert f.open(1) is view


def test_a_reader_keeps_its_version_and_others_get_the_new_one() -> None:
    f = file(b"1")
    reader = f.open(2)
    f.publish(b"2")
    assert reader.replaced
    assert f.versions[reader.version] == b"1"
    newer = f.open(2)
    assert newer is not reader
    assert f.versions[newer.version] == b"2"


def test_the_last_close_wins_and_is_the_view_to_join() -> None:
    f = file(b"1")
    one, two = f.open(1), f.open(2)
    one.dirty = two.dirty = True
    one.publish(b"one", named=True)
    later = f.open(2)
    assert later is not two
    two.publish(b"two", named=True)
    assert f.published == b"two"
    assert f.open(2) is two
    assert one.replaced
    assert later.replaced


def test_a_new_length_leaves_other_changes_unpublished() -> None:
    f = file(b"abc")
    view = f.open(1)
    view.dirty = True
    view.resized(2)
    assert f.published == b"ab"
    assert view.dirty
    assert not view.replaced


def test_a_file_without_name_is_published_to_nobody() -> None:
    f = file(b"1")
    view = f.open(1)
    view.dirty = True
    assert not view.publish(b"2", named=False)
    assert f.published == b"1"
    assert not view.dirty


def test_resized() -> None:
    assert resized(b"abc", 0) == b""
    assert resized(b"", 2) == b"\0\0"
