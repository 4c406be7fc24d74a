"""The unix socket for clients on this node: one SEQPACKET message per request, descriptors beside the reply.

A thread per connection reads requests and answers the quick ones itself; slow ones go to a small pool, so that a
commit with fsync does not hold up an open on the same connection. All numbers are bounded: connections, requests in
work, message sizes.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import socket
import stat
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from google.protobuf.message import DecodeError

from ..common.credentials import Caller
from ..common.errors import AccessDenied, Busy, Conflict, HearthError, InvalidArgument, SettingsError, TooBig
from ..common.telemetry import get_logger, trace
from ..proto import worker_pb2
from . import accepting
from .access import Access, blocks_of
from .control import Control, error_reply

MAX_REQUEST_BYTES = 1 << 20
MAX_IN_WORK = 64
"""Slow requests of one connection at a time; more are refused with EBUSY."""
SLOW_THREADS = 8
"""For each pace but the quick one."""
SEND_BUFFER_BYTES = 4 << 20
SEND_TIMEOUT_S = 10
_SO_PEERGROUPS = 59

log = get_logger("hearthfs.worker.socket")


class LocalSocket:
    """Bound after ``__init__``; listens and serves after ``start``.

    Raises:
        Conflict: a live worker answers there.
        SettingsError: the path cannot be used.
    """

    def __init__(self, path: Path, max_connections: int = 256, group: str = "") -> None:
        self.path = path
        self._control: Control
        self._max_connections = max_connections
        self._connections: set[_Connection] = set()
        self._guard = threading.Lock()
        self._stopping = False
        self._pools = {
            "disk": ThreadPoolExecutor(SLOW_THREADS, thread_name_prefix="socket-disk"),
            "network": ThreadPoolExecutor(SLOW_THREADS, thread_name_prefix="socket-network"),
        }
        self._access: Access | None = None
        self._listener = _bind(path, _group_number(group))
        self._group = os.stat(path).st_gid
        self._inode = os.stat(path).st_ino
        self._thread = threading.Thread(target=self._accept, name="socket-accept", daemon=True)

    def start(self, control: Control, access: Access | None = None) -> None:
        """``access``: what members of the group must show tokens for; None: for nothing."""
        self._control = control
        self._access = access
        self._listener.listen(128)
        self._thread.start()

    def _accept(self) -> None:
        for peer in accepting.peers(self._listener, lambda: self._stopping):
            pid, uid, gid = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            refusal = self._refusal(peer, pid, uid, gid)
            if refusal:
                log.warning("peer-refused", reason=refusal)
                peer.close()
                continue
            connection = _Connection(peer, self, caller_of(uid, gid, os.geteuid()))
            with self._guard:
                self._connections.add(connection)
            connection.thread.start()

    def _refusal(self, peer: socket.socket, pid: int, uid: int, gid: int) -> str:
        if not may_connect(uid, {gid, *_peer_groups(peer)}, os.geteuid(), self._group):
            return f"process {pid} of uid {uid} is neither root, uid {os.geteuid()} nor in group {self._group}"
        if len(self._connections) >= self._max_connections:
            return f"{self._max_connections} connections are open already"
        return ""

    def stop(self) -> None:
        """Takes no more requests, lets those in work finish, and removes the socket file."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._guard:
            connections = list(self._connections)
        for connection in connections:
            connection.stop()
        if self._thread.is_alive():
            self._thread.join(2)
        for connection in connections:
            connection.thread.join(2)
        for pool in self._pools.values():
            pool.shutdown(wait=True, cancel_futures=True)
        with contextlib.suppress(OSError):
            if os.stat(self.path).st_ino == self._inode:
                self.path.unlink()


