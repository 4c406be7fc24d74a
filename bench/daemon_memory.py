"""What each daemon holds in memory after the same work: the proportional share of its resident pages."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from .contenders import Contender, Lab
from .kv_files import Contents, KvFiles
from .rows import Row, make

FILES, FILE_BYTES = 256, 1 << 20


def rows(lab: Lab) -> Iterator[Row]:
    """Fresh, and after storing, loading and removing files."""
    contents = Contents(FILE_BYTES, FILES)
    fresh = {one.label: _memory(one) for one in lab.contenders}
    worked: dict[str, dict[str, float]] = {}
    for one in lab.contenders:
        files = KvFiles(one.directory / "memory", contents, 4)
        files.store()
        files.verify()
        if one.other:
            files.verify(directory=os.fspath(one.other / "memory"))
        worked[one.label] = _memory(one)
        shutil.rmtree(files.directory)
        one.settle()
    lab.check_disk()
    note = f"{FILES} files of {FILE_BYTES >> 20} MiB stored, and loaded through both mounts"
    for when, found in (("fresh", fresh), ("after work", worked)):
        names = dict.fromkeys(name for by_daemon in found.values() for name in by_daemon)
        for name in names:
            values = {who: [by_daemon[name]] for who, by_daemon in found.items() if name in by_daemon}
            yield make("memory", f"memory, {when}: {name}", "MiB", values, note=note)
        together = {who: [sum(by_daemon.values())] for who, by_daemon in found.items() if by_daemon}
        yield make("memory", f"memory, {when}: all together", "MiB", together, note=note)


def _memory(one: Contender) -> dict[str, float]:
    """MiB by the daemons' names."""
    return {name: sum(map(pss_mib, pids)) for name, pids in one.processes().items()}


def pss_mib(pid: int) -> float:
    """Proportional set size: pages that several processes share count in parts. 0 when the process is gone."""
    with contextlib.suppress(OSError):
        return parse_pss_kib(Path(f"/proc/{pid}/smaps_rollup").read_text()) / 1024
    return 0.0


def parse_pss_kib(text: str) -> int:
    """
    >>> parse_pss_kib("Rss:  10 kB\\nPss:   7 kB\\nPss_Anon: 3 kB")
    7
    """
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0
