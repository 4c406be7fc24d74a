"""Talking to a running vLLM engine over HTTP, for ``hearth kv warm`` and the hits of ``hearth kv ls``."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..common.errors import InvalidArgument, NotFound, Unavailable
from . import output

Prompt = str | list[int]
TEXT_ENDINGS = (".txt", ".md", ".rst", ".html", ".json", ".py")
ANSWER_S = 10.0


@dataclass
class Warmed:
    prompts: int = 0
    tokens: int = 0
    cached_tokens: int = 0
    errors: list[str] = field(default_factory=list)


def prompts(sources: Sequence[Path]) -> Iterator[Prompt]:
    """From text files (one prompt each), directories of them, and ``.jsonl`` files, whose lines are a string, a list of
    token ids, or an object with ``prompt``.

    Raises:
        NotFound: no such file. InvalidArgument: a line that is none of these.
    """
    for source in sources:
        if str(source) == "-":
            yield sys.stdin.read()
        elif source.is_dir():
            yield from prompts(sorted(path for path in source.rglob("*") if path.suffix in TEXT_ENDINGS))
        elif not source.is_file():
            raise NotFound(f"{source} does not exist")
        elif source.suffix == ".jsonl":
            for number, line in enumerate(source.read_text().splitlines(), 1):
                if line.strip():
                    yield _prompt(line, f"{source}:{number}")
        else:
            yield source.read_text(errors="replace")


def _prompt(line: str, where: str) -> Prompt:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InvalidArgument(f"{where}: {error}") from None
    if isinstance(value, dict):
        value = value.get("prompt")
    if isinstance(value, str) or (isinstance(value, list) and value and all(type(one) is int for one in value)):
        return value
    raise InvalidArgument(f"{where}: give a string, a list of token ids, or an object with one of these as 'prompt'")


def only_model(engine: str) -> str:
    """
    Raises:
        Unavailable: no answer. InvalidArgument: it serves several.
    """
    names = [one["id"] for one in json.loads(_get(engine, "/v1/models"))["data"]]
    if len(names) != 1:
        raise InvalidArgument(f"{engine} serves {', '.join(names) or 'nothing'}; say which with --model")
    return str(names[0])


def warm(engine: str, model: str, wanted: Iterable[Prompt], salt: str, parallel: int, timeout_s: float) -> Warmed:
    """Sends the prompts, ``parallel`` at a time; one that fails is an error in the result."""
    done = Warmed()
    todo = list(wanted)
    with output.counting("warm") as show, ThreadPoolExecutor(parallel) as pool:
        orders = [pool.submit(_prefill, engine, model, one, salt, timeout_s) for one in todo]
        for number, future in enumerate(as_completed(orders), 1):
            try:
                tokens, cached = future.result()
            except (OSError, ValueError, KeyError) as error:
                done.errors.append(str(error))
            else:
                done.prompts += 1
                done.tokens += tokens
                done.cached_tokens += cached
            show(number, len(todo))
    return done


def hits(engine: str) -> dict[str, Any]:
    """Chunk lookups of the connector in an engine, since its start.

    Raises:
        Unavailable: no answer, or no such figures.
    """
    found = {"present": 0.0, "all": 0.0}
    for line in _get(engine, "/metrics").decode().splitlines():
        if line.startswith("vllm:hearth_kv_lookups_total{"):
            value = float(line.rpartition(" ")[2])
            found["all"] += value
            found["present"] += value if 'result="present"' in line else 0
    return {"engine": engine, "hits": int(found["present"]), "lookups": int(found["all"])}


def _prefill(engine: str, model: str, prompt: Prompt, salt: str, timeout_s: float) -> tuple[int, int]:
    order: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    if salt:
        order["cache_salt"] = salt
    request = urllib.request.Request(  # noqa: S310 - the operator's own URL
        engine.rstrip("/") + "/v1/completions", json.dumps(order).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310  # the same
            usage = json.load(answer)["usage"]
    except urllib.error.HTTPError as error:
        raise Unavailable(f"{engine}: {error.code} {error.read(500).decode(errors='replace')}") from None
    details = usage.get("prompt_tokens_details") or {}
    return int(usage["prompt_tokens"]), int(details.get("cached_tokens") or 0)


def _get(engine: str, path: str) -> bytes:
    try:
        with urllib.request.urlopen(engine.rstrip("/") + path, timeout=ANSWER_S) as answer:  # noqa: S310  # the same
            data: bytes = answer.read()
            return data
    except (OSError, ValueError) as error:
        raise Unavailable(f"{engine}{path}: {error}") from None
