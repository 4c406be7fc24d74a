"""HearthTier over plain files, without an engine."""

from __future__ import annotations

import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hearthfs.common.errors import SettingsError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM and torch warn about themselves while they are imported
    from hearthfs.connector import HearthTier
    from vllm.v1.kv_offload import base
    from vllm.v1.kv_offload.config import (
        OffloadingCacheConfig,
        OffloadingConfig,
        OffloadingGroupConfig,
        OffloadingModelConfig,
        OffloadingParallelConfig,
    )
    from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob

ROW, ROWS = 8192, 8
CONTEXT = base.ReqContext(req_id="r")
END = base.ScheduleEndContext((), ())
HIT, MISS, RETRY = base.LookupResult.HIT, base.LookupResult.MISS, base.LookupResult.RETRY


def key(number: int) -> bytes:
    made: bytes = base.make_offload_key(number.to_bytes(32, "big"), 0)
    return made


def spec() -> types.SimpleNamespace:
    config = OffloadingConfig(
        groups=(OffloadingGroupConfig(128, ("layers.0",), 0),),
        worker_kv_bytes_per_block=ROW,
        enable_kv_cache_events=True,
        extra_config={},
        engine_id="e",
        model=OffloadingModelConfig("org/model", "float32"),
        cache=OffloadingCacheConfig(128, 1),
        parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False),
    )
    return types.SimpleNamespace(
        config=config, kv_events_config=types.SimpleNamespace(enable_kv_cache_events=True), blocks_per_chunk=1
    )


class Bench:
    def __init__(self, root: Path, **settings: object) -> None:
        self.pool = np.zeros((ROWS, ROW), dtype=np.int8)
        options = {"root": str(root), "backend": "plain", "weights_revision": "w", "hit_ttl_s": 0.05} | settings
        self.tier = HearthTier(spec(), memoryview(self.pool), "HearthTier", None, **options)
        wait_until(lambda: self.tier._storage.is_open)

    def run(self, job_id: int, load: bool, **rows: int) -> JobResult:
        keys = [key(int(name[1:])) for name in rows]
        job = TransferJob(job_id, keys, np.array(list(rows.values())), load, CONTEXT)
        (self.tier.submit_load if load else self.tier.submit_store)(job)
        results: list[JobResult] = []
        wait_until(lambda: bool(results.extend(self.tier.get_finished_jobs()) or results))
        assert not self.tier.has_pending_work()
        return results[0]

    def find(self, *numbers: int) -> list[base.LookupResult]:
        found: list[base.LookupResult] = []

        def step() -> bool:
            found[:] = [self.tier.lookup(key(number), CONTEXT) for number in numbers]
            self.tier.on_schedule_end(END)
            return RETRY not in found

        wait_until(step)
        return found


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.tier.shutdown()


def test_rows_come_back_into_other_rows(bench: Bench) -> None:
    bench.pool[1], bench.pool[2] = 11, 22
    assert bench.run(1, False, k1=1, k2=2).success
    assert bench.find(1, 2, 3) == [HIT, HIT, MISS]
    result = bench.run(2, True, k1=5, k2=6)
    assert (result.success, result.successful_keys, result.transfer_bytes) == (True, None, 2 * ROW)
    assert ((bench.pool[5] == 11).all(), (bench.pool[6] == 22).all()) == (True, True)


def test_another_engine_with_the_same_root_finds_them_and_one_with_other_weights_does_not(tmp_path: Path) -> None:
    first, same, other = Bench(tmp_path), Bench(tmp_path), Bench(tmp_path, weights_revision="v")
    first.run(1, False, k1=1)
    assert (same.find(1), other.find(1)) == ([HIT], [MISS])
    for one in (first, same, other):
        one.tier.shutdown()


def test_a_bad_chunk_is_a_partial_success_and_a_miss_until_stored_again(bench: Bench, tmp_path: Path) -> None:
    bench.pool[1], bench.pool[2] = 11, 22
    bench.run(1, False, k1=1, k2=2)
    (victim,) = tmp_path.rglob(f"{key(2).hex()}.kv")
    data = bytearray(victim.read_bytes())
    data[5] ^= 1
    victim.write_bytes(data)
    result = bench.run(2, True, k1=5, k2=6)
    assert (result.success, list(result.successful_keys)) == (False, [key(1)])
    assert not bench.pool[6].any(), "bad bytes are not delivered"
    assert bench.find(1, 2) == [HIT, MISS]
    removed = [event for event in bench.tier.take_events() if event.removed]
    assert [list(event.keys) for event in removed] == [[key(2)]]
    assert bench.run(3, False, k2=2).success
    assert bench.run(4, True, k2=7).success
    assert (bench.pool[7] == 22).all()


def test_stored_chunks_are_told(bench: Bench) -> None:
    bench.run(1, False, k1=1, k2=2)
    (event,) = bench.tier.take_events()
    assert (set(event.keys), event.medium, event.removed) == ({key(1), key(2)}, base.Medium.STORAGE, False)


def test_a_root_that_is_not_there_costs_stores_and_hits_only(tmp_path: Path) -> None:
    pool = np.zeros((ROWS, ROW), dtype=np.int8)
    tier = HearthTier(
        spec(), memoryview(pool), "HearthTier", None, root=str(tmp_path / "none"), backend="plain", weights_revision="w"
    )
    tier.submit_store(TransferJob(1, [key(1)], np.array([1]), False, CONTEXT))
    assert [(result.job_id, result.success) for result in tier.get_finished_jobs()] == [(1, False)]
    tier.lookup(key(1), CONTEXT)
    wait_until(lambda: tier.on_schedule_end(END) or tier.lookup(key(1), CONTEXT) is MISS)
    begin = time.monotonic()
    tier.shutdown()
    assert time.monotonic() - begin < 10
    assert not (tmp_path / "none").exists()


def test_settings() -> None:
    view = memoryview(np.zeros((ROWS, ROW), dtype=np.int8))
    with pytest.raises(SettingsError, match='"root" is missing'):
        HearthTier(spec(), view, "HearthTier", None)
    with pytest.raises(SettingsError, match="load_timeout_s"):
        HearthTier(spec(), view, "HearthTier", None, root="/kv", load_timeout_s=-1)
