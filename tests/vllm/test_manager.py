"""The scheduler half with vLLM's types, without an engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import types
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest
from hearthfs.common.clock import FakeClock
from hearthfs.connector.breakeven import BreakEven
from hearthfs.connector.identity import chunk_name, tenant_directory
from hearthfs.connector.lookups import CHECK_INTERVAL_S, LookupTable
from hearthfs.connector.notices import Notices
from hearthfs.connector.settings import ConnectorSettings
from hearthfs.tests.unit.connector.fakes import Log
from hearthfs.tests.vllm.harness import block_hashes

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM and torch warn about themselves while they are imported
    from hearthfs.connector import metrics
    from hearthfs.connector.manager import HearthManager
    from hearthfs.connector.report import HearthWorkerReport
    from hearthfs.connector.scheduler_state import Prefix
    from vllm.v1.kv_offload import base

SETTINGS = ConnectorSettings(root="/kv")


def key(number: int, group: int = 0) -> bytes:
    made: bytes = base.make_offload_key(number.to_bytes(32, "big"), group)
    return made


class Bench:
    def __init__(self, ranks: int = 1, settings: ConnectorSettings = SETTINGS, watch: bool = False) -> None:
        self.there: set[str] = set()
        self.clock = FakeClock()
        self.log = Log()
        notices = Notices(self.log)
        self.table = LookupTable(self.ask, settings, notices, self.clock, watch)
        self.guard = BreakEven(1024, clock=self.clock)
        self.manager = HearthManager(
            self.table, (0, 2), ranks, settings, notices, self.guard, emit_events=True, clock=self.clock
        )
        self.request = base.ReqContext(req_id="r")

    def ask(self, names: Sequence[str]) -> list[bool]:
        return [name in self.there for name in names]

    def store(self, *keys: bytes) -> list[bytes]:
        return list(self.manager.prepare_store(keys, self.request).keys_to_store)

    def teach(self, prefill_tokens_per_s: float, load_s: float) -> None:
        """Shows the guard a node that takes ``load_s`` for any load."""
        for tokens in (100, 1000, 2000):
            self.manager.begin_step(tokens)
            self.clock.advance(tokens / prefill_tokens_per_s)
            self.manager.end_step()
            self.manager.begin_load("teacher", tokens)
            self.clock.advance(load_s)
            self.manager.end_load("teacher", failed=False, late=False)
        self.manager.get_stats()

    def find(self, *keys: bytes, tokens: int = 1000) -> bool:
        return self.manager.find("r", tokens, lambda: keys)

    def work(self) -> None:
        question = self.table._queue.get_nowait()
        assert question is not None
        self.table.answer([question])

    def report(self, **what: object) -> None:
        self.manager.take_report(HearthWorkerReport(**what))


def test_lookup_is_asked_once_then_answered() -> None:
    bench = Bench()
    bench.there = {chunk_name(key(1))}
    results = base.LookupResult
    assert not bench.find(key(1), key(2))
    assert not bench.find(key(1), key(2))
    bench.work()
    assert bench.find(key(1), key(2))
    assert [bench.manager.lookup(key(n), bench.request) for n in (1, 2)] == [results.HIT, results.MISS]
    bench.manager.answered("r")
    assert bench.manager.lookup(key(1), bench.request) is results.MISS


def test_a_bug_in_lookup_is_a_miss() -> None:
    bench = Bench()
    bench.table._queue = None  # type: ignore[assignment]
    assert bench.find(key(1))
    assert bench.manager.lookup(key(1), bench.request) is base.LookupResult.MISS


def test_a_hit_that_would_lose_is_computed_and_said_so() -> None:
    bench = Bench()
    bench.teach(prefill_tokens_per_s=10_000, load_s=0.1)
    bench.there = {chunk_name(key(1))}
    bench.find(key(1), tokens=5000)
    bench.work()
    assert bench.find(key(1), tokens=5000)
    assert not bench.manager.admit("r", 500)
    assert bench.manager.lookup(key(1), bench.request) is base.LookupResult.MISS
    assert bench.find(key(1), tokens=5000), "for good: it is not asked again"
    values = bench.manager.get_stats().reduce()
    assert [value for name, value in values.items() if "decisions" in name and "slower" in name] == [1]
    assert "request r, 500 tokens: compute, the load would be slower; computing 50.0 ms" in bench.log.lines[-1]


def test_what_cannot_win_is_not_even_asked_for() -> None:
    bench = Bench()
    bench.teach(prefill_tokens_per_s=10_000, load_s=0.1)
    assert bench.find(key(1), tokens=500)
    assert bench.table._queue.empty()
    bench.manager.on_request_finished(bench.request)
    assert not bench.find(key(1), tokens=5000)


def test_a_load_has_a_multiple_of_what_computing_takes() -> None:
    bench = Bench()
    bench.manager.begin_load("r", 1000)
    assert bench.manager.prepare_load([key(1)], bench.request).timeout_s == SETTINGS.load_timeout_s
    bench.manager.end_load("r", failed=False, late=False)
    bench.teach(prefill_tokens_per_s=1000, load_s=0.01)
    for tokens, timeout_s in ((1000, 3.0), (50, SETTINGS.load_timeout_min_s), (9000, SETTINGS.load_timeout_s)):
        bench.manager.begin_load("r", tokens)
        assert bench.manager.prepare_load([key(1)], bench.request).timeout_s == pytest.approx(timeout_s)
        bench.manager.end_load("r", failed=False, late=False)


def test_loads_are_counted_with_what_they_saved() -> None:
    bench = Bench()
    bench.teach(prefill_tokens_per_s=1000, load_s=0.01)
    bench.manager.begin_load("r", 2000)
    bench.manager.end_load("r", failed=False, late=False)
    bench.manager.begin_load("s", 2000)
    bench.manager.end_load("s", failed=True, late=True)
    values = bench.manager.get_stats().reduce()
    assert values["vllm:hearth_kv_loaded_tokens"] == 2000
    assert values["vllm:hearth_kv_saved_prefill_seconds"] == pytest.approx(2.0, rel=0.01)


def test_a_worker_that_gets_no_answer_stops_the_questions() -> None:
    bench = Bench()
    bench.report(trouble="Unavailable: gone")
    assert bench.find(key(1))
    assert bench.table._queue.empty()


def test_steps_that_overlap_are_not_counted_twice() -> None:
    """With asynchronous scheduling the next step begins before the last one ends."""
    bench = Bench()
    for _ in range(5):
        bench.manager.begin_step(1000)
        bench.manager.begin_step(1000)
        for _ in range(2):
            bench.clock.advance(1.0)
            bench.manager.end_step()
    assert bench.guard.prefill_s(1000) == pytest.approx(1.0)


def test_how_deep_a_chunk_lies_goes_with_its_store() -> None:
    bench = Bench()
    for number, end in ((1, 256), (2, 512)):
        bench.request.set_offload_key_position(key(number), end)
    files = bench.manager.prepare_store([key(1), key(2)], bench.request).store_spec
    assert files.depths == (256, 512)


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
    output = bench.manager.prepare_store([key(1), key(2)], bench.request)
    assert output.store_spec.replace == {chunk_name(key(1))}


def test_a_store_that_nobody_reports_is_forgotten() -> None:
    bench = Bench()
    bench.store(key(1))
    bench.clock.advance(1000)
    assert bench.store(key(1)) == [key(1)]


def test_keys_of_a_prefix_are_those_that_vllm_makes() -> None:
    def group(index: int, hashes: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(group_idx=index, tokens_per_chunk=16 * hashes, hashes_per_chunk=hashes)

    config = types.SimpleNamespace(
        kv_group_configs=[group(0, 2), group(3, 1)], supports_partial_tail=False, tokens_per_hash=16
    )
    hashes = [bytes([n]) * 32 for n in range(7)]
    request = types.SimpleNamespace(num_tokens=7 * 16 + 5, block_hashes=hashes)
    scheduler = types.SimpleNamespace(config=config)
    prefix = Prefix.of(scheduler, request, 32)
    assert prefix is not None
    assert prefix.tokens == 7 * 16 + 5 - 32
    first = [base.make_offload_key(hashes[n], 0) for n in (3, 5)]
    assert prefix.keys() == first + [base.make_offload_key(hashes[n], 3) for n in range(2, 7)]
    assert Prefix.of(scheduler, request, 7 * 16) is None
    config.supports_partial_tail = True
    partial = Prefix.of(scheduler, request, 32)
    assert partial is not None
    assert set(prefix.keys()) < set(partial.keys())


def test_what_is_stored_and_what_is_gone_are_events() -> None:
    """Also what nobody asks for: a router must not send requests after chunks that were evicted."""
    bench = Bench(watch=True)
    bench.store(key(1), key(2), key(3))
    bench.there = {chunk_name(key(n)) for n in (1, 2, 3)}
    bench.report(stored=dict.fromkeys(bench.there, 1))
    events = list(bench.manager.take_events())
    assert {one for event in events for one in event.keys} == {key(1), key(2), key(3)}
    assert {(event.medium, event.removed) for event in events} == {(base.Medium.STORAGE, False)}
    bench.there.remove(chunk_name(key(2)))
    bench.table.check_announced()
    assert list(bench.manager.take_events()) == [], "not yet"
    bench.clock.advance(CHECK_INTERVAL_S)
    bench.table.check_announced()
    (gone,) = bench.manager.take_events()
    assert (list(gone.keys), gone.medium, gone.removed) == ([key(2)], base.Medium.STORAGE, True)
    bench.report(failed_loads={chunk_name(key(3)): "BlockCorrupt: flipped"})
    (bad,) = bench.manager.take_events()
    assert (list(bad.keys), bad.removed) == ([key(3)], True)
    assert bench.store(key(2)) == [key(2)], "it can be stored again"


def test_reasons_become_few_labels() -> None:
    assert metrics.kind("NoSpace: all workers are full") == "NoSpace"
    assert metrics.kind("backlog full") == "backlog full"


def test_every_figure_is_defined_and_the_dashboard_shows_only_those() -> None:
    defined = metrics.definitions()
    named = {value for name, value in vars(metrics).items() if name.isupper() and isinstance(value, str)}
    assert set(defined) == named
    text = (Path(metrics.__file__).parents[1] / "deploy" / "grafana" / "hearth-kv.json").read_text()
    board = json.loads(text)
    shown = set(re.findall(r"vllm:hearth_kv_[a-z_]+", text))
    exported = {name + ending for name in defined for ending in ("", "_total", "_bucket", "_sum", "_count")}
    assert shown <= exported
    counters = {name for name in defined if type(defined[name]).__name__ == "OffloadingCounterMetadata"}
    assert not shown & counters, "Prometheus exports counters with _total"
    assert {name for name in defined if any(one.startswith(name) for one in shown)} == set(defined), "each is shown"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_a_salted_request_stores_and_loads_in_its_tenant_directory() -> None:
    bench = Bench(settings=SETTINGS.model_copy(update={"tenants": True}))
    bench.manager.note_request("r", 100, "salt")
    output = bench.manager.prepare_store([key(1)], bench.request)
    assert output.store_spec.names == [f"{tenant_directory('salt')}/{chunk_name(key(1))}"]
    assert bench.manager.prepare_load([key(1)], bench.request).names == output.store_spec.names
    assert Bench().manager.prepare_load([key(1)], bench.request).names == [chunk_name(key(1))]


def test_groups_are_numbered_as_the_workers_have_them() -> None:
    bench = Bench()
    files = bench.manager.prepare_load([key(1, 0), key(1, 2)], bench.request)
    assert files.groups == [0, 1]


def test_chunks_of_generated_tokens_are_counted() -> None:
    bench = Bench()
    bench.manager.note_request("r", 200)
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


def test_block_hashes_are_the_same_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """R062, R063: without PYTHONHASHSEED."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    code = "from hearthfs.tests.vllm.harness import block_hashes; print(*block_hashes())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == block_hashes()
    assert len(set(block_hashes())) == 2
