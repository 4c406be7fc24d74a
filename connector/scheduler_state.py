"""The one reach into vLLM's scheduler half that its interface does not offer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def offer_again(scheduler: Any, request_ids: Iterable[str]) -> None:
    """Makes the scheduler offer all chunks of these requests to be stored.

    It takes chunks that a request was to load for stored, and would never offer them again, though the load failed and
    the request computes them: a bad file would stay until another request came by.
    """
    for request_id in request_ids:
        status = scheduler._req_status.get(request_id)
        for group in status.group_states if status is not None else ():
            group.next_stored_chunk_idx = 0
