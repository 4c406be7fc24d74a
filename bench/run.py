"""What ``hearth bench`` does: the sections, one after the other, each row said as soon as it is there."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..common.errors import InvalidArgument, NotPermitted
from . import connector_path, daemon_memory, directories, doors, kv_files, machine, mounts, names, scale, sdk
from .contenders import Lab
from .report import Report, line
from .rows import Row

Section = Callable[[Lab], Iterator[Row]]
SECTIONS: dict[str, Section] = {
    "memory": daemon_memory.rows,
    "mounts": mounts.hot,
    "disk": mounts.cold,
    "limit": mounts.limited,
    "sdk": sdk.rows,
    "connector": connector_path.rows,
    "doors": doors.rows,
    "metadata": names.rows,
    "sessions": scale.sessions,
    "inodes": scale.inodes,
}
"""In this order: daemons are fresh for the first, and the last leaves a large namespace."""
QUICK_ROUNDS, ROUNDS = 2, 5


@dataclasses.dataclass
class Options:
    """``directories``: measure these and nothing else. ``work``: on the disk to be measured; a temporary one there."""

    directories: Sequence[Path] = ()
    sections: Sequence[str] = ()
    rounds: int = 0
    quick: bool = False
    rivals: Path = Path(sys.prefix)
    want_rivals: bool = True
    work: Path | None = None
    output: Path = Path("build")
    docs: Path | None = None
    add: bool = False
    """Keep what the output directory's bench.json has of other sections."""
    say: Callable[[str], None] = print

    def chosen(self) -> list[str]:
        """Raises: InvalidArgument: a section that is not there."""
        wrong = [name for name in self.sections if name not in SECTIONS]
        if wrong:
            raise InvalidArgument(f"no section {wrong[0]!r}; there are {', '.join(SECTIONS)}")
        return list(self.sections or SECTIONS)


def run(options: Options) -> Report:
    """Measures, and writes the report as it grows: what was measured stays when a later section fails.

    Raises:
        InvalidArgument: an option that makes no sense.
        NotPermitted: mounts and caches are root's.
    """
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    if options.directories:
        report = Report({**machine.facts(options.directories[0]), "rounds": rounds})
        for row in directories.rows(options.directories, rounds, options.quick):
            report.rows.append(row)
            options.say(line(row))
        report.write(options.output, "directories")
        return report
    sections = options.chosen()
    if os.geteuid() != 0:
        raise NotPermitted("the comparison mounts filesystems and drops caches: run it as root, or name directories")
    work = Path(tempfile.mkdtemp(prefix="hearth-bench-", dir=options.work))
    report = Report({**machine.facts(work), "rounds": rounds, "quick": options.quick})
    earlier = options.output / "bench.json"
    if options.add and earlier.exists():
        kept = Report.read(earlier.read_text())
        kept.forget(sections)
        report.take_over(kept)
    lab = Lab(work / "lab", rounds=rounds, quick=options.quick, rivals=options.rivals, want_rivals=options.want_rivals)
    try:
        with lab:
            for one in lab.contenders:
                report.settings[one.label] = one.settings
            for name in sections:
                _section(name, report, lab, options)
    finally:
        kv_files.end_threads()
        report.write(options.output, "bench")
        shutil.rmtree(work, ignore_errors=True)
    if options.docs:
        report.write_docs(options.docs)
    return report


def _section(name: str, report: Report, lab: Lab, options: Options) -> None:
    """A section that fails is told of; what others measured is no less true for it."""
    begin = time.monotonic()
    options.say(f"-- {name}")
    try:
        for row in SECTIONS[name](lab):
            report.rows.append(row)
            options.say(line(row))
    except Exception as error:
        report.failures[name] = f"{type(error).__name__}: {error}"
        options.say(f"{name} failed: {report.failures[name]}")
    report.missing.update(lab.missing)
    report.settings.update(lab.settings)
    report.seconds[name] = round(time.monotonic() - begin)
