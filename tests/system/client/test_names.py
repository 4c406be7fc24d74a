import os
import stat

import pytest
from hearthfs.client.client import Client
from hearthfs.client.names import RENAME_EXCHANGE, RENAME_NOREPLACE
from hearthfs.common.errors import (
    Exists,
    HearthError,
    InvalidArgument,
    IsADirectory,
    NoAttribute,
    NotADirectory,
    NotEmpty,
    NotFound,
    SymlinkLoop,
)


def test_directories(client: Client, root: str) -> None:
    client.mkdir(f"{root}/a")
    client.makedirs(f"{root}/a/b/c")
    client.makedirs(f"{root}/a/b/c", exist_ok=True)
    with pytest.raises(Exists):
        client.makedirs(f"{root}/a/b/c")
    with pytest.raises(Exists):
        client.mkdir(f"{root}/a")
    with pytest.raises(NotFound):
        client.mkdir(f"{root}/x/y")
    with pytest.raises(NotEmpty):
        client.rmdir(f"{root}/a")
    client.rmdir(f"{root}/a/b/c")
    assert client.listdir(f"{root}/a") == ["b"]
    assert client.isdir(f"{root}/a/b")
    assert not client.exists(f"{root}/a/b/c")


def test_makedirs_refuses_a_file_in_the_way(client: Client, root: str) -> None:
    client.write_bytes(f"{root}/file", b"")
    for path in (f"{root}/file", f"{root}/file/below"):
        with pytest.raises((Exists, NotADirectory)):
            client.makedirs(path, exist_ok=True)


def test_modes_obey_the_umask(client: Client, root: str) -> None:
    old = os.umask(0o027)
    try:
        client.mkdir(f"{root}/d")
        client.write_bytes(f"{root}/f", b"x")
        with client.open(f"{root}/g", "xb") as file:
            file.write(b"x")
    finally:
        os.umask(old)
    assert stat.S_IMODE(client.stat(f"{root}/d").st_mode) == 0o750
    for name in "fg":
        status = client.stat(f"{root}/{name}")
        assert stat.S_IMODE(status.st_mode) == 0o640
        assert (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())


def test_stat_has_what_os_has(client: Client, root: str) -> None:
    client.write_bytes(f"{root}/f", b"12345")
    status = client.stat(f"{root}/f")
    assert stat.S_ISREG(status.st_mode)
    assert (status.st_size, status.st_nlink, status.st_blocks) == (5, 1, 1)
    assert abs(status.st_mtime - status.st_mtime_ns / 1e9) < 1e-3
    before = status.version
    client.write_bytes(f"{root}/f", b"123456")
    assert client.stat(f"{root}/f").version > before
    assert client.stat(f"{root}/f").st_ino == status.st_ino


def test_names_of_any_bytes(client: Client, root: str) -> None:
    names = [b"\xff\xfe", "é ü".encode(), b"a\nb", b"-rf", b"x" * 255]
    for name in names:
        client.write_bytes(root.encode() + b"/" + name, name)
    assert sorted(os.fsencode(name) for name in client.listdir(root)) == sorted(names)
    for entry in client.scandir(root):
        assert client.read_bytes(entry.path) == os.fsencode(entry.name)


def test_listing_many_pages(client: Client, root: str) -> None:
    client.put_many([f"{i:05}" for i in range(300)], [b""] * 300, directory=root)
    object.__setattr__(client.core, "settings", client.core.settings.model_copy(update={"page_entries": 7}))
    assert sorted(client.listdir(root)) == [f"{i:05}" for i in range(300)]
    assert len({entry.inode() for entry in client.scandir(root)}) == 300


def test_walk_prunes(client: Client, root: str) -> None:
    client.makedirs(f"{root}/a/b")
    client.makedirs(f"{root}/skip/c")
    client.write_bytes(f"{root}/a/f", b"")
    client.symlink(f"{root}/skip", f"{root}/a/s")
    seen = []
    for path, directories, others in client.walk(root):
        directories[:] = [entry for entry in directories if entry.name != "skip"]
        seen.append((path, sorted(entry.name for entry in others)))
    assert seen == [(root, []), (f"{root}/a", ["f", "s"]), (f"{root}/a/b", [])]


def test_rename_replace_exchange(client: Client, root: str) -> None:
    client.write_bytes(f"{root}/a", b"A")
    client.write_bytes(f"{root}/b", b"B")
    with pytest.raises(Exists):
        client.rename(f"{root}/a", f"{root}/b", RENAME_NOREPLACE)
    client.rename(f"{root}/a", f"{root}/b", RENAME_EXCHANGE)
    assert client.read_bytes(f"{root}/a") == b"B"
    client.replace(f"{root}/a", f"{root}/b")
    assert client.listdir(root) == ["b"]
    assert client.read_bytes(f"{root}/b") == b"B"
    with pytest.raises(NotFound):
        client.rename(f"{root}/a", f"{root}/c")


