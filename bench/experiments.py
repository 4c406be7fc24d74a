"""Experiments with real engines on the CPU, with and without HearthFS: ``make experiments`` writes
build/experiments.json, .md and .png; ``--docs`` the page and its picture, too.

ttft     time to the first token by prompt length, computed and loaded, and where break-even lies
users    throughput as users grow: their documents are 0.5 to 8 times the engine's KV memory
mixed    questions about shared documents, short chats, and long prompts that nobody asks twice
tax      prompts that nobody has asked before: all that a cache can do is to be in the way
short    prompts below break-even, asked once and asked again
demo     what ``make demo`` shows: hits on the other node, a chat of four turns

The ratios are those of a small model on a CPU, whose prefill is slow: they say nothing about a GPU's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hearthfs.bench import demo, experiments_report, paired, traffic
from hearthfs.bench.demo import describe, machine
from hearthfs.bench.demo_model import llama_config, make_model
from hearthfs.bench.engine import BLOCK_TOKENS, Engine
from hearthfs.bench.service import processes_of_group
from hearthfs.tests.support.cluster import Cluster

LENGTHS = (150, 300, 600, 1200, 2000, 3000)
PROMPTS = 3
KV_BLOCKS = 64
FACTORS = (0.5, 1, 2, 4, 8)
AT_A_TIME = 4
ANSWER_TOKENS = 4
MIXED_REQUESTS, MIXED_DOCUMENTS, MIXED_ROUNDS = 40, 24, 5
PAIRS = 24
TAX_REQUESTS, TAX_TOKENS = 12, 600
SHORT_REQUESTS, SHORT_TOKENS = 24, 200
"""One chunk and a rest."""
SETTLE_S = 60.0
BUILD = Path("build")
ENGINE_OPTIONS = {"num_gpu_blocks_override": KV_BLOCKS, "max_model_len": 3200}


class Lab:
    """A cluster of one node, and engines on it: "with" the connector as a user would set it, "without" one."""

    def __init__(self, directory: Path, model: Path, stack: ExitStack) -> None:
        self._directory, self._model, self._stack = directory, model, stack
        self.cluster = stack.enter_context(Cluster(directory / "cluster", workers=1, mounts=1))
        self.client = self.cluster.client(1)
        stack.callback(self.client.close)
        self.engines: dict[str, Engine] = {}
        for name, connected in (("with", True), ("without", False)):
            self.start(name, {} if connected else None)

    def start(self, name: str, extra: Mapping[str, Any] | None) -> Engine:
        """``extra``: more settings of the connector; None: an engine without one."""
        root = {"root": str(self.cluster.mountpoint(1) / "kv"), "lookup_timeout_s": 5, "load_timeout_min_s": 5}
        settings = None if extra is None else {**root, **extra}
        engine = self.engines[name] = Engine(self._model, settings, self._directory / f"{name}.log", ENGINE_OPTIONS)
        self._stack.callback(engine.close)
        engine.wait_ready()
        engine.generate(traffic.text("warm up", 500), 2)
        return engine

    def stored(self) -> int:
        if not self.client.isdir("/kv"):
            return 0
        return sum(one.name.endswith(".kv") for _, _, files in self.client.walk("/kv") for one in files)

    def wait_stored(self, least: int) -> None:
        """Raises: TimeoutError: there are not so many chunks in time."""
        deadline = time.monotonic() + SETTLE_S
        while self.stored() < least:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{least} chunks not stored within {SETTLE_S} s")
            time.sleep(0.05)

    def settle(self) -> None:
        """Waits until no more chunks come: what one engine left to do takes nothing from the next."""
        before, deadline = -1, time.monotonic() + SETTLE_S
        while (now := self.stored()) != before:
            if time.monotonic() > deadline:
                raise TimeoutError(f"chunks are still being stored after {SETTLE_S} s")
            before = now
            time.sleep(0.3)

    def cpu_s(self, name: str) -> float:
        """Processor time of an engine, and for one with the connector that of all daemons."""
        groups = [self.engines[name].process.pid]
        if name != "without":
            groups += [self.cluster.pid(daemon) for daemon in ("master", "worker1", "mount1")]
        return sum(_cpu_s(pid) for group in groups for pid in processes_of_group(group))

    @contextmanager
    def timed(self, name: str, into: list[Usage]) -> Iterator[Engine]:
        cpu_s, begin = self.cpu_s(name), time.perf_counter()
        yield self.engines[name]
        taken_s = time.perf_counter() - begin
        self.settle()
        into.append(Usage(taken_s, self.cpu_s(name) - cpu_s))


@dataclasses.dataclass(frozen=True)
class Usage:
    """``cpu_s`` counts until the stores that a run left behind are done, ``taken_s`` to the last token."""

    taken_s: float
    cpu_s: float


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def answer_all(engine: Engine, prompts: list[traffic.Prompt]) -> None:
    for batch in traffic.batches(prompts, AT_A_TIME):
        engine.generate_all(batch, ANSWER_TOKENS)


def ttft(lab: Lab) -> list[dict[str, Any]]:
    """With an engine that loads whatever it finds."""
    engine = lab.start("always", {"load_when": "always"})
    rows = []
    for tokens in LENGTHS:
        cold, warm, hits, equal = [], [], [], True
        for number in range(PROMPTS):
            text, before = traffic.text(f"ttft {number}", tokens), lab.stored()
            first = engine.generate(text, ANSWER_TOKENS)
            lab.wait_stored(before + tokens // BLOCK_TOKENS)
            engine.forget()
            second = engine.generate(text, ANSWER_TOKENS)
            engine.forget()
            cold.append(first.first_token_ms)
            warm.append(second.first_token_ms)
            hits.append(second.cached_tokens)
            equal = equal and first.tokens == second.tokens
        figures = {"computed_ms": statistics.median(cold), "loaded_ms": statistics.median(warm)}
        rows.append({"tokens": tokens, **figures, "hit_tokens": min(hits), "equal": equal})
    lab.engines.pop("always").close()
    return rows


def users(lab: Lab) -> list[dict[str, Any]]:
    """Each user comes three times; the first fills the cache, the others are measured."""
    rows = []
    for factor in FACTORS:
        count = max(1, int(factor * KV_BLOCKS * BLOCK_TOKENS / traffic.DOCUMENT_TOKENS))
        rates: dict[str, list[float]] = {"with": [], "without": []}
        for turn in range(3):
            for name in in_turn(turn):
                spent: list[Usage] = []
                with lab.timed(name, spent) as engine:
                    answer_all(engine, traffic.users(f"users {factor}", count, turn))
                if turn:
                    rates[name].append(count / spent[0].taken_s)
        for engine in lab.engines.values():
            engine.forget()
        row = {name: statistics.median(values) for name, values in rates.items()}
        rows.append({"working_set": factor, "users": count, **row, "ratio": row["with"] / row["without"]})
    return rows


def mixed(lab: Lab) -> dict[str, Any]:
    """The first of the rounds fills the caches."""
    rates: dict[str, list[float]] = {"with": [], "without": []}
    for number in range(MIXED_ROUNDS + 1):
        for name in in_turn(number):
            spent: list[Usage] = []
            with lab.timed(name, spent) as engine:
                answer_all(engine, traffic.mixed(number, MIXED_REQUESTS, MIXED_DOCUMENTS))
            if number:
                rates[name].append(MIXED_REQUESTS / spent[0].taken_s)
    row = {name: statistics.median(values) for name, values in rates.items()}
    return {**row, "ratio": row["with"] / row["without"]}


def pairs(lab: Lab, prompts: Callable[[int], list[traffic.Prompt]]) -> dict[str, Any]:
    """Throughput with over without, over ``PAIRS`` pairs; ``prompts(number)`` are those of a pair. The engines' own
    prefix caches are empty before each run."""
    spent: dict[str, list[Usage]] = {"with": [], "without": []}
    for number in range(-1, PAIRS):
        for name in in_turn(number):
            lab.engines[name].forget()
            with lab.timed(name, spent[name]) as engine:
                answer_all(engine, prompts(number))
    warm = {name: runs[1:] for name, runs in spent.items()}
    pairs_s = [(without.taken_s, own.taken_s) for own, without in zip(warm["with"], warm["without"], strict=True)]
    requests = len(prompts(0))
    per_request = {
        f"cpu_s_{name}": statistics.median(run.cpu_s for run in runs) / requests for name, runs in warm.items()
    }
    return {**dataclasses.asdict(paired.ratio(pairs_s)), **per_request, "requests": requests}


def tax(lab: Lab) -> dict[str, Any]:
    return pairs(lab, lambda number: traffic.never_seen(f"tax {number}", TAX_REQUESTS, TAX_TOKENS))


def short(lab: Lab) -> dict[str, Any]:
    """Half of the prompts come in each pair again."""
    half = SHORT_REQUESTS // 2
    again = traffic.never_seen("again", half, SHORT_TOKENS)
    return pairs(lab, lambda number: again + traffic.never_seen(f"short {number}", half, SHORT_TOKENS))


def learned(lab: Lab) -> dict[str, float]:
    """What the connector took prefill and loads to cost in the end."""
    figures = lab.engines["with"].metrics()
    return {
        name: value
        for name, value in figures.items()
        if "hearth_kv" in name and ("_per_second" in name or "break_even" in name)
    }


PARTS: dict[str, Callable[[Lab], Any]] = {
    "ttft": ttft,
    "users": users,
    "mixed": mixed,
    "tax": tax,
    "short": short,
    "learned": learned,
}


def run(directory: Path, parts: list[str], say: Callable[[str], None]) -> dict[str, Any]:
    model = make_model(BUILD / "demo-model", llama_config()).absolute()
    result: dict[str, Any] = {"machine": machine(), "model": describe(model)}
    begin = time.monotonic()
    if wanted := [part for part in PARTS if part in parts]:
        with ExitStack() as stack:
            lab = Lab(directory, model, stack)
            for part in wanted:
                result[part] = PARTS[part](lab)
                say(f"{part} done after {time.monotonic() - begin:.0f} s")
    if "demo" in parts:
        result["demo"] = json.loads(demo.run(directory / "demo").as_json())
        say(f"demo done after {time.monotonic() - begin:.0f} s")
    return result


def in_turn(number: int) -> list[str]:
    """Who is first changes from round to round, by chance of a fixed seed."""
    return random.Random(number).sample(["with", "without"], 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=[*PARTS, "demo"], help="only this one; repeatable")
    parser.add_argument("--add", action="store_true", help="keep the other parts of build/experiments.json")
    parser.add_argument("--docs", type=Path, help="write the page and its picture there, too")
    options = parser.parse_args()
    BUILD.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="hearth-experiments-"))
    kept = BUILD / "experiments.json"
    earlier = json.loads(kept.read_text()) if options.add and kept.exists() else {}
    try:
        result = earlier | run(directory, options.part or [*PARTS, "demo"], lambda line: print(line, flush=True))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    kept.write_text(json.dumps(result, indent=1) + "\n")
    page = experiments_report.as_markdown(result)
    (BUILD / "experiments.md").write_text(page)
    if not experiments_report.draw(result, BUILD / "experiments.png"):
        print("no picture: matplotlib is not installed", file=sys.stderr)
    if options.docs:
        options.docs.write_text(page)
        experiments_report.draw(result, options.docs.with_suffix(".png"))
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
