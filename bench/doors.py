"""Storage of other connectors, unchanged, with its files on each filesystem: what somebody who stays with LMCache or
with vLLM's own tier gets from the mount. Many chunks at once, in processes of their own, every byte checked.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .agents import Agent, SharedMemory
from .contenders import Contender, Lab
from .rivals import lmcache
from .rounds import interleave
from .rows import Row
from .sdk import visit_of

MIB, THREADS = 8, 4
ON = ("raw", "hearthfs", "juicefs")
DOORS: dict[str, tuple[str, dict[str, Any]]] = {
    "vLLM fs tier": ("vllm_fs", {"direct": False}),
    "LMCache fs": ("lmcache", {"storage": "fs"}),
    "LMCache fs_native": ("lmcache", {"storage": "fs_native"}),
}
"""The agent's kind and options."""


def rows(lab: Lab) -> Iterator[Row]:
    count = 16 if lab.quick else 64
    contenders = [one for one in lab.contenders if one.label in ON]
    with ExitStack() as stack:
        memory = SharedMemory(count * MIB << 20)
        stack.callback(memory.close)
        contents = memory.contents(MIB << 20, count)
        for door, (kind, options) in DOORS.items():
            steps = (f"doors: {door}, store", f"doors: {door}, load", f"doors: {door}, load on the other node")
            environment = lmcache.environment() if kind == "lmcache" else {}
            if environment is None or (kind == "vllm_fs" and not importlib.util.find_spec("vllm")):
                yield Row("doors", steps[0], "GB/s", {}, note=f"skipped: {door} is not installed")
                continue
            if kind == "lmcache":
                options = {**options, "memory_bytes": 2 * memory.size_bytes}
            with ExitStack() as agents:
                visits = {}
                for one in contenders:
                    log = lab.directory / "agents" / f"{kind}-{one.label}"
                    pair = _agents(agents, memory, one, log, kind, options, environment)
                    visits[one.label] = visit_of(*pair, memory, contents, THREADS, steps)
                results = interleave(visits, lab.rounds)
            lab.check_disk()
            note = "; ".join([f"{count} chunks at once", *results.reasons()])
            for step in steps:
                yield results.row("doors", step, "GB/s", mib=MIB, threads=THREADS, note=note)


def _agents(
    stack: ExitStack,
    memory: SharedMemory,
    contender: Contender,
    log: Path,
    kind: str,
    options: Mapping[str, Any],
    environment: Mapping[str, str],
) -> tuple[Agent, Agent | None]:
    """One on the contender's mount, one on the other node's."""

    def start(top: Path) -> Agent:
        directory = os.fspath(top / "doors" / f"{kind}-{options.get('storage', 'files')}")
        return stack.enter_context(
            Agent(kind, {"directory": directory, **options}, memory, log, environment=environment)
        )

    return start(contender.directory), start(contender.other) if contender.other else None
