import os

import pytest
from hearthfs.common.errors import Conflict, WrongCluster
from hearthfs.tests.unit.worker.parts import FailingCalls
from hearthfs.worker import identity
from hearthfs.worker.identity import Identity

OLD, NEW = Identity("w1", ""), Identity("w1", "c1")


@pytest.mark.parametrize("after", range(4))
def test_killed_while_writing_the_old_owner_stays(tmp_path, after):
    fd = os.open(tmp_path, os.O_RDONLY)
    identity.write(FailingCalls(), fd, OLD)
    calls = FailingCalls()
    calls.errors["write-identity"] = OSError(5, "injected")
    calls.after["write-identity"] = after
    with pytest.raises(OSError):
        identity.write(calls, fd, NEW)
    assert identity.read(tmp_path) == OLD
    identity.write(FailingCalls(), fd, NEW)
    assert identity.read(tmp_path) == NEW
    os.close(fd)


def test_a_fresh_directory_has_no_owner(tmp_path):
    assert identity.read(tmp_path) is None


def test_a_disk_without_a_cluster_fits_any(tmp_path):
    identity.check(tmp_path, OLD, "w1", "c9")
    identity.check(tmp_path, NEW, "w1", "")
    with pytest.raises(WrongCluster):
        identity.check(tmp_path, NEW, "w1", "c9")
    with pytest.raises(Conflict):
        identity.check(tmp_path, OLD, "w2", "")
