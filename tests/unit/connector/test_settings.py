import pytest
from hearthfs.common.errors import SettingsError
from hearthfs.connector.settings import read_extra_config


def test_defaults_need_a_root_only() -> None:
    settings, warnings = read_extra_config({"root": "/mnt/kvcache/kv", "block_size": 256})
    assert (settings.root, settings.backend, warnings) == ("/mnt/kvcache/kv", "hearthfs", [])


def test_sizes_may_have_units() -> None:
    settings, _ = read_extra_config({"root": "/kv", "staging_bytes": "1GiB"})
    assert settings.staging_bytes == 1 << 30


def test_unknown_key_warns_with_the_nearest_name() -> None:
    _, warnings = read_extra_config({"root": "/kv", "load_timeout": 3, "zzzzzz": 1})
    assert "'load_timeout_s'" in warnings[0]
    assert "known: " in warnings[1]


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({}, "extra_config.root: missing"),
        ({"root": ""}, "extra_config.root: missing"),
        ({"root": "kv"}, "'kv' is not an absolute path"),
        ({"root": "/kv", "backend": "s3"}, "connector.backend"),
        ({"root": "/kv", "load_timeout_s": 0}, "connector.load_timeout_s"),
        ({"root": "/kv", "store_threads": 1000}, "connector.store_threads"),
        ({"root": "/kv", "staging_bytes": "many"}, "connector.staging_bytes"),
        ({"root": "/kv", "canonical_layout": True}, "canonical_layout"),
    ],
)
def test_bad_values_are_refused_at_the_start(extra: dict[str, object], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        read_extra_config(extra)


def test_environment_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTH_CONNECTOR_ROOT", "/elsewhere")
    settings, _ = read_extra_config({})
    assert settings.root == "/elsewhere"
