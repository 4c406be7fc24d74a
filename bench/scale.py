"""How the master bears numbers: many sessions with one of them stopped, a million inodes at its start and in listings.
HearthFS alone; the raw directory beside it where a plain command does the same.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from ..cli.supervisor import hearth_command
from ..client.client import Client
from . import metadata
from .agents import Agent, SharedMemory
from .contenders import Lab
from .names_of_rows import FIND, LS_100K, MASTER_ANON, MASTER_START, PUBLISH_FENCED, RM_100K
from .rows import Row, make, percentile

SESSIONS = 64
PUBLISHES = 400
LISTED = 100_000


def sessions(lab: Lab) -> Iterator[Row]:
    """62 SDK clients publish in one directory that a mount on node 2 has listed; then that mount and a further SDK
    process are stopped. A session that holds a grant and does not answer delays what it must hear of, until the master
    fences it."""
    nodes = lab.nodes
    note = (
        f"{SESSIONS} sessions; one publish at a time, by each client in turn; stopped: a mount that had listed the"
        " directory, and an SDK process"
    )
    with ExitStack() as stack:
        clients = [stack.enter_context(nodes.client()) for _ in range(SESSIONS - 2)]
        clients[0].makedirs("/sessions", exist_ok=True)
        memory = SharedMemory(1 << 12)
        stack.callback(memory.close)
        options = {
            "master": nodes.master_address,
            "node_id": "node2",
            "worker_socket": os.fspath(nodes.socket(2)),
            "directory": "/sessions",
        }
        stopped = stack.enter_context(Agent("hearthfs", options, memory, lab.directory / "agents" / "stopped.log"))
        listed = nodes.mountpoint(2) / "sessions"
        os.listdir(listed)
        _publish(clients, "warm", SESSIONS)
        before = _publish(clients, "before", PUBLISHES)
        os.listdir(listed)
        groups = [nodes.daemons["mount2"].pid, stopped.pid]
        try:
            for group in groups:
                os.killpg(group, signal.SIGSTOP)
            worst = max(_publish(clients, "while", 8))
            after = _publish(clients, "after", PUBLISHES)
        finally:
            for group in groups:
                with suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGCONT)
    yield make("sessions", "sessions: publish with all alive, p99", "ms", _p99(before), note=note)
    yield make(
        "sessions",
        "sessions: publish until the stopped one is fenced, worst",
        "ms",
        {"hearthfs": [worst * 1e3]},
        note=note,
    )
    yield make("sessions", PUBLISH_FENCED, "ms", _p99(after), note=note)


def _p99(calls_s: list[float]) -> dict[str, list[float]]:
    return {"hearthfs": [percentile(calls_s, 0.99) * 1e3]}


def _publish(clients: list[Client], prefix: str, count: int) -> list[float]:
    return [
        metadata.timed(partial(clients[at % len(clients)].write_bytes, f"/sessions/{prefix}{at}", b"x"))
        for at in range(count)
    ]


def inodes(lab: Lab) -> Iterator[Row]:
    """The namespace grows to a million names, the master starts again; listings by plain commands through the mount."""
    nodes, count = lab.nodes, 100_000 if lab.quick else 1_000_000
    master = nodes.daemons["master"]
    before_anon, before_disk = _anon_bytes(master.pid), _disk_bytes(nodes.directory / "master")
    with nodes.client(timeout_s=120) as client:
        client.stat("/")
        begin = time.perf_counter()
        for _ in metadata.make_names(client, "/many", count):
            pass
        made = time.perf_counter() - begin
    note = f"{count:,} inodes"
    yield make("inodes", "master: empty files made in batches of 4,000", "/s", {"hearthfs": [count / made]}, note=note)
    anon = (_anon_bytes(master.pid) - before_anon) / count
    yield make("inodes", MASTER_ANON, "B", {"hearthfs": [anon]}, note=note)
    disk = (_disk_bytes(nodes.directory / "master") - before_disk) / count
    yield make("inodes", "master: disk for each inode, journal included", "B", {"hearthfs": [disk]}, note=note)
    yield _start(lab, note)
    yield from _listings(lab, count)


def _start(lab: Lab, note: str) -> Row:
    nodes = lab.nodes
    seconds = []
    for _ in range(lab.rounds):
        nodes.daemons["master"].stop()
        begin = time.perf_counter()
        nodes.start("master")
        with nodes.client() as client:
            client.stat("/many")
        seconds.append(time.perf_counter() - begin)
    return make("inodes", MASTER_START, "s", {"hearthfs": seconds}, note=f"{note}; process start included")


def _listings(lab: Lab, count: int) -> Iterator[Row]:
    """Once each: these are seconds, not microseconds."""
    nodes = lab.nodes
    raw = lab.raw / "many"
    raw.mkdir()
    for number in range(LISTED):
        os.close(os.open(f"{raw}/{number:010d}", os.O_CREAT | os.O_WRONLY, 0o644))
    with nodes.client(timeout_s=120) as client:
        for _ in metadata.make_names(client, "/listed", LISTED):
            pass
    mount = nodes.mountpoint()
    ls = {"hearthfs": [metadata.list_names(mount / "listed")], "raw": [metadata.list_names(raw)]}
    yield make("inodes", LS_100K, "s", ls, note="cold: no name was known to the mount")
    yield make(
        "inodes", FIND, "s", {"hearthfs": [metadata.find_names(mount / "many")]}, note=f"find of {count:,} names"
    )
    begin = time.perf_counter()
    environment = {**os.environ, "HEARTH_CONFIG": os.devnull, "HEARTH_CLIENT_MASTER": nodes.master_address}
    subprocess.run(hearth_command("rm", "-r", "/listed"), env=environment, check=True, capture_output=True, timeout=300)
    ours = time.perf_counter() - begin
    begin = time.perf_counter()
    shutil.rmtree(raw)
    yield make("inodes", RM_100K, "s", {"hearthfs": [ours], "raw": [time.perf_counter() - begin]}, note="hearth rm -r")


def _anon_bytes(pid: int) -> int:
    """Resident memory that is of no file: the database's map is not in it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def _disk_bytes(directory: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in directory.rglob("*") if file.is_file())
