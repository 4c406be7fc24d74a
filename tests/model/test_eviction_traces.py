"""What eviction keeps of a trace of chats, beside LRU and beside who knows the future."""

import pytest
from hearthfs.tests.support.chats import Belady, Lru, Ours, chats, hit_rate


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("share", [0.03, 0.1])
def test_chats_find_more_than_with_lru(seed: int, share: float):
    requests = chats(seed, count=5000)
    capacity = int(share * len({chunk for request in requests for chunk in request.chunks}))
    ours, lru = hit_rate(requests, Ours(capacity)), hit_rate(requests, Lru(capacity))
    belady = hit_rate(requests, Belady(capacity, requests))
    print(f"seed {seed}, room for {share:.0%}: ours {ours:.4f}, LRU {lru:.4f}, Belady {belady:.4f}")
    assert lru <= ours <= belady
