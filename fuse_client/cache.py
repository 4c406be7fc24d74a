"""What the mount remembers of the namespace: names (also of what does not exist), attributes, layouts, xattrs. Pure.

Laws:

- Nothing is given out unless the lease holds: ``find`` and ``entry`` answer None then.
- *Race rule.* A caller takes ``token()`` before it asks the master. If something about the name's directory or the
  inode moved since, the answer may be used once but is not remembered (``fresh`` is false, kernel timeout 0).
- Replies to our own mutations are newer than any invalidation that other mounts' changes sent before; of two replies
  about one inode the one with the later ctime stays.
- A directory is *complete* when every name in it is known: what is not known does not exist. One that we made is so
  from the start (the master gives us the grant with it), one that we listed wholly too, until a name gets lost here.
- Names and attributes that a mutation made are remembered only below a directory on which we hold a grant: a read of it
  gave us one, and it lasts as long as the session.

Counters are kept in a fixed number of slots: two inodes in one slot only make us forget more.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ..proto import common_pb2 as common
from ..proto import master_pb2 as pb
from .lease import Lease

SLOTS = 4096
NEGATIVE = 0
NO_XATTRS: Mapping[bytes, bytes] = MappingProxyType({})


class MetadataCache:
    def __init__(self, lease: Lease, limit: int) -> None:
        self._lease = lease
        self._limit = limit
        self._names: dict[int, dict[bytes, int]] = {}
        self._name_count = 0
        self._entries: dict[int, common.Entry] = {}
        self._xattrs: dict[int, Mapping[bytes, bytes]] = {}
        self._granted: dict[int, None] = {}
        self._complete: dict[int, None] = {}
        self._sequence = 0
        self._moved = [0] * SLOTS  # by anybody
        self._moved_elsewhere = [0] * SLOTS  # by other clients
        self._replaced = [0] * SLOTS  # content, by other clients
        self.hits = 0
        self.misses = 0

    # -- asking

    def token(self) -> int:
        return self._sequence

    def fresh(self, token: int, *inodes: int) -> bool:
        """Whether nothing about these inodes or directories moved since ``token`` was taken."""
        return all(self._moved[inode % SLOTS] <= token for inode in inodes)

    def undisturbed(self, token: int, *inodes: int) -> bool:
        """The same, but our own mutations do not count."""
        return all(self._moved_elsewhere[inode % SLOTS] <= token for inode in inodes)

    def replaced(self, token: int, inode: int) -> bool:
        """Whether another client may have published content of this inode since ``token`` was taken."""
        return self._replaced[inode % SLOTS] > token

    def timeout_s(self) -> float:
        """How long the kernel may keep what is fresh now."""
        return self._lease.remaining_s()

    def find(self, directory: int, name: bytes) -> int | None:
        """The inode of a name, ``NEGATIVE`` when it is known not to exist, None when nothing is known."""
        if not self._lease.remaining_s():
            return None
        found = self._names.get(directory, {}).get(name)
        return NEGATIVE if found is None and directory in self._complete else found

    def entry(self, inode: int) -> common.Entry | None:
        found = self._entries.get(inode) if self._lease.remaining_s() else None
        if found is None:
            self.misses += 1
        else:
            self.hits += 1
        return found

    def peek(self, inode: int) -> common.Entry | None:
        """``entry`` for one that was asked for just now: not counted."""
        return self._entries.get(inode) if self._lease.remaining_s() else None

    def xattrs(self, inode: int) -> Mapping[bytes, bytes] | None:
        return self._xattrs.get(inode) if self._lease.remaining_s() else None

    def granted(self, inode: int) -> bool:
        return inode in self._granted

    # -- remembering what a read brought

    def read_name(self, token: int, directory: int, name: bytes, inode: int) -> None:
        """A Lookup or Readdir said so; ``inode`` may be ``NEGATIVE``."""
        self._grant(token, directory)
        if self.fresh(token, directory):
            self._put_name(directory, name, inode)

    def read_entry(self, token: int, entry: common.Entry, directory: int = 0) -> bool:
        """Attributes and layout, read by Getattr, or by Lookup or Readdir in ``directory``. Whether they were fresh."""
        inode = entry.attributes.inode
        self._grant(token, directory or inode)
        if not self.fresh(token, inode, *([directory] if directory else [])):
            return False
        self._put_entry(entry)
        return True

    def read_page(self, token: int, directory: int, page: Iterable[pb.DirectoryEntry]) -> None:
        """A part of a listing, with the entries of what it names."""
        self._grant(token, directory)
        if not self.fresh(token, directory):
            return
        for item in page:
            if item.HasField("entry"):
                self._put_name(directory, item.name, item.inode)
                if self._moved[item.inode % SLOTS] <= token:
                    self._put_entry(item.entry)

    def read_xattrs(self, token: int, inode: int, xattrs: Mapping[bytes, bytes]) -> None:
        if self.fresh(token, inode) and inode in self._entries:
            self._put_bounded(self._xattrs, inode, xattrs)

    def read_all_names(self, token: int, directory: int, names: Mapping[bytes, int]) -> None:
        """A whole listing, not a part of one."""
        self._grant(token, directory)
        if not self.fresh(token, directory):
            return
        self._name_count -= len(self._names.pop(directory, {}))
        self._put_bounded(self._complete, directory, None)
        for name, inode in names.items():
            self._put_name(directory, name, inode)

    # -- remembering what we did

    def made(self, token: int, directory: int, name: bytes, entry: common.Entry, *, new: bool = False) -> bool:
        """Our mutation made this name; ``new``: and its inode, just now. Whether it could be remembered."""
        inode = entry.attributes.inode
        if new or not stat.S_ISDIR(entry.attributes.mode):
            self._directory_changed(token, directory, entry, new=new)
        else:  # a directory moved in: how many are in there now depends on what it replaced
            self.changed(directory)
        self._moves(inode, elsewhere=False)
        if not (directory in self._granted and self.undisturbed(token, directory, inode)):
            self._drop_name(directory, name)
            self._drop_inode(inode)
            return False
        self._put_name(directory, name, inode)
        self._put_newer(entry)
        if new:
            if not stat.S_ISDIR(entry.attributes.mode):  # a directory inherits some from the one that it is made in
                self._put_bounded(self._xattrs, inode, {})
            else:
                self._put_bounded(self._granted, inode, None)
                self._put_bounded(self._complete, inode, None)
        return True

    def _directory_changed(self, token: int, directory: int, entry: common.Entry, *, new: bool) -> None:
        """The directory of a name that we made: its times are those of the inode that came with it."""
        known = self._entries.get(directory)
        self._moves(directory, elsewhere=False)
        if known is None or not self.undisturbed(token, directory):
            self._drop_inode(directory)
            return
        changed = common.Entry()
        changed.CopyFrom(known)
        attributes = changed.attributes
        # Of two mutations of ours the one whose reply comes last may be the earlier one.
        attributes.mtime_ns = attributes.ctime_ns = max(attributes.ctime_ns, entry.attributes.ctime_ns)
        attributes.nlink += new and stat.S_ISDIR(entry.attributes.mode)
        self._entries[directory] = changed

    def unmade(
        self,
        token: int,
        directory: int,
        name: bytes,
        inode: int = 0,
        *,
        moved: common.Entry | None = None,
        now: common.Entry | None = None,
    ) -> None:
        """Our mutation removed this name, which stood for ``inode`` (0: not known which), or gave it to ``moved``.
        ``now``: what the directory is after it."""
        inode = inode or self._names.get(directory, {}).get(name, 0)
        if moved is not None and not stat.S_ISDIR(moved.attributes.mode):
            self._directory_changed(token, directory, moved, new=False)
        elif now is not None and now.attributes.inode == directory:
            self.modified(token, now)
        else:
            self.changed(directory)
        if inode:
            self.changed(inode)
        if directory in self._granted and self.undisturbed(token, directory):
            if directory in self._complete:
                self._forget(directory, name)
            else:
                self._put_name(directory, name, NEGATIVE)
        else:
            self._drop_name(directory, name)

    def modified(self, token: int, entry: common.Entry) -> bool:
        """Our mutation changed this inode. Whether its new attributes could be remembered."""
        inode = entry.attributes.inode
        known = inode in self._entries
        self._moves(inode, elsewhere=False)
        covered = known or inode in self._granted or any(parent in self._granted for parent in entry.parents)
        if not (covered and self.undisturbed(token, inode)):
            self._drop_inode(inode)
            return False
        self._put_newer(entry)
        return True

    def changed(self, inode: int) -> None:
        """Our mutation changed this inode or directory in a way that we do not know exactly."""
        self._moves(inode, elsewhere=False)
        self._drop_inode(inode)

    def forget_name(self, directory: int, name: bytes) -> None:
        self.changed(directory)
        self._drop_name(directory, name)

    # -- forgetting

    def invalidate(self, event: pb.Invalidation) -> None:
        """Another client changed something."""
        if event.directory:
            self._moves(event.directory, elsewhere=True)
            self._drop_inode(event.directory)
            if event.name:
                self._drop_name(event.directory, event.name)
            else:
                self._complete.pop(event.directory, None)
                self._name_count -= len(self._names.pop(event.directory, {}))
        if event.inode:
            self._moves(event.inode, elsewhere=True)
            self._drop_inode(event.inode)
            if event.content:
                self._replaced[event.inode % SLOTS] = self._sequence

    def clear(self) -> None:
        """The session or its stream is lost: nothing that is known or on its way may be kept."""
        self._sequence += 1
        self._moved = [self._sequence] * SLOTS
        self._moved_elsewhere = [self._sequence] * SLOTS
        self._replaced = [self._sequence] * SLOTS
        self._names.clear()
        self._name_count = 0
        self._entries.clear()
        self._xattrs.clear()
        self._granted.clear()
        self._complete.clear()

    def __len__(self) -> int:
        return self._name_count + len(self._entries)

    # -- inside

    def _moves(self, inode: int, *, elsewhere: bool) -> None:
        self._sequence += 1
        self._moved[inode % SLOTS] = self._sequence
        if elsewhere:
            self._moved_elsewhere[inode % SLOTS] = self._sequence

    def _grant(self, token: int, inode: int) -> None:
        if self.undisturbed(token, inode):
            self._put_bounded(self._granted, inode, None)

    def _put_bounded(self, table: dict[int, Any], key: int, value: object) -> None:
        table.pop(key, None)
        table[key] = value
        if len(table) > self._limit:
            del table[next(iter(table))]

    def _put_entry(self, entry: common.Entry) -> None:
        inode = entry.attributes.inode
        self._put_bounded(self._entries, inode, entry)
        if entry.no_xattrs:
            self._put_bounded(self._xattrs, inode, NO_XATTRS)

    def _put_newer(self, entry: common.Entry) -> None:
        known = self._entries.get(entry.attributes.inode)
        if known is None or known.attributes.ctime_ns <= entry.attributes.ctime_ns:
            self._put_entry(entry)

    def _put_name(self, directory: int, name: bytes, inode: int) -> None:
        names = self._names.setdefault(directory, {})
        if name not in names:
            self._name_count += 1
        names[name] = inode
        while self._name_count > self._limit:
            self._drop_oldest_name()

    def _drop_oldest_name(self) -> None:
        directory = next(iter(self._names))
        self._drop_name(directory, next(iter(self._names[directory])))

    def _drop_name(self, directory: int, name: bytes) -> None:
        self._complete.pop(directory, None)
        self._forget(directory, name)

    def _forget(self, directory: int, name: bytes) -> None:
        names = self._names.get(directory)
        if names is not None and names.pop(name, None) is not None:
            self._name_count -= 1
            if not names:
                del self._names[directory]

    def _drop_inode(self, inode: int) -> None:
        self._entries.pop(inode, None)
        self._xattrs.pop(inode, None)
