"""A day of chats as a sequence of cache accesses, and what other policies would have made of it.

A request is the list of the chunks of its prompt, in order; the engine uses those in the cache up to the first that is
missing, and stores the rest. Chats share a system prompt, many share a document; each turn repeats all that was said
and adds to it. In between come long prompts that nobody repeats.
"""

from __future__ import annotations

import heapq
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from hearthfs.master.eviction import Candidate, S3Fifo

SYSTEM_PROMPTS, DOCUMENTS = 40, 400


class Request(NamedTuple):
    at_s: float
    chunks: tuple[int, ...]


def chats(seed: int, count: int = 4000, users: int = 120) -> list[Request]:
    """``count`` requests, in order of time."""
    chance = random.Random(seed)
    numbers: Iterator[int] = iter(range(1, 1 << 60))

    def fresh(count: int) -> tuple[int, ...]:
        return tuple(next(numbers) for _ in range(count))

    systems = [fresh(chance.randint(2, 12)) for _ in range(SYSTEM_PROMPTS)]
    documents = {(s, d): fresh(chance.randint(8, 60)) for s in range(SYSTEM_PROMPTS) for d in range(DOCUMENTS // 40)}

    def zipf(limit: int) -> int:
        return min(int(chance.paretovariate(0.9)) - 1, limit * 50) % limit

    def begin() -> tuple[int, ...]:
        system = zipf(SYSTEM_PROMPTS)
        prompt = systems[system]
        return prompt + documents[system, zipf(DOCUMENTS // 40)] if chance.random() < 0.4 else prompt

    requests: list[Request] = []
    turns: list[tuple[float, int, tuple[int, ...]]] = [(chance.uniform(0, 600), user, ()) for user in range(users)]
    heapq.heapify(turns)
    while len(requests) < count:
        at_s, user, said = heapq.heappop(turns)
        if chance.random() < 0.06:  # a batch job: long, and once
            requests.append(Request(at_s, fresh(chance.randint(40, 160))))
        prompt = (said or begin()) + fresh(chance.randint(1, 6))
        requests.append(Request(at_s, prompt))
        ends = chance.random() < 0.15 or len(prompt) > 300
        pause_s = chance.lognormvariate(4.2, 1.3) if not ends else chance.lognormvariate(6.5, 1.0)
        heapq.heappush(turns, (at_s + pause_s, user, () if ends else prompt + fresh(chance.randint(0, 4))))
    return requests[:count]


class Cache(Protocol):
    def access(self, request: Request, stored: tuple[int, ...], used: tuple[int, ...]) -> None:
        """``used`` were read, ``stored`` are new; drops what is too much."""

    def __contains__(self, chunk: int) -> bool: ...


def hit_rate(requests: list[Request], cache: Cache) -> float:
    """Chunks used from the cache, of all chunks that were asked for."""
    used_chunks = asked = 0
    for request in requests:
        hits = next((i for i, chunk in enumerate(request.chunks) if chunk not in cache), len(request.chunks))
        stored = tuple(chunk for chunk in request.chunks[hits:] if chunk not in cache)
        cache.access(request, stored, request.chunks[:hits])
        used_chunks += hits
        asked += len(request.chunks)
    return used_chunks / asked


class Lru:
    """``deepest_first``: of one request the deepest chunk counts as the oldest."""

    def __init__(self, capacity: int, *, deepest_first: bool = False) -> None:
        self._capacity = capacity
        self._deepest_first = deepest_first
        self._chunks: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, chunk: int) -> bool:
        return chunk in self._chunks

    def access(self, request: Request, stored: tuple[int, ...], used: tuple[int, ...]) -> None:
        touched = used + stored
        for chunk in reversed(touched) if self._deepest_first else touched:
            self._chunks[chunk] = None
            self._chunks.move_to_end(chunk)
        while len(self._chunks) > self._capacity:
            self._chunks.popitem(last=False)


class Belady:
    """Drops what is used last in the future, the deepest first: nobody can know, so it is the mark to measure by."""

    def __init__(self, capacity: int, requests: list[Request]) -> None:
        self._capacity = capacity
        self._next: dict[tuple[int, int], int] = {}
        last: dict[int, int] = {}
        for number in range(len(requests) - 1, -1, -1):
            for chunk in requests[number].chunks:
                self._next[number, chunk] = last.get(chunk, 1 << 60)
                last[chunk] = number
        self._number = -1
        self._chunks: dict[int, tuple[int, int]] = {}
        self._order: list[tuple[int, int, int]] = []

    def __contains__(self, chunk: int) -> bool:
        return chunk in self._chunks

    def access(self, request: Request, stored: tuple[int, ...], used: tuple[int, ...]) -> None:
        self._number += 1
        for depth, chunk in enumerate(request.chunks):
            if chunk in self._chunks or chunk in stored:
                when = self._next[self._number, chunk]
                self._chunks[chunk] = (when, depth)
                heapq.heappush(self._order, (-when, -depth, chunk))
        while len(self._chunks) > self._capacity:
            when, depth, chunk = heapq.heappop(self._order)
            if self._chunks.get(chunk) == (-when, -depth):
                del self._chunks[chunk]


class Ours:
    """The policy as the master uses it; one chunk is one byte."""

    def __init__(self, capacity: int, held_max: int = 1 << 30, identity: Callable[[int], int] = int) -> None:
        self._capacity = capacity
        self._policy = S3Fifo(held_max)
        self._identity = identity
        self._stored: dict[int, int] = {}  # chunk -> the block it is in now
        self._chunk_of: dict[int, int] = {}
        self._next_block = 1
        self._last_read: dict[int, float] = {}

    def __contains__(self, chunk: int) -> bool:
        return chunk in self._stored

    def access(self, request: Request, stored: tuple[int, ...], used: tuple[int, ...]) -> None:
        minute = int(request.at_s // 60)
        for chunk in used:
            self._policy.read(self._stored[chunk])
        depths = {chunk: depth for depth, chunk in enumerate(request.chunks)}
        for chunk in stored:
            block, self._next_block = self._next_block, self._next_block + 1
            self._stored[chunk] = block
            self._chunk_of[block] = chunk
            self._policy.add(Candidate(block, 1, depths[chunk], minute), self._identity(chunk))
        for block in self._policy.choose(len(self._stored) - self._capacity, minute):
            chunk = self._chunk_of.pop(block)
            del self._stored[chunk]
            self._policy.evicted(block, self._identity(chunk))
