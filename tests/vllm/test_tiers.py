"""Other doors into the namespace, with real engines on two nodes: HearthTier, and vLLM's own `fs` tier on the mount."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hearthfs.bench.engine import ONE_PROCESS, Engine
from hearthfs.client.client import Client
from hearthfs.tests.support.cluster import Cluster
from hearthfs.tests.vllm import harness
from hearthfs.tests.vllm.harness import TOKENS, prompt, reusable, wait_until

pytestmark = [
    pytest.mark.mount,
    pytest.mark.leaks("cluster, client and engines live as long as the module"),
    pytest.mark.timeout(600),
]

LENGTH = 700
CHUNKS = LENGTH // 128
OFFLOADING = {"kv_connector": "OffloadingConnector", "kv_connector_module_path": None}
TIERS: dict[str, dict[str, Any]] = {
    "HearthTier": {
        "type": "HearthTier",
        "module_path": "hearthfs.connector",
        "load_timeout_s": 5,
        "lookup_timeout_s": 3,
        "failed_ttl_s": 4,
        "from_a_newer_vllm": 1,
    },
    "fs": {"type": "fs", "n_read_threads": 2, "n_write_threads": 2},
}
ROOT_KEY = {"HearthTier": "root", "fs": "root_dir"}


@dataclass
class Doors:
    """Two engines with one kind of tier, on the two nodes of a cluster."""

    kind: str
    cluster: Cluster
    engines: list[Engine]
    client: Client

    def files(self) -> set[str]:
        top = f"/{self.kind}"
        if not self.client.isdir(top):
            return set()
        endings = (".kv", ".bin")
        return {
            f"{at}/{one.name}" for at, _, files in self.client.walk(top) for one in files if one.name.endswith(endings)
        }

    def compute(self, seed: int) -> tuple[list[int], list[int]]:
        """A new prompt on node 1, until it is in the namespace."""
        tokens, before = prompt(seed, LENGTH), self.files()
        cold = self.engines[0].generate(tokens, TOKENS)
        assert cold.cached_tokens == 0
        wait_until(lambda: len(self.files() - before) >= CHUNKS, "a prompt's chunks stored")
        return tokens, cold.tokens


@pytest.fixture(scope="module", params=list(TIERS))
def doors(
    request: pytest.FixtureRequest, small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Doors]:
    kind = request.param
    directory = tmp_path_factory.mktemp(f"doors-{kind}")
    with Cluster(directory / "cluster", workers=2, mounts=2) as cluster:
        client = cluster.client(1)
        client.makedirs(f"/{kind}", exist_ok=True)
        engines = []
        for node in (1, 2):
            extra = {
                "spec_name": "CpuTieringSpec",
                "spec_module_path": "hearthfs.tests.vllm.cpu_tiering",
                "cpu_bytes_to_use": 64 << 20,
                "block_size": 128,
                "secondary_tiers": [TIERS[kind] | {ROOT_KEY[kind]: str(cluster.mountpoint(node) / kind)}],
            }
            log = directory / f"engine{node}.log"
            engines.append(Engine(small_model, extra, log, environment=ONE_PROCESS, transfer=OFFLOADING))
        try:
            for engine in engines:
                engine.wait_ready()
            yield Doors(kind, cluster, engines, client)
        finally:
            for engine in engines:
                engine.kill()
            client.close()


def test_what_node_1_computed_node_2_finds(doors: Doors) -> None:
    tokens, cold = doors.compute(1)
    warm = doors.engines[1].generate(tokens, TOKENS)
    assert (warm.cached_tokens, warm.tokens) == (reusable(LENGTH), cold)


def test_a_chunk_of_another_prompt_under_our_name(doors: Doors) -> None:
    """HearthTier sees it and the prompt is computed; the `fs` tier, which has no header, gives another output."""
    before = doors.files()
    tokens, cold = doors.compute(2)
    mine = sorted(doors.files() - before)
    before = doors.files()
    doors.compute(3)
    theirs = sorted(doors.files() - before)
    for one, other in zip(mine, theirs, strict=True):
        doors.client.write_bytes(one, doors.client.read_bytes(other))
    again = doors.engines[1].generate(tokens, TOKENS)
    assert (again.tokens == cold) is (doors.kind == "HearthTier")


def test_keys_that_nobody_knows_are_named(doors: Doors) -> None:
    if doors.kind == "HearthTier":
        assert "from_a_newer_vllm" in doors.engines[0].log.read_text(errors="replace")


def test_a_hung_cluster_stops_neither_work_nor_exit(doors: Doors) -> None:
    """R039, v#54363. Of vLLM's `fs` tier only that it works is asked: it waits for a hung mount."""
    if doors.kind != "HearthTier":
        return
    tokens, cold = doors.compute(4)
    for name in ("master", "worker1", "worker2"):
        doors.cluster.stop(name)
    try:
        engine = doors.engines[1]
        assert engine.generate(tokens, TOKENS).tokens == cold
        assert engine.generate(harness.prompt(5, LENGTH), TOKENS).cached_tokens == 0
        assert engine.close(60) < 50, "it had to be killed"
    finally:
        for name in ("master", "worker1", "worker2"):
            doors.cluster.cont(name)
