"""One contender of the batch rows, in a process of its own: puts and gets many values between files, a cluster or a
store and memory that it shares with its parent. Started as a program by its path, so that a rival may live in another
environment; only the standard library is imported before the contender's own.

    batch_agent.py '{"kind": "raw", "directory": ...}' SOURCE_FD TARGET_FD
    {"act": "put", "prefix": "r0-", "count": 64, "size_bytes": 8388608, "threads": 1}   ->   {"seconds": 0.1, ...}
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

sys.path = [
    place for place in sys.path if os.path.realpath(place or ".") != os.path.dirname(os.path.realpath(__file__))
]
PAGE_BYTES = 4096


class Store(Protocol):
    """``put`` and ``get`` are timed; views are pieces of shared memory, one for each name."""

    def prepare(self, threads: int) -> None:
        """So many threads from now on, for contenders that leave it to their caller."""

    def put(self, names: list[str], views: list[memoryview]) -> None: ...

    def get(self, names: list[str], views: list[memoryview]) -> None: ...

    def exists(self, names: list[str]) -> int:
        """How many are there."""

    def remove(self, names: list[str]) -> None: ...

    def close(self) -> None: ...


class Pools:
    """One pool for each number of threads, kept."""

    def __init__(self) -> None:
        self._pools: dict[int, ThreadPoolExecutor] = {}

    def of(self, threads: int) -> ThreadPoolExecutor:
        if threads not in self._pools:
            self._pools[threads] = ThreadPoolExecutor(threads)
        return self._pools[threads]


class Raw:
    """Files of a plain directory, opened, moved by one call each, closed. ``checksum``: xxh3 of every byte, too."""

    def __init__(self, *, directory: str, checksum: bool = False) -> None:
        os.makedirs(directory, exist_ok=True)
        self._directory = directory
        self._pools = Pools()
        self._digest: Callable[[Any], object] | None = None
        if checksum:
            import xxhash

            self._digest = xxhash.xxh3_64_intdigest

    def prepare(self, threads: int) -> None:
        self._pool = self._pools.of(threads)

    def put(self, names: list[str], views: list[memoryview]) -> None:
        def one(name: str, view: memoryview) -> None:
            if self._digest:
                self._digest(view)
            fd = os.open(f"{self._directory}/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
            try:
                done = 0
                while done < len(view):
                    done += os.pwritev(fd, [view[done:]], done)
            finally:
                os.close(fd)

        list(self._pool.map(one, names, views))

    def get(self, names: list[str], views: list[memoryview]) -> None:
        def one(name: str, view: memoryview) -> None:
            fd = os.open(f"{self._directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                done = 0
                while done < len(view):
                    got = os.preadv(fd, [view[done:]], done)
                    assert got, f"{name} is short"
                    done += got
            finally:
                os.close(fd)
            if self._digest:
                self._digest(view)

        list(self._pool.map(one, names, views))

    def exists(self, names: list[str]) -> int:
        return sum(os.path.exists(f"{self._directory}/{name}") for name in names)

    def remove(self, names: list[str]) -> None:
        for name in names:
            os.unlink(f"{self._directory}/{name}")

    def close(self) -> None:
        pass


class VllmFs:
    """The file functions of vLLM's ``fs`` tier, a job for each thread. ``direct``: O_DIRECT, its default."""

    def __init__(self, *, directory: str, memory: Sequence[mmap.mmap], direct: bool = True) -> None:
        from vllm.v1.kv_offload.tiering.fs import io

        os.makedirs(directory, exist_ok=True)
        self._io, self._directory, self._direct = io, directory, direct
        self._memory = [(memoryview(piece), _address(memoryview(piece))) for piece in memory]
        self._pools = Pools()

    def prepare(self, threads: int) -> None:
        self._threads, self._pool = threads, self._pools.of(threads)

    def put(self, names: list[str], views: list[memoryview]) -> None:
        self._each(self._io.batch_store_block, names, views)

    def get(self, names: list[str], views: list[memoryview]) -> None:
        self._each(self._io.batch_load_block, names, views)

    def _each(self, act: Callable[..., None], names: list[str], views: list[memoryview]) -> None:
        first = _address(views[0])
        whole, base = next((view, at) for view, at in self._memory if at <= first < at + len(view))
        offsets = [_address(view) - base for view in views]
        paths = [f"{self._directory}/{name}" for name in names]

        def job(nth: int) -> None:
            part = slice(nth, None, self._threads)
            if paths[part]:
                act(paths[part], whole, offsets[part], len(views[0]), self._direct)

        list(self._pool.map(job, range(self._threads)))

    def exists(self, names: list[str]) -> int:
        return sum(os.path.exists(f"{self._directory}/{name}") for name in names)

    def remove(self, names: list[str]) -> None:
        for name in names:
            os.unlink(f"{self._directory}/{name}")

    def close(self) -> None:
        pass


