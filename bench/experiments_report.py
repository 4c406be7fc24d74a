"""What the experiments found, as a page and a picture. No engine, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

CAVEAT = "A small model on a CPU, whose prefill is slow: no ratio here is to be set beside a GPU's."
BARS = {"users": 3.0, "tax": 0.92, "short": 0.95}
"""Least ratio at eight times the KV memory; least lower bounds."""


def as_markdown(result: Mapping[str, Any]) -> str:
    lines = ["# Engines with and without HearthFS", "", f"{result['machine']}; {result['model']}. {CAVEAT}", ""]
    lines += ["![Time to the first token; throughput as users grow](experiments.png)", ""]
    for part, write in _PARTS.items():
        if part in result:
            lines += [*write(result[part]), ""]
    return "\n".join(lines)


def _ttft(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield from (
        "## Time to the first token",
        "",
        "Medians of three prompts; loaded: what was a hit, at the least.",
        "",
    )
    yield from (
        "| tokens | computed, ms | loaded, ms | ratio | loaded tokens | equal |",
        "|---:|---:|---:|---:|---:|---|",
    )
    for row in rows:
        computed, loaded = row["computed_ms"], row["loaded_ms"]
        rest = f"{computed / loaded:.2f} | {row['hit_tokens']} | {_yes(row['equal'])}"
        yield f"| {row['tokens']} | {computed:.0f} | {loaded:.0f} | {rest} |"


def _users(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield from (
        "## Throughput as users grow",
        "",
        "Each asks about a document of 1,024 tokens; requests per second.",
        "",
    )
    yield from ("| documents / KV memory | users | with HearthFS | without | ratio |", "|---:|---:|---:|---:|---:|")
    for row in rows:
        rates = f"{row['with']:.2f} | {row['without']:.2f} | {row['ratio']:.2f}"
        yield f"| {row['working_set']} | {row['users']} | {rates} |"
    last = rows[-1]
    yield from ("", f"At {last['working_set']} times: {last['ratio']:.2f}, {_against(last['ratio'], BARS['users'])}.")


def _mixed(row: dict[str, Any]) -> Iterator[str]:
    yield from ("## Mixed traffic", "")
    yield (
        "Half asks about shared documents, popular as 1/rank; three of ten are short chats; the rest is long and new. "
        f"Requests per second with HearthFS {row['with']:.2f}, without {row['without']:.2f}: {row['ratio']:.2f}."
    )


def _pairs(title: str, what: str, bar: float, row: dict[str, Any]) -> Iterator[str]:
    yield from (f"## {title}", "")
    yield (
        f"{what} Throughput with over without, {row['pairs']} pairs in turn: {row['mean']:.3f}, 95 % interval "
        f"{row['low']:.3f} to {row['high']:.3f}; for the lower end {_against(row['low'], bar)}. Processor seconds for "
        f"a request: {row['cpu_s_with']:.2f} with (daemons and stores included), {row['cpu_s_without']:.2f} without."
    )


def _tax(row: dict[str, Any]) -> Iterator[str]:
    yield from _pairs("Prompts that nobody has asked before", "600 tokens each, all stored.", BARS["tax"], row)


def _short(row: dict[str, Any]) -> Iterator[str]:
    yield from _pairs(
        "Prompts below break-even", "200 tokens each; half are asked again and again.", BARS["short"], row
    )


def _learned(figures: dict[str, float]) -> Iterator[str]:
    yield from ("## What the connector had learned in the end", "")
    yield from (f"- `{name}` {value:,.0f}" for name, value in figures.items())


def _demo(report: dict[str, Any]) -> Iterator[str]:
    yield from ("## Another node, and a chat", "")
    yield from ("| tokens | cold, ms | other node, ms | tokens reused | output equal |", "|---:|---:|---:|---:|---|")
    for row in report["prompts"]:
        reused = f"{row['hit_tokens']} of {row['reusable_tokens']}"
        times = f"{row['cold_ms']:.0f} | {row['warm_other_node_ms']:.0f}"
        yield f"| {row['tokens']} | {times} | {reused} | {_yes(row['output_equal'])} |"
    yield from ("", "| turn of a chat | cold, ms | warm, ms | output equal |", "|---:|---:|---:|---|")
    for row in report["chat"]:
        yield f"| {row['turn']} | {row['cold_ms']:.0f} | {row['warm_ms']:.0f} | {_yes(row['output_equal'])} |"


_PARTS: dict[str, Callable[[Any], Iterator[str]]] = {
    "ttft": _ttft,
    "users": _users,
    "mixed": _mixed,
    "tax": _tax,
    "short": _short,
    "demo": _demo,
    "learned": _learned,
}


def _yes(value: bool) -> str:
    return "yes" if value else "NO"


def _against(value: float, bar: float) -> str:
    return f"the bar of {bar:g} is reached" if value >= bar else f"the bar of {bar:g} is NOT reached"


def draw(result: Mapping[str, Any], path: Path) -> bool:
    """Both pictures, if matplotlib is here (``pip install -e '.[bench]'``)."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    for key, style in (("computed_ms", "o-"), ("loaded_ms", "s-")):
        rows = result.get("ttft", [])
        left.plot([row["tokens"] for row in rows], [row[key] for row in rows], style, label=key.removesuffix("_ms"))
    left.set(xlabel="prompt tokens", ylabel="ms to the first token", title="Time to the first token")
    for key, style in (("with", "s-"), ("without", "o-")):
        rows = result.get("users", [])
        right.plot([row["working_set"] for row in rows], [row[key] for row in rows], style, label=f"{key} HearthFS")
    right.set(xlabel="documents of all users / KV memory", ylabel="requests/s", title="Throughput as users grow")
    right.set_xscale("log", base=2)
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.legend()
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    return True
