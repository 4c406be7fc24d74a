"""A fingerprint of a model's weights, cheap enough for every start.

It reads config.json, the header of each safetensors file, and three samples of 64 bytes from each tensor (other weight
files: 256 samples over the file). Another fine-tuning of the same model has other values in all tensors it touched, so
it gets another fingerprint, while copies of one model on different nodes get the same: times and paths are not in it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from typing import BinaryIO

SAMPLE_BYTES = 64
SAMPLES_PER_FILE = 256
MAX_HEADER_BYTES = 100 << 20
_WEIGHT_ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


def fingerprint(model_directory: str) -> str:
    """16 hex digits for the weights in ``model_directory``.

    Raises:
        OSError: the directory or a file in it cannot be read.
    """
    digest = hashlib.sha256(b"hearthfs weights 1\0")
    for name in sorted(os.listdir(model_directory)):
        path = os.path.join(model_directory, name)
        if name == "config.json":
            with open(path, "rb") as stream:
                _add(digest, name, stream.read())
        elif name.endswith(_WEIGHT_ENDINGS) and os.path.isfile(path):
            with open(path, "rb", buffering=0) as stream:
                _add_weights(digest, name, stream)
    return digest.hexdigest()[:16]


def _add(digest: hashlib._Hash, name: str, data: bytes) -> None:
    digest.update(f"{name}\0{len(data)}\0".encode() + data)


def _add_weights(digest: hashlib._Hash, name: str, stream: BinaryIO) -> None:
    size = os.fstat(stream.fileno()).st_size
    header = _safetensors_header(stream, size) if name.endswith(".safetensors") else None
    everywhere = iter(range(0, size, max(1, size // SAMPLES_PER_FILE)))
    offsets = everywhere if header is None else _tensor_samples(header)
    samples = b"".join(os.pread(stream.fileno(), SAMPLE_BYTES, offset) for offset in offsets)
    _add(digest, f"{name}:{size}", (header or b"") + samples)


def _safetensors_header(stream: BinaryIO, size: int) -> bytes | None:
    length = int.from_bytes(os.pread(stream.fileno(), 8, 0), "little")
    if not 2 <= length <= min(size, MAX_HEADER_BYTES):
        return None
    return os.pread(stream.fileno(), length, 8)


def _tensor_samples(header: bytes) -> Iterator[int]:
    try:
        tensors = json.loads(header)
    except ValueError:
        return
    for name in sorted(tensors):
        if name == "__metadata__":
            continue
        begin, end = tensors[name]["data_offsets"]
        base = 8 + len(header)
        for place in {begin, (begin + end) // 2, max(begin, end - SAMPLE_BYTES)}:
            yield base + place
