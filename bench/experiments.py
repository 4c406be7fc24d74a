"""Two experiments with real engines on the CPU: ``make experiments`` writes build/experiments.json, .md and .png.

ttft     time to the first token by prompt length, computed and loaded, and where break-even lies
users    throughput as users grow: their prefixes are 0.5 to 8 times the engine's KV memory, with and without HearthFS

The ratios are those of a small model on a CPU, whose prefill is slow: they say nothing about a GPU's.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hearthfs.bench.demo import describe, machine
from hearthfs.bench.demo_model import VOCABULARY, llama_config, make_model
from hearthfs.bench.engine import BLOCK_TOKENS, Engine
from hearthfs.tests.support.cluster import Cluster

LENGTHS = (150, 300, 600, 1200, 2000, 3000)
PROMPTS = 3
KV_BLOCKS = 64
PREFIX_TOKENS = 1024
FACTORS = (0.5, 1, 2, 4, 8)
AT_A_TIME = 4
BUILD = Path("build")


def ttft(engine: Engine, stored: Callable[[], int]) -> list[dict[str, Any]]:
    rows = []
    for tokens in LENGTHS:
        cold, warm, equal = [], [], True
        for number in range(PROMPTS):
            text, before = prompt(f"ttft {number}", tokens), stored()
            first = engine.generate(text, 4)
            wait_until(lambda before=before, tokens=tokens: stored() >= before + tokens // BLOCK_TOKENS)  # type: ignore[misc]  # defaults bind the loop's values
            engine.forget()
            second = engine.generate(text, 4)
            engine.forget()
            cold.append(first.first_token_ms)
            warm.append(second.first_token_ms)
            equal = equal and first.tokens == second.tokens and second.cached_tokens > 0
        rows.append(
            {
                "tokens": tokens,
                "computed_ms": statistics.median(cold),
                "loaded_ms": statistics.median(warm),
                "equal": equal,
            }
        )
    return rows


def users(engines: dict[str, Engine]) -> list[dict[str, Any]]:
    """Each user comes twice; the second round is measured."""
    rows = []
    for factor in FACTORS:
        count = max(1, int(factor * KV_BLOCKS * BLOCK_TOKENS / PREFIX_TOKENS))
        prefixes = [prompt(f"user {factor} {user}", PREFIX_TOKENS) for user in range(count)]
        row: dict[str, Any] = {"working_set": factor, "users": count}
        for name in random.sample(list(engines), 2):
            engine = engines[name]
            engine.forget()
            for turn in (1, 2):
                begin = time.perf_counter()
                for at in range(0, count, AT_A_TIME):
                    batch = [
                        prefix + prompt(f"turn {turn} {at} {nth}", 40)
                        for nth, prefix in enumerate(prefixes[at : at + AT_A_TIME])
                    ]
                    engine.generate_all(batch, 4)
                row[name] = count / (time.perf_counter() - begin)
                time.sleep(0.5)
        row["ratio"] = row["with"] / row["without"]
        rows.append(row)
    return rows


def run(directory: Path) -> dict[str, Any]:
    model = make_model(BUILD / "demo-model", llama_config()).absolute()
    with Cluster(directory / "cluster", workers=1, mounts=1) as cluster:
        client = cluster.client(1)
        extra = {"root": str(cluster.mountpoint(1) / "kv"), "lookup_timeout_s": 5, "load_timeout_min_s": 5}
        options = {"num_gpu_blocks_override": KV_BLOCKS, "max_model_len": 3200}
        engines = {
            "with": Engine(model, extra, directory / "with.log", options),
            "without": Engine(model, None, directory / "without.log", options),
        }

        def stored() -> int:
            if not client.isdir("/kv"):
                return 0
            return sum(one.name.endswith(".kv") for _, _, files in client.walk("/kv") for one in files)

        try:
            for engine in engines.values():
                engine.wait_ready()
                engine.generate(prompt("warm up", 500), 2)
            by_users = users(engines)
            figures = {name: value for name, value in engines["with"].metrics().items() if "hearth_kv" in name}
            always = Engine(model, extra | {"load_when": "always"}, directory / "always.log", options)
            engines["always"] = always
            always.wait_ready()
            always.generate(prompt("warm up", 500), 2)
            by_length = ttft(always, stored)
        finally:
            for engine in engines.values():
                engine.close()
            client.close()
    return {
        "machine": machine(),
        "model": describe(model),
        "ttft": by_length,
        "users": by_users,
        "learned": {name: value for name, value in figures.items() if "_per_second" in name or "break_even" in name},
    }


def as_markdown(result: dict[str, Any]) -> str:
    lines = [
        f"{result['machine']}; {result['model']}. A small model on a CPU: not comparable with a GPU's figures.",
        "",
        "| tokens | computed, ms | loaded, ms | ratio | equal |",
        "|---:|---:|---:|---:|---|",
        *(
            f"| {row['tokens']} | {row['computed_ms']:.0f} | {row['loaded_ms']:.0f} | "
            f"{row['computed_ms'] / row['loaded_ms']:.2f} | {row['equal']} |"
            for row in result["ttft"]
        ),
        "",
        "| working set / KV memory | users | with HearthFS, requests/s | without | ratio |",
        "|---:|---:|---:|---:|---:|",
        *(
            f"| {row['working_set']} | {row['users']} | {row['with']:.1f} | {row['without']:.1f} | {row['ratio']:.2f} |"
            for row in result["users"]
        ),
    ]
    return "\n".join(lines) + "\n"


def draw(result: dict[str, Any], path: Path) -> bool:
    """Both pictures, if matplotlib is here (``pip install -e '.[bench]'``)."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    lengths = [row["tokens"] for row in result["ttft"]]
    left.plot(lengths, [row["computed_ms"] for row in result["ttft"]], "o-", label="computed")
    left.plot(lengths, [row["loaded_ms"] for row in result["ttft"]], "s-", label="loaded")
    left.set(xlabel="prompt tokens", ylabel="ms to the first token", title="Time to the first token")
    sets = [row["working_set"] for row in result["users"]]
    right.plot(sets, [row["with"] for row in result["users"]], "s-", label="with HearthFS")
    right.plot(sets, [row["without"] for row in result["users"]], "o-", label="without")
    right.set(xlabel="prefixes of all users / KV memory", ylabel="requests/s", title="Throughput as users grow")
    right.set_xscale("log", base=2)
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.legend()
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    return True


def prompt(seed: str, tokens: int) -> list[int]:
    generator = random.Random(f"{seed} {tokens}")
    return [generator.randrange(VOCABULARY) for _ in range(tokens)]


def wait_until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"chunks not stored within {timeout_s} s")
        time.sleep(0.05)


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    BUILD.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="hearth-experiments-"))
    try:
        result = run(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    (BUILD / "experiments.json").write_text(json.dumps(result, indent=1) + "\n")
    (BUILD / "experiments.md").write_text(as_markdown(result))
    if not draw(result, BUILD / "experiments.png"):
        print("no picture: matplotlib is not installed", file=sys.stderr)
    print(as_markdown(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
