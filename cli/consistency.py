"""Whether a cluster's tables agree with each other and with what lies on the workers. Pure: streams in, findings out.

What must hold, in this order:

1. Namespace. Each dentry names an inode that exists, in a directory that exists; no two in one directory have the
   same name or cookie. Each inode is named by as many dentries as its link count says (a directory by one, the root
   by none), lists just those directories as its parents, and is reachable from the root.
2. References. A regular file has at most one extent; its block is in the block table with the same generation, length
   and digest, and belongs to that inode. Each block belongs to one inode that refers to it, or is the working block of
   a session.
3. Replicas. A block has as many as the directory of its file asks for. Each worker that the master lists for it has it,
   committed, with that length and digest; each committed block on a worker is known to the master. A block with no
   replica is unavailable.
"""

from __future__ import annotations

import re
import stat
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from ..common.types import ROOT_INODE, BlockKey
from ..proto import common_pb2 as common
from ..proto import master_pb2 as pb

WorkerReports = Mapping[str, Sequence[pb.BlockReport] | None]
"""What each worker says that it has; None: it did not answer."""


class Finding(NamedTuple):
    """One thing that is wrong. Two checks of the same fault give equal findings."""

    severity: Literal["error", "warning"]  # error: the tables contradict each other, or bytes are not what they should
    kind: str
    where: str
    text: str


MENDED = ("replica", "stray", "degraded")
"""Kinds of findings that a cluster mends itself, when it is told or in time."""


class Remedies(NamedTuple):
    """Replicas (block, worker) that their workers should look at, and workers that should report all they have."""

    replicas: list[tuple[BlockKey, str]]
    report_workers: list[str]


def remedies(findings: Iterable[Finding]) -> Remedies:
    """What to ask the master for.

    >>> found = Finding("error", "replica", _on_worker(BlockKey(7, 1), "w1"), "is not there")
    >>> remedies([found]).replicas
    [(BlockKey(block=7, generation=1), 'w1')]
    """
    replicas, workers = [], set()
    for finding in findings:
        match = _ON_WORKER.fullmatch(finding.where)
        if match is None:
            continue
        if finding.kind == "replica":
            replicas.append((BlockKey(int(match[1], 16), int(match[2])), match[3]))
        elif finding.kind == "stray":
            workers.add(match[3])
    return Remedies(replicas, sorted(workers))


_ON_WORKER = re.compile(r"block ([0-9a-f]{16})\.(\d+) on (.+)")


def _on_worker(key: BlockKey, worker: str) -> str:
    return f"block {key} on {worker}"


class Dump:
    """The records of one snapshot, by what they are looked up by."""

    def __init__(self, records: Iterable[pb.DumpRecord]) -> None:
        self.dentries: list[pb.DumpDentry] = []
        self.inodes: dict[int, common.Entry] = {}
        self.blocks: dict[int, pb.DumpBlock] = {}
        self.end: pb.DumpEnd | None = None
        self.twice: list[str] = []
        counts: Counter[str] = Counter()
        for record in records:
            kind = record.WhichOneof("record") or ""
            counts[kind] += 1
            if kind == "dentry":
                self.dentries.append(record.dentry)
            elif kind == "inode":
                if record.inode.attributes.inode in self.inodes:
                    self.twice.append(f"inode {record.inode.attributes.inode}")
                self.inodes[record.inode.attributes.inode] = record.inode
            elif kind == "block":
                if record.block.block in self.blocks:
                    self.twice.append(f"block {record.block.block:016x}")
                self.blocks[record.block.block] = record.block
            elif kind == "end":
                self.end = record.end
        self.counts = (counts["dentry"], counts["inode"], counts["block"])


def check(records: Iterable[pb.DumpRecord], worker_reports: WorkerReports) -> list[Finding]:
    """All findings, errors first. A dump that was cut is one finding, for nothing else can be said of it."""
    dump = Dump(records)
    if dump.end is None:
        return [Finding("error", "dump-cut", "master", "the master's stream ended before its last record")]
    found = [
        *_master_findings(dump, dump.end),
        *_dentry_findings(dump),
        *_inode_findings(dump),
        *_reachability_findings(dump),
        *_reference_findings(dump),
        *_block_findings(dump),
        *_replica_findings(dump, worker_reports),
        *_stray_findings(dump, worker_reports),
    ]
    return sorted(set(found))


