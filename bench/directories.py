"""``hearth bench DIR…``: KV files in any directories, in turn, with lookups beside."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from . import kv_files
from .kv_files import Contents, KvFiles
from .rounds import Sample, Visit, interleave
from .rows import Row

STORE, FIRST, SECOND, HIT, MISS = "store", "first load", "second load", "lookup, there", "lookup, not there"


def rows(places: Sequence[Path], rounds: int, quick: bool) -> Iterator[Row]:
    """Every byte is checked.

    Raises:
        WrongBytesError, OSError.
    """
    labels = {os.fspath(place): place for place in places}
    for mib, count in kv_files.sizes(quick):
        contents = Contents(int(mib * (1 << 20)), count)
        for threads in kv_files.thread_counts(quick):
            visits = {label: _visit(place, contents, threads) for label, place in labels.items()}
            results = interleave(visits, rounds, required=next(iter(labels)))
            for step in (STORE, FIRST, SECOND, HIT, MISS):
                unit = "/s" if step in (HIT, MISS) else "GB/s"
                note = "; ".join(results.reasons())
                yield results.row("directories", step, unit, mib=mib, threads=threads, note=note)


def _visit(place: Path, contents: Contents, threads: int) -> Visit:
    def visit(number: int) -> Mapping[str, Sample]:
        os.sync()
        own = place / f".hearth-bench-{os.getpid()}"
        try:
            files = KvFiles(own, contents, threads)
            samples = {STORE: files.store(), FIRST: files.load(), SECOND: files.load()}
            files.verify()
            samples[HIT] = _lookups(files, "", contents.count)
            samples[MISS] = _lookups(files, f"{number}-", 4 * contents.count)
        finally:
            shutil.rmtree(own, ignore_errors=True)
        return samples

    return visit


def _lookups(files: KvFiles, prefix: str, count: int) -> Sample:
    paths = [f"{files.directory}/{prefix}{files.name(number)}" for number in range(count)]
    calls = []
    begin = time.perf_counter()
    for path in paths:
        before = time.perf_counter()
        os.path.exists(path)
        calls.append(time.perf_counter() - before)
    return Sample(count / (time.perf_counter() - begin), calls)
