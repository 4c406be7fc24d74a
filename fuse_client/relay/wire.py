"""The few FUSE messages that the relay looks into (linux/fuse.h), as pure functions on bytes.

A request begins with a header of 40 bytes, a reply with one of 16. Numbers are in the byte order of the machine.
"""

from __future__ import annotations

import struct
import sys
from typing import NamedTuple

OPEN, STATFS, RELEASE, GETXATTR, INIT, CREATE = 14, 17, 18, 22, 26, 35
FORGET, INTERRUPT, NOTIFY_REPLY, BATCH_FORGET = 2, 36, 41, 42
UNANSWERED = frozenset((FORGET, INTERRUPT, NOTIFY_REPLY, BATCH_FORGET))

# Flags of INIT
AUTO_INVAL_DATA = 1 << 12
PARALLEL_DIROPS = 1 << 18
HANDLE_KILLPRIV = 1 << 19
EXPLICIT_INVAL_DATA = 1 << 25
INIT_EXT = 1 << 30
PASSTHROUGH_2 = 1 << 5  # in the second word: bit 37

# Flags of OPEN and CREATE replies
FOPEN_DIRECT_IO = 1 << 0
FOPEN_KEEP_CACHE = 1 << 1
FOPEN_NOFLUSH = 1 << 5
FOPEN_PASSTHROUGH = 1 << 7

STATFS_PID = (1 << 31) - 1
"""No process has this number: the caller of a STATFS request that says of which inode."""

REQUEST_BYTES = 40
REPLY_BYTES = 16
_REQUEST = struct.Struct("=IIQQ")  # length, opcode, unique, nodeid
_REPLY = struct.Struct("=IiQ")  # length, error, unique
_CALLER = struct.Struct("=QI")  # in a request's header behind nodeid: uid and gid, pid
_CALLER_AT = _REQUEST.size
_OPENED = struct.Struct("=QIi")  # handle, flags, backing id
_ENTRY_BYTES = 128  # nodeid first
_XATTR_NAME_AT = REQUEST_BYTES + 8
_CAPABILITY = b"security.capability\0"
_REQUEST_FLAGS_AT, _REQUEST_FLAGS_2_AT = REQUEST_BYTES + 12, REQUEST_BYTES + 16
_FLAGS_AT, _BACKGROUND_AT, _FLAGS_2_AT = REPLY_BYTES + 12, REPLY_BYTES + 16, REPLY_BYTES + 32


class Request(NamedTuple):
    length: int
    opcode: int
    unique: int
    nodeid: int


class Reply(NamedTuple):
    length: int
    error: int  # 0, or a negative errno
    unique: int  # 0: a notification


def request(message: bytes | bytearray | memoryview) -> Request:
    return Request(*_REQUEST.unpack_from(message))


def reply(message: bytes | bytearray | memoryview) -> Reply:
    return Reply(*_REPLY.unpack_from(message))


def open_flags(message: bytes | bytearray | memoryview) -> int:
    """What the caller of open(2) asked for, of an OPEN or CREATE request."""
    flags: int = struct.unpack_from("=I", message, REQUEST_BYTES)[0]
    return flags


def asks_for_capability(message: bytes | bytearray | memoryview) -> bool:
    """Of a GETXATTR request: the kernel asks at each first write into a file whether it has capabilities to lose."""
    return message[_XATTR_NAME_AT : _XATTR_NAME_AT + len(_CAPABILITY)] == _CAPABILITY


def refusal(unique: int, number: int) -> bytes:
    """The reply that says no with this errno."""
    return _REPLY.pack(REPLY_BYTES, -number, unique)


def say_inode(statfs_request: memoryview) -> None:
    """libfuse is told of which inode the space is asked, and pyfuse3 does not hand that on. Whoever asks is of no
    interest, so that the inode stands in the place of the caller's ids."""
    asked = request(statfs_request)
    _CALLER.pack_into(statfs_request, _CALLER_AT, asked.nodeid, STATFS_PID)


def inode_asked(uid: int, gid: int, pid: int) -> int:
    """The node id that ``say_inode`` put there, by the caller's ids; 0: nothing was put there."""
    return int.from_bytes(struct.pack("=II", uid, gid), sys.byteorder) if pid == STATFS_PID else 0


def offers_passthrough(init_request: bytes) -> bool:
    """Whether this kernel has passthrough (6.9 and later)."""
    if len(init_request) < _REQUEST_FLAGS_2_AT + 4:
        return False
    flags, flags_2 = struct.unpack_from("=I", init_request, _REQUEST_FLAGS_AT)[0], 0
    if flags & INIT_EXT:
        flags_2 = struct.unpack_from("=I", init_request, _REQUEST_FLAGS_2_AT)[0]
    return bool(flags_2 & PASSTHROUGH_2)


def edit_init(init_request: bytes, init_reply: bytes, max_background: int, *, passthrough: bool = False) -> bytes:
    """The INIT reply as the kernel gets it. What libfuse 3.14 cannot be told, the reply says:

    - ``max_background`` (the kernel's default is 12) and PARALLEL_DIROPS (lookups in one directory side by side);
    - no AUTO_INVAL_DATA but EXPLICIT_INVAL_DATA: a new mtime does not throw away the pages that a writer left in the
      page cache; which pages are current is decided by content version at open (keep_cache);
    - no HANDLE_KILLPRIV: the kernel clears suid and sgid by SETATTR, handlers need not;
    - passthrough, to files that are themselves on a plain filesystem (stack depth 1).
    """
    out = bytearray(init_reply)
    (offered,) = struct.unpack_from("=I", init_request, _REQUEST_FLAGS_AT)
    (flags,) = struct.unpack_from("=I", out, _FLAGS_AT)
    if offered & EXPLICIT_INVAL_DATA:
        flags = flags & ~AUTO_INVAL_DATA | EXPLICIT_INVAL_DATA
    flags = flags & ~HANDLE_KILLPRIV | offered & PARALLEL_DIROPS
    if passthrough:
        flags |= INIT_EXT
        (flags_2,) = struct.unpack_from("=I", out, _FLAGS_2_AT)
        struct.pack_into("=II", out, _FLAGS_2_AT, flags_2 | PASSTHROUGH_2, 1)
    struct.pack_into("=I", out, _FLAGS_AT, flags)
    struct.pack_into("=HH", out, _BACKGROUND_AT, max_background, max_background * 3 // 4)
    return bytes(out)


class Opened(NamedTuple):
    """Of an OPEN or CREATE reply without error."""

    nodeid: int
    handle: int
    flags: int


def opened(asked: Request, message: bytearray | memoryview) -> Opened:
    at, nodeid = REPLY_BYTES, asked.nodeid
    if asked.opcode == CREATE:
        (nodeid,) = struct.unpack_from("=Q", message, at)
        at += _ENTRY_BYTES
    handle, flags, _ = _OPENED.unpack_from(message, at)
    return Opened(nodeid, handle, flags)


def set_opened(asked: Request, message: bytearray | memoryview, handle: int, flags: int, backing_id: int) -> None:
    at = REPLY_BYTES + (_ENTRY_BYTES if asked.opcode == CREATE else 0)
    _OPENED.pack_into(message, at, handle, flags, backing_id)