def _master_findings(dump: Dump, end: pb.DumpEnd) -> Iterator[Finding]:
    for problem in end.problems:
        yield Finding("error", "master", "master", problem)
    for what in dump.twice:
        yield Finding("error", "twice", what, "was listed twice")
    announced = (end.dentries, end.inodes, end.blocks)
    if announced != dump.counts:
        text = f"dentries, inodes, blocks: the master counts {announced} and lists {dump.counts}"
        yield Finding("error", "count", "master", text)


# ---------------------------------------------------------------- namespace


def _name(dentry: pb.DumpDentry) -> str:
    return f"{dentry.name.decode(errors='backslashreplace')!r} in directory {dentry.parent}"


def _is_directory(entry: common.Entry) -> bool:
    return stat.S_ISDIR(entry.attributes.mode)


def _dentry_findings(dump: Dump) -> Iterator[Finding]:
    names: Counter[tuple[int, bytes]] = Counter()
    cookies: Counter[tuple[int, int]] = Counter()
    for dentry in dump.dentries:
        names[dentry.parent, dentry.name] += 1
        cookies[dentry.parent, dentry.cookie] += 1
        if names[dentry.parent, dentry.name] == 2:
            yield Finding("error", "name-twice", _name(dentry), "two entries have this name")
        if cookies[dentry.parent, dentry.cookie] == 2:
            yield Finding("error", "cookie-twice", _name(dentry), f"another entry has cookie {dentry.cookie} too")
        parent = dump.inodes.get(dentry.parent)
        if parent is None:
            yield Finding("error", "no-parent", _name(dentry), "the directory does not exist")
        elif not _is_directory(parent):
            yield Finding("error", "no-parent", _name(dentry), "that is not a directory")
        if dentry.inode not in dump.inodes:
            yield Finding("error", "dangling", _name(dentry), f"names inode {dentry.inode}, which does not exist")


def _inode_findings(dump: Dump) -> Iterator[Finding]:
    named_in: defaultdict[int, list[int]] = defaultdict(list)
    for dentry in dump.dentries:
        named_in[dentry.inode].append(dentry.parent)
    if ROOT_INODE not in dump.inodes:
        yield Finding("error", "no-root", f"inode {ROOT_INODE}", "the root directory does not exist")
    for inode, entry in dump.inodes.items():
        where, directories = f"inode {inode}", named_in[inode]
        if _is_directory(entry):
            wanted = 0 if inode == ROOT_INODE else 1
            if len(directories) != wanted:
                yield Finding("error", "links", where, f"a directory with {len(directories)} names, not {wanted}")
        elif entry.attributes.nlink != len(directories):
            text = f"link count {entry.attributes.nlink}, but {len(directories)} names"
            yield Finding("error", "links", where, text)
        if inode != ROOT_INODE and sorted(entry.parents) != sorted(directories):
            text = f"says it is named in {sorted(entry.parents)}, but it is in {sorted(directories)}"
            yield Finding("error", "parents", where, text)
        if stat.S_ISLNK(entry.attributes.mode) and not entry.symlink_target:
            yield Finding("error", "symlink", where, "a symlink without a target")


def _reachability_findings(dump: Dump) -> Iterator[Finding]:
    children: defaultdict[int, list[int]] = defaultdict(list)
    for dentry in dump.dentries:
        children[dentry.parent].append(dentry.inode)
    seen, waiting = {ROOT_INODE}, [ROOT_INODE]
    while waiting:
        fresh = [inode for inode in children[waiting.pop()] if inode not in seen]
        seen.update(fresh)
        waiting.extend(fresh)
    for inode in dump.inodes.keys() - seen:
        yield Finding("error", "unreachable", f"inode {inode}", "no path from the root leads to it")


# ---------------------------------------------------------------- references


def _reference_findings(dump: Dump) -> Iterator[Finding]:
    users: Counter[int] = Counter()
    for inode, entry in dump.inodes.items():
        where = f"inode {inode}"
        if entry.extents and not stat.S_ISREG(entry.attributes.mode):
            yield Finding("error", "extent", where, "has bytes but is not a regular file")
        if len(entry.extents) > 1:
            yield Finding("error", "extent", where, f"has {len(entry.extents)} extents, not one")
        for extent in entry.extents:
            yield from _extent_findings(dump, where, entry, extent)
            users[extent.block] += 1
            if users[extent.block] == 2:
                yield Finding("error", "shared", f"block {extent.block:016x}", "two files have it")


