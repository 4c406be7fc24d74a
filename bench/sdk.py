"""Batches: many values put from memory and got into it, each contender in a process of its own, all with the same
memory. The parent zeroes the target before and checks every byte after.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from .agents import Agent, AgentError, SharedMemory
from .contenders import Lab
from .kv_files import Contents, thread_counts
from .names_of_rows import GET, PUT, REMOTE_GET
from .rivals.mooncake import MooncakeMaster, python_of
from .rounds import Sample, Visit, interleave
from .rows import Row

CLUSTER_DIRECTORY = "/bench"
STEPS = (PUT, GET, REMOTE_GET)


def rows(lab: Lab) -> Iterator[Row]:
    cells = sizes(lab.quick)
    with ExitStack() as stack:
        memory = SharedMemory(max(mib * count for mib, count in cells) << 20)
        stack.callback(memory.close)
        writers, readers = _agents(lab, stack, memory)
        for mib, count in cells:
            contents = memory.contents(mib << 20, count)
            for threads in thread_counts(lab.quick):
                visits = {
                    who: visit_of(agent, readers.get(who), memory, contents, threads, STEPS)
                    for who, agent in writers.items()
                }
                results = interleave(visits, lab.rounds)
                lab.check_disk()
                note = "; ".join([f"{count} values at once", *results.reasons()])
                for step in STEPS:
                    more = "; raw: a bare grpc-python stream from a process that preads" if step == REMOTE_GET else ""
                    yield results.row("sdk", step, "GB/s", mib=mib, threads=threads, note=note + more)


def sizes(quick: bool) -> tuple[tuple[int, int], ...]:
    """(MiB of a value, how many)."""
    return ((8, 48),) if quick else ((1, 256), (8, 256), (64, 8))


def _agents(lab: Lab, stack: ExitStack, memory: SharedMemory) -> tuple[dict[str, Agent], dict[str, Agent]]:
    """Who puts and gets; and, for some, who gets from another node."""
    writers: dict[str, Agent] = {}
    readers: dict[str, Agent] = {}

    def add(to: dict[str, Agent], who: str, kind: str, options: Mapping[str, Any], **more: Any) -> None:
        log = lab.directory / "agents" / f"{who.replace(' ', '-')}.log"
        try:
            to[who] = stack.enter_context(Agent(kind, options, memory, log, **more))
        except AgentError as error:
            if kind in ("raw", "grpc", "hearthfs"):
                raise
            lab.missing[who] = str(error)

    for who, checksum in (("raw", False), ("raw + xxh3", True)):
        directory = os.fspath(lab.raw / who.replace(" ", ""))
        add(writers, who, "raw", {"directory": directory, "checksum": checksum})
    add(readers, "raw", "grpc", {"directory": os.fspath(lab.raw / "raw")})
    for node, to in ((1, writers), (2, readers)):
        options = {
            "master": lab.nodes.master_address,
            "node_id": f"node{node}",
            "worker_socket": os.fspath(lab.nodes.socket(node)),
            "directory": CLUSTER_DIRECTORY,
        }
        add(to, "hearthfs", "hearthfs", options)
    if not lab.want_rivals:
        return writers, readers
    if importlib.util.find_spec("vllm"):
        for who, direct in (("vllm_fs", True), ("vllm_fs buffered", False)):
            directory = os.fspath(lab.raw / who.replace(" ", "-"))
            lab.settings[who] = (
                f"vLLM's fs tier: its own file functions, {'O_DIRECT' if direct else 'buffered'}, raw directory"
            )
            add(writers, who, "vllm_fs", {"directory": directory, "direct": direct})
    else:
        lab.missing["vllm_fs"] = "vLLM is not installed"
    try:
        master = MooncakeMaster(python_of(lab.rivals), lab.directory / "mooncake")
        stack.callback(master.close)
        master.start()
    except Exception as error:
        lab.missing["mooncake"] = str(error)
        return writers, readers
    more = {"python": master.python, "environment": {"MC_LOG_LEVEL": "WARNING"}}
    lab.settings["mooncake"] = master.settings
    segment = memory.size_bytes + (256 << 20)
    add(writers, "mooncake", "mooncake", master.client(segment), **more)
    add(readers, "mooncake", "mooncake", master.client(0), **more)
    return writers, readers


def visit_of(
    agent: Agent,
    other: Agent | None,
    memory: SharedMemory,
    contents: Contents,
    threads: int,
    steps: tuple[str, str, str],
) -> Visit:
    """``steps``: what it is called that ``agent`` puts, that it gets, and that ``other`` gets. The figures are GB/s."""
    put_step, get_step, remote_step = steps

    def visit(number: int) -> Mapping[str, Sample]:
        os.sync()
        prefix = f"{contents.size_bytes:x}-{threads}-{number + 1}-"
        put = agent.call("put", prefix, contents.count, contents.size_bytes, threads)
        samples = {put_step: Sample(contents.total_bytes / put["seconds"] / 1e9)}
        samples[get_step] = _get(agent, prefix, memory, contents, threads)
        if other:
            samples[remote_step] = _get(other, prefix, memory, contents, threads)
        agent.call("remove", prefix, contents.count, threads=threads)
        return samples

    return visit


def _get(agent: Agent, prefix: str, memory: SharedMemory, contents: Contents, threads: int) -> Sample:
    """Raises: AgentError: the call failed, or bytes are wrong."""
    memory.forget(contents.total_bytes)
    seconds = agent.call("get", prefix, contents.count, contents.size_bytes, threads)["seconds"]
    wrong = memory.wrong(contents)
    if wrong:
        raise AgentError(f"{agent.kind}: {len(wrong)} of {contents.count} values came back with other bytes")
    return Sample(contents.total_bytes / seconds / 1e9)
