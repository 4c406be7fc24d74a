"""What a process shows to others and by what it knows them: certificates of the cluster, or on one host a token.

Two ways, and never none:

- **TLS**, both sides with a certificate of the cluster's authority (``hearth ca``). A client takes a server only if its
  certificate is of the right kind, whatever its address is; a server takes from the client's certificate who calls.
- **A token**: a file that only its owner can read. The token itself never crosses a connection: each call carries an
  HMAC with it over the method and the time, so that whoever sits on a port while the daemon is away learns nothing that
  is of use a minute later.

All channels and all ports of HearthFS are made here.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import grpc

from .data_stream import CHANNEL_OPTIONS
from .errors import SettingsError, Unauthenticated
from .settings import Settings
from .telemetry import get_logger

Kind = Literal["master", "worker"]
"""What a client wants to talk to: also the name that the server's certificate must have."""
Connect = Callable[[str], grpc.Channel]
Options = Sequence[tuple[str, Any]]

TOKEN_FILE_VARIABLE = "HEARTH_TOKEN_FILE"  # noqa: S105
TLS_DIRECTORY_VARIABLE = "HEARTH_TLS_DIRECTORY"
CA_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.pem", "cert.pem", "key.pem"
PROOF_KEY = "hearth-proof"
SLOT_S = 30
"""A proof is taken in its own slot of time, and in the ones before and after."""
TOKEN_MIN_BYTES = 32
SECRET_FILE_MAX_BYTES = 64 << 10

log = get_logger("hearthfs.credentials")


class CredentialSettings(Settings):
    """What the settings of every role have, daemons and clients."""

    token_file: str = ""
    """Without TLS: the file with the token. Empty: ``HEARTH_TOKEN_FILE``, else one in the user's state directory, which
    daemons make when it is missing."""
    tls_directory: str = ""
    """Has ca.pem, cert.pem and key.pem, as ``hearth ca`` makes them. Empty: ``HEARTH_TLS_DIRECTORY``, else no TLS."""


class Caller(NamedTuple):
    """Who calls, by what it showed.

    ``admin`` may do everything. ``node`` is a daemon, which may act for any user. ``user`` is one uid with one gid: the
    rules of POSIX hold for it. ``master`` is the master's certificate, which calls nobody.
    """

    role: str
    name: str = ""
    uid: int = 0
    gid: int = 0

    @property
    def trusted(self) -> bool:
        """Whether what it says of users is believed, and no permissions are checked."""
        return self.role in ("admin", "node")


TOKEN_HOLDER = Caller("admin", "token")


class Credentials(Protocol):
    def channel(self, address: str, kind: Kind, options: Options = CHANNEL_OPTIONS) -> grpc.Channel:
        """To a server of that kind at host:port."""

    def listen(self, server: Any, address: str) -> int:
        """Opens a port of a gRPC server (asyncio or not) and returns its number. Raises: RuntimeError: cannot bind."""

    def caller(self, method: str, context: Any) -> Caller:
        """Who makes this call. Raises: Unauthenticated."""

    @property
    def encrypted(self) -> bool: ...


def load(settings: CredentialSettings, *, serves: bool = False) -> Credentials:
    """``serves``: a daemon, which makes a missing token file.

    Raises:
        SettingsError: a file is missing, damaged, or readable by others.
    """
    directory = settings.tls_directory or os.environ.get(TLS_DIRECTORY_VARIABLE, "")
    if directory:
        return Certificates(Path(directory))
    named = settings.token_file or os.environ.get(TOKEN_FILE_VARIABLE, "")
    path = Path(named).absolute() if named else default_token_file()
    if serves:
        make_token_file(path)
    token = Token(path)
    if serves:
        token.secrets()
    return token