class HearthFs:
    """``put_many`` and ``get_many`` of the SDK in one directory."""

    def __init__(self, *, master: str, node_id: str, worker_socket: str, directory: str) -> None:
        from hearthfs.client.client import Client
        from hearthfs.client.settings import ClientSettings

        def client(threads: int) -> Client:
            given = {"master": master, "node_id": node_id, "worker_socket": worker_socket, "threads": threads}
            return Client(settings=ClientSettings.load(given))

        self._make_client = client
        self._clients: dict[int, Client] = {}
        self._directory = directory
        self.prepare(1)
        self._client.makedirs(directory, exist_ok=True)

    def prepare(self, threads: int) -> None:
        if threads not in self._clients:
            self._clients[threads] = self._make_client(threads)
        self._client = self._clients[threads]

    def put(self, names: list[str], views: list[memoryview]) -> None:
        _raise_first(self._client.put_many(names, views, directory=self._directory))

    def get(self, names: list[str], views: list[memoryview]) -> None:
        _raise_first(self._client.get_many(names, views, directory=self._directory))

    def exists(self, names: list[str]) -> int:
        return sum(self._client.lookup_many(self._directory, names).found)

    def remove(self, names: list[str]) -> None:
        for name in names:
            self._client.unlink(f"{self._directory}/{name}")

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


class Mooncake:
    """A client of a Mooncake store over TCP. ``segment_bytes``: memory that it gives to the store; 0: it only uses
    that of others."""

    def __init__(self, *, master: str, address: str, segment_bytes: int, memory: Sequence[mmap.mmap]) -> None:
        from mooncake.store import MooncakeDistributedStore

        self._store = MooncakeDistributedStore()
        code = self._store.setup(address, "P2PHANDSHAKE", segment_bytes, 64 << 20, "tcp", "", master)
        assert code == 0, f"setup gave {code}"
        for piece in memory:
            code = self._store.register_buffer(_address(memoryview(piece)), len(piece))
            assert code == 0, f"register_buffer gave {code}"

    def prepare(self, threads: int) -> None:
        """It has threads of its own, and takes a batch in one call."""

    def put(self, names: list[str], views: list[memoryview]) -> None:
        codes = self._store.batch_put_from(names, [_address(view) for view in views], [len(view) for view in views])
        assert not any(codes), f"batch_put_from gave {set(codes)}"

    def get(self, names: list[str], views: list[memoryview]) -> None:
        sizes = [len(view) for view in views]
        got = self._store.batch_get_into(names, [_address(view) for view in views], sizes)
        assert list(got) == sizes, f"batch_get_into gave {set(got)}"

    def exists(self, names: list[str]) -> int:
        return sum(found == 1 for found in self._store.batch_is_exist(names))

    def remove(self, names: list[str]) -> None:
        self._store.batch_remove(names, force=True)

    def close(self) -> None:
        self._store.close()


