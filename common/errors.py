"""The one error family: each kind knows its errno, its gRPC status and whether a retry may help.

An error crosses the wire as gRPC status code + text, with the kind's name in the trailing metadata (``hearth-error``),
so that the same class is raised on the other side.
"""

from __future__ import annotations

import errno
from typing import Any, ClassVar

import grpc

KIND_KEY = "hearth-error"


class HearthError(OSError):
    """Base of all errors of HearthFS; an ``OSError``, so that callers of file-like code need to know nothing new. Kinds
    that Python has a class for are of that class, too: ``except FileNotFoundError`` catches NotFound.

    Attributes:
        errno: what a system call would say.
        code: the gRPC status that carries it.
        retryable: whether the same call, sent again, may succeed without anybody doing something.
    """

    number: ClassVar[int] = errno.EIO
    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    retryable: ClassVar[bool] = False

    def __init__(self, message: str = "") -> None:
        super().__init__(self.number, message or type(self).__name__)

    @property
    def message(self) -> str:
        return str(self.strerror)

    def __str__(self) -> str:
        return self.message


class NotFound(HearthError, FileNotFoundError):
    number = errno.ENOENT
    code = grpc.StatusCode.NOT_FOUND


class Exists(HearthError, FileExistsError):
    number = errno.EEXIST
    code = grpc.StatusCode.ALREADY_EXISTS


class NotADirectory(HearthError, NotADirectoryError):
    number = errno.ENOTDIR
    code = grpc.StatusCode.FAILED_PRECONDITION


class IsADirectory(HearthError, IsADirectoryError):
    number = errno.EISDIR
    code = grpc.StatusCode.FAILED_PRECONDITION


class NotEmpty(HearthError):
    number = errno.ENOTEMPTY
    code = grpc.StatusCode.FAILED_PRECONDITION


class InvalidArgument(HearthError):
    number = errno.EINVAL
    code = grpc.StatusCode.INVALID_ARGUMENT


class NameTooLong(HearthError):
    number = errno.ENAMETOOLONG
    code = grpc.StatusCode.INVALID_ARGUMENT


class TooManyLinks(HearthError):
    number = errno.EMLINK
    code = grpc.StatusCode.FAILED_PRECONDITION


class SymlinkLoop(HearthError):
    number = errno.ELOOP
    code = grpc.StatusCode.FAILED_PRECONDITION


class FileTooBig(HearthError):
    number = errno.EFBIG
    code = grpc.StatusCode.OUT_OF_RANGE


class NotPermitted(HearthError, PermissionError):
    number = errno.EPERM
    code = grpc.StatusCode.PERMISSION_DENIED


class AccessDenied(HearthError, PermissionError):
    number = errno.EACCES
    code = grpc.StatusCode.PERMISSION_DENIED


class Unauthenticated(HearthError, PermissionError):
    """The call showed no credentials, or none that this server takes."""

    number = errno.EACCES
    code = grpc.StatusCode.UNAUTHENTICATED


class CrossDevice(HearthError):
    number = errno.EXDEV
    code = grpc.StatusCode.FAILED_PRECONDITION


class NoAttribute(HearthError):
    """The extended attribute does not exist."""

    number = errno.ENODATA
    code = grpc.StatusCode.NOT_FOUND


class TooBig(HearthError):
    """A value (xattr, message, list) is over its limit."""

    number = errno.E2BIG
    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class NotSupported(HearthError):
    number = errno.EOPNOTSUPP
    code = grpc.StatusCode.UNIMPLEMENTED


class NoSpace(HearthError):
    """No worker, or not this disk, has room."""

    number = errno.ENOSPC
    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class QuotaExceeded(HearthError):
    """The directory's quota is used up; the cluster may have room all the same."""

    number = errno.EDQUOT
    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class Busy(HearthError):
    """A bounded queue is full."""

    number = errno.EBUSY
    code = grpc.StatusCode.UNAVAILABLE
    retryable = True


class Stale(HearthError):
    """The inode or block is gone, or another version took its place."""

    number = errno.ESTALE
    code = grpc.StatusCode.NOT_FOUND


class StaleSession(HearthError):
    """The session ended or was fenced: drop all caches and register again."""

    number = errno.ESTALE
    code = grpc.StatusCode.UNAUTHENTICATED
    retryable = True


