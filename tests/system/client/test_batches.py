import array
import random
from collections.abc import Callable

import pytest
from hearthfs.client.client import Client
from hearthfs.common.checksums import CHUNK_BYTES
from hearthfs.common.errors import (
    DeadlineExceeded,
    Exists,
    InvalidArgument,
    IsADirectory,
    NameTooLong,
    NotADirectory,
    NotFound,
)

NODES = pytest.mark.parametrize("node", [1, 2, None], ids=["writer's node", "other node", "node without worker"])


@NODES
def test_put_here_get_there(on: Callable[..., Client], client: Client, root: str, node: int) -> None:
    sizes = [0, 1, 4096, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 9]
    contents = [random.randbytes(size) for size in sizes]
    paths = [f"{root}/{place}/{size}" for place, size in zip("aabbcc", sizes, strict=True)]
    assert on(node).put_many(paths, contents) == [None] * 6
    for reader in (client, on(node), on(2)):
        memory = [bytearray(size) for size in sizes]
        assert reader.get_many(paths, memory) == [None] * 6
        assert memory == contents


@NODES
def test_more_files_than_one_request_holds(on: Callable[..., Client], client: Client, root: str, node: int) -> None:
    names = [f"{i:03}" for i in range(150)]
    contents = [name.encode() * 10 for name in names]
    assert on(node).put_many(names, contents, directory=f"{root}/new/deep") == [None] * 150
    memory = [bytearray(30) for _ in names]
    assert client.get_many(names, memory, directory=f"{root}/new/deep") == [None] * 150
    assert memory == contents


@NODES
def test_what_a_lookup_said_is_enough_to_read(
    on: Callable[..., Client], client: Client, root: str, node: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number}" for number in range(9)]
    contents = [random.randbytes(1000 + number) for number in range(9)]
    client.put_many(names, contents, directory=root)
    reader = on(node)
    known = reader.lookup_many(root, [*names, "absent"], want_layout=True)
    memory = [bytearray(1000 + number) for number in range(9)]
    with monkeypatch.context() as patched:
        patched.setattr(reader._core.metadata, "lookup_many", None)
        errors = reader.get_many([*names, "absent"], [*memory, bytearray(1)], directory=root, known=known)
    assert errors[:9] == [None] * 9
    assert isinstance(errors[9], NotFound)
    assert memory == contents


@NODES
def test_what_a_lookup_said_may_be_old(on: Callable[..., Client], client: Client, root: str, node: int) -> None:
    client.put_many(["kept", "replaced", "removed"], [b"old"] * 3, directory=root)
    reader = on(node)
    known = reader.lookup_many(root, ["kept", "replaced", "removed"], want_layout=True)
    client.write_bytes(f"{root}/replaced", b"new")
    client.unlink(f"{root}/removed")
    memory = [bytearray(3) for _ in range(3)]
    errors = reader.get_many(["kept", "replaced", "removed"], memory, directory=root, known=known)
    assert errors[:2] == [None, None]
    assert memory[0] == b"old"
    assert memory[1] in (b"old", b"new")
    assert errors[2] is None or isinstance(errors[2], NotFound)
    assert errors[2] is not None or memory[2] == b"old"


def test_each_item_has_its_own_error(client: Client, root: str) -> None:
    client.put_many([f"{root}/good", f"{root}/small"], [b"12345", b"1"])
    client.mkdir(f"{root}/dir")
    memory = [bytearray(5) for _ in range(8)]
    paths = [
        f"{root}/good",
        f"{root}/small",
        f"{root}/absent",
        f"{root}/nodir/x",
        f"{root}/dir",
        "relative",
        f"{root}/{'x' * 300}",
        f"{root}/good",
    ]
    errors = client.get_many(paths, [*memory[:7], bytes(5)])
    kinds = [type(error) for error in errors]
    assert kinds == [
        type(None), InvalidArgument, NotFound, NotFound, NotFound, InvalidArgument, NameTooLong, InvalidArgument,
    ]  # fmt: skip
    assert memory[0] == b"12345"
    assert "1 bytes, its buffer 5" in str(errors[1])
    assert "read-only" in str(errors[7])


