"""Two nodes, each with a worker and a mount, for all tests of the mount; each test works in a directory of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hearthfs.tests.support.cluster import Cluster


class Pair(NamedTuple):
    """The same directory, seen by mount 1 and by mount 2."""

    a: Path
    b: Path


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    # Not below pytest's own directory: other users must get through to the mounts.
    with tempfile.TemporaryDirectory(prefix="hearth-mount-") as directory:
        os.chmod(directory, 0o755)
        with Cluster(directory, workers=2, mounts=2, telemetry=True) as cluster:
            yield cluster


@pytest.fixture
def pair(cluster: Cluster, request: pytest.FixtureRequest) -> Pair:
    name = request.node.name[:100].replace("/", "_")
    pair = Pair(cluster.mountpoint(1) / name, cluster.mountpoint(2) / name)
    pair.a.mkdir()
    return pair


@pytest.fixture
def directory(pair: Pair) -> Path:
    return pair.a
