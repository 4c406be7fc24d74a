import os

import pytest
from hearthfs.cli import mountpoint
from hearthfs.cli.mountpoint import KIND, Mount, namespace_path, parse, unmount
from hearthfs.common.errors import Busy, InvalidArgument, NotPermitted

MOUNTINFO = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:26 / /sys/fs/fuse/connections rw - fusectl fusectl rw
48 22 0:51 / /mnt/kv\040cache rw,nosuid shared:9 master:2 - fuse.hearthfs 10.0.0.1:7070 rw,user_id=0
49 22 0:52 / /mnt/other rw - fuse.sshfs host:/ rw
"""


class Kernel:
    """A mount table, and what umount2 says."""

    def __init__(self, *places: tuple[str, str]) -> None:
        self.table = [Mount(place, "m:7070", kind, 40 + number) for number, (place, kind) in enumerate(places)]
        self.busy = False
        self.answers = True
        self.permitted = True
        self.calls: list[tuple[str, object]] = []

    def mounts(self) -> list[Mount]:
        return list(self.table)

    def umount2(self, path: str, flags: int) -> None:
        self.calls.append(("umount2", flags))
        if not self.permitted:
            raise PermissionError(1, "Operation not permitted", path)
        if self.busy and not flags & mountpoint.MNT_DETACH:
            raise OSError(16, "Device or resource busy", path)
        self.table.remove(next(mount for mount in reversed(self.table) if mount.mountpoint == path))

    def fusermount(self, path: str, *, lazy: bool) -> None:
        self.calls.append(("fusermount", lazy))
        self.table = [mount for mount in self.table if mount.mountpoint != path]

    def abort(self, connection: int) -> None:
        self.calls.append(("abort", connection))


@pytest.fixture
def kernel(monkeypatch):
    def make(*places: tuple[str, str]) -> Kernel:
        made = Kernel(*places)
        monkeypatch.setattr(mountpoint, "mounts", made.mounts)
        monkeypatch.setattr(mountpoint, "_umount2", made.umount2)
        monkeypatch.setattr(mountpoint, "_fusermount", made.fusermount)
        monkeypatch.setattr(mountpoint, "abort", made.abort)
        monkeypatch.setattr(mountpoint, "answers", lambda path: made.answers)
        return made

    return make


def test_the_mount_table_is_understood():
    assert parse(MOUNTINFO)[2] == Mount("/mnt/kv cache", "10.0.0.1:7070", KIND, 51)
    assert [mount.kind for mount in parse(MOUNTINFO)] == ["ext4", "fusectl", KIND, "fuse.sshfs"]


def test_the_real_mount_table_is_understood():
    assert any(mount.mountpoint == "/" for mount in mountpoint.mounts())


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/mnt/kv cache", "/"),
        ("/mnt/kv cache/a/b", "/a/b"),
        ("/mnt/kv cache/a/../b/", "/b"),
        ("/mnt/kv cachex", "/mnt/kv cachex"),
        ("/mnt/other/a", "/mnt/other/a"),
        ("/model//x", "/model/x"),
        ("//model", "/model"),
        ("/..", "/"),
    ],
)
def test_paths_below_a_mount_lose_the_mount_point(path, place):
    assert namespace_path(path, parse(MOUNTINFO)) == place


def test_the_innermost_mount_counts():
    listed = [Mount("/a", "", KIND, 1), Mount("/a/b", "", KIND, 2)]
    assert namespace_path("/a/b/c", listed) == "/c"


def test_a_relative_path_is_refused():
    with pytest.raises(InvalidArgument, match="'model/x': write an absolute path"):
        namespace_path("model/x", [])


def test_nothing_mounted_is_no_error(kernel):
    kernel(("/", "ext4"))
    assert unmount("/mnt/kv") is False


def test_a_quiet_mount_is_unmounted_plainly(kernel):
    it = kernel(("/mnt/kv", KIND))
    assert unmount("/mnt/kv/") is True
    assert it.calls == [("umount2", mountpoint.UMOUNT_NOFOLLOW)]
    assert unmount("/mnt/kv") is False


def test_a_relative_mount_point_is_understood(kernel, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    kernel((str(tmp_path / "kv"), KIND))
    assert unmount("kv") is True


def test_a_busy_mount_that_works_stays(kernel):
    it = kernel(("/mnt/kv", KIND))
    it.busy = True
    with pytest.raises(Busy, match=r"/mnt/kv is in use.*--force"):
        unmount("/mnt/kv")
    assert it.table


def test_a_busy_mount_whose_daemon_is_gone_is_detached_and_aborted(kernel):
    it = kernel(("/mnt/kv", KIND))
    it.busy, it.answers = True, False
    assert unmount("/mnt/kv") is True
    assert it.calls[-1] == ("abort", 40)


def test_force_never_asks(kernel):
    it = kernel(("/mnt/kv", KIND))
    it.busy = True
    assert unmount("/mnt/kv", force=True) is True
    assert it.calls == [("umount2", mountpoint.MNT_DETACH | mountpoint.UMOUNT_NOFOLLOW), ("abort", 40)]


def test_mounts_on_top_of_each_other_all_go(kernel):
    it = kernel(("/mnt/kv", KIND), ("/mnt/kv", KIND))
    assert unmount("/mnt/kv") is True
    assert it.table == []


def test_what_lies_below_our_mount_stays(kernel):
    it = kernel(("/mnt/kv", "ext4"), ("/mnt/kv", KIND))
    assert unmount("/mnt/kv") is True
    assert [mount.kind for mount in it.table] == ["ext4"]


def test_another_filesystem_is_not_touched(kernel):
    it = kernel(("/mnt/kv", "ext4"))
    with pytest.raises(InvalidArgument, match="ext4 filesystem"):
        unmount("/mnt/kv", force=True)
    assert it.calls == []


@pytest.mark.parametrize("force", [False, True])
def test_without_root_fusermount_does_it(kernel, force):
    it = kernel(("/mnt/kv", KIND))
    it.permitted = False
    assert unmount("/mnt/kv", force=force) is True
    assert ("fusermount", force) in it.calls


def test_without_root_and_without_fusermount_the_package_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(NotPermitted, match="package fuse3"):
        mountpoint._fusermount("/mnt/kv", lazy=False)


def test_a_directory_that_answers_answers(tmp_path):
    assert mountpoint.answers(str(tmp_path))
    assert not mountpoint.answers(str(tmp_path / "missing"))


def test_whoever_does_not_answer_in_time_does_not_answer(tmp_path, monkeypatch):
    program = tmp_path / "stat"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setitem(os.environ, "PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert not mountpoint.answers(str(tmp_path), timeout_s=0.05)


def test_an_abort_of_a_connection_that_is_gone_does_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(mountpoint, "FUSE_CONTROL", tmp_path)
    (tmp_path / "7").mkdir()
    mountpoint.abort(7)
    assert (tmp_path / "7" / "abort").read_text() == "1"
    (tmp_path / "7" / "abort").unlink()
    (tmp_path / "7").rmdir()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    mountpoint.abort(7)
