"""Each law of cli.consistency: a good cluster has no finding, and one with a single fault has that finding."""

import stat

import pytest
from hearthfs.cli.consistency import Finding, Remedies, check, remedies
from hearthfs.common.types import BlockKey
from hearthfs.proto import common_pb2 as common
from hearthfs.proto import master_pb2 as pb

ROOT, DIRECTORY, FILE, LINK = 1, 2, 3, 4
BLOCK, WORKING = 0xB10C, 0xB10D


class Cluster:
    """``/models`` with a file of one block (named twice) and a symlink; one working block; two workers."""

    def __init__(self) -> None:
        self.dentries = [
            pb.DumpDentry(parent=ROOT, name=b"models", inode=DIRECTORY, cookie=10),
            pb.DumpDentry(parent=DIRECTORY, name=b"weights", inode=FILE, cookie=10),
            pb.DumpDentry(parent=DIRECTORY, name=b"same", inode=FILE, cookie=11),
            pb.DumpDentry(parent=DIRECTORY, name=b"link", inode=LINK, cookie=12),
        ]
        self.inodes = {
            ROOT: entry(ROOT, stat.S_IFDIR, 3),
            DIRECTORY: entry(DIRECTORY, stat.S_IFDIR, 2, parents=[ROOT]),
            FILE: entry(FILE, stat.S_IFREG, 2, parents=[DIRECTORY, DIRECTORY], size_bytes=100),
            LINK: entry(LINK, stat.S_IFLNK, 1, parents=[DIRECTORY]),
        }
        extent = common.Extent(block=BLOCK, generation=7, length_bytes=100, valid_bytes=100, digest=99, sealed=True)
        self.inodes[FILE].extents.append(extent)
        self.inodes[LINK].symlink_target = b"weights"
        self.blocks = [
            pb.DumpBlock(block=BLOCK, generation=7, inode=FILE, length_bytes=100, digest=99, workers=["w1", "w2"]),
            pb.DumpBlock(block=WORKING, generation=1, session_id=5, client_id=6, workers=["w1"]),
        ]
        self.reports: dict[str, list[pb.BlockReport] | None] = {
            "w1": [report(), pb.BlockReport(block=WORKING, generation=1, working=True)],
            "w2": [report()],
        }
        self.problems: list[str] = []
        self.counted = (0, 0, 0)
        self.cut = False

    def findings(self) -> list[tuple[str, str]]:
        records = [pb.DumpRecord(dentry=dentry) for dentry in self.dentries]
        records += [pb.DumpRecord(inode=inode) for inode in self.inodes.values()]
        records += [pb.DumpRecord(block=block) for block in self.blocks]
        counts = [
            mine + added
            for mine, added in zip((len(self.dentries), len(self.inodes), len(self.blocks)), self.counted, strict=True)
        ]
        end = pb.DumpEnd(dentries=counts[0], inodes=counts[1], blocks=counts[2], problems=self.problems)
        if not self.cut:
            records.append(pb.DumpRecord(end=end))
        return [(finding.severity, finding.kind) for finding in check(iter(records), self.reports)]


def entry(inode: int, kind: int, nlink: int, parents: list[int] | None = None, size_bytes: int = 0) -> common.Entry:
    attributes = common.Attributes(inode=inode, mode=kind | 0o755, nlink=nlink, size_bytes=size_bytes)
    return common.Entry(attributes=attributes, parents=parents or [])


