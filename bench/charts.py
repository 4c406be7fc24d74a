"""One picture of the rows that people ask for first: bars side by side, one panel for each row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from . import names_of_rows as names
from .rows import COLUMNS, Row

PANELS = (names.STORE, names.FIRST, names.SECOND, names.REMOTE_FIRST, names.SYNC_STORE, names.COLD_LOAD, names.LIMITED,
          names.PUT, names.GET, names.REMOTE_GET, names.CONNECTOR_STORE, names.CONNECTOR_LOAD)  # fmt: skip
COLOURS = {
    "hearthfs": "#d9480f",
    "raw": "#868e96",
    "juicefs": "#1c7ed6",
    "seaweedfs": "#2f9e44",
    "mooncake": "#7048e8",
    "vllm_fs": "#f08c00",
}


def panels(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each panel that has any, in order.

    >>> panels([])
    []
    """
    found = [[row for row in rows if row.name == name and row.figures] for name in PANELS]
    return [each for each in found if each]


def colour(who: str) -> tuple[str, str]:
    """Face and hatch: a contender's other mode has its colour, hatched."""
    base = next((name for name in (*COLUMNS, "") if who.startswith(name)), "")
    return COLOURS.get(base, "#495057"), "" if who in COLOURS else "///"


def draw(rows: Sequence[Row], file: Path) -> bool:
    """False when there is nothing to draw, or nothing to draw with."""
    chosen = panels(rows)
    try:
        import matplotlib
    except ImportError:
        return False
    if not chosen:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    columns = min(3, len(chosen))
    lines = -(-len(chosen) // columns)
    figure, grid = pyplot.subplots(lines, columns, figsize=(5.2 * columns, 2.9 * lines + 0.6), squeeze=False)
    for axes in grid.flat[len(chosen) :]:
        axes.set_axis_off()
    seen: dict[str, None] = {}
    for axes, of_panel in zip(grid.flat, chosen, strict=False):
        who = list(dict.fromkeys(one for row in of_panel for one in row.figures))
        seen.update(dict.fromkeys(who))
        width = 0.85 / len(who)
        for nth, one in enumerate(who):
            face, hatch = colour(one)
            present = [(at, row.figures[one]) for at, row in enumerate(of_panel) if one in row.figures]
            places = [at + (nth - (len(who) - 1) / 2) * width for at, _ in present]
            heights = [each.median for _, each in present]
            spread = [[each.median - each.min for _, each in present], [each.max - each.median for _, each in present]]
            axes.bar(places, heights, width, yerr=spread, color=face, hatch=hatch, edgecolor="white", linewidth=0.4,
                     error_kw={"elinewidth": 0.7})  # fmt: skip
        axes.set_title(of_panel[0].name, fontsize=9)
        axes.set_ylabel(of_panel[0].unit, fontsize=8)
        labels = [f"{row.mib:g} MiB\n{row.threads} thr." if row.mib and row.threads else "" for row in of_panel]
        axes.set_xticks(range(len(of_panel)), labels, fontsize=7)
        axes.tick_params(axis="y", labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    legend = [Patch(facecolor=colour(one)[0], hatch=colour(one)[1], edgecolor="white", label=one) for one in seen]
    figure.legend(handles=legend, loc="lower center", ncol=min(8, len(legend)), fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.6 / (2.9 * lines + 0.6), 1, 1))
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=90)
    pyplot.close(figure)
    return True
