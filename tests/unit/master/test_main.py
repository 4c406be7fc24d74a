"""Starting and stopping: one clear line for what cannot work, and nothing changed on disk."""

import asyncio
import hashlib
import socket
import urllib.request

import pytest
from hearthfs.common.credentials import Unchecked, check_listen
from hearthfs.common.errors import Conflict, SettingsError, WrongCluster
from hearthfs.master.main import MasterServer
from hearthfs.master.settings import MasterSettings
from hearthfs.master.store import FILE_NAME


def start(tmp_path, then=None, **settings):
    async def main():
        server = MasterServer(MasterSettings(**{"data": tmp_path / "data", "listen": "127.0.0.1:0"} | settings))
        try:
            await server.start()
            return await then(server) if then else server.core.cluster.cluster_id
        finally:
            await server.stop()
            await server.stop()

    return asyncio.run(main())


def content(tmp_path):
    return hashlib.sha256((tmp_path / "data" / FILE_NAME).read_bytes()).hexdigest()


def test_the_cluster_id_stays(tmp_path):
    first = start(tmp_path)
    assert first
    assert start(tmp_path) == first
    assert start(tmp_path, cluster_id=first) == first


def test_data_of_another_cluster(tmp_path):
    start(tmp_path, cluster_id="mine")
    before = content(tmp_path)
    with pytest.raises(WrongCluster, match="belongs to cluster 'mine', not to 'other'"):
        start(tmp_path, cluster_id="other")
    assert content(tmp_path) == before


@pytest.mark.parametrize("listen", ["nonsense", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "0.0.0.0:0", "[::]:0"])
def test_addresses_that_are_none_or_open_to_others(tmp_path, listen):
    with pytest.raises(SettingsError, match="listen address"):
        start(tmp_path, listen=listen)
    assert not (tmp_path / "data").exists()


def test_the_refusal_names_the_setting_that_allows_it(tmp_path):
    with pytest.raises(SettingsError, match="set allow_insecure"):
        start(tmp_path, listen="0.0.0.0:0")
    check_listen("0.0.0.0:0", Unchecked(), allow_insecure=True)


def test_a_port_in_use(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SettingsError, match="cannot listen on"):
            start(tmp_path, listen=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(OSError, match="Address already in use"):
            start(tmp_path, telemetry_listen=f"127.0.0.1:{taken.getsockname()[1]}")
    assert not (tmp_path / "data").exists()


def test_a_directory_that_cannot_be_used(tmp_path):
    with pytest.raises(OSError, match="No such file or directory"):
        start(tmp_path, data=tmp_path / "a" / "b")


def test_two_masters_on_one_directory(tmp_path):
    async def second(server):
        other = MasterServer(server._settings)
        with pytest.raises(Conflict):
            await other.start()
        return server.core.epoch

    assert start(tmp_path, second) == 1


def test_telemetry(tmp_path):
    async def read(server):
        port = server._telemetry.port

        def get(path):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as reply:
                return reply.read().decode()

        assert await asyncio.to_thread(get, "/healthz") == "ok\n"
        return await asyncio.to_thread(get, "/metrics")

    text = start(tmp_path, read, telemetry_listen="127.0.0.1:0")
    assert "hearth_master_commits_total" in text
    assert "hearth_master_commands_per_commit_bucket" in text