def test_put_items_fail_alone(client: Client, root: str) -> None:
    client.mkdir(f"{root}/dir")
    client.write_bytes(f"{root}/file", b"")
    client.symlink("nowhere", f"{root}/link")
    paths = [f"{root}/ok", f"{root}/dir", f"{root}/file/below", f"{root}/link", f"{root}/..", f"{root}/also"]
    errors = client.put_many(paths, [b"x"] * 6)
    kinds = [type(error) for error in errors]
    assert kinds[0] is kinds[5] is type(None)
    assert kinds[1] is IsADirectory
    assert kinds[2] in (NotADirectory, Exists)
    assert kinds[3] is Exists
    assert kinds[4] is InvalidArgument
    assert sorted(client.listdir(root)) == ["also", "dir", "file", "link", "ok"]


def test_lengths_must_match(client: Client) -> None:
    for batch in (client.get_many, client.put_many):
        with pytest.raises(InvalidArgument, match="2 paths and 1 buffers"):
            batch(["/a", "/b"], [bytearray(1)])
    assert client.get_many([], []) == []
    assert client.put_many([], []) == []


def test_replacing_and_keeping(on: Callable[..., Client], client: Client, root: str) -> None:
    client.put_many([f"{root}/f"], [b"one"])
    client.setxattr(f"{root}/f", "user.a", b"stays")
    inode = client.stat(f"{root}/f").st_ino
    assert on(2).put_many([f"{root}/f", f"{root}/g"], [b"two", b"new"], keep_existing=True) == [None, None]
    assert client.read_bytes(f"{root}/f") == b"one"
    assert client.read_bytes(f"{root}/g") == b"new"
    assert on(2).put_many([f"{root}/f"], [b"two"], sync=True, wait_for_caches=False) == [None]
    assert client.read_bytes(f"{root}/f") == b"two"
    assert client.stat(f"{root}/f").st_ino == inode
    assert client.getxattr(f"{root}/f", "user.a") == b"stays"


def test_one_name_twice_in_a_batch_the_last_wins(client: Client, root: str) -> None:
    assert client.put_many([f"{root}/f", f"{root}/f"], [b"first", b"second"]) == [None, None]
    assert client.read_bytes(f"{root}/f") == b"second"


def test_any_contiguous_memory(client: Client, root: str) -> None:
    numbers = array.array("d", [1.5, 2.5, 3.5])
    assert client.put_many([f"{root}/f"], [numbers]) == [None]
    back = array.array("d", [0.0] * 3)
    assert client.get_many([f"{root}/f"], [back]) == [None]
    assert back == numbers
    (error,) = client.get_many([f"{root}/f"], [memoryview(bytearray(48))[::2]])
    assert isinstance(error, InvalidArgument)


def test_lookup_many(on: Callable[..., Client], client: Client, root: str) -> None:
    client.put_many([b"%04d" % i for i in range(40)], [b"x"] * 40, directory=root)
    names = [b"%04d" % i for i in range(60)]
    result = client.lookup_many(root, names)
    assert result.found == [True] * 40 + [False] * 20
    assert (result.leading_hits, result.hits) == (40, 40)
    mixed = client.lookup_many(root, ["0000", "absent", "x" * 300, "0001"])
    assert mixed.found == [True, False, False, True]
    layouts = on(2).lookup_many(root, names, want_layout=True).versions
    assert [version is not None for version in layouts] == result.found
    assert layouts[0] is not None
    assert layouts[0].size_bytes == 1
    assert client.lookup_many(f"{root}/nothing", names).hits == 0
    assert client.lookup_many(root, []).found == []


def test_directories_and_links_are_misses(client: Client, root: str) -> None:
    client.mkdir(f"{root}/d")
    client.write_bytes(f"{root}/f", b"")
    client.symlink("f", f"{root}/l")
    assert client.lookup_many(root, ["d", "f", "l"]).found == [False, True, False]


def test_no_time_left_is_every_items_error(client: Client, root: str) -> None:
    client.put_many([f"{root}/f"], [b"x"])
    (error,) = client.get_many([f"{root}/f"], [bytearray(1)], timeout_s=1e-9)
    assert isinstance(error, DeadlineExceeded)
    (error,) = client.put_many([f"{root}/g"], [b"x"], timeout_s=1e-9)
    assert isinstance(error, DeadlineExceeded)
    assert client.listdir(root) == ["f"]
