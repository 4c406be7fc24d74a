"""Tokens, proofs, names in certificates, and where one may listen."""

import os
import stat
import threading
import types

import pytest
from hearthfs.common import credentials
from hearthfs.common.credentials import (
    PROOF_KEY,
    SLOT_S,
    Caller,
    CredentialSettings,
    Token,
    Unchecked,
    check_listen,
    make_token_file,
    parse_name,
    read_secret,
)
from hearthfs.common.errors import SettingsError, Unauthenticated

METHOD = "/hearthfs.v1.Master/Dump"


class Settings(CredentialSettings):
    role = "client"


class Clock:
    def __init__(self):
        self.now_s = 1_000_000.0

    def __call__(self):
        return self.now_s


def shows(metadata):
    """A call that carries this."""
    return types.SimpleNamespace(invocation_metadata=lambda: metadata)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def token(tmp_path, clock):
    make_token_file(tmp_path / "token")
    return Token(tmp_path / "token", clock)


def test_a_token_file_is_made_once_and_for_its_owner_only(tmp_path):
    path = tmp_path / "state" / "token"
    threads = [threading.Thread(target=make_token_file, args=(path,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    before = path.read_bytes()
    make_token_file(path)
    assert path.read_bytes() == before
    assert len(before) == 65
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["token"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620, 0o602])
def test_a_secret_that_others_could_read_is_refused(tmp_path, mode):
    path = tmp_path / "token"
    make_token_file(path)
    path.chmod(mode)
    with pytest.raises(SettingsError, match="holds a secret"):
        credentials.load(Settings(token_file=str(path)), serves=True)


def test_a_secret_is_a_file_and_no_link(tmp_path):
    make_token_file(tmp_path / "token")
    (tmp_path / "link").symlink_to(tmp_path / "token")
    with pytest.raises(SettingsError, match="symbolic links"):
        read_secret(tmp_path / "link")
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(SettingsError, match="not a file"):
        read_secret(tmp_path / "fifo")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away")
def test_a_secret_of_somebody_else_is_refused(tmp_path, monkeypatch):
    make_token_file(tmp_path / "token")
    os.chown(tmp_path / "token", 1234, 0)
    with pytest.raises(SettingsError, match="holds a secret"):
        read_secret(tmp_path / "token")


def test_a_short_token_is_none(tmp_path):
    credentials.write_secret(tmp_path / "token", b"abc\n")
    with pytest.raises(SettingsError, match="32 bytes"):
        credentials.load(Settings(token_file=str(tmp_path / "token")), serves=True)


def test_settings_then_the_variable_then_the_users_own(tmp_path, monkeypatch):
    monkeypatch.setenv("HEARTH_TOKEN_FILE", str(tmp_path / "named"))
    assert credentials.load(Settings(token_file=str(tmp_path / "set"))).path == tmp_path / "set"
    assert credentials.load(Settings()).path == tmp_path / "named"
    monkeypatch.delenv("HEARTH_TOKEN_FILE")
    assert credentials.load(Settings()).path == credentials.default_token_file()


def test_a_proof_is_taken_for_its_method_and_its_time(token, clock):
    metadata = token.metadata(METHOD)
    assert metadata[0][0] == PROOF_KEY
    assert token.caller(METHOD, shows(metadata)).role == "admin"
    with pytest.raises(Unauthenticated, match="another token"):
        token.caller("/hearthfs.v1.Master/Mutate", shows(metadata))
    clock.now_s += SLOT_S
    assert token.caller(METHOD, shows(metadata)).role == "admin"
    clock.now_s += SLOT_S
    with pytest.raises(Unauthenticated, match="clocks"):
        token.caller(METHOD, shows(metadata))


def test_the_token_itself_is_never_shown(token):
    secret = token.path.read_text().strip()
    assert secret not in str(token.metadata(METHOD))


@pytest.mark.parametrize("shown", [(), ((PROOF_KEY, ""),), ((PROOF_KEY, "zz.00"),), ((PROOF_KEY, "é"),),
                                   ((PROOF_KEY, b"x"),), (("authorization", "x"),)])  # fmt: skip
def test_what_is_no_proof(token, shown):
    with pytest.raises(Unauthenticated):
        token.caller(METHOD, shows(shown))


def test_a_proof_that_was_changed(token):
    ((key, good),) = token.metadata(METHOD)
    slot, _, digest = good.partition(".")
    other = "0" if digest[-1] != "0" else "1"
    for bad in (f"{slot}.", f"{slot}.{digest[:-1]}", f"{slot}.{digest[:-1]}{other}", digest):
        with pytest.raises(Unauthenticated):
            token.caller(METHOD, shows(((key, bad),)))


def test_a_token_is_changed_without_a_restart(token, clock, tmp_path):
    """A new line first; while both stand there, both are taken; then the old one is not."""
    client = Token(token.path, clock)
    old = token.path.read_bytes()
    assert token.caller(METHOD, shows(client.metadata(METHOD)))
    token.path.write_bytes(b"n" * 40 + b"\n" + old)
    clock.now_s += SLOT_S
    assert token.caller(METHOD, shows(client.metadata(METHOD)))
    late = Token(tmp_path / "late", clock)
    credentials.write_secret(late.path, old)
    assert token.caller(METHOD, shows(late.metadata(METHOD)))
    token.path.write_bytes(b"n" * 40 + b"\n")
    clock.now_s += SLOT_S
    assert token.caller(METHOD, shows(client.metadata(METHOD)))
    with pytest.raises(Unauthenticated):
        token.caller(METHOD, shows(late.metadata(METHOD)))


def test_without_a_file_nothing_is_shown_and_nobody_let_in(tmp_path, clock):
    token = Token(tmp_path / "none", clock)
    assert token.metadata(METHOD) == ()
    with pytest.raises(Unauthenticated):
        token.caller(METHOD, shows(((PROOF_KEY, f"{int(clock.now_s) // SLOT_S:x}.00"),)))


def test_what_is_remembered_is_bounded(token, clock):
    for number in range(3000):
        token.proofs(f"/made/up{number}", int(clock.now_s) // SLOT_S)
    assert len(token._proofs) <= 1000


@pytest.mark.parametrize(
    ("name", "caller"),
    [
        ("admin", Caller("admin", "admin")),
        ("master", Caller("master", "master")),
        ("node gpu1", Caller("node", "node gpu1")),
        ("user 1000 100", Caller("user", "user 1000 100", 1000, 100)),
        ("user 0 0", Caller("user", "user 0 0", 0, 0)),
    ],
)
def test_names(name, caller):
    assert parse_name(name) == caller


@pytest.mark.parametrize("name", ["", "root", "admin x", "node", "node ", "user", "user 1", "user 1 2 3", "user a b",
                                  "user -1 0", "user 4294967295 0", "user \u0661 0", "Admin", "user 1  2"])  # fmt: skip
def test_names_that_are_nobodys(name):
    assert parse_name(name) is None


@pytest.mark.parametrize("listen", ["0.0.0.0:7071", "10.0.0.1:7071", "[::]:7071", "example.org:7071"])
def test_without_credentials_only_loopback_is_served(listen):
    with pytest.raises(SettingsError, match="allow_insecure"):
        check_listen(listen, Unchecked(), allow_insecure=False)
    check_listen(listen, Unchecked(), allow_insecure=True)


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "localhost:1", "[::1]:1"])
def test_loopback_is_served(listen):
    check_listen(listen, Unchecked(), allow_insecure=False)
