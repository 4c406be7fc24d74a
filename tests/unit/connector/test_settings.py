import pytest
from hearthfs.common.errors import SettingsError
from hearthfs.connector.settings import check_memory, read_extra_config


def test_defaults_need_a_root_only() -> None:
    settings = read_extra_config({"root": "/mnt/kvcache/kv", "block_size": 256})
    assert (settings.root, settings.backend) == ("/mnt/kvcache/kv", "hearthfs")


def test_sizes_may_have_units() -> None:
    settings = read_extra_config({"root": "/kv", "staging_bytes": "1GiB"})
    assert settings.staging_bytes == 1 << 30


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({}, "extra_config.root: missing"),
        ({"root": ""}, "extra_config.root: missing"),
        ({"root": "kv"}, "'kv' is not an absolute path; write it as /kv"),
        ({"root": "/kv", "load_timeout": 3}, "extra_config.load_timeout: unknown key; did you mean 'load_timeout_s'"),
        ({"root": "/kv", "zzzzzz": 1}, "extra_config.zzzzzz: unknown key; known: "),
        ({"root": "/kv", "cpu_bytes_to_use": 1}, "extra_config.cpu_bytes_to_use: .* use HearthTier"),
        ({"root": "/kv", "load_timeout_s": 0.1}, "load_timeout_min_s: 0.5 is above load_timeout_s .0.1.; lower it"),
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
    settings = read_extra_config({})
    assert settings.root == "/elsewhere"


def test_staging_memory_that_holds_no_chunk_is_refused() -> None:
    settings = read_extra_config({"root": "/kv", "staging_bytes": "1MiB"})
    check_memory(settings, 256 << 10)
    with pytest.raises(SettingsError, match=r"staging_bytes: 1048576 .* set at least 2097152"):
        check_memory(settings, 512 << 10)
    small = read_extra_config({"root": "/kv", "store_backlog_bytes": "1KiB"})
    with pytest.raises(SettingsError, match=r"store_backlog_bytes: 1024 .* set at least"):
        check_memory(small, 2048)
