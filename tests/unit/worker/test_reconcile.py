import os
import shutil

import pytest
from hearthfs.common.errors import NoSpace, NotFound
from hearthfs.common.types import BlockKey
from hearthfs.tests.unit.worker.parts import block_path, pattern, put, read_all
from hearthfs.worker.reconcile import reconcile

KEYS = [BlockKey(block, 1) for block in range(5)]


def never():
    return False


def lose_index(store):
    shutil.rmtree(store.disks[0].path / "index")


def filled(make_store, **more):
    store = make_store(**more)
    for key in KEYS:
        put(store, key, pattern(10_000, key.block))
    return store


def used(store):
    return sum(block_path(store, key).stat().st_blocks * 512 for key in KEYS if block_path(store, key).exists())


def test_a_lost_index_is_made_anew_in_the_background(make_store):
    lose_index(filled(make_store))
    store = make_store(crash=True)
    assert list(store.reports()) == []
    reconcile(store, never)
    assert [r.key for r in store.reports()] == KEYS
    assert {r.key for r in make_store.changes.take().added} == set(KEYS)
    assert store.disks[0].space().used_bytes == used(store)
    for key in KEYS:
        assert read_all(store, key) == pattern(10_000, key.block)


def test_a_block_is_served_before_the_scan_reaches_it(make_store):
    lose_index(filled(make_store))
    store = make_store(crash=True)
    assert read_all(store, KEYS[3]) == pattern(10_000, 3)
    reconcile(store, never)
    assert store.disks[0].blocks == len(KEYS)
    assert store.disks[0].space().used_bytes == used(store)


def test_with_a_lost_index_nothing_new_comes_before_all_is_counted(make_store):
    lose_index(filled(make_store, limit=100_000))
    store = make_store(limit=100_000, crash=True)
    with pytest.raises(NoSpace):
        store.create(BlockKey(99, 1))
    reconcile(store, never)
    working = store.create(BlockKey(99, 1))
    os.close(working.fd)
    assert working.limit_bytes == 100_000 - used(store)


def test_a_fresh_disk_takes_blocks_at_once(make_store):
    os.close(make_store(limit=100_000).create(KEYS[0]).fd)


def test_what_is_gone_or_cut_is_dropped_and_reported(make_store):
    store = filled(make_store)
    block_path(store, KEYS[1]).unlink()
    os.truncate(block_path(store, KEYS[2]), 17)
    store = make_store(crash=True)
    reconcile(store, never)
    assert [r.key for r in store.reports()] == [KEYS[0], KEYS[3], KEYS[4]]
    assert set(make_store.changes.take().removed) == {KEYS[1], KEYS[2]}
    with pytest.raises(NotFound):
        store.open_read(KEYS[2])
    space = store.disks[0].space()
    bad = sum(p.stat().st_blocks * 512 for p in (store.disks[0].path / "bad").iterdir())
    assert space.used_bytes == used(store) + bad


def test_files_of_others_are_left_alone(make_store):
    store = filled(make_store)
    blocks = store.disks[0].path / "blocks"
    (blocks / "readme").write_text("x")
    (blocks / "00" / "readme").write_text("x")
    (blocks / "01" / str(BlockKey(0x77, 1))).write_text("in the wrong place")
    store = make_store(crash=True)
    reconcile(store, never)
    assert [r.key for r in store.reports()] == KEYS
    assert (blocks / "00" / "readme").exists()


def test_it_stops_when_told(make_store):
    lose_index(filled(make_store))
    store = make_store(crash=True)
    reconcile(store, lambda: True)
    assert list(store.reports()) == []


def test_nothing_to_do_changes_nothing(make_store):
    filled(make_store)
    store = make_store()
    reconcile(store, never)
    assert len(make_store.changes) == 0
    assert [r.key for r in store.reports()] == KEYS
