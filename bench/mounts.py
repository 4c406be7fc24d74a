"""Files through mounts: stored, loaded at once, loaded again, loaded through another node's mount; then against the
disk, with fsync and dropped caches; then by a reader that may not keep them all in memory.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from . import kv_files
from .contenders import Contender, Lab
from .kv_files import Contents, KvFiles
from .memory_limit import MemoryGroup, why_not
from .names_of_rows import COLD_LOAD, FIRST, LIMITED, REMOTE_FIRST, REMOTE_SECOND, SECOND, STORE, SYNC_STORE
from .reader import Reader
from .rounds import Results, Sample, Visit, interleave
from .rows import Row


def hot(lab: Lab) -> Iterator[Row]:
    """Page cache as it comes: what was just stored is in it."""
    steps = (STORE, FIRST, SECOND, REMOTE_FIRST, REMOTE_SECOND)
    for mib, count in kv_files.sizes(lab.quick):
        contents = Contents(int(mib * (1 << 20)), count)
        for threads in kv_files.thread_counts(lab.quick):
            visits = {one.label: _hot_visit(one, contents, threads) for one in lab.contenders}
            results = interleave(visits, lab.rounds)
            lab.check_disk()
            yield from _rows("mounts", steps, results, mib, threads)


def _hot_visit(contender: Contender, contents: Contents, threads: int) -> Visit:
    def visit(number: int) -> Mapping[str, Sample]:
        files, name = _fresh(contender, contents, threads, number)
        samples = {STORE: files.store(), FIRST: files.load(), SECOND: files.load()}
        files.verify()
        if contender.other:
            other = os.fspath(contender.other / name)
            samples[REMOTE_FIRST] = files.load(directory=other)
            samples[REMOTE_SECOND] = files.load(directory=other)
            files.verify(directory=other)
        _remove(contender, files)
        return samples

    return visit


def cold(lab: Lab) -> Iterator[Row]:
    """Against the disk itself."""
    for mib, count in kv_files.sizes(lab.quick):
        if mib == 1:
            continue
        contents = Contents(int(mib * (1 << 20)), count)
        for threads in kv_files.thread_counts(lab.quick):
            visits = {one.label: _cold_visit(one, contents, threads) for one in lab.contenders}
            results = interleave(visits, lab.rounds)
            lab.check_disk()
            yield from _rows("disk", (SYNC_STORE, COLD_LOAD), results, mib, threads)


def _cold_visit(contender: Contender, contents: Contents, threads: int) -> Visit:
    def visit(number: int) -> Mapping[str, Sample]:
        files, _ = _fresh(contender, contents, threads, number)
        samples = {SYNC_STORE: files.store(sync=True)}
        contender.settle()
        kv_files.drop_caches()
        samples[COLD_LOAD] = files.load()
        files.verify()
        _remove(contender, files)
        return samples

    return visit


def limited(lab: Lab) -> Iterator[Row]:
    """A reader in a memory group of its own, whose limit is a third of what it reads, over and over."""
    reason = why_not()
    mib, count = 8.0, 16 if lab.quick else 48
    if reason:
        yield Row("limit", LIMITED, "GB/s", {}, mib, 1, f"skipped: {reason}")
        return
    contents = Contents(int(mib * (1 << 20)), count)
    limit_bytes = contents.total_bytes // 3
    with MemoryGroup(limit_bytes) as group, Reader(group) as reader:
        visits = {one.label: _limited_visit(one, contents, reader) for one in lab.contenders}
        results = interleave(visits, lab.rounds, warm_up=0)
        lab.check_disk()
        note = f"{count} files in turn, {limit_bytes >> 20} MiB of memory for the reader and its page cache"
        yield results.row("limit", LIMITED, "GB/s", mib=mib, threads=1, note="; ".join([note, *results.reasons()]))


def _limited_visit(contender: Contender, contents: Contents, reader: Reader) -> Visit:
    def visit(number: int) -> Mapping[str, Sample]:
        files, _ = _fresh(contender, contents, 1, number)
        files.store()
        files.verify()
        kv_files.drop_caches()  # else the pages are ours, and no limit holds for them
        place = Path(files.directory)
        sample = reader.load(place, contents, 1)
        _remove(contender, files)
        return {LIMITED: sample}

    return visit


def _fresh(contender: Contender, contents: Contents, threads: int, number: int) -> tuple[KvFiles, str]:
    """An empty directory, and a disk that has nothing left to write for others."""
    os.sync()
    name = f"round{number}"
    return KvFiles(contender.directory / name, contents, threads), name


def _remove(contender: Contender, files: KvFiles) -> None:
    shutil.rmtree(files.directory)
    contender.settle()


def _rows(section: str, steps: tuple[str, ...], results: Results, mib: float, threads: int) -> Iterator[Row]:
    note = "; ".join(results.reasons())
    for step in steps:
        yield results.row(section, step, "GB/s", mib=mib, threads=threads, note=note)
