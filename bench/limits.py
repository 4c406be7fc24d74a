"""Ceilings of one master, measured: how fast, how many, how big. Writes ``docs/limits.md``.

    python -m hearthfs.bench.limits --docs docs/limits.md

Everything runs on one machine, clients included, so the rates are what is left when they share its cores.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from hearthfs.bench import metadata
from hearthfs.client.client import Client
from hearthfs.common.types import FILE_MAX_BYTES
from hearthfs.master.core import SESSIONS_MAX
from hearthfs.proto import master_pb2 as pb
from hearthfs.tests.support.cluster import Cluster

PROCESSES = (1, 2, 8)
RATE_S = 3.0
SESSIONS = 1000
INODES = 1_000_000
BATCH = 4000


class Limit(NamedTuple):
    what: str
    figure: str
    how: str


def measure(cluster: Cluster, inodes: int) -> Iterator[Limit]:
    """The master grows on the way: rates first, on a small namespace."""
    yield from _rates(cluster)
    yield from _sessions(cluster)
    yield from _inodes(cluster, inodes)
    yield _largest_file(cluster)


# ---------------------------------------------------------------- rates


def _rates(cluster: Cluster) -> Iterator[Limit]:
    address = cluster.master_address
    with Client(address) as client:
        client.makedirs("/limits/known")
        metadata.put_batch(client, "/limits/known", metadata.keys(metadata.PREFIX_KEYS), b"")
    for what, work in (("creates, one by one", _create_for), ("lookups, one by one", _lookup_for)):
        for processes in PROCESSES:
            with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
                rates = pool.map(work, [address] * processes, range(processes))
                yield Limit(what, f"{sum(rates):,.0f}/s", f"{processes} processes, one call at a time each")
    with Client(address) as client:
        names = [name.encode() for name in metadata.keys(metadata.PREFIX_KEYS)]
        client.lookup_many("/limits/known", names)
        seconds = min(metadata.lookup_batch(client, "/limits/known", metadata.keys(len(names))) for _ in range(10))
        yield Limit("lookups, in batches", f"{len(names) / seconds:,.0f}/s", f"best of 10 calls of {len(names):,} keys")


def _create_for(address: str, number: int) -> float:
    """Creates for each second."""
    with Client(address) as client:
        client.makedirs(f"/limits/made{number}", exist_ok=True)
        parent = client.directory(f"/limits/made{number}".encode())
        names = count()

        def create() -> None:
            request = pb.MutateRequest(create=pb.Create(parent=parent, name=b"%d" % next(names), mode=0o644))
            client.core.metadata.mutate(request, client.core.deadline())

        return _rate(create)


def _lookup_for(address: str, number: int) -> float:
    """Lookups for each second."""
    with Client(address) as client:
        parent = client.directory(b"/limits")
        return _rate(lambda: client.core.metadata.lookup(parent, b"known", client.core.deadline()))


def _rate(call: Callable[[], object]) -> float:
    call()
    begin, calls = time.perf_counter(), 0
    while time.perf_counter() - begin < RATE_S:
        call()
        calls += 1
    return calls / (time.perf_counter() - begin)


# ---------------------------------------------------------------- numbers


def _sessions(cluster: Cluster) -> Iterator[Limit]:
    """Clients of one process share nothing but its memory; each has a session and a connection of its own."""
    pid, clients = cluster.pid("master"), []
    before = anonymous_bytes(pid)
    begin = time.perf_counter()
    try:
        for _ in range(SESSIONS):
            clients.append(Client(cluster.master_address))
            clients[-1].core.metadata.ensure_registered(clients[-1].core.deadline())
        seconds = time.perf_counter() - begin
        each = (anonymous_bytes(pid) - before) / SESSIONS
    finally:
        for client in clients:
            client.close()
    yield Limit("sessions opened", f"{SESSIONS / seconds:,.0f}/s", f"{SESSIONS:,} clients, each with its connection")
    yield Limit("memory of the master for each", f"{each / 1024:,.1f} KiB", "resident, of no file")
    yield Limit("sessions at one time", f"{SESSIONS_MAX:,}", "a bound in the code; more are answered BUSY")


def _inodes(cluster: Cluster, inodes: int) -> Iterator[Limit]:
    pid, data = cluster.pid("master"), cluster.data("master")
    memory, disk = anonymous_bytes(pid), disk_bytes(data)
    with Client(cluster.master_address, timeout_s=120) as client:
        seconds = metadata.timed(lambda: list(metadata.make_names(client, "/limits/many", inodes, BATCH)))
    yield Limit("creates, in batches", f"{inodes / seconds:,.0f}/s", f"{inodes:,} empty files, {BATCH:,} in a call")
    yield Limit("inodes", f"{inodes:,}", "made and listed; no bound but the disk (map of 1 TiB)")
    yield Limit("disk for each inode", f"{(disk_bytes(data) - disk) / inodes:,.0f} B", "its journal record included")
    each = (anonymous_bytes(pid) - memory) / inodes
    yield Limit("memory for each inode", f"{each:,.1f} B", "growth of what is resident and of no file")

    def restart() -> None:
        cluster.start("master")
        with Client(cluster.master_address) as client:
            client.stat("/limits")

    cluster.term("master")
    yield Limit("start of the master", f"{metadata.timed(restart):.1f} s", f"{inodes:,} inodes, until the first answer")


def _largest_file(cluster: Cluster) -> Limit:
    with Client(cluster.master_address) as client:
        client.write_bytes("/limits/large", b"")
        client.truncate("/limits/large", FILE_MAX_BYTES)
        assert client.stat("/limits/large").st_size == FILE_MAX_BYTES
    text = f"{FILE_MAX_BYTES >> 40} TiB"
    return Limit("largest file", text, "by truncate; its bytes are one file on one disk, so what fits there")


def anonymous_bytes(pid: int) -> int:
    """Resident memory that is of no file: the database's map is not in it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no RssAnon")


def disk_bytes(directory: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in directory.rglob("*") if file.is_file())


# ---------------------------------------------------------------- the page


def page(limits: list[Limit]) -> str:
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    rows = [f"| {limit.what} | {limit.figure} | {limit.how} |" for limit in limits]
    return "\n".join(
        [
            "# Limits",
            "",
            "Ceilings of one master, measured by `python -m hearthfs.bench.limits` on a machine that runs its clients",
            f"too ({machine}). What is a bound in the code says so.",
            "",
            "| what | measured | how |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--inodes", type=int, default=INODES)
    parser.add_argument("--work", type=Path, help="directory on the disk to be measured; default: a temporary one")
    parser.add_argument("--docs", type=Path, help="where the page goes; default: only to the terminal")
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="hearth-limits-", dir=given.work))
    limits: list[Limit] = []
    try:
        with Cluster(work, workers=1) as cluster:
            for limit in measure(cluster, given.inodes):
                print(f"{limit.what}: {limit.figure} ({limit.how})", flush=True)
                limits.append(limit)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if given.docs:
        given.docs.write_text(page(limits))


if __name__ == "__main__":
    main()
