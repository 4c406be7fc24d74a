import threading

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
