"""``hearth bench``: the sections, one after the other, each row said as soon as it is there.

As a program (``make bench``) it takes the same options.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from . import connector_path, daemon_memory, directories, machine, mounts, sdk
from .contenders import Lab
from .report import Report, line
from .rows import Row

Section = Callable[[Lab], Iterator[Row]]
SECTIONS: dict[str, Section] = {
    "mounts": mounts.hot,
    "disk": mounts.cold,
    "limit": mounts.limited,
    "sdk": sdk.rows,
    "connector": connector_path.rows,
    "memory": daemon_memory.rows,
}
QUICK_ROUNDS, ROUNDS = 3, 5


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
    say: Callable[[str], None] = print

    def chosen(self) -> list[str]:
        """Raises: ValueError: a section that is not there."""
        wrong = [name for name in self.sections if name not in SECTIONS]
        if wrong:
            raise ValueError(f"no section {wrong[0]!r}; there are {', '.join(SECTIONS)}")
        return list(self.sections or SECTIONS)


def run(options: Options) -> Report:
    """Measures, and writes the report as it grows: what was measured stays when a later section fails.

    Raises:
        ValueError: an option that makes no sense.
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
    work = Path(tempfile.mkdtemp(prefix="hearth-bench-", dir=options.work))
    report = Report({**machine.facts(work), "rounds": rounds, "quick": options.quick})
    try:
        for name in sections:
            _section(name, report, rounds, work / name, options)
            report.write(options.output, "bench")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if options.docs:
        report.write_docs(options.docs)
    return report


def _section(name: str, report: Report, rounds: int, work: Path, options: Options) -> None:
    """In a lab of its own, so that what one section leaves in caches and logs is nothing to the next one."""
    begin = time.monotonic()
    options.say(f"-- {name}")
    lab = Lab(work, rounds=rounds, quick=options.quick, rivals=options.rivals, want_rivals=options.want_rivals)
    with lab:
        report.settings.update({one.label: one.settings for one in lab.contenders})
        report.missing.update(lab.missing)
        for row in SECTIONS[name](lab):
            report.rows.append(row)
            options.say(line(row))
    report.seconds[name] = round(time.monotonic() - begin)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1: a directory gave wrong bytes, or HearthFS failed."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("directories", nargs="*", type=Path)
    parser.add_argument("--quick", action="store_true", help="about three minutes")
    parser.add_argument("--section", action="append", default=[], choices=list(SECTIONS))
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--rivals", type=Path, default=Path(sys.prefix), help="prefix of the environment they are in")
    parser.add_argument("--no-rivals", action="store_true")
    parser.add_argument("--work", type=Path, help="directory on the disk to be measured")
    parser.add_argument("--output", type=Path, default=Path("build"))
    parser.add_argument("--docs", type=Path, help="write the results there, too, as a page")
    given: Any = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing stays behind
    run(
        Options(
            given.directories, given.section, given.rounds, given.quick, given.rivals, not given.no_rivals,
            given.work, given.output, given.docs,
        )
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
