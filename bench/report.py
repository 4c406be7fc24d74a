"""What a run found, as JSON, as Markdown and as one line for each row. Pure but for ``write``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .rows import COLUMNS, SMALLER_IS_BETTER, Figure, Row, from_json
from .targets import Verdict, verdicts


@dataclasses.dataclass
class Report:
    """``machine``: facts and the way of measuring. ``settings``: what each contender was started with."""

    machine: dict[str, Any]
    rows: list[Row] = dataclasses.field(default_factory=list)
    settings: dict[str, str] = dataclasses.field(default_factory=dict)
    missing: dict[str, str] = dataclasses.field(default_factory=dict)
    failures: dict[str, str] = dataclasses.field(default_factory=dict)
    """Sections that ended with an error."""
    seconds: dict[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Report:
        """What ``as_json`` wrote.

        Raises:
            ValueError, KeyError, TypeError: it did not.
        """
        found = json.loads(text)
        rows = [from_json(each) for each in found["rows"]]
        parts = ("machine", "settings", "missing", "failures", "seconds")
        return cls(rows=rows, **{part: found[part] for part in parts})

    def take_over(self, earlier: Report) -> None:
        """What an earlier run has of sections that this one does not measure."""
        self.rows = [*earlier.rows, *self.rows]
        for part in ("settings", "missing", "failures", "seconds"):
            setattr(self, part, {**getattr(earlier, part), **getattr(self, part)})

    def forget(self, sections: Sequence[str]) -> None:
        """Drops these: they are measured again."""
        self.rows = [row for row in self.rows if row.section not in sections]
        for part in (self.failures, self.seconds):
            for section in sections:
                part.pop(section, None)

    def as_json(self) -> str:
        found = {
            "machine": self.machine,
            "settings": self.settings,
            "missing": self.missing,
            "failures": self.failures,
            "seconds": self.seconds,
            "rows": [row.as_json() for row in self.rows],
            "targets": [dataclasses.asdict(verdict) for verdict in verdicts(self.rows)],
        }
        return json.dumps(found, indent=1) + "\n"

    def as_markdown(self, picture: str = "") -> str:
        return "\n".join(_page(self, picture)) + "\n"

    def write(self, directory: Path, name: str) -> None:
        """NAME.json, NAME.md and, where matplotlib is installed, NAME.png."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{name}.json").write_text(self.as_json())
        drawn = _draw(self, directory / f"{name}.png")
        (directory / f"{name}.md").write_text(self.as_markdown(f"{name}.png" if drawn else ""))

    def write_docs(self, page: Path) -> None:
        """The page, and its picture beside it."""
        picture = page.with_suffix(".png")
        drawn = _draw(self, picture)
        page.write_text(self.as_markdown(picture.name if drawn else ""))


def _draw(report: Report, file: Path) -> bool:
    from . import charts

    return charts.draw(report.rows, file)


def number(value: float) -> str:
    """Three digits that count.

    >>> number(0.1234), number(12.34), number(48211.0), number(0.0)
    ('0.123', '12.3', '48,211', '0')
    """
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def cell(figure: Figure | None) -> str:
    """Median, and the spread behind it."""
    if figure is None:
        return "-"
    spread = f" ({number(figure.min)} to {number(figure.max)})" if figure.rounds > 1 else ""
    return f"{number(figure.median)}{spread}"


def what(row: Row) -> str:
    """The name with size and threads.

    >>> what(Row("s", "load", "GB/s", {}, 8, 4))
    'load, 8 MiB, 4 threads'
    """
    size = [f"{row.mib:g} MiB"] if row.mib is not None else []
    threads = [f"{row.threads} thread{'s' if row.threads > 1 else ''}"] if row.threads is not None else []
    return ", ".join([row.name, *size, *threads])


def line(row: Row) -> str:
    """For the terminal, as soon as it was measured."""
    figures = "  ".join(f"{who} {number(figure.median)}" for who, figure in row.figures.items())
    return f"{what(row)} [{row.unit}]: {figures or row.note or 'nothing'}"


