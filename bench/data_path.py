"""Bytes between memory and files through the SDK, against the bare loops and streams that do the same work.

Each contender has the same number of threads, files and bytes; all take turns in each round, after one round that does
not count; medians. What is read is compared byte for byte, outside the clock. As a program::

    python -m hearthfs.bench.data_path [--rounds 5] [--files 256] [--mib 8] [--threads 2] [--mooncake PYTHON]

``--mooncake`` names the interpreter of an environment that has mooncake-transfer-engine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import grpc
import xxhash
from hearthfs.client.client import Client
from hearthfs.common import allocation
from hearthfs.tests.support.cluster import Cluster, free_port

MESSAGE_BYTES = 4 << 20
Row = dict[str, Any]
Act = Callable[[], None]


class Memory:
    """Warm, page-aligned memory for a batch: ``views[i]`` is file i's."""

    def __init__(self, files: int, size_bytes: int) -> None:
        self._map = mmap.mmap(-1, files * size_bytes)
        whole = memoryview(self._map)
        noise = os.urandom(size_bytes)
        self.views = [whole[at : at + size_bytes] for at in range(0, len(whole), size_bytes)]
        for number, view in enumerate(self.views):
            view[:] = noise
            view[:8] = number.to_bytes(8, "little")
        self._sums = [xxhash.xxh3_64_intdigest(view) for view in self.views]

    def blank(self) -> None:
        """So that nothing that is found later was left from before."""
        for view in self.views:
            view[: 1 << 12] = view[-(1 << 12) :] = bytes(1 << 12)

    def check(self, who: str) -> None:
        wrong = [at for at, view in enumerate(self.views) if xxhash.xxh3_64_intdigest(view) != self._sums[at]]
        assert not wrong, f"{who}: {len(wrong)} files came back with other bytes"


class RawFiles:
    """A plain directory: open, one call for all bytes, close."""

    def __init__(self, directory: Path, memory: Memory, threads: int, *, hashed: bool) -> None:
        directory.mkdir(parents=True)
        self._paths = [f"{directory}/{number}" for number in range(len(memory.views))]
        self._views = memory.views
        self._pool = ThreadPoolExecutor(threads)
        self._digest: Callable[[memoryview], object] = xxhash.xxh3_64_intdigest if hashed else lambda _: None

    def put(self) -> None:
        list(self._pool.map(self._put, self._paths, self._views))

    def get(self) -> None:
        list(self._pool.map(self._get, self._paths, self._views))

    def remove(self) -> None:
        for path in self._paths:
            os.unlink(path)

    def _put(self, path: str, view: memoryview) -> None:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        done = 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], done)
        os.close(fd)
        self._digest(view)

    def _get(self, path: str, view: memoryview) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        done = 0
        while done < len(view):
            done += os.preadv(fd, [view[done:]], done)
        os.close(fd)
        self._digest(view)


class Sdk:
    def __init__(self, client: Client, memory: Memory) -> None:
        self._client = client
        self._names = [f"{number:04}" for number in range(len(memory.views))]
        self._views = memory.views

    def put(self) -> None:
        _raise_first(self._client.put_many(self._names, self._views, directory="/bench"))

    def get(self) -> None:
        _raise_first(self._client.get_many(self._names, self._views, directory="/bench"))

    def remove(self) -> None:
        for name in self._names:
            self._client.remove(f"/bench/{name}")


class BareStream:
    """grpc-python and nothing else: a process that preads 4 MiB to bytes and streams them; here they are copied into
    warm memory."""

    def __init__(self, directory: Path, memory: Memory, threads: int) -> None:
        port = free_port()
        self._views = memory.views
        self._pool = ThreadPoolExecutor(threads)
        self._process = subprocess.Popen([sys.executable, __file__, "--serve", str(port), str(directory)])
        options = [("grpc.max_receive_message_length", -1)]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options)
        grpc.channel_ready_future(self._channel).result(20)
        self._call = self._channel.unary_stream("/bench/Read", _same, _same)

    def get(self) -> None:
        list(self._pool.map(self._get, range(len(self._views)), self._views))

    def _get(self, number: int, view: memoryview) -> None:
        done = 0
        for message in self._call(str(number).encode()):
            view[done : done + len(message)] = message
            done += len(message)

    def close(self) -> None:
        self._channel.close()
        self._process.terminate()
        self._process.wait()


