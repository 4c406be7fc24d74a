"""The mover for GPUs, on the CPU device: the same code without streams. On a GPU: bench/gpu_staging.py."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hearthfs.common.errors import NotSupported
from hearthfs.connector.pages import HostPages
from hearthfs.connector.pieces import Piece

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from hearthfs.connector.device_pages import DevicePages, choose_mover, moves_right

BLOCKS, CHUNK = 12, 3


def group(pages: tuple[int, ...], stride: int, seed: int) -> list[torch.Tensor]:
    """Layers in one storage, as vLLM lays them out."""
    memory = torch.from_numpy(np.random.default_rng(seed).integers(-128, 128, len(pages) * BLOCKS * stride, np.int8))
    return [
        torch.empty(0, dtype=torch.int8).set_(
            memory.untyped_storage(), number * BLOCKS * stride, (BLOCKS, page), (stride, 1)
        )
        for number, page in enumerate(pages)
    ]


@pytest.mark.parametrize("pages", [(64,) * 4, (64, 64, 32, 64)])
def test_the_same_bytes_as_in_host_memory(pages: tuple[int, ...]) -> None:
    layers = group(pages, 64, 1)
    device, host = DevicePages([layers], CHUNK), HostPages([[one.numpy() for one in layers]], CHUNK)
    assert device.payload_bytes == host.payload_bytes
    pieces = [
        Piece("a", 0, 0, (5, 2, 9)),
        Piece("b", 0, 1, (3, 4)),
        Piece("c", 0, 0, (7,)),
        Piece("d", 0, 0, (1, 8, 6)),
    ]
    ours, theirs = ([memoryview(bytearray(device.payload_bytes[0])) for _ in pieces] for _ in range(2))
    device.gather(pieces, ours, device.fence())
    host.gather(pieces, theirs, None)
    assert ours == theirs
    back, other = group(pages, 64, 2), group(pages, 64, 2)
    with_null = [*pieces[:3], Piece("d", 0, 0, (0, 8, 6))]
    DevicePages([back], CHUNK).scatter(with_null, ours, None)
    HostPages([[one.numpy() for one in other]], CHUNK).scatter(with_null, theirs, None)
    assert all(torch.equal(one, two) for one, two in zip(back, other, strict=True))
    assert not all(torch.equal(one, two) for one, two in zip(back, group(pages, 64, 2), strict=True))


def test_the_probe_finds_right_and_wrong_and_leaves_no_trace() -> None:
    layers = group((64,) * 3, 64, 1)
    before = [one.clone() for one in layers]
    mover, how = choose_mover([layers], CHUNK)
    assert isinstance(mover, HostPages)
    assert "host memory" in how
    assert moves_right(DevicePages([layers], CHUNK), [layers], CHUNK)
    wrong = DevicePages([group((64,) * 3, 64, 1)], CHUNK)  # of other memory
    assert not moves_right(wrong, [layers], CHUNK)
    assert all(torch.equal(one, two) for one, two in zip(layers, before, strict=True))


def test_layers_in_several_allocations_are_refused() -> None:
    with pytest.raises(NotSupported, match="2 allocations"):
        DevicePages([group((64,), 64, 1) + group((64,), 64, 2)], CHUNK)
