"""What the connector costs and brings, beside what it is measured against; one JSON object on stdout.

    python bench/kv_cost.py lookup      3,600 keys: scheduler's thread, whole answer
    python bench/kv_cost.py load        loads of chunks against preadv + xxh3 + memcpy of the same bytes

What it costs whole engines is in ``experiments.py``. ``--hold`` waits for a line on stdin before it measures, so that
the machine can be made quiet first.
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
import threading
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from hearthfs.bench import paired
from hearthfs.client.client import Client
from hearthfs.client.mount_root import MountRoot
from hearthfs.connector import chunk_format
from hearthfs.connector.hearth import HearthStore
from hearthfs.connector.identity import chunk_name
from hearthfs.connector.loads import Loader
from hearthfs.connector.lookups import LookupTable
from hearthfs.connector.notices import Notices
from hearthfs.connector.pages import HostPages
from hearthfs.connector.pieces import Piece
from hearthfs.connector.settings import ConnectorSettings
from hearthfs.connector.staging import Arena
from hearthfs.connector.storage import Storage
from hearthfs.tests.support.cluster import Cluster

KEYS = 3600
DIRECTORY = "model-0/layout/0"


class Quiet:
    def info(self, *_: object) -> None: ...

    warning = debug = info


def storage_of(client: Client, settings: ConnectorSettings) -> Storage:
    store = HearthStore(client, MountRoot("", "", "", "", "/kv"), "/kv")
    store.moved = lambda: False  # type: ignore[method-assign]  # there is no mount to look at
    storage = Storage(settings, Notices(Quiet()), opener=lambda _: store)
    storage.probe()
    return storage


def lookup(cluster: Cluster, rounds: int, hold: Callable[[], None]) -> dict[str, Any]:
    """Half of the keys are there: the first half, as a prefix is."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from hearthfs.connector.breakeven import BreakEven
        from hearthfs.connector.manager import HearthManager
        from hearthfs.connector.scheduler_state import Prefix
        from vllm.v1.kv_offload.base import LookupResult

    miss = LookupResult.MISS
    settings = ConnectorSettings(root="/kv", hit_ttl_s=0.001, miss_ttl_s=0.001, lookup_timeout_s=60)
    hashes = [random.Random(number).randbytes(32) for number in range(KEYS)]
    keys = [block_hash + bytes(4) for block_hash in hashes]
    client = cluster.client(1)
    for at in range(0, KEYS // 2, 450):
        names = [chunk_name(key) for key in keys[at : at + 450]]
        assert not any(client.put_many(names, [b"x" * 4096] * len(names), directory=f"/kv/{DIRECTORY}"))
    storage = storage_of(client, settings)
    table = LookupTable(lambda names: storage.lookup([DIRECTORY], names), settings, Notices(Quiet()))
    table.start()
    manager = HearthManager(table, (0,), 1, settings, Notices(Quiet()), BreakEven(1.0, always=True))
    group = types.SimpleNamespace(group_idx=0, tokens_per_chunk=16, hashes_per_chunk=1)
    config = types.SimpleNamespace(kv_group_configs=[group], supports_partial_tail=False, tokens_per_hash=16)
    scheduler = types.SimpleNamespace(config=config)
    ours, processor, whole, passes = [], [], [], []
    hold()
    for number in range(rounds):
        request = types.SimpleNamespace(num_tokens=KEYS * 16 + 1, block_hashes=hashes)
        context = types.SimpleNamespace(req_id=str(number))
        spent, used, count, begin = 0.0, 0.0, 0, time.perf_counter()
        while True:
            step, cpu = time.perf_counter(), time.thread_time()
            found = False
            if not manager.is_asking(str(number)):
                prefix = Prefix.of(scheduler, request, 0)
                assert prefix is not None
                found = manager.find(str(number), prefix.tokens, prefix.keys)
            spent += time.perf_counter() - step
            used += time.thread_time() - cpu
            count += 1
            if found:
                break
            time.sleep(0.0005)  # a step of the engine
        answered = time.perf_counter() - begin
        step, cpu = time.perf_counter(), time.thread_time()
        hits = 0
        for key in keys:  # as vLLM does, to the first miss
            if manager.lookup(key, context) is miss:
                break
            hits += 1
        for key in keys[hits + 1 :]:  # the rest, as if all had been there
            manager.lookup(key, context)
        manager.answered(str(number))
        spent += time.perf_counter() - step
        used += time.thread_time() - cpu
        processor.append(1e3 * used)
        assert hits == KEYS // 2, hits
        ours.append(1e3 * spent)
        whole.append(1e3 * answered)
        passes.append(count)
        time.sleep(0.01)
    table.close(5)
    storage.close()
    return {
        "keys": KEYS,
        "rounds": rounds,
        "scheduler_thread_ms": spread(ours),
        "scheduler_thread_processor_ms": spread(processor),
        "whole_answer_ms": spread(whole),
        "passes": statistics.median(passes),
    }


def load(cluster: Cluster, rounds: int, hold: Callable[[], None]) -> dict[str, Any]:
    """Chunks of 2 MiB in 8 layers. The baseline has as many threads, and reads the same files of the worker's disk."""
    layers, page, chunks = 8, 256 << 10, 64
    settings = ConnectorSettings(root="/kv", load_when="always", staging_bytes=256 << 20)
    engine = np.zeros((layers, chunks + 1, page), dtype=np.int8)
    mover = HostPages([[engine[layer] for layer in range(layers)]], 1)
    payload, file_size = mover.payload_bytes[0], chunk_format.file_bytes(mover.payload_bytes[0])
    client = cluster.client(1)
    names = [f"{number:04x}.kv" for number in range(chunks)]
    generator = np.random.default_rng(1)
    for at in range(0, chunks, 8):
        files = []
        for name in names[at : at + 8]:
            file = bytearray(file_size)
            file[:payload] = generator.bytes(payload)
            chunk_format.seal(file, payload, name, DIRECTORY)
            files.append(file)
        assert not any(client.put_many(names[at : at + 8], files, directory=f"/kv/{DIRECTORY}"))
    blocks = [path for path in cluster.disk(1).rglob("*") if path.is_file() and path.stat().st_size >= file_size]
    blocks = [path for path in blocks if path.suffix != ".mdb"][:chunks]
    assert len(blocks) == chunks, len(blocks)
    storage = storage_of(client, settings)
    loader = Loader(storage, DIRECTORY, mover, Arena(32, file_size), settings, Notices(Quiet()))
    loader.start()
    pieces = [Piece(name, 0, 0, (number + 1,)) for number, name in enumerate(names)]
    target = np.zeros((chunks, payload), dtype=np.uint8)

    def ours(number: int) -> None:
        loader.submit(number, str(number), pieces, [], 30)
        while True:
            loader.linger(0.1)
            for result in loader.finished():
                assert not result.failed, result.failed
                return

    def baseline(_: int) -> None:
        threads = [
            threading.Thread(target=_read_all, args=(blocks[n :: settings.load_threads], file_size, target[n:]))
            for n in range(settings.load_threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    hold()
    rates: dict[str, list[float]] = {"connector": [], "baseline": []}
    for number in range(rounds + 2):
        for name, act in random.sample([("connector", ours), ("baseline", baseline)], 2):
            begin = time.perf_counter()
            act(number)
            if number >= 2:
                rates[name].append(chunks * payload / (time.perf_counter() - begin) / 1e9)
    loader.stop()
    storage.close()
    pairs = list(zip(rates["connector"], rates["baseline"], strict=True))
    return {
        "bytes": chunks * payload,
        "threads": settings.load_threads,
        "connector_gb_per_s": spread(rates["connector"]),
        "preadv_xxh3_memcpy_gb_per_s": spread(rates["baseline"]),
        "ratio": dataclasses.asdict(paired.ratio(pairs)),
    }


def _read_all(paths: Sequence[Path], file_size: int, targets: Any) -> None:
    """Each file by preadv into a buffer, its checksum, its payload to its place."""
    view = memoryview(bytearray(file_size))
    for path, target in zip(paths, targets, strict=False):
        descriptor = os.open(path, os.O_RDONLY)
        done = 0
        while done < file_size:
            done += os.preadv(descriptor, [view[done:]], done)
        os.close(descriptor)
        xxhash.xxh3_64_intdigest(view)
        target[:] = np.frombuffer(view[: len(target)], np.uint8)


def spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"median": statistics.median(ordered), "min": ordered[0], "p90": ordered[int(0.9 * (len(ordered) - 1))]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["lookup", "load"])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--hold", action="store_true")
    arguments = parser.parse_args()

    def hold() -> None:
        if arguments.hold:
            print("ready", file=sys.stderr, flush=True)
            sys.stdin.readline()

    directory = Path(tempfile.mkdtemp(prefix="hearth-kv-cost-"))
    try:
        with Cluster(directory / "cluster", workers=1) as cluster:
            result = {"lookup": lookup, "load": load}[arguments.what](cluster, arguments.rounds, hold)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps({arguments.what: result}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
