import errno
import os

import pytest
from hearthfs.common.errors import BlockCorrupt
from hearthfs.tests.unit.worker.parts import FailingCalls, pattern, sums
from hearthfs.worker import copying
from hearthfs.worker.copying import copy_file, verify_file

SIZES = [0, 1, 4096, (1 << 20) + 5, 3 << 20]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr(copying, "STEP_BYTES", 1 << 20)


@pytest.fixture
def files(tmp_path):
    opened = []

    def make(name, data=b""):
        fd = os.open(tmp_path / name, os.O_RDWR | os.O_CREAT)
        os.pwrite(fd, data, 0)
        opened.append(fd)
        return fd

    yield make
    for fd in opened:
        os.close(fd)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("without", [(), ("clone",), ("clone", "copy-range")])
def test_each_way_copies_all_bytes(files, size, without):
    data = pattern(3 << 20)
    calls = FailingCalls()
    for step in without:
        calls.errors[step] = OSError(errno.EXDEV, "injected")
    source, target = files("a", data), files("b")
    how = copy_file(calls, source, target, size, len(data))
    assert os.pread(target, len(data) + 1, 0) == data[:size]
    assert how == "bytes" or "copy-range" not in without


def test_a_kernel_copy_that_stops_half_way_goes_on_by_bytes(files):
    data = pattern(3 << 20)
    calls = FailingCalls()
    calls.errors = {"clone": OSError(errno.ENOTTY, ""), "copy-range": OSError(errno.EXDEV, "")}
    calls.after = {"copy-range": 1}
    target = files("b")
    copy_file(calls, files("a", data), target, len(data), len(data))
    assert os.pread(target, len(data), 0) == data


@pytest.mark.parametrize("step", ["clone", "copy-range"])
def test_no_space_is_not_taken_for_cannot(files, step):
    calls = FailingCalls()
    calls.errors["clone"] = OSError(errno.EXDEV, "")
    calls.errors[step] = OSError(errno.ENOSPC, "")
    with pytest.raises(OSError) as raised:
        copy_file(calls, files("a", b"abc"), files("b"), 3, 3)
    assert raised.value.errno == errno.ENOSPC


@pytest.mark.parametrize("size", SIZES)
def test_a_good_file_passes(files, size):
    data = pattern(size)
    verify_file(FailingCalls(), files("a", data), size, sums(data), "block")


@pytest.mark.parametrize("at", [0, 1 << 20, (3 << 20) - 1])
def test_one_flipped_byte_is_found(files, at):
    data = pattern(3 << 20)
    fd = files("a", data)
    os.pwrite(fd, bytes([data[at] ^ 1]), at)
    with pytest.raises(BlockCorrupt, match=f"chunk {at >> 20}"):
        verify_file(FailingCalls(), fd, len(data), sums(data), "block")


def test_a_short_file_is_found(files):
    data = pattern(3 << 20)
    with pytest.raises(BlockCorrupt):
        verify_file(FailingCalls(), files("a", data[:-1]), len(data), sums(data), "block")
