"""The one place where a handler's outcome becomes an errno: the rim between pyfuse3 and the rest."""

from __future__ import annotations

import errno
import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

import pyfuse3

from ..common.errors import HearthError
from ..common.telemetry import get_logger
from . import metrics

log = get_logger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

# Answers that programs ask for all day long; everything else is worth a line.
_QUIET = {errno.ENOENT, errno.ENODATA, errno.EEXIST, errno.ENOTEMPTY, errno.EOPNOTSUPP, errno.ENOSYS, errno.ERANGE,
          errno.ENOTDIR, errno.EISDIR, errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENAMETOOLONG, errno.EMLINK,
          errno.ESTALE, errno.EXDEV}  # fmt: skip


running = 0
"""Handlers that have not answered yet."""


def handler(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Any exception becomes an errno and, unless it is everyday business, one line; never the end of the mount.

    Law: no ``await`` after the function's own return, so that a buffer it returned is still what it was.
    """
    name = function.__name__
    seconds = metrics.OPERATION_SECONDS.labels(name)

    @functools.wraps(function)
    async def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        global running
        begin = time.perf_counter()
        running += 1
        try:
            return await function(*args, **kwargs)
        except pyfuse3.FUSEError as error:
            _count(name, error.errno)
            raise
        except OSError as error:
            number = error.errno or errno.EIO
            _count(name, number)
            if number not in _QUIET or not isinstance(error, HearthError):
                log.warning("operation-failed", operation=name, errno=_name(number), reason=str(error))
            raise pyfuse3.FUSEError(number) from None
        except Exception as error:
            metrics.EXCEPTIONS.inc()
            _count(name, errno.EIO)
            log.exception("handler-failed", operation=name, arguments=_short(args[1:]), reason=repr(error))
            raise pyfuse3.FUSEError(errno.EIO) from None
        finally:
            running -= 1
            seconds.observe(time.perf_counter() - begin)

    return wrapped


def _count(name: str, number: int) -> None:
    metrics.ERRORS.labels(name, _name(number)).inc()


def _name(number: int) -> str:
    return errno.errorcode.get(number, str(number))


def _short(arguments: tuple[Any, ...]) -> str:
    return ", ".join(repr(value)[:80] for value in arguments)
