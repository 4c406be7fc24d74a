"""Two hundred requests on two nodes while all that can fail does, at random: each output equals the cold run's."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hearthfs.common.errors import HearthError
from hearthfs.tests.vllm import harness
from hearthfs.tests.vllm.harness import TOKENS, prompt, wait_until
from hearthfs.tests.vllm.test_cluster import Nodes, nodes

__all__ = ["nodes"]

pytestmark = [
    pytest.mark.full,
    pytest.mark.mount,
    pytest.mark.leaks("cluster, client and engines live as long as the module"),
    pytest.mark.timeout(1800),
]

REQUESTS, PROMPTS, SEED = 200, 12, 41


class Faults:
    """Each method injects one and gives what ends it, after the request."""

    def __init__(self, nodes: Nodes, source: random.Random) -> None:
        self.nodes, self.source = nodes, source

    def none(self) -> Callable[[], None]:
        return lambda: None

    def _file(self) -> Path | None:
        files = sorted(self.nodes.block_files())
        return self.source.choice(files) if files else None

    def flip(self) -> Callable[[], None]:
        return self._damage(harness.flip)

    def truncate(self) -> Callable[[], None]:
        return self._damage(harness.truncate)

    def remove(self) -> Callable[[], None]:
        return self._damage(harness.remove)

    def _damage(self, act: Callable[[Path], None]) -> Callable[[], None]:
        path = self._file()
        if path is not None:
            act(path)
        return lambda: None

    def evict_between_lookup_and_load(self) -> Callable[[], None]:
        """A few chunks vanish while the request runs."""
        chosen = self.source.sample(sorted(self.nodes.chunks()), 3)
        delay_s = self.source.uniform(0, 0.03)

        def evict() -> None:
            time.sleep(delay_s)
            for path in chosen:
                try:
                    self.nodes.client.unlink(path)
                except HearthError:
                    continue

        thread = threading.Thread(target=evict)
        thread.start()
        return thread.join

    def another_prompts_bytes(self) -> Callable[[], None]:
        one, other = self.source.sample(sorted(self.nodes.chunks()), 2)
        with contextlib.suppress(HearthError):
            self.nodes.client.write_bytes(one, self.nodes.client.read_bytes(other))
        return lambda: None

    def hung_worker(self) -> Callable[[], None]:
        name = self.source.choice(["worker1", "worker2"])
        self.nodes.cluster.stop(name)
        return lambda: self.nodes.cluster.cont(name)

    def dead_worker(self) -> Callable[[], None]:
        name = self.source.choice(["worker1", "worker2"])
        self.nodes.cluster.kill(name)
        return lambda: self.nodes.cluster.start(name)

    def dead_master(self) -> Callable[[], None]:
        self.nodes.cluster.kill("master")
        return lambda: self.nodes.cluster.start("master")


RARE = ("hung_worker", "dead_worker", "dead_master")
COMMON = ("none", "none", "flip", "truncate", "remove", "evict_between_lookup_and_load", "another_prompts_bytes")


def test_two_hundred_of_two_hundred(nodes: Nodes) -> None:
    nodes.cluster.start("mount2")
    wait_until(lambda: "KV chunks in" in nodes.engines[1].log.read_text(errors="replace"), "the second node", 60)
    source = random.Random(SEED)
    faults = Faults(nodes, source)
    known = [nodes.compute(1000 + number)[:2] for number in range(PROMPTS)]
    wrong, hits = [], 0
    seen: Counter[str] = Counter()
    for number in range(REQUESTS):
        kind = source.choice(RARE if number % 15 == 14 else COMMON)
        tokens, cold = source.choice(known)
        engine = nodes.engines[number % 2]
        end = getattr(faults, kind)()
        try:
            given = engine.generate(tokens, TOKENS)
        finally:
            end()
        engine.forget()
        hits += given.cached_tokens > 0
        seen[kind] += 1
        if given.tokens != cold:
            wrong.append((number, kind, given.tokens, cold))
    assert wrong == []
    assert hits > REQUESTS // 4, f"faults were harmless because nothing was cached: {hits} hits, {seen}"
    assert set(seen) == {*RARE, *COMMON}
    fresh = prompt(2000, 300)
    for engine in nodes.engines:
        assert len(engine.generate(fresh, TOKENS).tokens) == TOKENS
