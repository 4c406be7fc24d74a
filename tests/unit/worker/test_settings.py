import pytest
from hearthfs.common.errors import SettingsError
from hearthfs.worker.settings import FLOOR_CAP_BYTES, DiskSetting, Floor, WorkerSettings


@pytest.mark.parametrize(
    ("text", "path", "limit"),
    [
        ("/a/b", "/a/b", None),
        ("/a:10GiB", "/a", 10 << 30),
        ("/a:1048576", "/a", 1 << 20),
        ("/a:b", "/a:b", None),
        ("/a:1/b", "/a:1/b", None),
        ("/a:b:2M", "/a:b", 2 << 20),
    ],
)
def test_a_disk_is_a_directory_with_an_optional_capacity(text, path, limit):
    parsed = DiskSetting.parse(text)
    assert (str(parsed.path), parsed.limit_bytes) == (path, limit)


@pytest.mark.parametrize("text", ["", ":5G", "/a:0", "/a:5X"])
def test_a_disk_that_makes_no_sense_is_refused(text):
    with pytest.raises(SettingsError, match="disks"):
        WorkerSettings.load({"disks": (text,)}, environment={})


def test_the_same_directory_twice_is_refused():
    with pytest.raises(SettingsError, match="named twice"):
        WorkerSettings.load({"disks": ("/a", "/a:5G")}, environment={})


def test_a_worker_needs_a_disk():
    with pytest.raises(SettingsError, match="--disk DIR"):
        WorkerSettings.load({}, environment={})


def test_the_floor_is_a_share_with_a_cap_or_a_size():
    assert Floor.parse("5%").of(10 << 30) == (10 << 30) // 20
    assert Floor.parse("5%").of(30 << 40) == FLOOR_CAP_BYTES
    assert Floor.parse("1GiB").of(30 << 40) == 1 << 30
    with pytest.raises(SettingsError, match="free_floor"):
        WorkerSettings.load({"disks": ("/a",), "free_floor": "120%"}, environment={})


@pytest.mark.parametrize("address", ["", "7070", "host", "host:", "host:x", "host:70000", ":7070"])
@pytest.mark.parametrize("key", ["master", "listen"])
def test_an_address_has_host_and_port(key, address):
    with pytest.raises(SettingsError, match=key):
        WorkerSettings.load({"disks": ("/a",), key: address}, environment={})


def test_names_have_defaults():
    settings = WorkerSettings(disks=("/a:5G", "/b"), node_id="n1")
    assert settings.identity == "n1"
    assert str(settings.socket_path) == "/a/worker.sock"
    assert WorkerSettings(disks=("/a",), node_id="n1", worker_id="w").identity == "w"
