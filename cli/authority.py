"""A cluster's certificate authority: one key that signs, and what it signs. X.509 by the ``cryptography`` package.

The rules are few, so that nothing has to be configured: elliptic keys (P-256), the common name says who it is
(``common.credentials.parse_name``), and certificates of daemons have the DNS name that clients look for. Only those can
be servers, and only what a role needs is in the certificate's purposes.
"""

from __future__ import annotations

import datetime
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.credentials import (
    CA_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    parse_name,
    read_secret,
    server_name,
    write_secret,
)
from ..common.errors import Exists, InvalidArgument, NotFound, NotSupported, SettingsError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CA_KEY_FILE = "ca-key.pem"
CA_DAYS = 3650
COMMON_NAME_MAX = 64
SKEW = datetime.timedelta(hours=1)
"""So much earlier a certificate is good already: clocks of hosts differ."""


def found(directory: Path, cluster: str, now: datetime.datetime) -> None:
    """A new authority: its key, and the certificate that every node and client gets.

    Raises:
        Exists: there is one already. NotSupported: no ``cryptography``. OSError.
    """
    _need_cryptography()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    if (directory / CA_KEY_FILE).exists():
        raise Exists(f"{directory} has an authority already; certificates by another one would not be trusted")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    key, name = _new_key(), _name(f"HearthFS {cluster}".strip())
    certificate = (
        _builder(name, name, key, now, now + datetime.timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_secret(directory / CA_KEY_FILE, _key_pem(key))
    _write_public(directory / CA_FILE, _pem(certificate))


def issue(authority: Path, directory: Path, name: str, days: float, now: datetime.datetime) -> None:
    """A key and a certificate for ``name`` in ``directory``, beside the authority's certificate: all that one daemon or
    user needs. One that is there is replaced, the certificate last, so that a daemon that runs goes on with it.

    Raises:
        InvalidArgument: no such name. NotFound: no authority there. SettingsError: its key is open to others.
    """
    _need_cryptography()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    caller = parse_name(name)
    if caller is None or len(name) > COMMON_NAME_MAX or not name.isprintable():
        raise InvalidArgument(f"{name!r} is no name for a certificate (at most {COMMON_NAME_MAX} characters)")
    ca_key, ca = _load(authority)
    key = _new_key()
    purposes, names = [ExtendedKeyUsageOID.CLIENT_AUTH], []
    if caller.role in ("master", "node"):
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        names.append(x509.DNSName(server_name("master" if caller.role == "master" else "worker")))
    end = min(now + datetime.timedelta(days=days), ca.not_valid_after_utc)
    builder = (
        _builder(_name(name), ca.subject, key, now, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(ca_key, hashes.SHA256())
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _replace_secret(directory / KEY_FILE, _key_pem(key))
    _write_public(directory / CA_FILE, (authority / CA_FILE).read_bytes())
    _write_public(directory / CERTIFICATE_FILE, _pem(certificate))


def give(directory: Path, uid: int, gid: int) -> None:
    """What ``issue`` made belongs to that user then. Raises: OSError."""
    for place in (directory, *(directory / file for file in (KEY_FILE, CA_FILE, CERTIFICATE_FILE))):
        os.chown(place, uid, gid, follow_symlinks=False)


def _load(directory: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    if not (directory / CA_KEY_FILE).exists():
        raise NotFound(f"{directory} has no authority; make one with: hearth ca init {directory}")
    try:
        key = serialization.load_pem_private_key(read_secret(directory / CA_KEY_FILE), None)
        certificate = x509.load_pem_x509_certificate((directory / CA_FILE).read_bytes())
    except (ValueError, OSError) as error:
        if isinstance(error, SettingsError):
            raise
        raise SettingsError(f"the authority in {directory} is damaged: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SettingsError(f"the authority in {directory} was not made by hearth ca")
    return key, certificate


def _need_cryptography() -> None:
    try:
        import cryptography  # noqa: F401  # only whether it is there
    except ImportError:
        raise NotSupported(
            "making certificates needs the package cryptography: pip install 'hearthfs[security]'"
        ) from None


def _new_key() -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - SKEW)
        .not_valid_after(end)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _replace_secret(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    write_secret(part, content)
    os.replace(part, path)


def _write_public(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    part.write_bytes(content)
    os.chmod(part, 0o644)
    os.replace(part, path)