def _extent_findings(dump: Dump, where: str, entry: common.Entry, extent: common.Extent) -> Iterator[Finding]:
    key = BlockKey(extent.block, extent.generation)
    if extent.valid_bytes > min(extent.length_bytes, entry.attributes.size_bytes):
        text = (
            f"{extent.valid_bytes} valid bytes of a block of {extent.length_bytes}, size {entry.attributes.size_bytes}"
        )
        yield Finding("error", "extent", where, text)
    block = dump.blocks.get(extent.block)
    if block is None:
        yield Finding("error", "no-block", where, f"its block {key} is in no table")
        return
    is_in_table = (block.generation, block.length_bytes, block.digest, block.inode)
    should_be = (extent.generation, extent.length_bytes, extent.digest, entry.attributes.inode)
    if is_in_table != should_be:
        text = f"block {key}: (generation, length, digest, inode) is {is_in_table} in the block table, not {should_be}"
        yield Finding("error", "reference", where, text)


def _block_findings(dump: Dump) -> Iterator[Finding]:
    for number, block in dump.blocks.items():
        where = f"block {number:016x}"
        if block.inode == 0:
            if block.client_id == 0:  # a client without a session may come back; the master drops what it left
                yield Finding("error", "orphan", where, "belongs to no file and to no client")
            continue
        entry = dump.inodes.get(block.inode)
        if entry is None:
            yield Finding("error", "orphan", where, f"belongs to inode {block.inode}, which does not exist")
        elif number not in {extent.block for extent in entry.extents}:
            yield Finding("error", "orphan", where, f"belongs to inode {block.inode}, which has another one")
        if 0 < len(block.workers) < block.wanted_replicas:
            text = f"has {len(block.workers)} of the {block.wanted_replicas} replicas that its directory asks for"
            yield Finding("warning", "degraded", where, text)
        if not block.workers:
            text = f"no worker has it: inode {block.inode} ({block.length_bytes} bytes) cannot be read"
            yield Finding("warning", "unavailable", where, text)


# ---------------------------------------------------------------- replicas


def _replica_findings(dump: Dump, reports: WorkerReports) -> Iterator[Finding]:
    has = {worker: {block.block: block for block in blocks} for worker, blocks in reports.items() if blocks is not None}
    unchecked: Counter[str] = Counter({worker: 0 for worker, blocks in reports.items() if blocks is None})
    for number, block in dump.blocks.items():
        for worker in block.workers:
            if worker not in has:
                unchecked[worker] += 1
                continue
            replica = has[worker].get(number)
            where = _on_worker(BlockKey(number, block.generation), worker)
            if block.inode == 0:  # still being written: any state will do
                continue
            if replica is None:
                yield Finding("error", "replica", where, "is not there")
            elif replica.working:
                yield Finding("error", "replica", where, "was never committed there")
            elif (replica.generation, replica.length_bytes) != (block.generation, block.length_bytes):
                text = f"is generation {replica.generation} with {replica.length_bytes} bytes, not {block.length_bytes}"
                yield Finding("error", "replica", where, text)
            elif block.digest and replica.digest and replica.digest != block.digest:
                yield Finding("error", "replica", where, "has other bytes: its digest is not the master's")
    for worker, count in unchecked.items():
        yield Finding("warning", "unchecked", worker, f"did not answer: {count} replicas were not checked")


def _stray_findings(dump: Dump, reports: WorkerReports) -> Iterator[Finding]:
    """Committed blocks that the master knows nothing of. Working ones are cleaned up by themselves in a while."""
    for worker, blocks in reports.items():
        for replica in blocks or ():
            block = dump.blocks.get(replica.block)
            if replica.working or (block and block.inode == 0):
                continue
            where = _on_worker(BlockKey(replica.block, replica.generation), worker)
            if block is None or block.generation != replica.generation:
                yield Finding("warning", "stray", where, f"{replica.length_bytes} bytes that no file refers to")
            elif worker not in block.workers:
                yield Finding("warning", "stray", where, "a replica that the master does not count on")
