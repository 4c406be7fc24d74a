from pathlib import Path

import pytest
from hearthfs.bench.kv_files import PAGE_BYTES, Contents, KvFiles, WrongBytesError, end_threads


def test_no_page_occurs_twice() -> None:
    contents = Contents(8 * PAGE_BYTES, 80)
    pages = [bytes(view[at : at + PAGE_BYTES]) for view in contents.views for at in range(0, len(view), PAGE_BYTES)]
    assert len(set(pages)) == len(pages) == 640


@pytest.mark.parametrize("threads", [1, 4])
def test_files_come_back_as_they_were(tmp_path: Path, threads: int) -> None:
    contents = Contents(3 * PAGE_BYTES, 5)
    files = KvFiles(tmp_path / "kv", contents, threads)
    stored, loaded = files.store(), files.load()
    files.verify()
    end_threads()
    assert len(stored.calls_s) == len(loaded.calls_s) == 5
    assert stored.value > 0
    assert sorted(each.name for each in (tmp_path / "kv").iterdir()) == [files.name(at) for at in range(5)]


def test_a_page_of_another_file_is_told_apart(tmp_path: Path) -> None:
    files = KvFiles(tmp_path, Contents(2 * PAGE_BYTES, 2), 1)
    files.store()
    one, other = (tmp_path / files.name(at) for at in (0, 1))
    one.write_bytes(one.read_bytes()[:PAGE_BYTES] + other.read_bytes()[PAGE_BYTES:])
    with pytest.raises(WrongBytesError, match="file 0"):
        files.verify()


def test_a_short_file_is_no_measurement(tmp_path: Path) -> None:
    files = KvFiles(tmp_path, Contents(2 * PAGE_BYTES, 1), 1)
    files.store()
    (tmp_path / files.name(0)).write_bytes(b"x" * PAGE_BYTES)
    with pytest.raises(WrongBytesError, match="ended after 4096 of 8192 bytes"):
        files.load()


def test_another_mount_of_the_same_files_is_read_when_asked(tmp_path: Path) -> None:
    files = KvFiles(tmp_path / "here", Contents(PAGE_BYTES, 1), 1)
    files.store()
    (tmp_path / "here").rename(tmp_path / "there")
    files.verify(directory=str(tmp_path / "there"))
    with pytest.raises(FileNotFoundError):
        files.load()
