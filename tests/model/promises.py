"""What HearthFS promises about the content of files, and nothing else. Pure: no mount, no clock, no disk.

- A file is a sequence of published versions. Everybody who is not inside an older one sees the last.
- All who have a file open in one mount share one *view*; what one does with it the others see (POSIX).
- Opening joins the mount's view if that is still the last version, or grew from it; else it makes a new one of the
  last.
- A changed view is published by the close of any descriptor, by fsync, msync or a write with O_SYNC, by the end of the
  last mapping. The last one to publish wins. Who has an older version open keeps it, and may still publish over the
  newer one.
- A new length given to a file that nobody in the mount has changed is published at once.
- A file without a name is published to nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class File:
    """One inode. ``versions[-1]`` is what an open by path gets elsewhere."""

    versions: list[bytes] = field(default_factory=lambda: [b""])
    views: list[View] = field(default_factory=list)

    @property
    def published(self) -> bytes:
        return self.versions[-1]

    def view(self, mount: int) -> View | None:
        """The view that an open by path joins in this mount."""
        current = len(self.versions) - 1
        return next((view for view in self.views if view.mount == mount and view.version == current), None)

    def open(self, mount: int) -> View:
        """Joined if ``users`` is more than 1, else new: it begins with ``published``."""
        view = self.view(mount)
        if view is None:
            view = View(self, mount, len(self.versions) - 1)
            self.views.append(view)
        view.users += 1
        return view

    def publish(self, data: bytes) -> int:
        """Somebody else's version, whole: an SDK's, or a new length. Returns its number."""
        self.versions.append(data)
        return len(self.versions) - 1


@dataclass(eq=False)
class View:
    """What an open file shows in one mount. ``version``: the published one that it is or grew from."""

    file: File
    mount: int
    version: int
    users: int = 0
    dirty: bool = False

    @property
    def replaced(self) -> bool:
        """Somebody published over it: opens by path give another view now."""
        return self.version != len(self.file.versions) - 1

    def publish(self, data: bytes, *, named: bool) -> bool:
        """close, fsync, msync, end of the last mapping. Whether there was anything to publish."""
        if not self.dirty:
            return False
        self.dirty = False
        if named:
            self.version = self.file.publish(data)
        return named

    def resized(self, size: int) -> None:
        """The new length was published at once; what else is changed here is not."""
        self.version = self.file.publish(resized(self.file.published, size))

    def close(self) -> None:
        self.users -= 1
        if not self.users:
            self.file.views.remove(self)


def resized(data: bytes, size: int) -> bytes:
    """
    >>> resized(b"abc", 2), resized(b"abc", 5)
    (b'ab', b'abc\\x00\\x00')
    """
    return data[:size].ljust(size, b"\0")
