"""Preallocated memory that chunks pass through: page aligned, touched once at the start, bounded, pinned where the
engine has CUDA."""

from __future__ import annotations

import ctypes
import logging
import mmap
import sys
import threading
import time
from collections.abc import Callable

_PAGE_BYTES = 4096
log = logging.getLogger("vllm.hearthfs")


class Arena:
    """A fixed number of equal slots. Whoever wants one waits, for a bounded time.

    Args:
        slots: how many.
        slot_bytes: length of each, rounded up to pages.
        pin: called once with all of the memory; whether the GPU can copy from and to it by itself now.
    """

    def __init__(self, slots: int, slot_bytes: int, pin: Callable[[memoryview], bool] | None = None) -> None:
        self.slots = slots
        self.slot_bytes = -(-slot_bytes // _PAGE_BYTES) * _PAGE_BYTES
        self._memory = mmap.mmap(-1, slots * self.slot_bytes)
        for at in range(0, len(self._memory), _PAGE_BYTES):
            self._memory[at] = 0  # a page fault now is none during a load
        self._view = memoryview(self._memory)
        self.pinned = (pin or pin_for_cuda)(self._view)
        self._free = list(range(slots))
        self._changed = threading.Condition()

    def acquire(self, wanted: int, timeout_s: float) -> list[int]:
        """Between one and ``wanted`` slots, as many as are free when one is; none after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self._free:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    return []
            taken = self._free[-wanted:]
            del self._free[-wanted:]
            return taken

    def release(self, slots: list[int]) -> None:
        with self._changed:
            self._free += slots
            self._changed.notify_all()

    def view(self, slot: int, size: int) -> memoryview:
        """The first ``size`` bytes of a slot, writable."""
        begin = slot * self.slot_bytes
        return self._view[begin : begin + size]

    @property
    def memory(self) -> memoryview:
        """Of all slots."""
        return self._view

    @property
    def free_slots(self) -> int:
        with self._changed:
            return len(self._free)


def pin_for_cuda(memory: memoryview) -> bool:
    """Registers memory with CUDA, if the engine in this process uses it. Copies work without, by way of the driver's
    own buffers."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return False
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    code = int(torch.cuda.cudart().cudaHostRegister(address, len(memory), 0))
    if code:
        log.warning("staging memory of %d bytes is not pinned: cudaHostRegister gave %d", len(memory), code)
    return code == 0


def slots_for(staging_bytes: int, slot_bytes: int) -> int:
    """How many slots the memory makes; two at least, or nothing could ever be moved while something is."""
    return max(2, min(1024, staging_bytes // max(1, slot_bytes)))
