"""Certificates: what stands in them, whose they are, and what is refused."""

import datetime
import os
import stat

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from hearthfs.cli import authority
from hearthfs.cli.main import app
from hearthfs.common.credentials import Certificates
from hearthfs.common.errors import Exists, InvalidArgument, NotFound, SettingsError
from typer.testing import CliRunner

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture
def ca(tmp_path):
    authority.found(tmp_path / "ca", "test", NOW)
    return tmp_path / "ca"


def issued(ca, name, days=10.0):
    directory = ca.parent / name.replace(" ", "-")
    authority.issue(ca, directory, name, days, NOW)
    return x509.load_pem_x509_certificate((directory / "cert.pem").read_bytes())


@pytest.mark.parametrize(
    ("name", "dns"),
    [("master", "master.hearthfs"), ("node gpu1", "worker.hearthfs"), ("user 1000 100", ""), ("admin", "")],
)
def test_what_stands_in_a_certificate(ca, name, dns):
    certificate = issued(ca, name)
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate((ca / "ca.pem").read_bytes()))
    assert certificate.subject.rfc4514_string() == f"CN={name}"
    purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert (ExtendedKeyUsageOID.SERVER_AUTH in purposes) == bool(dns)
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    if dns:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == [dns]
    assert certificate.not_valid_after_utc == NOW + datetime.timedelta(days=10)


def test_keys_are_for_their_owner(ca):
    issued(ca, "admin")
    for path in (ca / "ca-key.pem", ca.parent / "admin" / "key.pem"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Certificates(ca.parent / "admin").encrypted
    (ca / "ca-key.pem").chmod(0o644)
    with pytest.raises(SettingsError, match="holds a secret"):
        issued(ca, "admin")


def test_none_outlives_the_authority(ca):
    assert issued(ca, "admin", 99_999).not_valid_after_utc == NOW + datetime.timedelta(days=authority.CA_DAYS)


def test_a_new_one_replaces_the_old(ca):
    first, second = issued(ca, "admin"), issued(ca, "admin")
    assert first.serial_number != second.serial_number
    assert sorted(os.listdir(ca.parent / "admin")) == ["ca.pem", "cert.pem", "key.pem"]


def test_an_authority_is_not_replaced(ca):
    with pytest.raises(Exists):
        authority.found(ca, "test", NOW)


def test_without_an_authority(tmp_path):
    with pytest.raises(NotFound, match="hearth ca init"):
        authority.issue(tmp_path, tmp_path / "out", "admin", 1, NOW)


@pytest.mark.parametrize("name", ["root", "node " + "x" * 60, "node a\nb", "user 1"])
def test_names_that_are_none(ca, name):
    with pytest.raises(InvalidArgument):
        issued(ca, name)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_the_commands(tmp_path):
    run = CliRunner()
    assert run.invoke(app, ["ca", "init", str(tmp_path / "ca")]).exit_code == 0
    for options in (["--master"], ["--node", "n1"], ["--user", "1000:100"], ["--admin"]):
        done = run.invoke(app, ["ca", "issue", str(tmp_path / "ca"), str(tmp_path / options[0]), *options])
        assert done.exit_code == 0, done.output
    assert (tmp_path / "--user" / "key.pem").stat().st_uid == 1000
    for options in ([], ["--master", "--admin"]):
        done = run.invoke(app, ["ca", "issue", str(tmp_path / "ca"), str(tmp_path / "x"), *options])
        assert done.exit_code == 2
    assert not (tmp_path / "x").exists()
