"""Two nodes of one cluster, an engine on each: what one computed the other finds, and no fault of the cluster harms."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hearthfs.bench.engine import ONE_PROCESS, Engine
from hearthfs.client.client import Client
from hearthfs.tests.support.cluster import Cluster
from hearthfs.tests.vllm import harness
from hearthfs.tests.vllm.conftest import ALWAYS
from hearthfs.tests.vllm.harness import TOKENS, prompt, reusable, wait_until

pytestmark = [pytest.mark.mount, pytest.mark.leaks("cluster, client and engines live as long as the module")]

LENGTH = 700
BLOCKS = LENGTH // 128
MIN_BLOCK_BYTES = 100_000


@dataclass
class Nodes:
    """The cluster, and engine N (list index N - 1) with its root below mount N."""

    cluster: Cluster
    engines: list[Engine]
    client: Client

    def chunks(self) -> set[str]:
        if not self.client.isdir("/kv"):
            return set()
        return {f"{at}/{one.name}" for at, _, files in self.client.walk("/kv") for one in files if ".kv" in one.name}

    def block_files(self) -> set[Path]:
        files = (path for node in (1, 2) for path in self.cluster.disk(node).rglob("*") if path.is_file())
        return {path for path in files if path.stat().st_size > MIN_BLOCK_BYTES and path.suffix != ".mdb"}

    def compute(self, seed: int, node: int = 1) -> tuple[list[int], list[int], list[Path]]:
        """A new prompt, computed on one node and stored: its tokens, its output, its block files."""
        engine, tokens = self.engines[node - 1], prompt(seed, LENGTH)
        chunks, files = self.chunks(), self.block_files()
        cold = engine.generate(tokens, TOKENS)
        assert cold.cached_tokens == 0
        wait_until(lambda: len(self.chunks() - chunks) >= BLOCKS, "a prompt's chunks stored")
        engine.forget()
        return tokens, cold.tokens, sorted(self.block_files() - files)


@pytest.fixture(scope="module")
def nodes(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Mount 2 is not there yet; the first test brings it up."""
    directory = tmp_path_factory.mktemp("nodes")
    with Cluster(directory / "cluster", workers=2, mounts=2, start=False) as cluster:
        for name in ("master", "worker1", "worker2", "mount1"):
            cluster.start(name)
        cluster.mountpoint(2).mkdir()
        extra = ALWAYS | {"probe_interval_s": 1, "failed_ttl_s": 4, "lookup_timeout_s": 3, "load_timeout_s": 5}
        engines = [
            Engine(small_model, extra | {"root": str(cluster.mountpoint(node) / "kv")}, directory / f"engine{node}.log")
            for node in (1, 2)
        ]
        try:
            for engine in engines:
                engine.wait_ready()
            yield Nodes(cluster, engines, cluster.client(1))
        finally:
            for engine in engines:
                engine.kill()


def test_a_root_that_is_not_mounted_is_no_cache_and_stays_empty(nodes: Nodes) -> None:
    engine, directory = nodes.engines[1], nodes.cluster.mountpoint(2)
    tokens = prompt(1, LENGTH)
    first = engine.generate(tokens, TOKENS)
    engine.forget()
    again = engine.generate(tokens, TOKENS)
    assert (again.cached_tokens, again.tokens) == (0, first.tokens)
    assert list(directory.iterdir()) == []
    nodes.cluster.start("mount2")
    wait_until(lambda: "KV chunks in" in engine.log.read_text(errors="replace"), "the mount found")
    engine.forget()


def test_what_node_1_computed_node_2_finds(nodes: Nodes) -> None:
    tokens, cold, _ = nodes.compute(2)
    for engine in nodes.engines:
        warm = engine.generate(tokens, TOKENS)
        assert (warm.cached_tokens, warm.tokens) == (reusable(LENGTH), cold)
        engine.forget()


