import os

import pytest
from hearthfs.worker.os_calls import OsCalls


@pytest.fixture
def fd(tmp_path):
    made = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    yield made
    os.close(made)


def test_pread_gives_what_is_there(fd):
    calls = OsCalls()
    calls.pwrite("w", fd, b"abcdef", 2)
    assert calls.pread("r", fd, 4, 2) == b"abcd"
    assert calls.pread("r", fd, 100, 4) == b"cdef"
    assert calls.pread("r", fd, 100, 100) == b""


def test_pieces_of_a_short_read_or_write_are_put_together(fd, monkeypatch):
    calls = OsCalls()
    pread, pwrite = os.pread, os.pwrite
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 3), offset))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:2], offset))
    calls.pwrite("w", fd, b"abcdefgh", 0)
    assert calls.pread("r", fd, 8, 0) == b"abcdefgh"
    assert calls.pread("r", fd, 20, 1) == b"bcdefgh"


def test_open_follows_no_link(tmp_path):
    (tmp_path / "target").write_text("x")
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(OSError):
        OsCalls().open("o", str(tmp_path / "link"), os.O_RDONLY)
