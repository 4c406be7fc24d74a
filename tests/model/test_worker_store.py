"""The store against a dictionary, with restarts, kills, lost indexes and meddling hands."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hearthfs.common.errors import BlockCorrupt, BlockMissing, Exists, InvalidArgument, NotFound
from hearthfs.common.types import BlockKey
from hearthfs.tests.unit.worker.parts import StoreMaker, block_path, pattern, read_all, sums
from hearthfs.worker.reconcile import reconcile
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

KEYS = st.sampled_from([BlockKey(1, 1), BlockKey(1, 2), BlockKey(257, 1)])
SIZES = st.sampled_from([0, 1, 5000, (1 << 20) + 3])


class StoreModel(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="worker-"))
        self.make = StoreMaker(self.directory)
        self.store = self.make()
        self.committed: dict[BlockKey, bytes] = {}
        self.working: dict[BlockKey, bytes] = {}

    def refused(self, error, do, *arguments, **more):
        with pytest.raises(error):
            do(*arguments, **more)

    @rule(key=KEYS, size=SIZES, seed=st.integers(0, 250))
    def write(self, key, size, seed):
        data = pattern(size, seed)
        if key in self.committed:
            self.refused(Exists, self.store.write, key, 0, [data], size)
            return
        self.store.write(key, 0, [data] if data else [], size)
        self.working[key] = data + self.working.get(key, b"")[size:]

    @rule(key=KEYS, sync=st.booleans(), given=st.booleans())
    def commit(self, key, sync, given):
        data = self.working.get(key, self.committed.get(key))
        if data is None:
            self.refused(NotFound, self.store.commit, key, 0, b"", sync=sync)
            return
        wrong = InvalidArgument if key in self.working else Exists
        self.refused(wrong, self.store.commit, key, len(data) + 1, b"", sync=sync)
        record = self.store.commit(key, len(data), sums(data) if given else b"", sync=sync)
        assert (record.length_bytes, record.checksums) == (len(data), sums(data))
        self.committed[key] = data
        self.working.pop(key, None)

    @rule(key=KEYS, size=SIZES, seed=st.integers(0, 250))
    def put(self, key, size, seed):
        self.write(key, size, seed)
        self.commit(key, False, True)

    @rule(key=KEYS)
    def read(self, key):
        if key in self.committed:
            assert read_all(self.store, key) == self.committed[key]
        else:
            self.refused(NotFound, self.store.open_read, key)

    @rule(key=KEYS)
    def discard(self, key):
        if key in self.committed:
            self.refused(Exists, self.store.discard, key)
        else:
            self.store.discard(key)
            self.working.pop(key, None)

    @rule(key=KEYS)
    def delete(self, key):
        self.store.delete(key)
        self.working.pop(key, None)
        self.committed.pop(key, None)

    @rule(key=KEYS, source=KEYS)
    def copy(self, key, source):
        if key not in self.working and key not in self.committed and source in self.committed:
            os.close(self.store.create_copy(key, source, 0).fd)
            self.working[key] = self.committed[source]

    @rule(crash=st.booleans(), index_lost=st.booleans(), scan=st.booleans())
    def restart(self, crash, index_lost, scan):
        if index_lost:
            shutil.rmtree(self.directory / "disk0" / "index")
        self.store = self.make(crash=crash or index_lost)
        if scan or index_lost:
            reconcile(self.store, lambda: False)

    @rule(key=KEYS, how=st.sampled_from(["flip", "cut", "remove"]), then=st.sampled_from(["", "restart", "scan"]))
    def meddle(self, key, how, then):
        data = self.committed.get(key)
        if not data:
            return
        file = block_path(self.store, key)
        if how == "remove":
            file.unlink()
        elif how == "cut":
            os.truncate(file, len(data) - 1)
        else:
            with file.open("r+b") as stream:
                stream.seek(len(data) // 2)
                stream.write(bytes([data[len(data) // 2] ^ 255]))
        if then:
            self.restart(True, False, then == "scan")
        seen_by_scan = then == "scan" and how != "flip"
        self.refused(NotFound if seen_by_scan else (BlockMissing, BlockCorrupt), self.store.open_read, key)
        self.refused(NotFound, self.store.open_read, key)
        del self.committed[key]

    @invariant()
    def the_books_are_right(self):
        self.store.refresh_working()
        disk = self.store.disks[0]
        files = [p for name in ("blocks", "working", "bad") for p in (disk.path / name).rglob("*") if p.is_file()]
        assert disk.space().used_bytes == sum(p.stat().st_blocks * 512 for p in files)
        assert self.store.catalog.blocks == len(self.committed)
        assert self.store.working_blocks == len(self.working)
        told = {(report.key, report.working) for report in self.store.reports()}
        assert told == {(k, False) for k in self.committed} | {(k, True) for k in self.working}

    def teardown(self):
        self.store.close()
        shutil.rmtree(self.directory)


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(deadline=None)
