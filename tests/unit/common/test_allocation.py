import ctypes
from types import SimpleNamespace

import pytest
from hearthfs.common import allocation


@pytest.mark.parametrize(("accepted", "kept"), [(1, True), (0, False)])
def test_large_buffers_stay_with_the_process(monkeypatch, accepted, kept):
    calls = {}

    def mallopt(option, value):
        calls[option] = value
        return accepted

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    assert allocation.keep_buffers() is kept
    assert calls[-3] == 64 << 20  # M_MMAP_THRESHOLD of malloc.h
    if kept:
        assert calls[-1] == 256 << 20  # M_TRIM_THRESHOLD


def test_another_libc_is_no_error(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    assert allocation.keep_buffers() is False