def check_listen(listen: str, credentials: Credentials, allow_insecure: bool) -> None:
    """Raises: SettingsError: not HOST:PORT, or open to other hosts without encryption and nobody said so."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise SettingsError(f"listen address {listen!r} is not HOST:PORT")
    if credentials.encrypted or allow_insecure or is_loopback(host.strip("[]")):
        return
    raise SettingsError(
        f"listen address {listen} is not loopback, and without certificates (tls_directory) all goes over the "
        "network for everybody to read; set allow_insecure if only trusted hosts can reach it"
    )


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# ------------------------------------------------------------------ files that hold secrets


def read_secret(path: Path) -> bytes:
    """Of a file that only its owner, which is this user or root, may read.

    Raises:
        SettingsError: missing, not such a file, too long.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > SECRET_FILE_MAX_BYTES:
            raise SettingsError(f"{path} is not a file of up to {SECRET_FILE_MAX_BYTES} bytes")
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o077:
            raise SettingsError(
                f"{path} (mode {stat.S_IMODE(status.st_mode):04o}, uid {status.st_uid}) holds a secret that others "
                f"could read or change: it must belong to uid {os.geteuid()} or root, with mode 0600"
            )
        return os.read(fd, SECRET_FILE_MAX_BYTES)
    finally:
        os.close(fd)


def write_secret(path: Path, content: bytes) -> None:
    """A new file with mode 0600, whole or not there. Raises: FileExistsError, OSError."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, content)
        os.fsync(fd)
        os.link(part, path)
    finally:
        os.close(fd)
        os.unlink(part)


def default_token_file() -> Path:
    """``/var/lib/hearthfs/token`` for root, else below the user's state directory."""
    if os.geteuid() == 0:
        return Path("/var/lib/hearthfs/token")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "hearthfs/token"


def make_token_file(path: Path) -> None:
    """Unless it is there; of several processes that try, one makes it. Raises: SettingsError."""
    if path.exists():
        return
    try:
        _make_directories(path.parent)
        write_secret(path, secrets.token_hex(32).encode() + b"\n")
    except FileExistsError:
        return
    except OSError as error:
        raise SettingsError(f"token file {path}: {error.strerror}: name another with token_file") from None


def _make_directories(path: Path) -> None:
    """Whatever the umask: others may pass through, for a mount point may come to lie below. Raises: OSError."""
    for missing in reversed([each for each in (path, *path.parents) if not each.exists()]):
        with contextlib.suppress(FileExistsError):
            missing.mkdir()
            missing.chmod(0o755)


# ------------------------------------------------------------------ the token


