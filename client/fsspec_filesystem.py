"""``hearth://`` for fsspec, and so for pandas, torch, Hugging Face and whatever else reads URLs through it.

    hearth://host:port/path     the cluster of that master
    hearth:///path              the cluster of the settings (``HEARTH_CLIENT_MASTER``, settings file)

Storage options are those of ``hearthfs.Client``: ``node_id``, ``worker_socket``, ``timeout_s``.
"""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from typing import Any, ClassVar
from urllib.parse import urlsplit

from fsspec import AbstractFileSystem

from ..common.errors import InvalidArgument
from .client import Client
from .file import hold_back
from .records import Stat

COPY_BYTES = 8 << 20


class HearthFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """One instance for each cluster and set of options (fsspec caches them). The client is made at the first use, and
    anew in a child process, so an instance may be pickled or carried into a worker."""

    protocol: ClassVar[str] = "hearth"
    root_marker: ClassVar[str] = "/"

    def __init__(
        self,
        master: str | None = None,
        *,
        node_id: str = "",
        worker_socket: str = "",
        timeout_s: float | None = None,
        **storage_options: Any,
    ) -> None:
        super().__init__(
            master=master, node_id=node_id, worker_socket=worker_socket, timeout_s=timeout_s, **storage_options
        )
        self._options: dict[str, Any] = {"node_id": node_id, "worker_socket": worker_socket, "timeout_s": timeout_s}
        self._master = master
        self._client: Client | None = None
        self._pid = 0

    @property
    def client(self) -> Client:
        if self._client is None or self._pid != os.getpid():
            self._client = Client(self._master, **self._options)
            self._pid = os.getpid()
        return self._client

    def close(self) -> None:
        """Closes the client; the next call makes a new one."""
        client, self._client = self._client, None
        if client is not None and self._pid == os.getpid():
            client.close()

    # -- names

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        text = os.fspath(path)
        if text.startswith("hearth://"):
            rest = text.removeprefix("hearth://")
            text = "/" + rest.partition("/")[2]
        return "/" + text.strip("/") if text.strip("/") else "/"

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        master = urlsplit(path).netloc if path.startswith("hearth://") else ""
        return {"master": master} if master else {}

    def unstrip_protocol(self, name: str) -> str:
        return f"hearth://{self._master or ''}{self._strip_protocol(name)}"

    # -- looking

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        name = self._strip_protocol(path)
        return _info(name, self.client.stat(name))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        name = self._strip_protocol(path)
        about = self.info(name)
        if about["type"] != "directory":
            found = [about]
        else:
            found = [self._resolved(entry.path, entry.stat) for entry in self.client.scandir(name)]
        return found if detail else sorted(each["name"] for each in found)

    def _resolved(self, path: str, status: Stat) -> dict[str, Any]:
        """A symlink counts as what it points to; a broken one is of type ``link``."""
        if stat.S_ISLNK(status.st_mode):
            try:
                return {**_info(path, self.client.stat(path)), "islink": True}
            except OSError:
                pass
        return _info(path, status)

    def created(self, path: str) -> datetime:
        """The last change of attributes: a time of creation is not kept."""
        return datetime.fromtimestamp(self.info(path)["ctime"], tz=UTC)

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=UTC)

    def ukey(self, path: str) -> str:
        """Differs whenever the content does."""
        about = self.info(path)
        return f"{about['ino']}-{about['version']}"

    def checksum(self, path: str) -> int:
        about = self.info(path)
        return hash((about["ino"], about["version"]))

    # -- changing names

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        name = self._strip_protocol(path)
        if create_parents:
            self.client.makedirs(name)
        else:
            self.client.mkdir(name)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.client.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        self.client.rmdir(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        self.client.remove(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        if maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        for each in path if isinstance(path, list) else [path]:
            name = self._strip_protocol(each)
            if not stat.S_ISDIR(self.client.lstat(name).st_mode):
                self.client.remove(name)
            elif recursive:
                self.client.rmtree(name)
            else:
                self.client.rmdir(name)

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """A rename: one step, no bytes move."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.client.isdir(target):
            target = f"{target.rstrip('/')}/{source.rpartition('/')[2]}"
        self.client.rename(source, target)

    # -- bytes

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """``autocommit=False`` (an fsspec transaction): ``close`` holds the file back until ``commit``."""
        file = self.client.open(self._strip_protocol(path), mode, -1 if block_size is None else block_size)
        return file if autocommit or "r" in mode else hold_back(file)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        with self.client.open(self._strip_protocol(path), "rb", 0) as file:
            size = file.seek(0, os.SEEK_END)
            first, last, _ = slice(start, end).indices(size)
            file.seek(first)
            data: bytes = file.read(max(0, last - first))
            return data

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        name = self._strip_protocol(path)
        if mode == "create":
            with self.client.open(name, "xb", 0) as file:
                file.write(value)
        elif mode == "overwrite":
            self.client.write_bytes(name, value)
        else:
            raise InvalidArgument(f"mode {mode!r}: use overwrite or create")

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Byte by byte through this process, verified; the target appears whole."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.client.isdir(source):
            self.client.makedirs(target, exist_ok=True)
            return
        buffer = memoryview(bytearray(COPY_BYTES))
        with self.client.open(source, "rb", 0) as reader, self.client.open(target, "wb", 0) as writer:
            while size := reader.readinto(buffer):  # type: ignore[attr-defined]  # unbuffered
                writer.write(buffer[:size])

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        name = self._strip_protocol(path)
        if not self.client.exists(name):
            self.client.write_bytes(name, b"")
        elif truncate:
            self.client.truncate(name, 0)
        else:
            self.client.utime(name)


def _info(name: str, status: Stat) -> dict[str, Any]:
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    return {
        "name": name,
        "size": status.st_size,
        "type": kinds.get(stat.S_IFMT(status.st_mode), "other"),
        "mode": status.st_mode,
        "uid": status.st_uid,
        "gid": status.st_gid,
        "nlink": status.st_nlink,
        "ino": status.st_ino,
        "mtime": status.st_mtime,
        "ctime": status.st_ctime,
        "version": status.version,
        "islink": False,
    }
