"""Where in its kept page a listing goes on."""

from typing import Any, cast

import pytest
import trio
import trio.testing
from hearthfs.common.errors import Unavailable
from hearthfs.fuse_client.listing import Listing, _Ahead
from hearthfs.proto import master_pb2 as pb


def listing(*cookies: int, after: int, end: bool = False) -> Listing:
    made = Listing(cast("Any", None), cast("Any", None))
    made._page = [pb.DirectoryEntry(cookie=cookie) for cookie in cookies]
    made._after, made._end = after, end
    return made


@pytest.mark.parametrize("at", [0, 1, 2, 3])  # wherever the last call ended
def test_from_any_entry_of_the_page(at: int) -> None:
    made = listing(11, 13, 17, after=7)
    made._at = at
    assert [made._position(cookie) for cookie in (7, 11, 13)] == [0, 1, 2]


def test_another_page_is_needed() -> None:
    assert listing(after=-1)._position(0) == -1  # nothing was read yet
    assert listing(11, 13, after=7)._position(13) == -1  # used up
    assert listing(11, 13, after=7)._position(12) == -1  # that entry is in another one, or gone
    assert listing(11, 13, after=7)._position(0) == -1  # from the start again


def test_the_end() -> None:
    assert listing(11, 13, after=7, end=True)._position(13) == 2
    assert listing(after=13, end=True)._position(13) == 0


def run_ahead(*, failing: bool, needed_first: bool) -> Any:
    async def ask(after: int) -> Any:
        await trio.testing.wait_all_tasks_blocked()
        if failing:
            raise Unavailable("away")
        return after, pb.ReaddirReply()

    async def main() -> Any:
        ahead = _Ahead(7)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ahead.run, ask)
            if not needed_first:
                await ahead._done.wait()
            return await ahead.wait()

    return trio.run(main)


@pytest.mark.parametrize("needed_first", [True, False])
def test_the_page_that_was_asked_for_ahead(needed_first: bool) -> None:
    assert run_ahead(failing=False, needed_first=needed_first) == (7, pb.ReaddirReply())


def test_an_error_is_for_who_waited_for_it_and_else_a_reason_to_ask_again() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        run_ahead(failing=True, needed_first=True)
    assert [type(error) for error in raised.value.exceptions] == [Unavailable]
    assert run_ahead(failing=True, needed_first=False) is None
