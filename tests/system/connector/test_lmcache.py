"""LMCache's own storage classes, unchanged and without a GPU, on the mounts of two nodes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from hearthfs.bench.agents import Agent, AgentError, SharedMemory
from hearthfs.bench.rivals import lmcache
from hearthfs.tests.support.cluster import Cluster

ENVIRONMENT = lmcache.environment()
pytestmark = [
    pytest.mark.mount,
    pytest.mark.leaks("cluster and agents live as long as the module"),
]

SIZE, COUNT = 1 << 20, 12
Instances = tuple[Agent, Agent]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("lmcache"), workers=2, mounts=2) as made:
        yield made


@pytest.fixture(scope="module")
def memory() -> Iterator[SharedMemory]:
    shared = SharedMemory(SIZE * COUNT)
    yield shared
    shared.close()


@pytest.fixture(scope="module", params=["fs", "fs_native"])
def instances(
    request: pytest.FixtureRequest, cluster: Cluster, memory: SharedMemory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Instances]:
    """An LMCache on each node's mount."""
    assert ENVIRONMENT is not None, "LMCache is not installed: make setup"
    log = tmp_path_factory.mktemp("agents") / "log"
    with ExitStack() as stack:

        def start(node: int) -> Agent:
            directory = cluster.mountpoint(node) / request.param
            options = {"directory": str(directory), "storage": request.param, "memory_bytes": 64 << 20}
            return stack.enter_context(Agent("lmcache", options, memory, log, environment=ENVIRONMENT))

        yield start(1), start(2)


def test_two_instances_share_chunks(instances: Instances, memory: SharedMemory) -> None:
    contents = memory.contents(SIZE, COUNT)
    here, there = instances
    assert there.call("exists", "a", COUNT)["found"] == 0
    here.call("put", "a", COUNT, SIZE, threads=2)
    assert there.call("exists", "a", COUNT)["found"] == COUNT
    for one in (there, here):
        memory.forget(contents.total_bytes)
        one.call("get", "a", COUNT, SIZE, threads=2)
        assert memory.wrong(contents) == []
    there.call("remove", "a", COUNT - 1)
    assert here.call("exists", "a", COUNT)["found"] == 1
    with pytest.raises(AgentError, match="not there"):
        here.call("get", "a", COUNT, SIZE, threads=2)


def test_chunks_are_there_after_a_restart_of_worker_and_master(
    instances: Instances, memory: SharedMemory, cluster: Cluster
) -> None:
    contents = memory.contents(SIZE, COUNT)
    here, there = instances
    here.call("put", "b", COUNT, SIZE, threads=2)
    for daemon in ("worker1", "master"):
        cluster.restart(daemon)
    memory.forget(contents.total_bytes)
    there.call("get", "b", COUNT, SIZE, threads=2)
    assert memory.wrong(contents) == []
    assert not cluster.fsck()


def test_both_store_the_same_chunks_at_once(instances: Instances, memory: SharedMemory) -> None:
    """Both write the same temporary name, since LMCache has one for each chunk, and rename it: one of them may find it
    renamed already. What is there in the end is whole all the same: each close publishes a whole file."""
    contents = memory.contents(SIZE, COUNT)

    def store(agent: Agent) -> bool:
        try:
            agent.call("put", "c", COUNT, SIZE, threads=2)
        except AgentError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        stored = list(pool.map(store, instances))
    if not any(stored):  # each lost some of the chunks to the other
        stored[0] = store(instances[0])
    assert any(stored)
    for agent in instances:
        memory.forget(contents.total_bytes)
        agent.call("get", "c", COUNT, SIZE, threads=2)
        assert memory.wrong(contents) == []
