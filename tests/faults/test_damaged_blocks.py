"""Block files that were cut, lost or changed under a worker: through a mount their bytes are never delivered."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hearthfs.common.errors import HearthError
from hearthfs.tests.support.cluster import Cluster

from .conftest import block_files, check_sound, outcome, timed, wait_for

pytestmark = pytest.mark.mount
DATA = random.Random(5).randbytes((2 << 20) + 1234)


def flip(path: Path, at: int = (1 << 20) + 99) -> None:
    path.chmod(0o600)
    with path.open("r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 1]), at)


def cut(path: Path) -> None:
    os.truncate(path, 1 << 20)


def cut_to_nothing(path: Path) -> None:
    os.truncate(path, 0)


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory):
    with Cluster(tmp_path_factory.mktemp("damage"), workers=2, mounts=3) as cluster:
        yield cluster


@pytest.mark.leaks("the cluster is the module's")
@pytest.mark.parametrize("damage", [flip, cut, cut_to_nothing, lengthen, os.unlink])
def test_never_delivered(cluster: Cluster, damage: Callable[[Path], None]) -> None:
    """To a mount on the same node, on another one, on a node without worker."""
    blocks: dict[int, Path] = {}
    for reader in (1, 2, 3):
        before = set(block_files(cluster, 1))
        (cluster.mountpoint(1) / f"{damage.__name__}{reader}").write_bytes(DATA)
        (blocks[reader],) = set(block_files(cluster, 1)) - before
    cluster.restart("mount1")  # it had the files' pages and descriptors: only a new mount is cold
    for reader, block in blocks.items():
        damage(block)
        check_never_delivered(cluster, f"{damage.__name__}{reader}", reader, harmless=damage is lengthen)
    check_sound(cluster)


def check_never_delivered(cluster: Cluster, name: str, reader: int, *, harmless: bool) -> None:
    path, client = cluster.mountpoint(reader) / name, cluster.client(None)
    for _ in range(2):
        result, seconds = timed(lambda: read(path))
        assert result in ([b"EIO", DATA] if harmless else [b"EIO"])
        assert seconds < 20
    if not harmless:
        wait_for("the miss", lambda: not client.lookup_many("/", [name]).found[0])
    memory = bytearray(len(DATA))
    (error,) = client.get_many([f"/{name}"], [memory])
    assert isinstance(error, HearthError) or (harmless and memory == DATA)
    # Stored again, by the mount and by the SDK, it is as good as new.
    path.write_bytes(DATA[::-1])
    assert read(cluster.mountpoint(1) / name) == DATA[::-1]
    assert client.put_many([f"/{name}"], [DATA]) == [None]
    for node in (1, 2, 3):
        assert read(cluster.mountpoint(node) / name) == DATA


def read(path: Path) -> bytes:
    """The file's bytes, or the name of the error."""
    data = b""

    def whole() -> None:
        nonlocal data
        data = path.read_bytes()

    result = outcome(whole)
    return data if result == "ok" else result.encode()
