import errno
import os
import tempfile

import pytest
import trio
from hearthfs.common.checksums import CHUNK_BYTES, of_file
from hearthfs.common.types import BlockKey
from hearthfs.fuse_client.working_file import WorkingFile
from hypothesis import given
from hypothesis import strategies as st


def working_file() -> WorkingFile:
    fd, path = tempfile.mkstemp()
    os.unlink(path)
    return WorkingFile(BlockKey(1, 1), fd, worker_id="w", address="", limit_bytes=0, local=True)


def test_sequential_writes_are_hashed_as_they_pass() -> None:
    working = working_file()
    data = os.urandom(2 * CHUNK_BYTES + 77)

    async def main() -> None:
        for offset in range(0, len(data), 300_000):
            await working.write(offset, data[offset : offset + 300_000])
        packed, digest = await working.checksums()
        assert packed == of_file(working.fd, len(data))
        assert digest

    trio.run(main)
    assert working.length_bytes == len(data)
    working.close()


@pytest.mark.leaks("trio keeps its threads for some seconds")
def test_a_write_that_failed_halfway_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    working = working_file()
    data = os.urandom(CHUNK_BYTES + 77)
    pwrite, full = os.pwrite, True

    def half(fd: int, view: memoryview, offset: int) -> int:
        if full and offset >= len(data):
            raise OSError(errno.ENOSPC, "full")
        return pwrite(fd, view[: len(view) // 2 + 1] if full else view, offset)

    monkeypatch.setattr(os, "pwrite", half)

    async def main() -> None:
        nonlocal full
        await working.write(0, data)
        with pytest.raises(OSError, match="full"):
            await working.write(100, data)
        assert os.fstat(working.fd).st_size == working.length_bytes == len(data)
        packed, _ = await working.checksums()
        assert packed == of_file(working.fd, len(data))
        full = False
        await working.write(len(data), b"more")
        packed, _ = await working.checksums()
        assert packed == of_file(working.fd, len(data) + 4)

    trio.run(main)
    working.empty()
    assert os.fstat(working.fd).st_size == 0
    working.close()


operations = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3 * CHUNK_BYTES), st.integers(1, 2 * CHUNK_BYTES)),
        st.tuples(st.just("truncate"), st.integers(0, 4 * CHUNK_BYTES), st.just(0)),
        st.tuples(st.just("append"), st.just(0), st.integers(1, CHUNK_BYTES)),
    ),
    max_size=8,
)


@pytest.mark.leaks("trio keeps an idle thread for a while")
@given(operations)
def test_checksums_are_those_of_the_file_whatever_was_done(done: list[tuple[str, int, int]]) -> None:
    working, model = working_file(), bytearray()

    async def main() -> None:
        for number, (kind, offset, size) in enumerate(done):
            if kind == "truncate":
                working.truncate(offset)
                del model[offset:]
                continue
            at = len(model) if kind == "append" else offset
            data = bytes([number + 1]) * size
            await working.write(at, data)
            model.extend(bytes(max(0, at + size - len(model))))
            model[at : at + size] = data
        packed, _ = await working.checksums()
        assert packed == of_file(working.fd, len(model))
        assert working.length_bytes == len(model)
        view = memoryview(bytearray(len(model)))
        assert working.read_into(0, view) == len(model)
        assert view == model

    trio.run(main)
    working.close()
