"""One small cluster of real daemons for all tests of the SDK; each test has clients and a directory of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from hearthfs.client.client import Client
from hearthfs.tests.support.cluster import Cluster

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def small_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2) as cluster:
        yield cluster


@pytest.fixture
def on(small_cluster: Cluster) -> Iterator[Callable[..., Client]]:
    """``on(1)``: a client on node 1, which has a worker; ``on(None)``: one on a node without."""
    made: list[Client] = []

    def client(node: int | None = 1, **options: object) -> Client:
        path = small_cluster.socket(node) if node else None
        own = {"node_id": f"node{node}", "worker_socket": str(path) if path else ""}
        made.append(Client(small_cluster.master_address, **{**own, **options}))  # type: ignore[arg-type]
        return made[-1]

    yield client
    for each in made:
        each.close()


@pytest.fixture
def client(on: Callable[..., Client]) -> Client:
    return on(1)


@pytest.fixture
def root(client: Client) -> str:
    """An empty directory in the namespace."""
    path = f"/test-{next(_numbers)}"
    client.mkdir(path)
    return path
