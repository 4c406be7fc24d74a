"""One fuzz target with coverage: ``python -m hearthfs.tests.fuzz.atheris_run wire -max_total_time=600 CORPUS``.

Needs ``pip install 'hearthfs[fuzz]'``. Options are libFuzzer's; a finding ends the run and leaves its input in a file.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

PARTS = [f"hearthfs.{part}" for part in ("cli", "client", "common", "master", "worker")]


def main() -> None:
    with atheris.instrument_imports(include=PARTS):
        from hearthfs.tests.fuzz import targets
    name, *options = sys.argv[1:]
    flags = [option for option in options if option.startswith("-")]
    corpus = [option for option in options if not option.startswith("-")]
    with tempfile.TemporaryDirectory(prefix="hearth-seeds-") as directory:
        for number, seed in enumerate(targets.seeds()[name]):
            (Path(directory) / str(number)).write_bytes(seed)
        atheris.Setup([sys.argv[0], *flags, *corpus, directory], targets.TARGETS[name])
        atheris.Fuzz()


if __name__ == "__main__":
    main()
