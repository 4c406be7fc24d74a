"""Moves KV pages between a GPU and files, checks every byte, prints bandwidths beside their ceilings.

    python bench/gpu_staging.py [--directory DIR] [--out FILE]

Needs torch and a CUDA device, no vLLM engine; takes less than five minutes. Without a device it says "not measured" and
ends with exit status 0, so that a script may run it anywhere. Paths: "pinned" is what the connector uses
(``connector/device_pages.py``). Ceilings: one large copy between the device and pinned memory, and preadv of the file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS = 15
LAYERS, PAGE_BYTES, BLOCKS_PER_CHUNK, BLOCKS = 32, 64 << 10, 16, 2048
"""An 8B model with 16 tokens a block and 256 a chunk: 32 MiB a chunk, 4 GiB of KV."""
CHUNKS = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default=tempfile.gettempdir(), help="where the file to read lies")
    parser.add_argument("--out", default="build/gpu_staging.json")
    arguments = parser.parse_args()
    try:
        import torch

        found = torch.cuda.is_available()
    except ImportError:
        found = False
    report: dict[str, Any] = measure(Path(arguments.directory)) if found else {"result": "not measured: no CUDA device"}
    print(json.dumps(report, indent=1))
    os.makedirs(os.path.dirname(arguments.out) or ".", exist_ok=True)
    Path(arguments.out).write_text(json.dumps(report, indent=1) + "\n")
    return 0 if report.get("bytes_equal", True) else 1


def measure(directory: Path) -> dict[str, Any]:
    import numpy as np
    import torch
    from hearthfs.connector.device_pages import DevicePages, moves_right
    from hearthfs.connector.pieces import Piece

    device = torch.device("cuda")
    memory = torch.randint(-128, 128, (LAYERS * BLOCKS * PAGE_BYTES,), dtype=torch.int8, device=device)
    layers = list(memory.view(LAYERS, BLOCKS, PAGE_BYTES).unbind(0))
    mover = DevicePages([layers], BLOCKS_PER_CHUNK)
    size = mover.payload_bytes[0]
    order = np.random.default_rng(1).permutation(np.arange(1, BLOCKS))
    pieces = [
        Piece(str(n), 0, 0, tuple(int(b) for b in order[n * BLOCKS_PER_CHUNK : (n + 1) * BLOCKS_PER_CHUNK]))
        for n in range(CHUNKS)
    ]
    pinned = torch.empty(CHUNKS * size, dtype=torch.uint8, pin_memory=True)
    payloads = [memoryview(pinned[n * size : (n + 1) * size].numpy()) for n in range(CHUNKS)]
    plain = [memoryview(bytearray(size)) for _ in range(CHUNKS)]
    flat = torch.empty(CHUNKS * size, dtype=torch.uint8, device=device)

    def timed(act: Callable[[], object]) -> dict[str, float]:
        act()
        rates = []
        for _ in range(ROUNDS):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            act()
            torch.cuda.synchronize()
            rates.append(CHUNKS * size / (time.perf_counter() - begin) / 1e9)
        return {"median_gb_per_s": statistics.median(rates), "min": min(rates), "max": max(rates)}

    rates = {
        "ceiling: device to pinned, one copy": timed(lambda: pinned.copy_(flat, non_blocking=True)),
        "ceiling: pinned to device, one copy": timed(lambda: flat.copy_(pinned, non_blocking=True)),
        "gather, pinned": timed(lambda: mover.gather(pieces, payloads, mover.fence())),
        "gather, pageable": timed(lambda: mover.gather(pieces, plain, mover.fence())),
        "scatter, pinned": timed(lambda: mover.scatter(pieces, payloads, mover.fence())),
        "scatter, pageable": timed(lambda: mover.scatter(pieces, plain, mover.fence())),
    }
    equal = moves_right(mover, [layers], BLOCKS_PER_CHUNK) and all(map(_same, payloads, plain))
    mover.gather(pieces, payloads, mover.fence())
    for piece, payload in zip(pieces, payloads, strict=True):
        wanted = torch.stack([layer[list(piece.blocks)] for layer in layers]).cpu().numpy().tobytes()
        equal = equal and bytes(payload) == wanted
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        for payload in payloads:
            file.write(payload)
        file.flush()
        os.fsync(file.fileno())

        def read() -> None:
            for number, payload in enumerate(payloads):
                done = 0
                while done < size:
                    done += os.preadv(file.fileno(), [payload[done:]], number * size + done)

        rates["ceiling: preadv of the file, cached"] = timed(read)

        def read_and_scatter() -> None:
            read()
            mover.scatter(pieces, payloads, mover.fence())

        rates["file to pages"] = timed(read_and_scatter)
    return {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "chunk_bytes": size,
        "rounds": ROUNDS,
        "bytes_equal": equal,
        "rates": rates,
    }


def _same(one: memoryview, other: memoryview) -> bool:
    return bytes(one) == bytes(other)


if __name__ == "__main__":
    sys.exit(main())
