import json
import os
import shutil
from pathlib import Path

import pytest
from hearthfs.connector.weights import fingerprint


def write_safetensors(path: Path, tensors: dict[str, bytes]) -> None:
    offsets, at = {}, 0
    for name, data in tensors.items():
        offsets[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    header = json.dumps(offsets).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"".join(tensors.values()))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text('{"layers": 2}')
    write_safetensors(directory / "model.safetensors", {"a": os.urandom(10_000), "b": os.urandom(20_000)})
    return directory


def test_a_copy_has_the_same(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    (copy / "README.md").write_text("not a weight")
    os.utime(copy / "model.safetensors", (1, 1))
    assert fingerprint(str(copy)) == fingerprint(str(model))


def test_other_values_in_one_tensor_differ(model: Path) -> None:
    """R069: same name, same shapes, another revision."""
    before = fingerprint(str(model))
    file = model / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-20_000:] = os.urandom(20_000)
    file.write_bytes(data)
    assert fingerprint(str(model)) != before


def test_the_configuration_counts(model: Path) -> None:
    before = fingerprint(str(model))
    (model / "config.json").write_text('{"layers": 3}')
    assert fingerprint(str(model)) != before


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, (5).to_bytes(8, "little") + b"{bad}" + bytes(100)])
def test_odd_files_are_sampled_not_trusted(model: Path, content: bytes) -> None:
    (model / "odd.safetensors").write_bytes(content)
    (model / "other.bin").write_bytes(content)
    assert len(fingerprint(str(model))) == 16


def test_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        fingerprint(str(tmp_path / "nowhere"))
