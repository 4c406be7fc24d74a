"""What the eviction policy is worth: hit rates on days of chats, beside LRU and beside what nobody can know.

python bench/eviction.py [SEED ...]
"""

from __future__ import annotations

import sys

from hearthfs.tests.support.chats import Belady, Lru, Ours, chats, hit_rate

SEEDS = (1, 2, 3)
SHARES = (0.03, 0.06, 0.1, 0.2)
REQUESTS = 5000


def main() -> None:
    print(f"hit rate in chunks, {REQUESTS} requests; room: share of all chunks that are ever stored")
    print(f"{'seed':>6} {'room':>6} {'LRU':>8} {'ours':>8} {'Belady':>8}")
    for seed in map(int, sys.argv[1:]) if sys.argv[1:] else SEEDS:
        requests = chats(seed, count=REQUESTS)
        chunks = len({chunk for request in requests for chunk in request.chunks})
        for share in SHARES:
            room = int(share * chunks)
            rates = [hit_rate(requests, cache) for cache in (Lru(room), Ours(room), Belady(room, requests))]
            print(f"{seed:6} {share:6.0%} " + " ".join(f"{rate:8.4f}" for rate in rates))


if __name__ == "__main__":
    main()
