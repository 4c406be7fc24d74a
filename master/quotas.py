"""Quotas: how many bytes all below a directory have together, and may have.

Laws:
- An inode counts in the quota whose number it carries (0: none), and in those that this one counts in (``above``). A
  directory carries the quota that counts what is made in it: its own, if it has one, else that of its directory.
- A quota's number is given once. ``used_bytes`` is the sum of the lengths of the blocks of all files that count in it:
  exact after every command.
- Only a limit that a change would break is checked: a quota that was set below what is used refuses to grow.
- A directory that gets or loses a quota does so at once, with what is made in it from then on; what was below it
  already is *settled* by and by, directories before what is in them, a bounded number in each command.
- A file counts in one quota: a link into a directory of another one is refused as if it were another filesystem, and so
  is a directory that would carry what is in it into another quota. (Programs such as mv copy then.)
"""

from __future__ import annotations

import msgspec

from ..common.errors import CrossDevice, QuotaExceeded
from .change import Change
from .commands import FinishQuota, SettleQuota
from .records import Inode, Quota, Reply

_replace = msgspec.structs.replace


def chain(change: Change, quota: int) -> tuple[int, ...]:
    """The quota and all that it counts in."""
    return tuple(number for number, _ in change.quota_chain(quota)) if quota else ()


def check_room(change: Change, quota: int, added_bytes: int) -> None:
    """Raises: QuotaExceeded."""
    if not quota or added_bytes <= 0:
        return
    for _, found in change.quota_chain(quota):
        if found.limit_bytes and found.used_bytes + added_bytes > found.limit_bytes:
            raise QuotaExceeded(
                f"directory {found.directory} has a quota of {found.limit_bytes} bytes and {found.used_bytes} in use: "
                f"{added_bytes} more do not fit"
            )


def add(change: Change, quota: int, added_bytes: int) -> None:
    if not quota or not added_bytes:
        return
    for number, found in change.quota_chain(quota):
        change.put_quota(number, _replace(found, used_bytes=found.used_bytes + added_bytes))


def _own(change: Change, number: int, inode: Inode) -> Quota | None:
    """The quota of this very directory."""
    found = change.find_quota(inode.quota) if inode.is_directory and inode.quota else None
    return found if found is not None and found.directory == number and not found.ended else None


# ------------------------------------------------------------------ setting


def limit(change: Change, number: int, inode: Inode, limit_bytes: int) -> Inode:
    """The directory's quota becomes this; 0: it has none. Returns the inode, which the caller writes."""
    own = _own(change, number, inode)
    if own is not None and limit_bytes:
        change.put_quota(inode.quota, _replace(own, limit_bytes=limit_bytes))
        return inode
    if own is not None:
        change.put_quota(inode.quota, _replace(own, limit_bytes=0, ended=True, settled=False))
        return _replace(inode, quota=own.above)
    if not limit_bytes:
        return inode
    quota = change.next_cookie()
    change.put_quota(quota, Quota(number, limit_bytes, above=inode.quota))
    return _replace(inode, quota=quota)


def directory_removed(change: Change, number: int, inode: Inode) -> None:
    """It was empty, so its quota has nothing either."""
    if _own(change, number, inode) is not None:
        change.put_quota(inode.quota, None)


# ------------------------------------------------------------------ moving


def check_link(inode: Inode, directory: Inode) -> None:
    """Raises: CrossDevice."""
    if inode.quota != directory.quota:
        raise CrossDevice("a file with names in directories of different quotas cannot count in both; copy it")


def move(change: Change, number: int, inode: Inode, directory: Inode) -> None:
    """Before an inode gets another directory.

    Raises:
        CrossDevice: with it other files would change their quota.
        QuotaExceeded.
    """
    own = _own(change, number, inode)
    if own is not None:
        _recount(change, own.used_bytes, own.above, directory.quota, check=True)
        moved = change.find_quota(inode.quota)
        assert moved is not None
        change.put_quota(inode.quota, _replace(moved, above=directory.quota))
        return
    if inode.quota == directory.quota:
        return
    if len(inode.links) > 1 or (inode.is_directory and not change.is_empty(number)):
        raise CrossDevice("into a directory of another quota only single files and empty directories move; copy it")
    _carry(change, number, inode, directory.quota, check=True)


def _carry(change: Change, number: int, inode: Inode, quota: int, *, check: bool) -> None:
    size_bytes = inode.extents[0].length_bytes if inode.extents else 0
    _recount(change, size_bytes, inode.quota, quota, check=check)
    for extent in inode.extents:
        change.freed(extent, (), chain(change, inode.quota))
    moved = _replace(inode, quota=quota)
    for extent in inode.extents:
        change.stored(moved, extent, (), chain(change, quota))
    change.put_inode(number, moved)


def _recount(change: Change, size_bytes: int, old: int, new: int, *, check: bool) -> None:
    """Moves so many bytes from one quota to another."""
    add(change, old, -size_bytes)
    if check:
        check_room(change, new, size_bytes)
    add(change, new, size_bytes)


# ------------------------------------------------------------------ settling


def settle(change: Change, command: SettleQuota) -> Reply:
    for number in command.inodes:
        inode = change.find_inode(number)
        if inode is None or not inode.links:
            continue
        directory = change.inode(inode.links[0][0])
        own = _own(change, number, inode)
        if own is not None:
            if own.above != directory.quota:
                _recount(change, own.used_bytes, own.above, directory.quota, check=False)
                change.put_quota(inode.quota, _replace(own, above=directory.quota))
        elif inode.quota != directory.quota:
            _carry(change, number, inode, directory.quota, check=False)
    return Reply()


def finish(change: Change, command: FinishQuota) -> Reply:
    found = change.find_quota(command.quota)
    if found is not None and (found.ended or change.find_inode(found.directory) is None):
        change.put_quota(command.quota, None)
    elif found is not None:
        change.put_quota(command.quota, _replace(found, settled=True))
    return Reply()