class StaleEpoch(HearthError):
    """The other side has seen a newer master, or is one: register again."""

    number = errno.ESTALE
    code = grpc.StatusCode.FAILED_PRECONDITION
    retryable = True


class WrongCluster(HearthError):
    """The other side belongs to another cluster."""

    number = errno.EINVAL
    code = grpc.StatusCode.PERMISSION_DENIED


class Conflict(HearthError):
    """The same identity is in use by somebody who is alive."""

    number = errno.EADDRINUSE
    code = grpc.StatusCode.ABORTED


class BlockMissing(HearthError):
    """A replica is not where the master said: try another, and report it."""

    number = errno.EIO
    code = grpc.StatusCode.NOT_FOUND


class BlockCorrupt(HearthError):
    """Bytes did not match their checksum. They were not delivered."""

    number = errno.EIO
    code = grpc.StatusCode.DATA_LOSS


class Unavailable(HearthError):
    """Nobody answered in time, or no live replica has the bytes."""

    number = errno.EIO
    code = grpc.StatusCode.UNAVAILABLE
    retryable = True


class DeadlineExceeded(HearthError):
    number = errno.EIO
    code = grpc.StatusCode.DEADLINE_EXCEEDED
    retryable = True


class DataDamaged(HearthError):
    """A record of the master's or worker's own tables failed its checksum."""

    number = errno.EIO
    code = grpc.StatusCode.DATA_LOSS


class NewerFormat(HearthError):
    """The data was written by a newer version."""

    number = errno.EPROTONOSUPPORT
    code = grpc.StatusCode.FAILED_PRECONDITION


class SettingsError(HearthError):
    """A setting is unknown or has a bad value."""

    number = errno.EINVAL
    code = grpc.StatusCode.INVALID_ARGUMENT


class Internal(HearthError):
    """A bug: the log of the daemon that raised it has the trace."""


def _family(root: type[HearthError]) -> dict[str, type[HearthError]]:
    return {root.__name__: root} | {name: kind for sub in root.__subclasses__() for name, kind in _family(sub).items()}


KINDS: dict[str, type[HearthError]] = _family(HearthError)
_BY_ERRNO: dict[int, type[HearthError]] = {}
for _kind in KINDS.values():
    _BY_ERRNO.setdefault(_kind.number, _kind)
_BY_ERRNO[errno.EIO] = Unavailable
_BY_ERRNO[errno.EINVAL] = InvalidArgument
_BY_ERRNO[errno.ESTALE] = Stale


def from_errno(number: int, message: str = "") -> HearthError:
    """The error that an errno in a batch reply stands for."""
    return _BY_ERRNO.get(number, HearthError)(message or errno.errorcode.get(number, str(number)))


_BAD_CERTIFICATE = ("CERTIFICATE_VERIFY_FAILED", "TLSV1_ALERT_UNKNOWN_CA", "Hostname Verification Check failed")
"""In what gRPC says of a handshake that will not do better the next time."""


def from_rpc_error(error: grpc.RpcError, what: str = "") -> HearthError:
    """The family's error for a failed call; ``what`` names the call and its peer in the text.

    >>> class Lost(grpc.RpcError):
    ...     def code(self): return grpc.StatusCode.UNAVAILABLE
    ...     def details(self): return "connection refused"
    ...     def trailing_metadata(self): return ()
    >>> str(from_rpc_error(Lost(), "Lookup on 127.0.0.1:1"))
    'Lookup on 127.0.0.1:1: connection refused'
    """
    call: Any = error
    code, details = call.code(), call.details() or ""
    text = f"{what}: {details}" if what else details
    for key, value in call.trailing_metadata() or ():
        if key == KIND_KEY and value in KINDS:
            return KINDS[value](details)
    if code is grpc.StatusCode.UNAUTHENTICATED or any(sign in details for sign in _BAD_CERTIFICATE):
        return Unauthenticated(text)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(text)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return Unavailable(text)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return NotSupported(text)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidArgument(text)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return TooBig(text)
    return Internal(text)


def to_trailing_metadata(error: HearthError) -> tuple[tuple[str, str], ...]:
    """What a server sets beside status and text, so that the client raises the same kind."""
    return ((KIND_KEY, type(error).__name__),)
