"""What programs expect of any filesystem, on one mount."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hearthfs.client.session import Identity, Session
from hearthfs.proto import master_pb2 as pb
from hearthfs.proto.master_pb2_grpc import MasterStub
from hearthfs.tests.support.channels import channel_to
from hearthfs.tests.support.cluster import Cluster

pytestmark = pytest.mark.mount

RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
MIB = 1 << 20


def fails_with(number: int) -> pytest.RaisesExc[OSError]:
    return pytest.raises(OSError, check=lambda error: error.errno == number)


def rename2(old: Path, new: Path, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def as_user(script: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    """Runs Python as uid 1000 without any group of ours."""
    become = "import os; os.setgroups([]); os.setgid(1000); os.setuid(1000)\n"
    return subprocess.run(
        [sys.executable, "-c", become + script, *map(str, arguments)], capture_output=True, text=True, cwd="/"
    )


# ------------------------------------------------------------------ names


def test_directories(directory: Path) -> None:
    (directory / "d").mkdir(mode=0o750)
    assert stat.S_IMODE((directory / "d").stat().st_mode) == 0o750
    assert (directory / "d").stat().st_nlink == 2
    with fails_with(errno.EEXIST):
        (directory / "d").mkdir()
    (directory / "d/f").touch()
    with fails_with(errno.ENOTEMPTY):
        (directory / "d").rmdir()
    with fails_with(errno.ENOTDIR):
        (directory / "d/f").rmdir()
    with fails_with(errno.ENOTDIR):
        (directory / "d/f/x").touch()
    (directory / "d/f").unlink()
    (directory / "d").rmdir()
    with fails_with(errno.ENOENT):
        (directory / "d").stat()


def test_names_are_bytes(directory: Path) -> None:
    names = [b"a" * 255, b"new\nline", b"\xff\xfe", b"sp ace", b"...", "käse".encode()]
    root = os.fsencode(directory)
    for name in names:
        with open(root + b"/" + name, "wb") as file:
            file.write(name)
    assert sorted(os.listdir(root)) == sorted(names)
    for name in names:
        with open(root + b"/" + name, "rb") as file:
            assert file.read() == name
    with fails_with(errno.ENAMETOOLONG):
        os.mkdir(root + b"/" + b"a" * 256)
    with fails_with(errno.ENAMETOOLONG):
        os.stat(root + b"/" + b"a" * 256)


def test_dot_entries_are_listed(directory: Path) -> None:
    listed = subprocess.run(["ls", "-ai", directory], capture_output=True, text=True, check=True).stdout.split()
    numbers = dict(zip(listed[1::2], listed[::2], strict=True))
    assert int(numbers["."]) == directory.stat().st_ino
    assert int(numbers[".."]) == directory.parent.stat().st_ino


def test_rename(directory: Path) -> None:
    a, b = directory / "a", directory / "b"
    a.write_text("a")
    a.rename(b)
    assert not a.exists()
    assert b.read_text() == "a"
    a.write_text("new")
    os.replace(a, b)
    assert b.read_text() == "new"
    with fails_with(errno.ENOENT):
        a.rename(b)


def test_rename_onto_what_does_not_fit(directory: Path) -> None:
    for name in ("full", "empty", "other"):
        (directory / name).mkdir()
    (directory / "full/x").touch()
    (directory / "f").touch()
    with fails_with(errno.ENOTEMPTY):
        (directory / "other").rename(directory / "full")
    with fails_with(errno.EISDIR):
        (directory / "f").rename(directory / "empty")
    with fails_with(errno.ENOTDIR):
        (directory / "other").rename(directory / "f")
    with fails_with(errno.EINVAL):
        (directory / "full").rename(directory / "full/below")
    (directory / "other").rename(directory / "empty")
    assert sorted(os.listdir(directory)) == ["empty", "f", "full"]
    assert os.listdir(directory / "full") == ["x"]


def test_rename_flags(directory: Path) -> None:
    a, b = directory / "a", directory / "b"
    a.write_text("a")
    b.write_text("b")
    with fails_with(errno.EEXIST):
        rename2(a, b, RENAME_NOREPLACE)
    rename2(a, b, RENAME_EXCHANGE)
    assert (a.read_text(), b.read_text()) == ("b", "a")
    rename2(a, directory / "c", RENAME_NOREPLACE)
    with fails_with(errno.ENOENT):
        rename2(a, b, RENAME_EXCHANGE)


def test_hard_links(directory: Path) -> None:
    a, b = directory / "a", directory / "b"
    a.write_text("one")
    b.hardlink_to(a)
    assert a.stat().st_ino == b.stat().st_ino
    assert a.stat().st_nlink == b.stat().st_nlink == 2
    b.write_text("two")
    assert a.read_text() == "two"
    a.unlink()
    assert b.stat().st_nlink == 1
    assert b.read_text() == "two"
    with fails_with(errno.EPERM):
        (directory / "x").hardlink_to(directory)


def test_symlinks(directory: Path) -> None:
    (directory / "l").symlink_to("target/näher")
    assert os.readlink(directory / "l") == "target/näher"
    assert (directory / "l").lstat().st_size == len(b"target/n\xc3\xa4her")
    with fails_with(errno.ENOENT):
        (directory / "l").stat()
    (directory / "loop").symlink_to("loop")
    with fails_with(errno.ELOOP):
        (directory / "loop").stat()
    with fails_with(errno.EINVAL):
        os.readlink(directory)


def test_special_files(directory: Path) -> None:
    os.mkfifo(directory / "fifo", 0o600)
    assert stat.S_ISFIFO((directory / "fifo").stat().st_mode)
    os.mknod(directory / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    assert (directory / "null").stat().st_rdev == os.makedev(1, 3)


def test_listing_while_deleting_lists_each_once(cluster: Cluster, directory: Path) -> None:
    names = [f"{number:05d}" for number in range(3000)]
    create = pb.CreateMany(parent=directory.stat().st_ino, mode=0o644)
    create.names.names.extend(name.encode() for name in names)
    session = Session(Identity())
    with channel_to(cluster.master_address) as channel:
        stub = MasterStub(channel)
        ticket = session.registered(stub.Register(session.register_request()))
        request = pb.MutateRequest(create_many=create)
        session.stamp(request, session.begin(), ticket)
        assert set(stub.Mutate(request).errnos) <= {0}
    seen, deleted = [], set(names[::7])
    with os.scandir(directory) as entries:
        for entry in entries:
            seen.append(entry.name)
            if entry.name in deleted:
                os.unlink(entry.path)
    assert sorted(seen) == names
    assert sorted(os.listdir(directory)) == sorted(set(names) - deleted)
    assert len(list(os.scandir(directory))) == 3000 - len(deleted)


def test_cluster_file(cluster: object, directory: Path) -> None:
    import json

    root = directory.parent
    document = json.loads((root / ".hearth/cluster.json").read_text())
    assert document["node_id"] == "node1"
    assert document["mountpoint"] == str(root)
    assert len(document["worker_sockets"]) == 1
    assert ".hearth" not in os.listdir(root)
    with fails_with(errno.ENOENT):
        (root / ".hearth/x").stat()
    with fails_with(errno.EPERM):
        (root / ".hearth").rmdir()
    with fails_with(errno.EPERM):
        (root / ".hearth/x").touch()


# ------------------------------------------------------------------ attributes


def test_modes_owners_times(directory: Path) -> None:
    f = directory / "f"
    f.touch(mode=0o640)
    assert stat.S_IMODE(f.stat().st_mode) == 0o640
    f.chmod(0o4711)
    assert stat.S_IMODE(f.stat().st_mode) == 0o4711
    os.chown(f, 1000, 1001)
    assert (f.stat().st_uid, f.stat().st_gid) == (1000, 1001)
    os.utime(f, ns=(10**18 + 1, 10**18 + 2))
    assert (f.stat().st_atime_ns, f.stat().st_mtime_ns) == (10**18 + 1, 10**18 + 2)


def test_times_set_before_close_stay(directory: Path) -> None:
    with (directory / "f").open("wb") as file:
        file.write(b"x")
        file.flush()
        os.utime(file.fileno(), ns=(10**18, 10**18))
    assert (directory / "f").stat().st_mtime_ns == 10**18


def test_write_clears_set_user_id(directory: Path) -> None:
    f = directory / "f"
    f.write_text("x")
    os.chown(f, 1000, 1000)
    f.chmod(0o6777)
    done = as_user("import sys; open(sys.argv[1], 'a').write('y')", f)
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(f.stat().st_mode) == 0o777


def test_user_without_rights_gets_eacces(directory: Path) -> None:
    directory.chmod(0o755)
    (directory / "f").write_text("secret")
    (directory / "f").chmod(0o600)
    script = """
