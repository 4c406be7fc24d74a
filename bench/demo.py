"""Two nodes, two vLLM engines, one cache: engine 2 answers from KV that engine 1 computed on the other node.

``make demo`` runs this: one master, two nodes (a worker and a mount each), an engine on each node; a table on the
terminal, in build/demo.md and build/demo.json. Exit status 0 only if every claim in it holds.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hearthfs.bench import traffic
from hearthfs.bench.demo_model import llama_config, make_model
from hearthfs.bench.demo_report import BLOCK_TOKENS, ChatRow, PromptRow, Report, reusable
from hearthfs.bench.engine import Engine, Generation
from hearthfs.tests.support.cluster import Cluster

LENGTHS = (500, 1000, 1925, 2500, 3000)
PROMPTS_PER_LENGTH = 3
TOKENS = 8
CHATS = 3
TURN_TOKENS, ANSWER_TOKENS = (1200, 200, 200, 200), 140
"""A long first turn (instructions, a document), then short ones; answers longer than a block."""
BUILD = Path("build")


class Demo:
    """Two engines on the two nodes of a cluster; engine N has its root below mount N."""

    def __init__(self, cluster: Cluster, model: Path, directory: Path) -> None:
        self.cluster = cluster
        self.client = cluster.client(1)
        self.engines = [
            Engine(
                model,
                {
                    "root": str(cluster.mountpoint(node) / "kv"),
                    "offload_prompt_only": False,
                    "load_when": "always",  # also what this small model computes faster: hits are what is shown
                    "load_timeout_min_s": 5,
                    "lookup_timeout_s": 5,  # a machine with two cores and eight processes is late at times
                },
                directory / f"engine{node}.log",
            )
            for node in (1, 2)
        ]
        self.gaps: list[float] = []
        self.noise: list[float] = [1e-7]  # what float32 cannot tell apart; equal runs would else divide by zero
        self.expected_blocks = 0

    def start(self) -> str:
        facts = [engine.wait_ready() for engine in self.engines]
        assert facts[0]["block_tokens"] == BLOCK_TOKENS, facts
        for number, engine in enumerate(self.engines):
            engine.generate(traffic.text(f"warm up {number}", BLOCK_TOKENS - 20), 4)
        return f"vLLM {facts[0]['vllm']} (CPU, 2 engines), chunks of {BLOCK_TOKENS} tokens"

    def close(self) -> None:
        for engine in self.engines:
            engine.close()

    def blocks(self) -> int:
        """Chunk files of both engines: they are in one directory."""
        return sum(name.name.endswith(".kv") for _, _, files in self.client.walk("/kv") for name in files)

    def wait_stored(self, total: int) -> None:
        wait_until(lambda: self.blocks() >= total, f"{total} chunks stored")

    def compare(self, cold: Generation, warm: Generation) -> bool:
        """Whether both gave the same tokens, as far as ``cold`` went."""
        self.gaps += cold.gaps
        self.noise += [abs(one - other) for one, other in zip(cold.best, warm.best, strict=False)]
        return cold.tokens == warm.tokens[: len(cold.tokens)]

    def prompts(self, tokens: int) -> PromptRow:
        """Cold on node 1, then from HearthFS on node 1, then on node 2."""
        runs, equal = [], True
        for number in range(PROMPTS_PER_LENGTH):
            text = traffic.text(f"prompt {number}", tokens)
            before = self.blocks()
            cold = self.engines[0].generate(text, TOKENS)
            assert cold.cached_tokens == 0, "a prompt that nobody has seen"
            self.wait_stored(before + (tokens + TOKENS - 1) // BLOCK_TOKENS)
            self.engines[0].forget()
            same = self.engines[0].generate(text, TOKENS)
            other = self.engines[1].generate(text, TOKENS)
            equal = self.compare(cold, same) and self.compare(cold, other) and equal
            runs.append((cold, same, other))
        cold_ms, same_ms, other_ms = (
            statistics.median(one.first_token_ms for one in each) for each in zip(*runs, strict=True)
        )
        hits = min(warm.cached_tokens for _, same, other in runs for warm in (same, other))
        return PromptRow(tokens, cold_ms, same_ms, other_ms, reusable(tokens), hits, equal)

    def chat(self) -> list[ChatRow]:
        """Conversations that change nodes with every turn; medians over them."""
        chats = [self.one_chat(number) for number in range(CHATS)]
        return [
            ChatRow(
                turn,
                statistics.median(row.cold_ms for row in rows),
                statistics.median(row.warm_ms for row in rows),
                min(row.decode_blocks_stored for row in rows),
                all(row.output_equal for row in rows),
            )
            for turn, rows in enumerate(zip(*chats, strict=True), 1)
        ]

    def one_chat(self, number: int) -> list[ChatRow]:
        """Cold: the same turn again, told to read no cache."""
        rows: list[ChatRow] = []
        history: list[int] = []
        known = 0
        for turn, tokens in enumerate(TURN_TOKENS, 1):
            engine = self.engines[turn % 2]
            history += traffic.text(f"chat {number} turn {turn}", tokens)
            prompt_blocks = len(history) // BLOCK_TOKENS
            before = self.blocks()
            warm = engine.generate(history, ANSWER_TOKENS)
            all_blocks = (len(history) + ANSWER_TOKENS - 1) // BLOCK_TOKENS
            self.wait_stored(before + all_blocks - known)
            decode_blocks = self.blocks() - before - (prompt_blocks - known)
            cold = engine.generate(history, TOKENS, skip_reading_prefix_cache=True)
            equal = self.compare(cold, warm)
            rows.append(ChatRow(turn, cold.first_token_ms, warm.first_token_ms, decode_blocks, equal))
            history += warm.tokens
            known = all_blocks
            engine.forget()
        return rows


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s} s: {what}")
        time.sleep(0.05)


def machine() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{len(os.sched_getaffinity(0))} cores of {names[0] if names else platform.machine()}, {platform.release()}"


def describe(model: Path) -> str:
    config = llama_config()
    size = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    per_block = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4 * BLOCK_TOKENS
    return (
        f"Llama of {config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{config.num_attention_heads} heads, {config.num_key_value_heads} KV heads, float32 random weights "
        f"({size / 1e6:.0f} MB), {per_block / 2**20:.0f} MiB of KV per block"
    )


def run(directory: Path) -> Report:
    begin = time.monotonic()
    model = make_model(BUILD / "demo-model", llama_config())
    with Cluster(directory, workers=2, mounts=2) as cluster:
        demo = Demo(cluster, model.absolute(), directory)
        try:
            engine = demo.start()
            print(f"cluster and engines are up after {time.monotonic() - begin:.0f} s", flush=True)
            rows = [demo.prompts(tokens) for tokens in LENGTHS]
            print(f"prompts done after {time.monotonic() - begin:.0f} s", flush=True)
            chat = demo.chat()
        except BaseException:
            for one in demo.engines:
                print(one.log.read_text(errors="replace")[-4000:], file=sys.stderr)
            raise
        finally:
            demo.close()
    ratio = min(demo.gaps) / max(demo.noise)
    return Report(rows, chat, ratio, engine, describe(model), machine(), time.monotonic() - begin)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cluster's directory and logs")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing stays behind
    BUILD.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="hearth-demo-"))
    try:
        report = run(directory)
    finally:
        if arguments.keep:
            print(f"logs and data: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    (BUILD / "demo.json").write_text(report.as_json())
    (BUILD / "demo.md").write_text(report.as_markdown())
    print(report.as_markdown())
    return 1 if report.broken_claims() else 0


if __name__ == "__main__":
    sys.exit(main())
