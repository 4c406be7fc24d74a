"""What commands print: tables for people, JSON for programs, progress on a terminal only.

stdout has the result and nothing else; progress and errors go to stderr. Names are bytes: on a terminal control
characters in them are shown as escapes, so that a file's name cannot rewrite the screen.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

Advance = Callable[[int], None]


def console() -> Console:
    """For stdout: colours only on a terminal and without NO_COLOR; into a pipe lines are not cut."""
    from rich.console import Console

    wide = None if sys.stdout.isatty() else 10_000
    return Console(width=wide, highlight=False, emoji=False)


def plain(text: str) -> Text:
    """Text that rich takes literally."""
    from rich.text import Text

    return Text(printable(text))


def printable(name: str | bytes) -> str:
    """A name without control characters or bytes that are no UTF-8.

    >>> printable(b"a\\x1b[2J\\xffb")
    'a\\\\x1b[2J\\\\xffb'
    """
    text = name.decode(errors="surrogateescape") if isinstance(name, bytes) else name
    return "".join(_escape(char) for char in text)


def _escape(char: str) -> str:
    if char.isprintable():
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape: a byte that was not UTF-8
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def table(*headings: str) -> Table:
    """A plain table; a heading that starts with ``>`` is a column of numbers."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        made.add_column(heading.lstrip(">"), justify="right" if heading.startswith(">") else "left", overflow="fold")
    return made


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=_as_json) + "\n")


def _as_json(value: Any) -> str:
    return printable(value) if isinstance(value, bytes) else str(value)


def size(count_bytes: float) -> str:
    """A size for people, in the units that settings take.

    >>> size(1536), size(12), size(3 << 40)
    ('1.5 KiB', '12 B', '3.0 TiB')
    """
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = 0
    while count_bytes >= 1024 and power < len(units) - 1:
        count_bytes, power = count_bytes / 1024, power + 1
    return f"{count_bytes:.0f} B" if power == 0 else f"{count_bytes:.1f} {units[power]}"


def age(seconds: float) -> str:
    """
    >>> age(0.2), age(90), age(7300), age(200000)
    ('0.2 s', '1.5 min', '2.0 h', '2.3 d')
    """
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


@contextmanager
def progress(what: str, total_bytes: int | None) -> Iterator[Advance]:
    """A bar of bytes on stderr if that is a terminal; the block gets a function that advances it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(what), total=total_bytes)
        yield lambda count: bar.advance(task, count)


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar of how many of how many on stderr if that is a terminal; both numbers may grow."""
    if not sys.stderr.isatty():
        yield lambda _, __: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(what), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def busy(what: str, *, quiet: bool = False) -> Iterator[None]:
    """A spinner on stderr if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield
