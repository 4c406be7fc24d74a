"""Names: one at a time through every mount, in batches by the SDK; the work itself is in ``metadata``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

from . import metadata
from .agents import Agent, SharedMemory
from .contenders import Contender, Lab
from .names_of_rows import (
    BATCH_PUT,
    CREATE,
    FIRST_MISS,
    LOOKUP,
    REPEATED_MISS,
    STAT_AFTER_READ,
    STAT_KNOWN,
)
from .rivals.mooncake import MooncakeMaster, python_of
from .rounds import Sample, Visit, interleave
from .rows import Row

CREATES, STATS, MISSES, READS = 150, 1000, 1000, 100
QUICK_PART = 4
UNITS = {
    LOOKUP: "ms",
    STAT_KNOWN: "/s",
    STAT_AFTER_READ: "us",
    FIRST_MISS: "/s",
    REPEATED_MISS: "/s",
    CREATE: "/s",
    BATCH_PUT: "/s",
}


def rows(lab: Lab) -> Iterator[Row]:
    keys = metadata.keys(metadata.PREFIX_KEYS)
    with ExitStack() as stack:
        visits: dict[str, Visit] = {}
        client = stack.enter_context(lab.nodes.client())
        client.makedirs("/names/known", exist_ok=True)
        metadata.put_batch(client, "/names/known", keys)
        for one in lab.contenders:
            place = one.directory / "names" / "known"
            place.mkdir(parents=True, exist_ok=True)
            if one.label != "hearthfs":
                metadata.write_each(
                    place, keys if one.label == "raw" else keys[: STATS // (QUICK_PART if lab.quick else 1)]
                )
            visits[one.label] = _visit(one, keys, QUICK_PART if lab.quick else 1)
        through_mount = visits["hearthfs"]

        def hearthfs(number: int) -> Mapping[str, Sample]:
            batch = f"/names/batch{number}"
            client.makedirs(batch)
            put = metadata.put_batch(client, batch, keys)
            client.rmtree(batch)
            found = metadata.lookup_batch(client, "/names/known", keys)
            return {
                **through_mount(number),
                BATCH_PUT: Sample(len(keys) / put),
                LOOKUP: Sample(found * 1e3),
            }

        visits["hearthfs"] = hearthfs
        mooncake = _mooncake(lab, stack, len(keys)) if lab.want_rivals else None
        if mooncake:
            visits["mooncake"] = mooncake
        results = interleave(visits, lab.rounds)
        note = "; ".join(results.reasons())
        for step, unit in UNITS.items():
            yield results.row("metadata", step, unit, threads=1, note=note)


def _visit(one: Contender, keys: list[str], part: int) -> Visit:
    """``part``: of so many, only one is done."""
    stats, creates = STATS // part, CREATES // part

    def visit(number: int) -> Mapping[str, Sample]:
        known = one.directory / "names" / "known"
        fresh = one.directory / "names" / f"round{number}"
        fresh.mkdir()
        some, absent = keys[:stats], metadata.keys(MISSES // part, f"absent {number} ")
        metadata.stat_each(known, some)
        known_calls = metadata.stat_calls(known, some)
        after_read = metadata.stat_after_read(known, keys[stats - READS : stats])
        first, again = metadata.stat_calls(known, absent), metadata.stat_calls(known, absent)
        created = metadata.create_each(fresh, keys[:creates])
        written = metadata.write_each(fresh, metadata.keys(creates, "tiny"))
        shutil.rmtree(fresh)
        samples = {
            STAT_KNOWN: _rate(known_calls),
            STAT_AFTER_READ: Sample(metadata.percentile(after_read, 0.5) * 1e6, after_read),
            FIRST_MISS: _rate(first),
            REPEATED_MISS: _rate(again),
            CREATE: _rate(created),
            BATCH_PUT: _rate(written),
        }
        if one.label == "raw":
            samples[LOOKUP] = Sample(metadata.exists_each(known, keys) * 1e3)
        return samples

    return visit


def _rate(calls_s: list[float]) -> Sample:
    return Sample(len(calls_s) / sum(calls_s), calls_s)


def _mooncake(lab: Lab, stack: ExitStack, count: int) -> Visit | None:
    """A batch of tiny values put, looked up and removed."""
    try:
        memory = SharedMemory(1 << 20)
        stack.callback(memory.close)
        master = MooncakeMaster(python_of(lab.rivals), lab.directory / "mooncake")
        stack.callback(master.close)
        master.start()
        log = lab.directory / "agents" / "mooncake-names.log"
        agent = stack.enter_context(Agent("mooncake", master.client(64 << 20), memory, log, python=master.python))
    except Exception as error:
        lab.missing["mooncake"] = str(error)
        return None
    size = len(metadata.TINY)

    def visit(number: int) -> Mapping[str, Sample]:
        put = agent.call("put", f"{number + 1}-", count, size)["seconds"]
        found = agent.call("exists", f"{number + 1}-", count)
        assert found["found"] == count, f"{found['found']} of {count} are there"
        agent.call("remove", f"{number + 1}-", count)
        return {BATCH_PUT: Sample(count / put), LOOKUP: Sample(found["seconds"] * 1e3)}

    return visit
