"""``hearthfs.Client``: the SDK's face."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import IO, Any, Self

from ..common.errors import Exists, HearthError
from . import batch_get, mount_root, opening, trees
from .batch_put import PutOptions, put_many
from .core import Core, build
from .names import Names
from .packed_names import LookupResult
from .paths import Name, Path
from .settings import ClientSettings


class Client(Names):
    """Blocking and thread-safe. Paths are absolute in the namespace; ``str`` or ``bytes``.

    >>> with Client("127.0.0.1:7070") as client:  # doctest: +SKIP
    ...     client.write_bytes("/hello", b"world")
    ...     client.read_bytes("/hello")
    b'world'

    Args:
        master: host:port; None: from ``settings``, else ``HEARTH_CLIENT_MASTER``, else the default.
        node_id: this node; replicas on it are preferred. Default: the host's name.
        worker_socket: unix socket of this node's worker. Empty: all bytes go by gRPC.
        kind: what the master's status calls the session.
        timeout_s: of each call as a whole; most methods have no other. Bytes of a file: of each read and write.
        cluster_id: any other cluster is refused (WrongCluster). Empty: what answers first, and then only that.
        token_file, tls_directory: what this program shows to the cluster; see docs/security.md.
        settings: all of the above and more; arguments win.

    A client belongs to the process that made it: after fork, every call in the child raises NotSupported.

    Raises:
        SettingsError. Nothing is connected before the first call.
    """

    def __init__(
        self,
        master: str | None = None,
        *,
        node_id: str = "",
        worker_socket: str = "",
        kind: str = "sdk",
        timeout_s: float | None = None,
        cluster_id: str = "",
        token_file: str = "",
        tls_directory: str = "",
        settings: ClientSettings | None = None,
    ) -> None:
        given = {
            "master": master,
            "node_id": node_id,
            "worker_socket": worker_socket,
            "timeout_s": timeout_s,
            "cluster_id": cluster_id,
            "token_file": token_file,
            "tls_directory": tls_directory,
        }
        chosen = {key: value for key, value in given.items() if value}
        settings = ClientSettings.load(chosen) if settings is None else settings.model_copy(update=chosen)
        super().__init__(build(settings, kind))

    @classmethod
    def from_mount(cls, path: Path, **options: Any) -> tuple[Self, str]:
        """A client of the cluster that is mounted at or above ``path``, and what ``path`` is called inside it.

        Raises:
            Unavailable: ``path`` is not below a HearthFS mount, or the mount does not answer. Nothing was written.
        """
        found = mount_root.find(path)
        settings = {
            "master": found.master,
            "node_id": found.node_id,
            "worker_socket": found.worker_socket,
            "cluster_id": found.cluster_id,
        }
        return cls(**{**settings, **options}), found.path

    @property
    def core(self) -> Core:
        """The parts, for the connector and the CLI."""
        return self._core

    def close(self) -> None:
        """Ends threads and connections; files that are still open for writing are not published."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- files

    def open(
        self,
        path: Path,
        mode: str = "rb",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o666,
        timeout_s: float | None = None,
    ) -> IO[Any]:
        """Like the builtin ``open``; modes r, w, a, x with +, b, t. See ``client/file.py`` for what writing means:
        ``close`` and ``fsync`` publish, an exception in the ``with`` block does not.

        Raises:
            NotFound, Exists, IsADirectory, InvalidArgument, Unavailable, DeadlineExceeded.
        """
        return opening.open_file(self._core, path, mode, buffering, encoding, errors, newline, permissions, timeout_s)

    def read_bytes(self, path: Path) -> bytes:
        with self.open(path, "rb", buffering=0) as file:
            data: bytes = file.read()
            return data

    def write_bytes(self, path: Path, data: bytes | bytearray | memoryview, *, sync: bool = False) -> None:
        """The whole file in one step: others see the old content or the new. ``sync``: durable, too."""
        (error,) = self._put([path], [data], None, PutOptions(sync=sync), None, make=False)
        if isinstance(error, Exists):  # a symlink has the name: the file that it points to is meant
            with self.open(path, "wb", buffering=0) as file:
                file.write(data)
                if sync:
                    file.fsync()  # type: ignore[attr-defined]  # unbuffered: a HearthFile
        elif error is not None:
            raise error

    # -- batches

    def lookup_many(
        self, directory: Path, names: Sequence[Name], *, timeout_s: float | None = None, want_layout: bool = False
    ) -> LookupResult:
        """Which of the names are files whose bytes can be read now. A missing directory is all misses.

        Raises:
            Unavailable, DeadlineExceeded.
        """
        return batch_get.lookup_many(self._core, directory, names, want_layout, self._core.deadline(timeout_s))

    def get_many(
        self,
        paths: Sequence[Path],
        buffers: Sequence[Any],
        *,
        directory: Path | None = None,
        known: LookupResult | None = None,
        timeout_s: float | None = None,
    ) -> list[HearthError | None]:
        """Fills each buffer with the file's bytes, every byte verified; see ``client/batch_get.py`` for the errors.
        With ``directory``, ``paths`` are names in it, and ``known`` may be what ``lookup_many`` said of them with
        ``want_layout`` not long ago: the files are then read as they were at that time."""
        return batch_get.get_many(self._core, paths, buffers, directory, self._core.deadline(timeout_s), known)

    def put_many(
        self,
        paths: Sequence[Path],
        buffers: Sequence[Any],
        *,
        directory: Path | None = None,
        keep_existing: bool = False,
        wait_for_caches: bool = True,
        sync: bool = False,
        depths: Sequence[int] = (),
        timeout_s: float | None = None,
    ) -> list[HearthError | None]:
        """Makes each file of its buffer, whole or not at all; see ``client/batch_put.py``. Missing directories are
        made. With ``directory``, ``paths`` are names in it."""
        options = PutOptions(keep_existing, wait_for_caches, sync, depths=depths)
        return self._put(paths, buffers, directory, options, timeout_s, make=True)

    def _put(
        self,
        paths: Sequence[Path],
        buffers: Sequence[Any],
        directory: Path | None,
        options: PutOptions,
        timeout_s: float | None,
        *,
        make: bool,
    ) -> list[HearthError | None]:
        deadline = self._core.deadline(timeout_s)
        find: Callable[[bytes], int] = self.need_directory if make else self.directory
        return put_many(self._core, paths, buffers, directory, options, find, deadline)

    # -- trees

    def rmtree(self, path: Path, *, progress: Callable[[int, int], None] | None = None) -> int:
        """Removes a directory and everything below; returns how many names. ``progress`` hears how many went and how
        many were found, so far.

        Raises:
            NotFound, NotADirectory, Unavailable; NotEmpty: somebody else made files meanwhile.
        """
        return trees.rmtree(self, path, progress)

    def evict(self, path: Path, *, progress: Callable[[int], None] | None = None) -> tuple[int, int]:
        """Removes the files below a directory that eviction may remove, also those that somebody has open (who keeps
        reading them). Returns how many went, and how many stayed because they are pinned or not in a cache directory.

        Raises:
            NotFound, NotADirectory, Unavailable.
        """
        return trees.evict(self, path, progress)