class Token:
    """The file has one token per line. The first is shown to others, all are taken from them: to change it, put a new
    line first, and take the old one away when all clients have read the file again (``SLOT_S``)."""

    encrypted = False

    def __init__(self, path: Path, wall_s: Callable[[], float] = time.time) -> None:
        self.path = path
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._secrets: tuple[bytes, ...] = ()
        self._read_in = -1  # the slot in which the file was read
        self._proofs: dict[tuple[str, int], tuple[str, ...]] = {}

    def secrets(self) -> tuple[bytes, ...]:
        """The tokens of the file now. Raises: SettingsError."""
        lines = [line.strip() for line in read_secret(self.path).splitlines()]
        found = tuple(line for line in lines if line and not line.startswith(b"#"))
        if not found or min(map(len, found)) < TOKEN_MIN_BYTES:
            raise SettingsError(f"token file {self.path}: each line must be a token of {TOKEN_MIN_BYTES} bytes or more")
        return found

    def proofs(self, method: str, slot: int) -> tuple[str, ...]:
        """What calls of ``method`` in that slot of time may carry, the one of this process first; empty where there is
        no (good) file."""
        known = self._proofs.get((method, slot))
        if known is not None:
            return known
        with self._lock:
            now = int(self._wall_s()) // SLOT_S
            if now != self._read_in:
                self._proofs.clear()
                try:
                    self._secrets = self.secrets()
                except SettingsError as error:
                    if self._secrets or self._read_in < 0:
                        log.warning("no-token", reason=str(error))
                    self._secrets = ()
                self._read_in = now
            made = tuple(_proof(secret, method, slot) for secret in self._secrets)
            if made and len(self._proofs) < 1000:  # a caller chooses the method's name
                self._proofs[method, slot] = made
            return made

    def metadata(self, method: str) -> tuple[tuple[str, str], ...]:
        proofs = self.proofs(method, int(self._wall_s()) // SLOT_S)
        return ((PROOF_KEY, proofs[0]),) if proofs else ()

    def channel(self, address: str, kind: Kind, options: Options = CHANNEL_OPTIONS) -> grpc.Channel:
        return ProvingChannel(grpc.insecure_channel(address, options=list(options)), self.metadata)

    def listen(self, server: Any, address: str) -> int:
        return int(server.add_insecure_port(address))

    def caller(self, method: str, context: Any) -> Caller:
        shown = next((value for key, value in context.invocation_metadata() or () if key == PROOF_KEY), None)
        if not isinstance(shown, str):
            raise Unauthenticated(
                "the call shows no credentials: the caller needs this cluster's token (token_file, HEARTH_TOKEN_FILE)"
            )
        now = int(self._wall_s()) // SLOT_S
        try:
            slot = int(shown.partition(".")[0], 16)
        except ValueError:
            slot = -1
        if abs(slot - now) > 1:
            raise Unauthenticated("the call's credentials are not of now: compare the clocks of both hosts")
        if not any(hmac.compare_digest(shown.encode(), good.encode()) for good in self.proofs(method, slot)):
            raise Unauthenticated(
                "the call's credentials are not this cluster's: the caller has another token (token_file, "
                "HEARTH_TOKEN_FILE)"
            )
        return TOKEN_HOLDER


def _proof(secret: bytes, method: str, slot: int) -> str:
    return f"{slot:x}.{hmac.digest(secret, f'{slot:x} {method}'.encode(), hashlib.sha256).hex()}"


class ProvingChannel(grpc.Channel):
    """A channel whose calls carry what ``metadata(method)`` gives. (gRPC's interceptors cost more than the calls that
    they wrap, and hide the ValueError of a closed channel.)"""

    def __init__(self, inner: grpc.Channel, metadata: Callable[[str], tuple[tuple[str, str], ...]]) -> None:
        self._inner = inner
        self._metadata = metadata

    def _make(self, kind: str, method: str, *args: Any, **options: Any) -> Any:
        return _ProvingCall(getattr(self._inner, kind)(method, *args, **options), method, self._metadata)

    def unary_unary(self, method: str, *args: Any, **options: Any) -> Any:
        return self._make("unary_unary", method, *args, **options)

    def unary_stream(self, method: str, *args: Any, **options: Any) -> Any:
        return self._make("unary_stream", method, *args, **options)

    def stream_unary(self, method: str, *args: Any, **options: Any) -> Any:
        return self._make("stream_unary", method, *args, **options)

    def stream_stream(self, method: str, *args: Any, **options: Any) -> Any:
        return self._make("stream_stream", method, *args, **options)

    def subscribe(self, callback: Any, try_to_connect: bool | None = False) -> None:
        self._inner.subscribe(callback, bool(try_to_connect))

    def unsubscribe(self, callback: Any) -> None:
        self._inner.unsubscribe(callback)

    def close(self) -> None:
        self._inner.close()

    def __enter__(self) -> ProvingChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ProvingCall:
    def __init__(self, inner: Any, method: str, metadata: Callable[[str], tuple[tuple[str, str], ...]]) -> None:
        self._inner = inner
        self._method = method
        self._metadata = metadata

    def _all(self, given: Any) -> tuple[tuple[str, Any], ...]:
        return (*(given or ()), *self._metadata(self._method))

    def __call__(self, request: Any, timeout: float | None = None, metadata: Any = None, **options: Any) -> Any:
        return self._inner(request, timeout=timeout, metadata=self._all(metadata), **options)

    def future(self, request: Any, timeout: float | None = None, metadata: Any = None, **options: Any) -> Any:
        return self._inner.future(request, timeout=timeout, metadata=self._all(metadata), **options)

    def with_call(self, request: Any, timeout: float | None = None, metadata: Any = None, **options: Any) -> Any:
        return self._inner.with_call(request, timeout=timeout, metadata=self._all(metadata), **options)


# ------------------------------------------------------------------ certificates


def server_name(kind: Kind) -> str:
    """The DNS name in the certificates of servers of that kind: clients check it instead of the address."""
    return f"{kind}.hearthfs"


class Certificates:
    """Both sides show certificates of one authority.

    A server looks at its files at each handshake, so that a certificate can be replaced while it runs. A client reads
    them when it connects anew.
    """

    encrypted = True

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self._read()

    def _read(self) -> tuple[bytes, bytes, bytes]:
        """(authority, certificate, key). Raises: SettingsError."""
        try:
            authority = (self.directory / CA_FILE).read_bytes()
            certificate = (self.directory / CERTIFICATE_FILE).read_bytes()
        except OSError as error:
            raise SettingsError(f"{error.filename}: {error.strerror}: make it with hearth ca") from None
        return authority, certificate, read_secret(self.directory / KEY_FILE)

    def _versions(self) -> tuple[int, ...]:
        found = (os.stat(self.directory / name) for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE))
        return tuple(status.st_mtime_ns for status in found)

    def channel(self, address: str, kind: Kind, options: Options = CHANNEL_OPTIONS) -> grpc.Channel:
        authority, certificate, key = self._read()
        shown = grpc.ssl_channel_credentials(authority, key, certificate)
        return grpc.secure_channel(address, shown, [*options, ("grpc.ssl_target_name_override", server_name(kind))])

    def listen(self, server: Any, address: str) -> int:
        seen = self._versions()

        def configuration() -> grpc.ServerCertificateConfiguration:
            authority, certificate, key = self._read()
            return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal seen
            try:
                now = self._versions()
                if now == seen:
                    return None
                made = configuration()
            except (OSError, SettingsError) as error:  # half of a renewal: the next handshake sees the rest
                log.warning("certificate-not-renewed", reason=str(error))
                return None
            log.info("certificate-renewed", directory=str(self.directory))
            seen = now
            return made

        fetch: Any = renewed  # its type in the stubs knows nothing of "no change"
        shown = grpc.dynamic_ssl_server_credentials(configuration(), fetch, require_client_authentication=True)
        return int(server.add_secure_port(address, shown))

    def caller(self, method: str, context: Any) -> Caller:
        names = context.auth_context().get("x509_common_name", ())
        found = parse_name(names[0].decode(errors="replace")) if len(names) == 1 else None
        if found is None:
            raise Unauthenticated("the call's certificate names nobody that we know: make one with hearth ca")
        return found


