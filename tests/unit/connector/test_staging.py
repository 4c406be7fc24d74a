import sys
import threading
from types import SimpleNamespace

import pytest
from hearthfs.connector.staging import Arena, slots_for


def test_slots_are_page_aligned_and_apart() -> None:
    arena = Arena(3, 5000)
    assert arena.slot_bytes == 8192
    slots = arena.acquire(3, 0)
    for slot in slots:
        arena.view(slot, 5000)[:] = bytes([slot]) * 5000
    assert all(bytes(arena.view(slot, 5000)) == bytes([slot]) * 5000 for slot in slots)


def test_an_empty_arena_waits_a_bounded_time() -> None:
    """R051: nobody waits for ever for memory that nobody gives back."""
    arena = Arena(2, 4096)
    assert len(arena.acquire(5, 0)) == 2
    assert arena.acquire(1, 0.01) == []


def test_released_slots_wake_a_waiter() -> None:
    arena = Arena(1, 4096)
    slots = arena.acquire(1, 0)
    got: list[list[int]] = []
    waiter = threading.Thread(target=lambda: got.append(arena.acquire(1, 10)))
    waiter.start()
    arena.release(slots)
    waiter.join()
    assert got == [slots]
    assert arena.free_slots == 0


def test_at_least_two_slots() -> None:
    assert slots_for(1, 1 << 30) == 2
    assert slots_for(1 << 30, 1 << 20) == 1024


@pytest.mark.parametrize(("available", "code", "pinned"), [(False, 0, False), (True, 0, True), (True, 712, False)])
def test_memory_is_pinned_once_where_the_engine_has_cuda(
    monkeypatch: pytest.MonkeyPatch, available: bool, code: int, pinned: bool
) -> None:
    registered: list[tuple[int, int]] = []

    def register(address: int, size: int, flags: int) -> int:
        assert flags == 0
        registered.append((address % 4096, size))
        return code

    runtime = SimpleNamespace(cudaHostRegister=register)
    cuda = SimpleNamespace(is_available=lambda: available, cudart=lambda: runtime)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert Arena(3, 5000).pinned is pinned
    assert registered == ([(0, 3 * 8192)] if available else [])


def test_without_an_engine_nothing_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert not Arena(2, 4096).pinned
    assert Arena(2, 4096, pin=lambda memory: len(memory) == 8192).pinned