def test_links(client: Client, root: str) -> None:
    client.write_bytes(f"{root}/f", b"x")
    client.link(f"{root}/f", f"{root}/hard")
    assert client.stat(f"{root}/f").st_nlink == 2
    client.symlink("f", f"{root}/soft")
    assert client.readlink(f"{root}/soft") == "f"
    assert stat.S_ISLNK(client.lstat(f"{root}/soft").st_mode)
    assert client.read_bytes(f"{root}/soft") == b"x"
    with client.open(f"{root}/soft", "wb") as file:  # writes the target, keeps the link
        file.write(b"y")
    assert client.read_bytes(f"{root}/hard") == b"y"
    client.write_bytes(f"{root}/soft", b"z", sync=True)
    assert client.read_bytes(f"{root}/hard") == b"z"
    client.write_bytes(f"{root}/hard", b"y")
    client.symlink("loop", f"{root}/loop")
    assert not client.exists(f"{root}/loop")
    with pytest.raises(InvalidArgument, match="not a symlink"):
        client.readlink(f"{root}/f")
    client.unlink(f"{root}/f")
    assert not client.exists(f"{root}/soft")
    assert client.read_bytes(f"{root}/hard") == b"y"


def test_writing_through_a_symlink_makes_its_target(client: Client, root: str) -> None:
    client.mkdir(f"{root}/d")
    client.symlink("../made", f"{root}/d/relative")
    client.symlink(f"{root}/d/relative", f"{root}/chain")
    client.write_bytes(f"{root}/chain", b"1")
    assert client.read_bytes(f"{root}/made") == b"1"
    client.unlink(f"{root}/made")
    with client.open(f"{root}/chain", "ab") as file:
        file.write(b"2")
    assert client.read_bytes(f"{root}/made") == b"2"
    client.unlink(f"{root}/made")
    with pytest.raises(Exists):
        client.open(f"{root}/chain", "xb")
    with pytest.raises(NotFound):
        client.open(f"{root}/chain", "r+b")
    assert sorted(client.listdir(root)) == ["chain", "d"]
    client.symlink("loop", f"{root}/loop")
    with pytest.raises(SymlinkLoop):
        client.write_bytes(f"{root}/loop", b"")
    client.symlink("d", f"{root}/directory")
    with pytest.raises(IsADirectory):
        client.write_bytes(f"{root}/directory", b"")


def test_attributes(client: Client, root: str) -> None:
    path = f"{root}/f"
    client.write_bytes(path, b"12345678")
    client.chmod(path, 0o600)
    client.chown(path, 7, -1)
    client.utime(path, (1.5, 2.5))
    client.truncate(path, 3)
    status = client.stat(path)
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o600, 7, os.getegid())
    assert status.st_atime_ns == 1_500_000_000
    client.truncate(path, 6)
    assert client.read_bytes(path) == b"123\0\0\0"
    client.utime(path, ns=(1, 2))
    assert client.stat(path).st_mtime_ns == 2
    client.utime(path)
    assert client.stat(path).st_mtime_ns > 10**18


def test_extended_attributes(client: Client, root: str) -> None:
    client.setxattr(root, "user.a", b"\0\1")
    assert client.getxattr(root, "user.a") == b"\0\1"
    assert client.listxattr(root) == ["user.a"]
    with pytest.raises(Exists):
        client.setxattr(root, "user.a", b"", os.XATTR_CREATE)
    with pytest.raises(NoAttribute):
        client.setxattr(root, "user.b", b"", os.XATTR_REPLACE)
    client.removexattr(root, "user.a")
    for absent in (client.getxattr, client.removexattr):
        with pytest.raises(NoAttribute):
            absent(root, "user.a")
    with pytest.raises(HearthError, match="65536"):
        client.setxattr(root, "user.big", bytes(65537))


def test_rmtree_in_batches(client: Client, root: str) -> None:
    client.put_many([f"{root}/d{i % 3}/{i}" for i in range(90)], [b""] * 90)
    client.symlink("/", f"{root}/root")
    heard: list[tuple[int, int]] = []
    assert client.rmtree(root, progress=lambda *counts: heard.append(counts)) == 95
    assert heard == sorted(heard)
    assert heard[-1] == (95, 95)
    assert all(removed <= found for removed, found in heard)
    assert not client.exists(root)
    assert client.exists("/")
    with pytest.raises(NotFound):
        client.rmtree(root)


def test_what_is_no_file(client: Client, root: str) -> None:
    client.write_bytes(f"{root}/f", b"")
    with pytest.raises(IsADirectory):
        client.remove(root)
    with pytest.raises(NotADirectory):
        client.listdir(f"{root}/f")
    with pytest.raises(NotADirectory):
        client.rmtree(f"{root}/f")
    with pytest.raises(IsADirectory):
        client.write_bytes(root, b"")
    with pytest.raises(InvalidArgument):
        client.remove("/")
    assert client.isfile(f"{root}/f")
    assert not client.isfile(f"{root}/f/x")


def test_space(client: Client) -> None:
    space = client.statvfs()
    assert 0 < space.available_bytes <= space.total_bytes