def parse_name(name: str) -> Caller | None:
    """The caller that a certificate's common name stands for: ``admin``, ``master``, ``node NAME``, ``user UID GID``.

    >>> parse_name("user 1000 100")
    Caller(role='user', name='user 1000 100', uid=1000, gid=100)
    >>> parse_name("user -1 0") is None
    True
    """
    role, _, rest = name.partition(" ")
    if role in ("admin", "master") and not rest:
        return Caller(role, name)
    if role == "node" and rest:
        return Caller(role, name)
    numbers = rest.split(" ")
    if role == "user" and len(numbers) == 2 and all(each.isascii() and each.isdigit() for each in numbers):
        uid, gid = map(int, numbers)
        if max(uid, gid) < 0xFFFF_FFFF:  # that one means "no change" to chown
            return Caller(role, name, uid, gid)
    return None


def plain(address: str) -> grpc.Channel:
    """A channel that shows nothing: for tests against servers that do not ask."""
    return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)


class Unchecked:
    """Asks nobody for anything: for tests of what lies behind the gate."""

    encrypted = False

    def channel(self, address: str, kind: Kind, options: Options = CHANNEL_OPTIONS) -> grpc.Channel:
        return grpc.insecure_channel(address, options=list(options))

    def listen(self, server: Any, address: str) -> int:
        return int(server.add_insecure_port(address))

    def caller(self, method: str, context: Any) -> Caller:
        return TOKEN_HOLDER