import os, sys
for act in (lambda d: open(d + "/f"), lambda d: os.unlink(d + "/f"), lambda d: os.rename(d + "/f", d + "/g"),
            lambda d: open(d + "/new", "w"), lambda d: os.mkdir(d + "/new")):
    try:
        act(sys.argv[1])
    except PermissionError:
        continue
    sys.exit("was allowed")
"""
    done = as_user(script, directory)
    assert done.returncode == 0, done.stderr


def test_user_owns_what_it_makes(directory: Path) -> None:
    directory.chmod(0o1777)
    script = """
import os, sys
os.umask(0o027)
path = sys.argv[1] + "/f"
open(path, "w").close()
assert os.stat(path).st_size == 0 and open(path).read() == ""
os.mkdir(sys.argv[1] + "/d")
os.chmod(path, 0o600)
os.utime(path)
try:
    os.chown(path, 0, 0)
except PermissionError:
    pass
else:
    sys.exit("chown was allowed")
"""
    done = as_user(script, directory)
    assert done.returncode == 0, done.stderr
    status = (directory / "f").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1000, 1000, 0o600)
    assert stat.S_IMODE((directory / "d").stat().st_mode) == 0o750


def test_set_group_id_directory_passes_its_group_on(directory: Path) -> None:
    os.chown(directory, 0, 1234)
    directory.chmod(0o2775)
    (directory / "f").touch()
    (directory / "d").mkdir()
    assert (directory / "f").stat().st_gid == 1234
    assert (directory / "d").stat().st_gid == 1234
    assert (directory / "d").stat().st_mode & stat.S_ISGID


def test_files_have_no_capabilities(directory: Path) -> None:
    (directory / "f").write_text("x")
    with pytest.raises(OSError) as caught:
        os.getxattr(directory / "f", "security.capability")
    assert caught.value.errno == errno.ENODATA
    with pytest.raises(OSError) as caught:
        os.setxattr(directory / "f", "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))
    assert caught.value.errno == errno.EOPNOTSUPP


def test_xattrs(directory: Path) -> None:
    f = directory / "f"
    f.touch()
    name = b"user.\xc3\xa4 \x01"
    os.setxattr(f, name, b"\0value\xff")
    assert os.getxattr(f, name) == b"\0value\xff"
    assert [os.fsencode(each) for each in os.listxattr(f)] == [name]
    with fails_with(errno.EEXIST):
        os.setxattr(f, name, b"", os.XATTR_CREATE)
    with fails_with(errno.ENODATA):
        os.setxattr(f, "user.other", b"", os.XATTR_REPLACE)
    with fails_with(errno.ENODATA):
        os.getxattr(f, "user.other")
    os.setxattr(f, name, b"")
    assert os.getxattr(f, name) == b""
    os.setxattr(f, name, b"x" * 65536)
    assert len(os.getxattr(f, name)) == 65536
    os.removexattr(f, name)
    with fails_with(errno.ENODATA):
        os.removexattr(f, name)
    assert os.listxattr(f) == []
    with fails_with(errno.EOPNOTSUPP):
        os.setxattr(f, "system.nfs4_acl", b"x")


def test_statfs(directory: Path) -> None:
    status = os.statvfs(directory)
    assert status.f_blocks >= status.f_bavail > 0
    assert status.f_namemax == 255


# ------------------------------------------------------------------ content


@pytest.mark.parametrize("size", [0, 1, 4095, MIB - 1, MIB, MIB + 1, 5 * MIB + 12345])
def test_sizes(directory: Path, size: int) -> None:
    data = os.urandom(size)
    f = directory / "f"
    f.write_bytes(data)
    assert f.stat().st_size == size
    assert f.read_bytes() == data
    assert f.stat().st_blocks * 512 >= size


def test_append(directory: Path) -> None:
    f = directory / "f"
    for number in range(50):
        with f.open("ab") as file:
            file.write(b"%09d\n" % number)
    assert f.read_bytes() == b"".join(b"%09d\n" % number for number in range(50))


def test_two_appenders_do_not_overlap(directory: Path) -> None:
    f = directory / "f"
    f.touch()

    def append(letter: bytes) -> None:
        fd = os.open(f, os.O_WRONLY | os.O_APPEND)
        for _ in range(200):
            os.write(fd, letter * 10)
        os.close(fd)

    threads = [threading.Thread(target=append, args=(letter,)) for letter in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    data = f.read_bytes()
    assert len(data) == 4000
    assert all(data[at : at + 10] in (b"a" * 10, b"b" * 10) for at in range(0, 4000, 10))


def test_truncation(directory: Path) -> None:
    f = directory / "f"
    f.write_bytes(b"x" * 3_000_000)
    os.truncate(f, 1_500_000)
    assert f.read_bytes() == b"x" * 1_500_000
    os.truncate(f, 2_000_000)
    assert f.read_bytes() == b"x" * 1_500_000 + bytes(500_000)
    with f.open("r+b") as file:
        file.truncate(10)
        file.seek(20)
        file.write(b"end")
        assert os.fstat(file.fileno()).st_size == 23 or file.flush() is None
    assert f.read_bytes() == b"x" * 10 + bytes(10) + b"end"
    f.write_bytes(b"short")
    assert f.read_bytes() == b"short"
    with f.open("wb"):
        pass
    assert f.stat().st_size == 0


def test_truncation_by_a_reader(directory: Path) -> None:
    f = directory / "f"
    f.write_bytes(b"x" * 10_000)
    fd = os.open(f, os.O_RDONLY | os.O_TRUNC)
    assert os.read(fd, 100) == b""
    os.close(fd)
    assert f.read_bytes() == b""


def test_overwriting_in_the_middle_keeps_the_rest(directory: Path) -> None:
    f = directory / "f"
    expected = bytearray(os.urandom(3 * MIB + 7))
    f.write_bytes(expected)
    with f.open("r+b") as file:
        for offset in (0, MIB - 3, 2 * MIB, len(expected) - 2):
            file.seek(offset)
            file.write(b"12")
            expected[offset : offset + 2] = b"12"
    assert f.read_bytes() == expected


def test_sparse_files(directory: Path) -> None:
    f = directory / "f"
    with f.open("wb") as file:
        file.seek(10 * MIB)
        file.write(b"end")
    assert f.stat().st_size == 10 * MIB + 3
    data = f.read_bytes()
    assert data == bytes(10 * MIB) + b"end"
    with (directory / "hole").open("wb") as file:
        file.truncate(7 * MIB)
    assert (directory / "hole").read_bytes() == bytes(7 * MIB)


def test_o_direct(directory: Path) -> None:
    f = directory / "f"
    data = mmap.mmap(-1, 3 * MIB)
    data[:] = os.urandom(3 * MIB)
    fd = os.open(f, os.O_CREAT | os.O_RDWR | os.O_DIRECT)
    assert os.write(fd, data) == len(data)
    into = mmap.mmap(-1, 3 * MIB)
    assert os.preadv(fd, [into], 0) == len(data)
    os.close(fd)
    assert into[:] == data[:]
    fd = os.open(f, os.O_RDONLY | os.O_DIRECT)
    assert os.preadv(fd, [into], 2 * MIB) == MIB
    assert into[:MIB] == data[2 * MIB :]
    os.close(fd)


def test_shared_mapping(directory: Path) -> None:
    f = directory / "f"
    with f.open("w+b") as file:
        file.truncate(2 * MIB)
        with mmap.mmap(file.fileno(), 2 * MIB) as mapped:
            mapped[100:105] = b"hello"
            mapped.flush()
            assert os.pread(file.fileno(), 5, 100) == b"hello"
            mapped[2 * MIB - 3 :] = b"end"
    data = f.read_bytes()
    assert len(data) == 2 * MIB
    assert data[100:105] == b"hello"
    assert data[-3:] == b"end"


def test_mapping_outlives_the_descriptor(directory: Path) -> None:
    f = directory / "f"
    f.write_bytes(bytes(MIB))
    fd = os.open(f, os.O_RDWR)
    mapped = mmap.mmap(fd, MIB)
    os.close(fd)
    mapped[5:8] = b"now"
    mapped.close()
    assert f.read_bytes()[5:8] == b"now"


def test_programs_run_from_the_mount(directory: Path) -> None:
    program = directory / "true"
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o755)
    assert subprocess.run([program]).returncode == 0


def test_duplicated_writer_goes_on_after_close(directory: Path) -> None:
    f = directory / "f"
    fd = os.open(f, os.O_CREAT | os.O_RDWR)
    other = os.dup(fd)
    os.write(fd, b"one ")
    os.close(fd)
    assert f.read_bytes() == b"one "
    os.write(other, b"two")
    assert os.pread(other, 100, 0) == b"one two"
    os.close(other)
    assert f.read_bytes() == b"one two"


def test_unlinked_open_file_lives_on(directory: Path) -> None:
    f = directory / "f"
    f.write_bytes(b"before" * 1000)
    with f.open("r+b") as file:
        f.unlink()
        assert os.fstat(file.fileno()).st_nlink == 0
        assert file.read() == b"before" * 1000
        file.write(b"after")
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        assert file.read() == b"before" * 1000 + b"after"
        os.fchmod(file.fileno(), 0o600)
        file.truncate(3)
        assert os.fstat(file.fileno()).st_size == 3
    assert not f.exists()
    assert os.listdir(directory) == []


def test_replaced_open_file_lives_on(directory: Path) -> None:
    old, new = directory / "old", directory / "new"
    old.write_bytes(b"old" * 100_000)
    new.write_bytes(b"new")
    with old.open("rb") as file:
        new.rename(old)
        assert file.read() == b"old" * 100_000
        assert os.fstat(file.fileno()).st_nlink == 0
    assert old.read_bytes() == b"new"


def test_fsync(directory: Path) -> None:
    with (directory / "f").open("wb") as file:
        file.write(b"x" * 100_000)
        file.flush()
        os.fsync(file.fileno())
        file.write(b"y")
        file.flush()
        os.fdatasync(file.fileno())
    assert (directory / "f").read_bytes() == b"x" * 100_000 + b"y"
    fd = os.open(directory, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def test_many_small_rewrites(directory: Path) -> None:
    f = directory / "status"
    for number in range(30):
        f.write_text(f"{number}\n" * (30 - number))
        assert f.read_text() == f"{number}\n" * (30 - number)


def test_parallel_makedirs(directory: Path) -> None:
    def make(number: int) -> None:
        os.makedirs(directory / "x/y/z", exist_ok=True)
        (directory / f"x/y/z/{number}").write_text(str(number))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(make, range(32)))
    assert len(os.listdir(directory / "x/y/z")) == 32


def test_readers_during_direct_rewrites_see_whole_versions(directory: Path) -> None:
    f = directory / "f"
    size = 640 << 10
    versions = [mmap.mmap(-1, size) for _ in range(3)]
    for number, version in enumerate(versions):
        version[:] = bytes([65 + number]) * size
    f.write_bytes(versions[0][:])
    stop = threading.Event()
    bad: list[object] = []

    def read() -> None:
        while not stop.is_set():
            data = f.read_bytes()
            if len(data) not in (0, size) or set(data) - set(b"ABC"):
                bad.append((len(data), set(data)))

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for number in range(20):
        fd = os.open(f, os.O_WRONLY | os.O_DIRECT)
        os.pwrite(fd, versions[number % 3], 0)
        os.close(fd)
    stop.set()
    for reader in readers:
        reader.join()
    assert not bad