class _Connection:
    def __init__(self, peer: socket.socket, server: LocalSocket, caller: Caller) -> None:
        self._peer = peer
        self._caller = caller
        self._server = server
        self._sending = threading.Lock()
        self._users = 1  # the reading thread, and each request in work; the last one closes the socket
        self._users_guard = threading.Lock()
        self.thread = threading.Thread(target=self._serve, name="socket-connection", daemon=True)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        # A peer that does not take its replies must not hold a thread for ever.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_S, 0))

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RD)

    def _enter(self) -> bool:
        with self._users_guard:
            if self._users > MAX_IN_WORK:
                return False
            self._users += 1
            return True

    def _leave(self) -> None:
        with self._users_guard:
            self._users -= 1
            if self._users == 0:
                self._peer.close()

    def _serve(self) -> None:
        buffer = memoryview(bytearray(MAX_REQUEST_BYTES))
        try:
            while True:
                size, _, flags, _ = self._peer.recvmsg_into([buffer])
                if size == 0:
                    return
                if flags & socket.MSG_TRUNC:
                    self._send(error_reply(0, TooBig(f"a request has at most {MAX_REQUEST_BYTES} bytes")), [])
                    continue
                try:
                    request = worker_pb2.ControlRequest.FromString(bytes(buffer[:size]))
                except DecodeError:
                    self._send(error_reply(0, InvalidArgument("the message is not a ControlRequest")), [])
                    continue
                self._dispatch(request)
        except OSError as error:
            if not self._server._stopping and error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.EBADF):
                log.warning("connection-ended", error=str(error))
        finally:
            with self._server._guard:
                self._server._connections.discard(self)
            self._leave()

    def _dispatch(self, request: worker_pb2.ControlRequest) -> None:
        pace = self._server._control.pace(request)
        if pace == "quick":
            self._answer(request)
        elif self._enter():
            try:
                work = self._server._pools[pace].submit(self._answer_slow, request)
                work.add_done_callback(lambda _: self._leave())  # also when it is cancelled before it began
            except RuntimeError:  # the pools are shut down: the worker stops
                self._leave()
        else:
            self._send(error_reply(request.request_id, Busy(f"{MAX_IN_WORK} slow requests are in work")), [])

    def _answer_slow(self, request: worker_pb2.ControlRequest) -> None:
        try:
            self._answer(request)
        except OSError:
            return  # the peer is gone; its connection's own thread notices

    def _answer(self, request: worker_pb2.ControlRequest) -> None:
        with trace(request.trace_id):
            fds: list[int] = []
            try:
                if self._server._access is not None:
                    self._server._access.control(self._caller, request)
                answer = self._server._control.handle(request, "socket")
                reply, fds = answer.reply, answer.fds
            except AccessDenied as error:
                reply = error_reply(request.request_id, error)
                reply.errnos[:] = [error.number] * max(1, len(blocks_of(request)))
            except HearthError as error:
                reply = error_reply(request.request_id, error)
            except Exception as error:
                log.exception("request-failed", op=request.WhichOneof("op"))
                reply = error_reply(request.request_id, OSError(errno.EIO, f"bug in the worker: {error!r}"))
            try:
                self._send(reply, fds)
            finally:
                for fd in fds:
                    os.close(fd)

    def _send(self, reply: worker_pb2.ControlReply, fds: list[int]) -> None:
        message = reply.SerializeToString()
        with self._sending:
            try:
                if fds:
                    socket.send_fds(self._peer, [message], fds)
                else:
                    self._peer.send(message)
            except OSError as error:
                if error.errno != errno.EMSGSIZE:
                    raise
                refusal = error_reply(reply.request_id, TooBig("the reply is too big: ask for fewer blocks at once"))
                self._peer.send(refusal.SerializeToString())


def caller_of(uid: int, gid: int, own_uid: int) -> Caller:
    """Root and the worker's own user could open the files themselves; others are held to the master's tokens."""
    return Caller("node", "socket") if uid in (0, own_uid) else Caller("user", f"user {uid} {gid}", uid, gid)


def _group_number(group: str) -> int:
    """-1: leave it. Raises: SettingsError."""
    if not group or group.isdigit():
        return int(group) if group else -1
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise SettingsError(f"socket_group {group!r} is no group of this host") from None


def may_connect(uid: int, groups: set[int], own_uid: int, socket_group: int) -> bool:
    """Root, the worker's own user, or members of the socket's group."""
    return uid in (0, own_uid) or socket_group in groups


def _peer_groups(peer: socket.socket) -> tuple[int, ...]:
    try:
        data = peer.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4096)
    except OSError:
        return ()
    return struct.unpack(f"{len(data) // 4}I", data[: len(data) // 4 * 4])


def _bind(path: Path, group: int) -> socket.socket:
    """Checks the place, replaces the socket file of a dead worker, and binds with mode 0660."""
    if len(os.fsencode(path)) > 107:
        raise SettingsError(
            f"socket path {path} is longer than the 107 bytes that the system allows: set a shorter one"
        )
    _check_directory(path)
    if path.exists() or path.is_symlink():
        _check_stale(path)
    temporary = path.with_name(f".{os.getpid()}.sock")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        target = temporary if len(os.fsencode(temporary)) <= 107 else path
        if target is path:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        listener.bind(str(target))
        os.chown(target, -1, group)
        os.chmod(target, 0o660)
        if target is not path:
            target.replace(path)  # there is no moment at which a client finds nothing
    except OSError as error:
        listener.close()
        raise SettingsError(f"socket {path}: {error.strerror}: give another --socket") from None
    return listener


def _check_directory(path: Path) -> None:
    try:
        status = os.stat(path.parent)
    except OSError as error:
        raise SettingsError(f"socket {path}: {error.strerror}: make its directory, or give another --socket") from None
    if status.st_uid not in (0, os.geteuid()) or stat.S_IMODE(status.st_mode) & 0o002:
        raise SettingsError(
            f"socket {path}: its directory must belong to uid {os.geteuid()} or root and not be writable by everybody"
        )


def _check_stale(path: Path) -> None:
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise SettingsError(f"socket {path}: something else stands there: remove it, or give another --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(2)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return
        except OSError as error:
            raise SettingsError(f"socket {path}: {error.strerror}: give another --socket") from None
    raise Conflict(f"socket {path} is in use by a worker that is alive: stop it, or give another --socket")
