"""Pages in a GPU's memory: gathered there into one buffer per chunk, then copied to host memory in one piece.

Two device buffers and two streams take turns, so that one chunk is copied while the next is gathered. Nothing here
waits for the engine's stream but by events. Written for CUDA-alike devices; on ``cpu`` the same code runs without
streams, for tests.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..common.errors import NotSupported
from .pages import HostPages, PageMover, PageRun, runs_of
from .pieces import Piece

BUFFERS = 2
_PROBE_SEED = 20_260_101


class DevicePages:
    """Pages of one device.

    Args:
        groups: for each KV cache group, its layers' pages: int8, (blocks, page bytes), all in one storage.
        blocks_per_chunk: how many blocks a chunk spans.

    Raises:
        NotSupported: the layers are in several storages.
    """

    def __init__(self, groups: list[list[torch.Tensor]], blocks_per_chunk: int) -> None:
        self._device = groups[0][0].device
        self._blocks_per_chunk = blocks_per_chunk
        self._runs: list[list[tuple[PageRun, torch.Tensor]]] = []
        for group in groups:
            bases = {pages.untyped_storage().data_ptr() for pages in group}
            if len(bases) != 1:
                raise NotSupported(f"the KV cache of one group is in {len(bases)} allocations on {self._device}")
            runs = runs_of([(pages.data_ptr(), pages.stride(0), pages.shape[1]) for pages in group])
            self._runs.append([(run, _table(run, group[0])) for run in runs])
        self.payload_bytes = [sum(run.bytes_for(blocks_per_chunk) for run, _ in runs) for runs in self._runs]
        largest = max(self.payload_bytes)
        self._buffers = [torch.empty(largest, dtype=torch.uint8, device=self._device) for _ in range(BUFFERS)]
        self._streams = [_new_stream(self._device) for _ in range(BUFFERS)]
        self._lock = threading.Lock()  # gathers and scatters share the buffers

    def fence(self) -> Any:
        if self._device.type == "cpu":
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def pin(self, memory: memoryview) -> None:
        """Copies to memory that is not pinned work, too, only slower."""
        if self._device.type == "cuda":
            torch.cuda.cudart().cudaHostRegister(_host(memory).data_ptr(), len(memory), 0)

    def gather(self, pieces: Sequence[Piece], payloads: Sequence[memoryview], fence: Any) -> None:
        with self._lock:
            for number, (piece, payload) in enumerate(zip(pieces, payloads, strict=True)):
                with self._turn(number, fence):
                    buffer = self._buffers[number % BUFFERS][: len(payload)]
                    if len(piece.blocks) < self._blocks_per_chunk:
                        buffer.zero_()
                    at = 0
                    for run, table in self._runs[piece.group]:
                        place, at = self._place(run, buffer, at)
                        taken = table.index_select(0, self._rows(run, piece.blocks))
                        shaped = taken.view(run.layers, len(piece.blocks), run.page_bytes)
                        place[:, piece.first : piece.first + len(piece.blocks)].copy_(shaped)
                    _host(payload).copy_(buffer, non_blocking=True)
            self._finish()

    def scatter(self, pieces: Sequence[Piece], payloads: Sequence[memoryview], fence: Any) -> None:
        with self._lock:
            for number, (piece, payload) in enumerate(zip(pieces, payloads, strict=True)):
                chosen = np.flatnonzero(piece.blocks)
                blocks = [piece.blocks[nth] for nth in chosen]
                with self._turn(number, fence):
                    buffer = self._buffers[number % BUFFERS][: len(payload)]
                    buffer.copy_(_host(payload), non_blocking=True)
                    at = 0
                    for run, table in self._runs[piece.group]:
                        place, at = self._place(run, buffer, at)
                        wanted = torch.from_numpy(chosen + piece.first).to(self._device, non_blocking=True)
                        pages = place.index_select(1, wanted).view(-1, run.granule)
                        table.index_copy_(0, self._rows(run, blocks), pages)
            self._finish()

    def _rows(self, run: PageRun, blocks: Sequence[int]) -> torch.Tensor:
        return torch.from_numpy(run.rows(blocks).ravel()).to(self._device, non_blocking=True)

    def _place(self, run: PageRun, buffer: torch.Tensor, at: int) -> tuple[torch.Tensor, int]:
        end = at + run.bytes_for(self._blocks_per_chunk)
        return buffer[at:end].view(run.layers, self._blocks_per_chunk, run.page_bytes), end

    def _turn(self, number: int, fence: Any) -> Any:
        stream = self._streams[number % BUFFERS]
        if stream is None:
            return torch.no_grad()
        if fence is not None:
            stream.wait_event(fence)
        return torch.cuda.stream(stream)

    def _finish(self) -> None:
        for stream in self._streams:
            if stream is not None:
                stream.synchronize()


def choose_mover(groups: list[list[torch.Tensor]], blocks_per_chunk: int) -> tuple[PageMover, str]:
    """The fastest way to move these pages that a probe finds right, and its name.

    Raises:
        NotSupported: none is.
    """
    device = groups[0][0].device
    if device.type == "cpu":
        mover: PageMover = HostPages([[pages.numpy() for pages in group] for group in groups], blocks_per_chunk)
        name = "copies in host memory"
    elif device.type == "cuda":
        mover, name = DevicePages(groups, blocks_per_chunk), f"gathers on {device}, copies to pinned memory"
    else:
        raise NotSupported(f"HearthConnector moves KV pages of CPUs and CUDA devices; these are on {device}")
    if not moves_right(mover, groups, blocks_per_chunk):
        raise NotSupported(f"a probe of {name} got other bytes than it had put in")
    return mover, name


def moves_right(mover: PageMover, groups: list[list[torch.Tensor]], blocks_per_chunk: int) -> bool:
    """Moves random bytes out of and into the last blocks, and compares. What was there is put back."""
    generator = np.random.default_rng(_PROBE_SEED)
    for number, group in enumerate(groups):
        blocks = tuple(range(group[0].shape[0] - 1, max(0, group[0].shape[0] - 1 - blocks_per_chunk), -1))
        piece = Piece("probe", number, 0, blocks)
        saved = [pages[list(blocks)].clone() for pages in group]
        payload = memoryview(bytearray(mover.payload_bytes[number]))
        written = generator.bytes(len(payload))
        try:
            mover.scatter([piece], [memoryview(bytearray(written))], mover.fence())
            mover.gather([piece], [payload], mover.fence())
            at, right = 0, True
            for pages in group:
                size = blocks_per_chunk * pages.shape[1]
                kept = size // blocks_per_chunk * len(blocks)
                right = right and bytes(payload[at : at + kept]) == written[at : at + kept]
                here = pages[list(blocks)].cpu().numpy().tobytes()
                right = right and here == written[at : at + kept]
                at += size
        finally:
            for pages, old in zip(group, saved, strict=True):
                pages[list(blocks)] = old
        if not right:
            return False
    return True


def _table(run: PageRun, any_layer: torch.Tensor) -> torch.Tensor:
    storage = any_layer.untyped_storage()
    offset = run.base - storage.data_ptr()
    rows = (storage.nbytes() - offset) // run.granule
    flat = torch.empty(0, dtype=torch.uint8, device=any_layer.device).set_(storage, offset, (rows * run.granule,), (1,))
    return flat.view(rows, run.granule)


def _host(payload: memoryview) -> torch.Tensor:
    return torch.frombuffer(payload, dtype=torch.uint8)


def _new_stream(device: torch.device) -> Any:
    return None if device.type == "cpu" else torch.cuda.Stream(device)
