"""LMCache's own storage classes on a directory, without a GPU, as stores of ``batch_agent.py``. Imported in an agent's
process only, whose environment has LMCache."""

from __future__ import annotations

import asyncio
import hashlib
import os
import select
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any


class _Files(ABC):
    def __init__(self, directory: str) -> None:
        os.makedirs(directory, exist_ok=True)
        self._directory = directory

    @abstractmethod
    def file(self, name: str) -> str:
        """What LMCache calls the file of a value."""

    def remove(self, names: list[str]) -> None:
        """By name: the C++ client has no call for it."""
        for name in names:
            os.unlink(f"{self._directory}/{self.file(name)}")


class Fs(_Files):
    """A ``RemoteBackend`` over an ``FSConnector``: chunks with metadata in front, written beside and renamed."""

    TOKENS = 256

    def __init__(self, directory: str, memory_bytes: int) -> None:
        super().__init__(directory)
        import torch
        from lmcache.utils import CacheEngineKey
        from lmcache.v1 import memory_management
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.metadata import LMCacheMetadata
        from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
        from lmcache.v1.storage_backend.remote_backend import RemoteBackend

        config = LMCacheEngineConfig.from_defaults(
            chunk_size=self.TOKENS,
            local_cpu=False,
            max_local_cpu_size=memory_bytes / (1 << 30),
            remote_url=f"fs://host:0/{directory}",
            remote_serde="naive",
            extra_config={"save_chunk_meta": True},
        )
        shape = (1, 2, self.TOKENS, 1, 64)  # each file says its own; this one is LMCache's guess before it has read it
        metadata = LMCacheMetadata("bench", 1, 1, 0, 0, torch.bfloat16, shape)
        self._torch, self._format = torch, memory_management.MemoryFormat.KV_2LTD
        self._key: Callable[[str], Any] = lambda name: CacheEngineKey("bench", 1, 0, _number(name), torch.bfloat16)
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        self._memory = LocalCPUBackend(config, metadata, dst_device="cpu")
        self._backend = RemoteBackend(config, metadata, loop, self._memory, dst_device="cpu")

    def prepare(self, threads: int) -> None:
        """It has an event loop and threads of its own."""

    def file(self, name: str) -> str:
        return f"{self._key(name).to_string()}.data"

    def put(self, names: list[str], views: list[memoryview]) -> None:
        torch = self._torch
        waiting = []
        for name, view in zip(names, views, strict=True):
            shape = torch.Size([2, 1, self.TOKENS, len(view) // (4 * self.TOKENS)])
            chunk = self._memory.allocate(shape, torch.bfloat16, fmt=self._format)
            assert chunk is not None, "LMCache's memory is full"
            chunk.tensor.view(torch.uint8).view(-1).copy_(torch.frombuffer(view, dtype=torch.uint8))
            waiting.append(self._backend.submit_put_task(self._key(name), chunk))
            chunk.ref_count_down()
        for each in waiting:
            each.result(60)

    def get(self, names: list[str], views: list[memoryview]) -> None:
        torch = self._torch
        found = self._backend.batched_get_blocking([self._key(name) for name in names])
        for name, view, chunk in zip(names, views, found, strict=True):
            assert chunk is not None, f"{name} is not there"
            torch.frombuffer(view, dtype=torch.uint8).copy_(chunk.tensor.view(torch.uint8).view(-1))
            chunk.ref_count_down()

    def exists(self, names: list[str]) -> int:
        return sum(self._backend.contains(self._key(name)) for name in names)

    def close(self) -> None:
        self._backend.close()


class FsNative(_Files):
    """An ``LMCacheFSClient``: orders for a batch, and an eventfd that says when some have ended."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        import lmcache  # brings torch, whose libraries the client is linked to
        from lmcache.lmcache_fs import LMCacheFSClient

        assert lmcache
        self._make: Callable[[int], Any] = lambda threads: LMCacheFSClient(directory, threads, "", False, 0)
        self._clients: dict[int, Any] = {}
        self.prepare(1)

    def prepare(self, threads: int) -> None:
        if threads not in self._clients:
            self._clients[threads] = self._make(threads)
        self._client = self._clients[threads]

    def file(self, name: str) -> str:
        return f"bench@0x00000000@0@{_number(name):014x}.data"

    def put(self, names: list[str], views: list[memoryview]) -> None:
        self._wait(self._client.submit_batch_set(_keys(names), views))

    def get(self, names: list[str], views: list[memoryview]) -> None:
        found = self._wait(self._client.submit_batch_get(_keys(names), views))
        assert all(found), f"{found.count(False)} of {len(names)} are not there"

    def exists(self, names: list[str]) -> int:
        return sum(self._wait(self._client.submit_batch_exists(_keys(names))))

    def _wait(self, order: int) -> list[bool]:
        poller = select.poll()
        poller.register(self._client.event_fd(), select.POLLIN)
        while poller.poll(60_000):
            for ended, fine, error, results in self._client.drain_completions():
                if ended == order:
                    assert fine, error
                    return results or []
        raise TimeoutError("LMCache did not answer within 60 s")

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


def _keys(names: Sequence[str]) -> list[str]:
    """Model, rank, group, hash."""
    return [f"bench@{0:08x}@0@{_number(name):014x}" for name in names]


def _number(name: str) -> int:
    """LMCache's keys are hashes."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest())


def make(*, directory: str, storage: str, memory_bytes: int) -> Fs | FsNative:
    """``storage``: "fs", its Python backend of that name, whose chunks lie in ``memory_bytes`` of its allocator; or
    "fs_native", its C++ client, which takes any memory."""
    if storage == "fs":
        return Fs(directory, memory_bytes)
    if storage == "fs_native":
        return FsNative(directory)
    raise ValueError(f"no storage {storage!r}")