def test_hearth_kv_sees_what_engines_store(nodes: Nodes, tmp_path: Path) -> None:
    tokens, _, _ = nodes.compute(8)
    (tmp_path / "tokens.json").write_text(json.dumps(tokens))
    (tmp_path / "other.json").write_text(json.dumps(prompt(9, LENGTH)))

    def kv(*arguments: str) -> Any:
        done = nodes.cluster.hearth("kv", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    (row,) = kv("ls")
    assert row["chunks"] == len(nodes.chunks())
    found = kv("prefix", row["model"], "--tokens", str(tmp_path / "tokens.json"))
    assert (found["reusable_tokens"], {tuple(one["nodes"]) for one in found["chunks"]}) == (BLOCKS * 128, {("node1",)})
    assert kv("prefix", row["model"], "--tokens", str(tmp_path / "other.json"))["reusable_tokens"] == 0
    assert kv("verify") == {"good": row["chunks"], "bad": []}


def test_prefill_on_node_1_decode_on_node_2(nodes: Nodes) -> None:
    tokens, before = prompt(3, LENGTH), nodes.chunks()
    first = nodes.engines[0].generate(tokens, 1)
    wait_until(lambda: len(nodes.chunks() - before) >= BLOCKS, "the prefill stored")
    rest = nodes.engines[1].generate(tokens + first.tokens, TOKENS)
    assert rest.cached_tokens == reusable(LENGTH + 1)
    cold = nodes.engines[0].generate(tokens, TOKENS + 1, skip_reading_prefix_cache=True)
    assert first.tokens + rest.tokens == cold.tokens
    for engine in nodes.engines:
        engine.forget()


@pytest.mark.parametrize("reader", [1, 2], ids=["same node", "other node"])
@pytest.mark.parametrize("damage", [harness.flip, harness.truncate, harness.remove])
def test_a_damaged_block_is_never_delivered(nodes: Nodes, damage: Callable[[Path], None], reader: int) -> None:
    tokens, cold, files = nodes.compute(100 + 10 * reader + len(damage.__name__))
    damage(files[1])
    engine = nodes.engines[reader - 1]
    assert engine.generate(tokens, TOKENS).tokens == cold
    engine.forget()

    def healed() -> bool:
        warm = engine.generate(tokens, TOKENS)
        engine.forget()
        assert warm.tokens == cold
        return warm.cached_tokens == reusable(LENGTH)

    wait_until(healed, "the chunk stored again")


def test_a_dead_worker_is_a_miss_and_its_chunks_can_be_stored_again(nodes: Nodes) -> None:
    tokens, cold, _ = nodes.compute(4)
    nodes.cluster.kill("worker1")
    engine = nodes.engines[1]
    try:
        hits = []

        def found_again() -> bool:
            warm = engine.generate(tokens, TOKENS)
            engine.forget()
            assert warm.tokens == cold
            hits.append(warm.cached_tokens)
            return hits[-1] == reusable(LENGTH)

        wait_until(found_again, "stored again on the other worker", 60)
        assert hits[0] < reusable(LENGTH)
    finally:
        nodes.cluster.start("worker1")


def test_a_dead_master_costs_hits_only(nodes: Nodes) -> None:
    tokens, cold, _ = nodes.compute(5, node=2)
    nodes.cluster.kill("master")
    try:
        for engine in nodes.engines:
            assert engine.generate(tokens, TOKENS).tokens == cold
            engine.forget()
    finally:
        nodes.cluster.start("master")

    def found_again() -> bool:
        warm = nodes.engines[0].generate(tokens, TOKENS)
        nodes.engines[0].forget()
        assert warm.tokens == cold
        return warm.cached_tokens == reusable(LENGTH)

    wait_until(found_again, "hits after the master's return", 60)


def test_all_is_found_after_every_daemon_began_anew_by_a_new_engine(
    nodes: Nodes, small_model: Path, tmp_path: Path
) -> None:
    tokens, cold, _ = nodes.compute(10, node=2)
    for name in ("mount1", "mount2", "worker1", "worker2", "master"):
        nodes.cluster.term(name)
    for name in ("master", "worker1", "worker2", "mount1", "mount2"):
        nodes.cluster.start(name)
    extra = ALWAYS | {"root": str(nodes.cluster.mountpoint(1) / "kv"), "lookup_timeout_s": 3, "load_timeout_s": 5}
    with Engine(small_model, extra, tmp_path / "engine.log", environment=ONE_PROCESS) as engine:
        wait_until(lambda: "KV chunks in" in engine.log.read_text(errors="replace"), "the cluster found")
        warm = engine.generate(tokens, TOKENS)
    assert (warm.cached_tokens, warm.tokens) == (reusable(LENGTH), cold)


def test_a_hung_cluster_stops_neither_work_nor_exit(nodes: Nodes) -> None:
    tokens, cold, _ = nodes.compute(6)
    for name in ("master", "worker1", "worker2"):
        nodes.cluster.stop(name)
    try:
        engine = nodes.engines[0]
        assert engine.generate(tokens, TOKENS).tokens == cold
        assert engine.generate(prompt(7, LENGTH), TOKENS).cached_tokens == 0
        assert engine.close(30) < 25
    finally:
        for name in ("master", "worker1", "worker2"):
            nodes.cluster.cont(name)
