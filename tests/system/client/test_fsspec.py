import json
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import fsspec
import pytest
from hearthfs.client.client import Client
from hearthfs.client.fsspec_filesystem import HearthFileSystem
from hearthfs.common.errors import Exists, NotFound
from hearthfs.tests.support.cluster import Cluster


@pytest.fixture
def fs(small_cluster: Cluster) -> Iterator[HearthFileSystem]:
    HearthFileSystem.clear_instance_cache()
    made = fsspec.filesystem("hearth", master=small_cluster.master_address)
    yield made
    for each in HearthFileSystem._cache.values():
        each.close()
    HearthFileSystem.clear_instance_cache()


def test_urls(fs: HearthFileSystem, small_cluster: Cluster, root: str) -> None:
    url = f"hearth://{small_cluster.master_address}{root}/data.json"
    with fsspec.open(url, "w") as file:
        json.dump({"a": [1, 2]}, file)
    with fsspec.open(url) as file:
        assert json.load(file) == {"a": [1, 2]}
    same, path = fsspec.url_to_fs(url)
    assert same is fs
    assert path == f"{root}/data.json"
    assert fs.unstrip_protocol(path) == url
    assert HearthFileSystem._strip_protocol("hearth:///a/b/") == "/a/b"
    assert HearthFileSystem._strip_protocol("hearth://h:1") == "/"
    assert HearthFileSystem._strip_protocol("a") == "/a"


def test_listing_and_info(fs: HearthFileSystem, client: Client, root: str) -> None:
    fs.makedirs(f"{root}/d/e")
    fs.pipe({f"{root}/d/f": b"123", f"{root}/d/e/g": b"4"})
    client.symlink("f", f"{root}/d/l")
    client.symlink("nowhere", f"{root}/d/broken")
    assert fs.ls(f"{root}/d", detail=False) == [f"{root}/d/{name}" for name in ("broken", "e", "f", "l")]
    kinds = {each["name"].rpartition("/")[2]: (each["type"], each["size"]) for each in fs.ls(f"{root}/d")}
    assert kinds["f"] == ("file", 3)
    assert kinds["e"] == ("directory", kinds["e"][1])
    assert kinds["l"] == ("file", 3)
    assert kinds["broken"][0] == "link"
    assert fs.ls(f"{root}/d/f", detail=False) == [f"{root}/d/f"]
    assert fs.find(root) == [f"{root}/d/broken", f"{root}/d/e/g", f"{root}/d/f", f"{root}/d/l"]
    assert fs.glob(f"{root}/*/f") == [f"{root}/d/f"]
    assert fs.isdir(f"{root}/d")
    assert fs.exists(f"{root}/d/f")
    assert not fs.exists(f"{root}/d/x")
    with pytest.raises(FileNotFoundError):
        fs.info(f"{root}/d/x")
    assert abs(datetime.now(UTC) - fs.modified(f"{root}/d/f")) < timedelta(hours=1)
    assert abs(datetime.now(UTC) - fs.created(f"{root}/d/f")) < timedelta(hours=1)


def test_bytes(fs: HearthFileSystem, root: str, tmp_path: Any) -> None:
    fs.pipe_file(f"{root}/f", b"0123456789")
    assert fs.cat(f"{root}/f") == b"0123456789"
    assert fs.cat_file(f"{root}/f", 2, 5) == b"234"
    assert fs.cat_file(f"{root}/f", -3) == b"789"
    assert fs.cat_ranges([f"{root}/f"] * 2, [0, 8], [1, 10]) == [b"0", b"89"]
    assert fs.head(f"{root}/f", 2) == b"01"
    with pytest.raises(Exists):
        fs.pipe_file(f"{root}/f", b"", mode="create")
    before = fs.ukey(f"{root}/f"), fs.checksum(f"{root}/f")
    fs.pipe_file(f"{root}/f", b"new")
    assert before[0] != fs.ukey(f"{root}/f")
    assert before[1] != fs.checksum(f"{root}/f")
    (tmp_path / "local").write_bytes(b"local")
    fs.put(str(tmp_path / "local"), f"{root}/up")
    fs.get(f"{root}/up", str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == b"local"


def test_moving_copying_removing(fs: HearthFileSystem, root: str) -> None:
    fs.pipe_file(f"{root}/a", b"x" * 3_000_000)
    fs.cp(f"{root}/a", f"{root}/b")
    fs.mkdir(f"{root}/d")
    fs.mv(f"{root}/a", f"{root}/d")
    fs.mv(f"{root}/b", f"{root}/c")
    assert fs.find(root) == [f"{root}/c", f"{root}/d/a"]
    assert fs.cat(f"{root}/c") == b"x" * 3_000_000
    fs.touch(f"{root}/c")
    assert fs.size(f"{root}/c") == 0
    fs.touch(f"{root}/t", truncate=False)
    fs.copy(f"{root}/d", f"{root}/e", recursive=True)
    assert fs.size(f"{root}/e/a") == 3_000_000
    with pytest.raises(OSError, match="not empty"):
        fs.rm(f"{root}/d")
    fs.rm(f"{root}/d", recursive=True)
    fs.rm([f"{root}/c", f"{root}/t"])
    fs.rm_file(f"{root}/e/a")
    fs.rmdir(f"{root}/e")
    assert fs.ls(root) == []
    with pytest.raises(NotFound):
        fs.rm(f"{root}/c")
    with pytest.raises(Exists):
        fs.makedirs(root)
    fs.makedirs(root, exist_ok=True)


def test_a_transaction_shows_all_or_nothing(fs: HearthFileSystem, root: str) -> None:
    with fs.transaction:
        with fs.open(f"{root}/a", "wb") as file:
            file.write(b"a")
        with fs.open(f"{root}/b", "wb") as file:
            file.write(b"b")
        assert fs.ls(root) == []
    assert fs.cat([f"{root}/a", f"{root}/b"]) == {f"{root}/a": b"a", f"{root}/b": b"b"}

    def fail() -> None:
        with fs.transaction, fs.open(f"{root}/c", "wb") as file:
            file.write(b"c")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not fs.exists(f"{root}/c")


def test_it_may_be_pickled(fs: HearthFileSystem, root: str) -> None:
    fs.pipe_file(f"{root}/f", b"x")
    assert pickle.loads(pickle.dumps(fs)).cat(f"{root}/f") == b"x"
    with fsspec.open(f"hearth://{fs._master}{root}/f", "rb") as file:
        assert file.read() == b"x"


def test_read_as_programs_do(fs: HearthFileSystem, root: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(300_000, dtype=torch.float32)
    with fs.open(f"{root}/t.pt", "wb") as file:
        torch.save({"t": tensor}, file)
    with fs.open(f"{root}/t.pt", "rb") as file:
        assert torch.equal(torch.load(file, weights_only=True)["t"], tensor)