class GrpcStream:
    """grpc-python and nothing else: another process preads what ``Raw`` stored, streams it in messages of 4 MiB; here
    they are copied into place. Both sides as plain as they can be."""

    def __init__(self, *, directory: str) -> None:
        import grpc

        self._server = subprocess.Popen(
            [sys.executable, os.path.realpath(__file__), SERVE, directory],
            stdin=subprocess.PIPE,  # its end tells the server to go
            stdout=subprocess.PIPE,
        )
        assert self._server.stdout is not None
        port = int(self._server.stdout.readline())
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.max_receive_message_length", -1)])
        self._read = self._channel.unary_stream("/bench/Read", bytes, bytes)
        self._pools = Pools()

    def prepare(self, threads: int) -> None:
        self._pool = self._pools.of(threads)

    def put(self, names: list[str], views: list[memoryview]) -> None:
        raise NotImplementedError("it only reads")  # the protocol has it; no row asks a bare stream for it

    def get(self, names: list[str], views: list[memoryview]) -> None:
        def one(name: str, view: memoryview) -> None:
            done = 0
            for message in self._read(name.encode(), timeout=60):
                view[done : done + len(message)] = message
                done += len(message)
            assert done == len(view), f"{name}: {done} of {len(view)} bytes came"

        list(self._pool.map(one, names, views))

    def exists(self, names: list[str]) -> int:
        raise NotImplementedError("it only reads")  # the protocol has it; no row asks a bare stream for it

    def remove(self, names: list[str]) -> None:
        raise NotImplementedError("it only reads")  # the protocol has it; no row asks a bare stream for it

    def close(self) -> None:
        self._channel.close()
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(10)


SERVE = "--serve-stream"
MESSAGE_BYTES = 4 << 20


def serve_stream(directory: str) -> None:
    """Prints its port; ends with its standard input."""
    import grpc
    from hearthfs.common import allocation

    allocation.keep_buffers()  # as our daemons do

    def read(request: bytes, _context: Any) -> Iterator[bytes]:
        fd = os.open(f"{directory}/{request.decode()}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            at = 0
            while data := os.pread(fd, MESSAGE_BYTES, at):
                at += len(data)
                yield data
        finally:
            os.close(fd)

    server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.max_send_message_length", -1)])
    handler = grpc.unary_stream_rpc_method_handler(read, bytes, bytes)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench", {"Read": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()
    server.stop(0)


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def _raise_first(errors: Sequence[Exception | None]) -> None:
    for error in errors:
        if error is not None:
            raise error


def make(kind: str, options: dict[str, Any], memory: list[mmap.mmap]) -> Store:
    """Raises: ImportError, or what the contender raises when it cannot start."""
    if kind == "raw":
        return Raw(**options)
    if kind == "hearthfs":
        return HearthFs(**options)
    if kind == "vllm_fs":
        return VllmFs(**options, memory=memory)
    if kind == "grpc":
        return GrpcStream(**options)
    if kind == "mooncake":
        return Mooncake(**options, memory=memory)
    if kind == "lmcache":
        from hearthfs.bench.rivals import lmcache_storage

        return lmcache_storage.make(**options)
    raise ValueError(f"no kind {kind!r}")


def serve(store: Store, source: mmap.mmap, target: mmap.mmap, answer: Callable[[dict[str, Any]], None]) -> None:
    for line in sys.stdin:
        task = json.loads(line)
        names = [f"{task['prefix']}{number:016x}.kv" for number in range(task["count"])]
        result: dict[str, Any] = {"seconds": 0.0, "found": 0, "error": ""}
        try:
            size = task["size_bytes"]
            place = memoryview(source if task["act"] == "put" else target)
            views = [place[number * size : (number + 1) * size] for number in range(task["count"])] if size else []
            store.prepare(task["threads"])
            begin = time.perf_counter()
            if task["act"] == "put":
                store.put(names, views)
            elif task["act"] == "get":
                store.get(names, views)
            elif task["act"] == "exists":
                result["found"] = store.exists(names)
            else:
                store.remove(names)
            result["seconds"] = time.perf_counter() - begin
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {error}"
        answer(result)


def main() -> None:
    options = json.loads(sys.argv[1])
    # What libraries print must not get among the answers.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(result: dict[str, Any]) -> None:
        replies.write(json.dumps(result) + "\n")

    memory = [mmap.mmap(int(fd), 0) for fd in sys.argv[2:4]]
    for piece in memory:
        for at in range(0, len(piece), PAGE_BYTES):
            _ = piece[at]  # a page fault now is none inside the clock
    try:
        store = make(options.pop("kind"), options, memory)
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})
        return
    answer({"error": ""})
    try:
        serve(store, memory[0], memory[1], answer)
    finally:
        with contextlib.suppress(Exception):
            store.close()
        os._exit(0)  # a rival's threads may not end


if __name__ == "__main__":
    if sys.argv[1] == SERVE:
        serve_stream(sys.argv[2])
    else:
        main()
