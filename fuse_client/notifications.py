"""FUSE notifications as bytes. A notification is a reply with unique 0 whose error field is the code (linux/fuse.h)."""

from __future__ import annotations

import struct

NOTIFY_INVAL_INODE = 2
NOTIFY_INC_EPOCH = 8

_HEADER = struct.Struct("<IiQ")  # length, code, unique
_INVAL_INODE = struct.Struct("<Qqq")  # nodeid, offset, length


def increment_epoch() -> bytes:
    """All names that the kernel has cached in this mount are to be looked up again. Takes no inode lock: it cannot wait
    for a CREATE that waits for us. Kernel 6.16; EINVAL before."""
    return _HEADER.pack(_HEADER.size, NOTIFY_INC_EPOCH, 0)


def invalidate_attributes(nodeid: int) -> bytes:
    """The attributes of one inode are to be asked for again. Offset -1 keeps the cached pages: touching pages would
    wait for READs in flight, and open files keep their version anyway. ENOENT: the kernel does not know it."""
    size = _HEADER.size + _INVAL_INODE.size
    return _HEADER.pack(size, NOTIFY_INVAL_INODE, 0) + _INVAL_INODE.pack(nodeid, -1, 0)