def report(**changes: object) -> pb.BlockReport:
    values: dict[str, object] = {"block": BLOCK, "generation": 7, "length_bytes": 100, "digest": 99}
    return pb.BlockReport(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_good_cluster_has_no_finding(cluster):
    assert cluster.findings() == []


def test_a_stream_without_its_end_is_the_only_finding(cluster):
    cluster.cut = True
    cluster.dentries.clear()
    assert cluster.findings() == [("error", "dump-cut")]


def test_what_the_master_found_itself_is_passed_on(cluster):
    cluster.problems.append("a record failed its checksum")
    assert cluster.findings() == [("error", "master")]


def test_a_lost_record_shows_in_the_counts(cluster):
    cluster.counted = (1, 0, 0)
    assert cluster.findings() == [("error", "count")]


def test_a_block_listed_twice(cluster):
    cluster.blocks.append(cluster.blocks[0])
    assert ("error", "twice") in cluster.findings()


# ---------------------------------------------------------------- namespace


def test_a_dentry_of_an_inode_that_does_not_exist(cluster):
    cluster.dentries.append(pb.DumpDentry(parent=ROOT, name=b"ghost", inode=77, cookie=20))
    assert cluster.findings() == [("error", "dangling")]


def test_a_dentry_in_a_directory_that_does_not_exist(cluster):
    cluster.dentries[1].parent = 77
    assert ("error", "no-parent") in cluster.findings()


def test_a_dentry_in_a_file(cluster):
    cluster.dentries[3].parent = FILE
    assert ("error", "no-parent") in cluster.findings()


def test_two_dentries_with_one_name(cluster):
    cluster.dentries[2].name = b"weights"
    assert cluster.findings() == [("error", "name-twice")]


def test_two_dentries_with_one_cookie(cluster):
    cluster.dentries[2].cookie = 10
    assert cluster.findings() == [("error", "cookie-twice")]


def test_a_link_count_that_is_not_the_number_of_names(cluster):
    cluster.inodes[FILE].attributes.nlink = 3
    assert cluster.findings() == [("error", "links")]


def test_a_directory_with_two_names(cluster):
    cluster.dentries.append(pb.DumpDentry(parent=ROOT, name=b"again", inode=DIRECTORY, cookie=20))
    assert ("error", "links") in cluster.findings()


def test_an_inode_that_says_it_is_elsewhere(cluster):
    cluster.inodes[LINK].parents[:] = [ROOT]
    assert cluster.findings() == [("error", "parents")]


def test_a_circle_of_directories_off_the_root(cluster):
    cluster.dentries[0].parent, cluster.dentries[0].cookie = DIRECTORY, 30
    cluster.inodes[DIRECTORY].parents[:] = [DIRECTORY]
    assert set(cluster.findings()) == {("error", "unreachable")}


def test_no_root(cluster):
    del cluster.inodes[ROOT]
    assert ("error", "no-root") in cluster.findings()


def test_a_symlink_without_target(cluster):
    cluster.inodes[LINK].symlink_target = b""
    assert cluster.findings() == [("error", "symlink")]


# ---------------------------------------------------------------- references


def test_more_valid_bytes_than_the_block_has(cluster):
    cluster.inodes[FILE].extents[0].valid_bytes = 101
    assert cluster.findings() == [("error", "extent")]


def test_two_extents(cluster):
    cluster.inodes[FILE].extents.add().CopyFrom(cluster.inodes[FILE].extents[0])
    assert set(cluster.findings()) == {("error", "extent"), ("error", "shared")}


def test_a_directory_with_bytes(cluster):
    cluster.inodes[DIRECTORY].attributes.size_bytes = 100
    cluster.inodes[DIRECTORY].extents.add().CopyFrom(cluster.inodes[FILE].extents[0])
    assert ("error", "extent") in cluster.findings()


def test_a_file_whose_block_is_in_no_table(cluster):
    del cluster.blocks[0]
    assert ("error", "no-block") in cluster.findings()


@pytest.mark.parametrize("field", ["generation", "length_bytes", "digest"])
def test_file_and_block_table_disagree(cluster, field):
    setattr(cluster.blocks[0], field, 5)
    assert ("error", "reference") in cluster.findings()


def test_two_files_with_one_block(cluster):
    cluster.inodes[9] = entry(9, stat.S_IFREG, 1, [ROOT], 100)
    cluster.inodes[9].extents.add().CopyFrom(cluster.inodes[FILE].extents[0])
    cluster.dentries.append(pb.DumpDentry(parent=ROOT, name=b"nine", inode=9, cookie=20))
    assert {("error", "shared"), ("error", "reference")} <= set(cluster.findings())


def test_a_block_of_a_file_that_has_another_one(cluster):
    cluster.blocks.append(pb.DumpBlock(block=3, generation=1, inode=FILE, workers=["w9"]))
    assert ("error", "orphan") in cluster.findings()


def test_a_block_of_a_file_that_does_not_exist(cluster):
    cluster.blocks[0].inode = 77
    assert ("error", "orphan") in cluster.findings()


def test_a_working_block_of_no_client(cluster):
    cluster.blocks[1].client_id = 0
    assert cluster.findings() == [("error", "orphan")]


def test_a_client_between_two_sessions_keeps_its_working_block(cluster):
    cluster.blocks[1].session_id = 0
    assert cluster.findings() == []


def test_a_block_without_replica_is_a_warning(cluster):
    del cluster.blocks[0].workers[:]
    cluster.reports = {"w1": []}
    assert cluster.findings() == [("warning", "unavailable")]


# ---------------------------------------------------------------- replicas


def test_a_replica_that_is_not_there(cluster):
    cluster.reports["w2"] = []
    assert cluster.findings() == [("error", "replica")]


@pytest.mark.parametrize("change", [{"length_bytes": 99}, {"digest": 98}, {"working": True}])
def test_a_replica_that_is_not_what_it_should_be(cluster, change):
    cluster.reports["w2"] = [report(**change)]
    assert cluster.findings() == [("error", "replica")]


def test_a_replica_of_another_generation(cluster):
    cluster.reports["w2"] = [report(generation=6)]
    assert cluster.findings() == [("error", "replica"), ("warning", "stray")]


def test_an_unsealed_replica_has_no_digest_to_compare(cluster):
    cluster.reports["w2"] = [report(digest=0)]
    assert cluster.findings() == []


def test_a_worker_that_does_not_answer_is_a_warning(cluster):
    cluster.reports["w2"] = None
    assert cluster.findings() == [("warning", "unchecked")]


def test_a_committed_block_that_nobody_knows(cluster):
    cluster.reports["w2"] = [report(), report(block=0xDEAD)]
    assert cluster.findings() == [("warning", "stray")]


def test_a_replica_that_the_master_does_not_count_on(cluster):
    cluster.blocks[0].workers[:] = ["w1"]
    assert cluster.findings() == [("warning", "stray")]


def test_working_blocks_that_nobody_knows_clean_themselves_up(cluster):
    cluster.reports["w2"] = [report(), report(block=0xDEAD, working=True)]
    assert cluster.findings() == []


def test_fewer_replicas_than_asked_for_is_a_warning(cluster):
    cluster.blocks[0].wanted_replicas = 2
    assert cluster.findings() == []
    cluster.blocks[0].wanted_replicas = 3
    assert cluster.findings() == [("warning", "degraded")]


def test_what_a_cluster_can_mend(cluster):
    missing = [Finding("error", "replica", f"block {BlockKey(BLOCK, 7)} on w1", "is not there")]
    assert remedies(missing) == Remedies([(BlockKey(BLOCK, 7), "w1")], [])
    strays = [Finding("warning", "stray", f"block {BlockKey(9, 2)} on a worker", "…")]
    assert remedies(strays) == Remedies([], ["a worker"])
    assert remedies([Finding("error", "dangling", "'x' in directory 1", "…")]) == Remedies([], [])
