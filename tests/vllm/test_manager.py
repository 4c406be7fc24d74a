"""The scheduler half with vLLM's types, without an engine."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Sequence

from hearthfs.common.clock import FakeClock
from hearthfs.connector.identity import chunk_name
from hearthfs.connector.lookups import LookupTable
from hearthfs.connector.notices import Notices
from hearthfs.connector.settings import ConnectorSettings
from hearthfs.tests.unit.connector.fakes import Log

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM and torch warn about themselves while they are imported
    from hearthfs.connector.manager import HearthManager
    from hearthfs.connector.report import HearthWorkerReport
    from vllm.v1.kv_offload import base

SETTINGS = ConnectorSettings(root="/kv")


def key(number: int, group: int = 0) -> bytes:
    made: bytes = base.make_offload_key(number.to_bytes(32, "big"), group)
    return made


class Bench:
    def __init__(self, ranks: int = 1) -> None:
        self.there: set[str] = set()
        self.clock = FakeClock()
        notices = Notices(Log())
        self.table = LookupTable(self.ask, SETTINGS, notices, self.clock)
        self.manager = HearthManager(self.table, (0, 2), ranks, SETTINGS, notices, emit_events=True, clock=self.clock)
        self.request = base.ReqContext(req_id="r")

    def ask(self, names: Sequence[str]) -> list[bool]:
        return [name in self.there for name in names]

    def store(self, *keys: bytes) -> list[bytes]:
        return list(self.manager.prepare_store(keys, self.request).keys_to_store)

    def report(self, **what: object) -> None:
        self.manager.take_report(HearthWorkerReport(**what))


def test_lookup_is_asked_once_per_step_then_answered() -> None:
    bench = Bench()
    bench.there = {chunk_name(key(1))}
    results = base.LookupResult
    ask = bench.manager.lookup
    assert [ask(key(n), bench.request) for n in (1, 2)] == [results.RETRY, results.RETRY]
    bench.manager.on_schedule_end(base.ScheduleEndContext((), ()))
    batch = bench.table._queue.get()
    assert batch is not None
    bench.table.answer_batch(batch)
    assert [ask(key(n), bench.request) for n in (1, 2)] == [results.HIT, results.MISS]


def test_a_bug_in_lookup_is_a_miss() -> None:
    bench = Bench()
    assert bench.manager.lookup(bytes(300), bench.request) is base.LookupResult.MISS


def test_what_is_being_stored_or_stored_is_not_stored_again() -> None:
    bench = Bench()
    assert bench.store(key(1), key(2)) == [key(1), key(2)]
    assert bench.store(key(1), key(2), key(3)) == [key(3)]
    bench.report(stored={chunk_name(key(1)): 1}, dropped={chunk_name(key(2)): "slow"})
    assert bench.store(key(1), key(2)) == [key(2)]


def test_stored_means_stored_on_every_rank() -> None:
    bench = Bench(ranks=2)
    bench.store(key(1), key(2))
    both = HearthWorkerReport(stored={chunk_name(key(1)): 1}).aggregate(
        HearthWorkerReport(stored={chunk_name(key(1)): 1, chunk_name(key(2)): 1})
    )
    bench.manager.take_report(both)
    assert [list(event.keys) for event in bench.manager.take_events()] == [[key(1)]]
    assert not bench.table.is_stored(chunk_name(key(2)))


def test_a_drop_on_one_rank_is_no_store() -> None:
    bench = Bench(ranks=2)
    bench.store(key(1))
    bench.report(stored={chunk_name(key(1)): 1}, dropped={chunk_name(key(1)): "slow"})
    assert list(bench.manager.take_events()) == []
    assert bench.store(key(1)) == [key(1)]


def test_a_failed_load_is_replaced_by_the_next_store() -> None:
    bench = Bench()
    bench.report(failed_loads={chunk_name(key(1)): "flipped"})
    assert bench.manager.lookup(key(1), bench.request) is base.LookupResult.MISS
    output = bench.manager.prepare_store([key(1), key(2)], bench.request)
    assert output.store_spec.replace == {chunk_name(key(1))}


def test_a_store_that_nobody_reports_is_forgotten() -> None:
    bench = Bench()
    bench.store(key(1))
    bench.clock.advance(1000)
    assert bench.store(key(1)) == [key(1)]


def test_groups_are_numbered_as_the_workers_have_them() -> None:
    bench = Bench()
    files = bench.manager.prepare_load([key(1, 0), key(1, 2)], bench.request)
    assert files.groups == [0, 1]


def test_chunks_of_generated_tokens_are_counted() -> None:
    bench = Bench()
    bench.manager.note_prompt("r", 200)
    bench.request.set_offload_key_position(key(1), 128)
    bench.request.set_offload_key_position(key(2), 256)
    bench.store(key(1), key(2))
    bench.report(stored={chunk_name(key(1)): 1, chunk_name(key(2)): 1})
    stats = bench.manager.get_stats()
    assert stats is not None
    values = stats.reduce()
    assert values["vllm:hearth_kv_stored_chunks"] == 2
    assert values["vllm:hearth_kv_stored_decode_chunks"] == 1


def test_reset_forgets_but_removes_no_file() -> None:
    bench = Bench()
    bench.store(key(1))
    bench.manager.reset_cache()
    assert bench.store(key(1)) == [key(1)]


def test_block_hashes_are_the_same_in_every_process() -> None:
    """R062, R063: golden values of vLLM's hashes for a chain of two blocks, without PYTHONHASHSEED."""
    code = """
import os; os.environ.pop("PYTHONHASHSEED", None)
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils as utils
for name in ("sha256", "sha256_cbor"):
    function = get_hash_fn_by_name(name)
    utils.init_none_hash(function)
    first = utils.hash_block_tokens(function, None, [1, 2, 3], None)
    print(utils.hash_block_tokens(function, first, [4, 5, 6], (("lora", "a", "b"), ("cache_salt", "s"))).hex())
"""
    runs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout
        for _ in range(2)
    }
    assert len(runs) == 1
    assert len(runs.pop().split()) == 2