def serve_stream(port: int, directory: str) -> None:
    def read(request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        fd = os.open(f"{directory}/{request.decode()}", os.O_RDONLY)
        try:
            at = 0
            while data := os.pread(fd, MESSAGE_BYTES, at):
                at += len(data)
                yield data
        finally:
            os.close(fd)

    allocation.keep_buffers()
    server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.max_send_message_length", -1)])
    handler = grpc.unary_stream_rpc_method_handler(read, _same, _same)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench", {"Read": handler})])
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


MOONCAKE = """
import ctypes, json, mmap, os, sys, time
from mooncake.store import MooncakeDistributedStore
options = json.loads(sys.argv[1])
size, files = options["size"], options["files"]
replies = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
memory = mmap.mmap(-1, size * files)
for number in range(files):
    memory[number * size:(number + 1) * size] = number.to_bytes(8, "little") * (size // 8)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
store = MooncakeDistributedStore()
code = store.setup(options["address"], "P2PHANDSHAKE", options["segment"], 64 << 20, "tcp", "", options["master"])
assert code == 0, code
assert store.register_buffer(address, len(memory)) == 0
places, sizes = [address + number * size for number in range(files)], [size] * files
print(json.dumps("ready"), file=replies)
for line in sys.stdin:
    act, prefix = json.loads(line)
    keys = [prefix + str(number) for number in range(files)]
    if act == "get":
        for number in range(files):
            memory[number * size] = 255
    begin = time.perf_counter()
    if act == "put":
        good = not any(store.batch_put_from(keys, places, sizes))
    elif act == "get":
        good = list(store.batch_get_into(keys, places, sizes)) == sizes
    else:
        store.batch_remove(keys, force=True)
        good = True
    seconds = time.perf_counter() - begin
    for number in range(files):
        end = memory[(number + 1) * size - 8:(number + 1) * size]
        good = good and memory[number * size] == number % 256 and end == number.to_bytes(8, "little")
    print(json.dumps([seconds, good]), file=replies)
os._exit(0)
"""


class Mooncake:
    """A client of a Mooncake store over TCP in a process of its own; ``segment_bytes``: what it holds for the store."""

    def __init__(self, python: str, master: str, files: int, size_bytes: int, segment_bytes: int) -> None:
        options = {
            "master": master,
            "address": f"127.0.0.1:{free_port()}",
            "segment": segment_bytes,
            "files": files,
            "size": size_bytes,
        }
        self._process = subprocess.Popen(
            [python, "-c", MOONCAKE, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": "", "MC_LOG_LEVEL": "WARNING"},
        )
        self._answer()

    def act(self, act: str, prefix: str) -> float:
        """Seconds."""
        assert self._process.stdin is not None
        print(json.dumps([act, prefix]), file=self._process.stdin, flush=True)
        seconds, good = self._answer()
        assert good, f"Mooncake: {act} failed"
        return float(seconds)

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the Mooncake client did not start")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)


class MooncakeMaster:
    def __init__(self, python: str) -> None:
        where = "import os, mooncake.store; print(os.path.dirname(mooncake.store.__file__))"
        asked = subprocess.run(
            [python, "-c", where], capture_output=True, text=True, check=True, env={"PYTHONPATH": ""}
        )
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self._process = subprocess.Popen(
            [
                f"{asked.stdout.strip()}/mooncake_master", f"--rpc_port={port}", "--rpc_address=127.0.0.1",
                f"--metrics_port={free_port()}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        end = time.monotonic() + 20
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert time.monotonic() < end, "the Mooncake master does not answer"
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


class Samples:
    """GB/s by (step, contender)."""

    def __init__(self, total_bytes: int) -> None:
        self._total = total_bytes
        self._values: dict[tuple[str, str], list[float]] = {}

    def add(self, step: str, who: str, seconds: float) -> None:
        self._values.setdefault((step, who), []).append(self._total / seconds / 1e9)

    def row(self, name: str, step: str, raw: str, mib: int, threads: int) -> Row:
        def median(who: str) -> float | None:
            values = self._values.get((step, who))
            return round(statistics.median(values), 3) if values else None

        ours = self._values[step, "hearthfs"]
        return {
            "name": name,
            "mib": mib,
            "threads": threads,
            "unit": "GB/s",
            "hearthfs": median("hearthfs"),
            "raw": median(raw),
            "juicefs": None,
            "seaweedfs": None,
            "mooncake": median("mooncake"),
            "vllm_fs": None,
            "min": round(min(ours), 3),
            "max": round(max(ours), 3),
        }


def rows(
    directory: Path, *, rounds: int = 5, files: int = 256, mib: int = 8, threads: int = 2, mooncake: str = ""
) -> list[Row]:
    """Measures below ``directory``, which is on the disk to be measured. ``mooncake``: its interpreter."""
    memory = Memory(files, mib << 20)
    total = files * (mib << 20)
    samples = Samples(total)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        cluster = stack.enter_context(Cluster(directory / "cluster", workers=2))
        near, far = (Sdk(cluster.client(node, **_settings(cluster, node, threads)), memory) for node in (1, 2))
        cluster.client(1).mkdir("/bench")
        plain = RawFiles(directory / "plain", memory, threads, hashed=False)
        hashed = RawFiles(directory / "hashed", memory, threads, hashed=True)
        stream = BareStream(directory / "plain", memory, threads)
        stack.callback(stream.close)
        holder = reader = None
        if mooncake:
            master = stack.enter_context(MooncakeMaster(mooncake))
            holder = Mooncake(mooncake, master.address, files, mib << 20, total + (512 << 20))
            stack.callback(holder.close)
            reader = Mooncake(mooncake, master.address, files, mib << 20, 0)
            stack.callback(reader.close)
        for number in range(-1, rounds):
            note = samples.add if number >= 0 else lambda step, who, seconds: None
            for who, each in _turned([("hearthfs", near), ("raw", plain), ("raw + xxh3", hashed)], number):
                note("put", who, _timed(each.put))
                _read(note, "get", who, each.get, memory)
            for who, get in _turned([("hearthfs", far.get), ("grpc stream", stream.get)], number):
                _read(note, "remote", who, get, memory)
            if holder and reader:
                prefix = f"r{number}-"
                note("put", "mooncake", holder.act("put", prefix))
                note("get", "mooncake", holder.act("get", prefix))
                note("remote", "mooncake", reader.act("get", prefix))
                holder.act("remove", prefix)
            for each in (near, plain, hashed):
                each.remove()
    return [
        samples.row("get_many, block here; raw: preadv", "get", "raw", mib, threads),
        samples.row("get_many, block here; raw: preadv + xxh3", "get", "raw + xxh3", mib, threads),
        samples.row("put_many; raw: pwrite", "put", "raw", mib, threads),
        samples.row("put_many; raw: pwrite + xxh3", "put", "raw + xxh3", mib, threads),
        samples.row("get_many, block on the other node; raw: gRPC stream", "remote", "grpc stream", mib, threads),
    ]


def _settings(cluster: Cluster, node: int, threads: int) -> dict[str, Any]:
    from hearthfs.client.settings import ClientSettings

    own = {
        "master": cluster.master_address,
        "node_id": f"node{node}",
        "worker_socket": str(cluster.socket(node)),
        "threads": threads,
        "timeout_s": 120,
    }
    return {"settings": ClientSettings.load(own)}


def _read(note: Callable[[str, str, float], None], step: str, who: str, get: Act, memory: Memory) -> None:
    memory.blank()
    note(step, who, _timed(get))
    memory.check(who)


def _timed(act: Act) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def _turned(items: Sequence[tuple[str, Any]], number: int) -> list[tuple[str, Any]]:
    at = number % len(items)
    return [*items[at:], *items[:at]]


def _same(data: bytes) -> bytes:
    return data


def _raise_first(errors: Sequence[Exception | None]) -> None:
    for error in errors:
        if error is not None:
            raise error


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve_stream(int(sys.argv[2]), sys.argv[3])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rounds", 5), ("files", 256), ("mib", 8), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--mooncake", default="")
    parser.add_argument("--work", default=None, help="a directory on the disk to be measured")
    options = parser.parse_args()
    allocation.keep_buffers()
    work = Path(tempfile.mkdtemp(prefix="hearth-bench-", dir=options.work))
    for row in rows(
        work / "w",
        rounds=options.rounds,
        files=options.files,
        mib=options.mib,
        threads=options.threads,
        mooncake=options.mooncake,
    ):
        print(json.dumps(row), flush=True)
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