def _page(report: Report, picture: str) -> Iterator[str]:
    facts = report.machine
    yield from ("# Performance", "")
    command = "hearth bench --quick" if facts.get("quick") else "hearth bench"
    yield (
        f"Measured by `{command}`: {facts['rounds']} rounds, each with everybody in turn; the median, and in brackets"
        " the least and the most. Absolute figures drift from one machine and hour to the next; ratios within one row"
        " are what to quote. After the timed loads of a round every file was read once more in the same way and"
        " compared; batches and the connector's pages were compared where they had been loaded."
    )
    yield ""
    yield (
        f"Machine: {facts['cores']} cores of {facts['processor']}, {facts['memory_gib']:g} GiB of memory, Linux"
        f" {facts['kernel']}, {facts['filesystem']}, Python {facts['python']}; HearthFS {facts['hearthfs']}."
    )
    yield ""
    if picture:
        yield from (f"![Bars of the rows below]({picture})", "")
    found = verdicts(report.rows)
    if found:
        yield from ("## What must be reached", "", *_table(_VERDICTS, [_verdict(one) for one in found]), "")
    for name, why in report.failures.items():
        yield from (f"**Section {name} failed**: {why}", "")
    if report.settings:
        yield from ("## Who was compared", "")
        yield from (f"- **{who}**: {settings}" for who, settings in report.settings.items())
        yield from (f"- **{who}**: took no part: {why}" for who, why in report.missing.items())
        yield ""
    for section in dict.fromkeys(row.section for row in report.rows):
        yield from _section(section, [row for row in report.rows if row.section == section])


_VERDICTS = ["what", "at least", "measured", "reached"]


def _verdict(one: Verdict) -> list[str]:
    if one.measured is None:
        return [one.what, one.bound, "not measured", "-"]
    return [one.what, one.bound, number(one.measured), "yes" if one.reached else "NO"]


def _section(name: str, rows: list[Row]) -> Iterator[str]:
    yield from (f"## {TITLES.get(name, name)}", "")
    for unit in dict.fromkeys(row.unit for row in rows):
        of_unit = [row for row in rows if row.unit == unit]
        who = _contenders(of_unit)
        better = "less is better" if unit in SMALLER_IS_BETTER else "more is better"
        head = [f"{unit} ({better})", *who]
        yield from _table(head, [[what(row), *(cell(row.figures.get(one)) for one in who)] for row in of_unit])
        yield ""
    timed = [row for row in rows if any(figure.p50_ms is not None for figure in row.figures.values())]
    if timed:
        who = _contenders(timed)
        yield from ("Single calls, ms, p50 / p99:", "")
        yield from _table(["", *who], [[what(row), *(_calls(row.figures.get(one)) for one in who)] for row in timed])
        yield ""
    notes = list(dict.fromkeys(row.note for row in rows if row.note))
    yield from (f"- {note}" for note in notes)
    if notes:
        yield ""


TITLES = {
    "mounts": "Files through mounts, page cache hot",
    "disk": "Files through mounts, against the disk",
    "limit": "A reader with less memory than it reads",
    "sdk": "Batches of the SDK",
    "connector": "The connector's worker half",
    "doors": "Storage of other connectors on each filesystem",
    "metadata": "Names",
    "memory": "Memory of the daemons",
    "sessions": "Many sessions, one of them stopped",
    "inodes": "Many inodes",
    "directories": "Directories",
}


def _contenders(rows: list[Row]) -> list[str]:
    """Those that measured anything, columns first."""
    seen = dict.fromkeys(who for row in rows for who in row.figures)
    return [who for who in COLUMNS if who in seen] + [who for who in seen if who not in COLUMNS]


def _calls(figure: Figure | None) -> str:
    if figure is None or figure.p50_ms is None or figure.p99_ms is None:
        return "-"
    return f"{number(figure.p50_ms)} / {number(figure.p99_ms)}"


def _table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    widths = [max(len(cells[column]) for cells in (head, *rows)) for column in range(len(head))]

    def joined(cells: list[str]) -> str:
        first, *others = (
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join([first, *others]) + " |"

    yield joined(head)
    yield (
        "|"
        + "|".join(("-" * (width + 2)) if at == 0 else ("-" * (width + 1) + ":") for at, width in enumerate(widths))
        + "|"
    )
    yield from map(joined, rows)
