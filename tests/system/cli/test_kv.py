"""``hearth kv`` against a real cluster with chunks as a connector makes them."""

import dataclasses
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from hearthfs.connector import chunk_format
from hearthfs.connector.identity import MANIFEST, chunk_name, tenant_directory
from hearthfs.tests.support.cluster import Cluster
from hearthfs.tests.unit.connector.test_identity import IDENTITY

PAYLOAD = 10_000
OTHER = dataclasses.replace(IDENTITY, model="org/Other", weights="x", tensor_parallel=2, world_size=2)
TENANT = tenant_directory("salt")


def store(client, identity, keys, rank=0, tenant=""):
    directory = identity.directory(rank)
    client.put_many([f"/kv/{directory.rpartition('/')[0]}/{MANIFEST}"], [identity.manifest()], keep_existing=True)
    names, files = [], []
    for key in keys:
        file = bytearray(chunk_format.file_bytes(PAYLOAD))
        file[:PAYLOAD] = key * (PAYLOAD // len(key))
        name = chunk_name(key, tenant)
        chunk_format.seal(file, PAYLOAD, name, directory)
        names.append(name.rpartition("/")[2])
        files.append(file)
    at = f"/kv/{tenant}/{directory}" if tenant else f"/kv/{directory}"
    assert client.put_many(names, files, directory=at) == [None] * len(names)
    return [f"{at}/{name}" for name in names]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("kv"), workers=2) as made:
        yield made


@pytest.fixture
def hearth(cluster):
    def run(*arguments, code=0, **options):
        done = cluster.hearth("kv", *map(str, arguments), **options)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done.stdout if code != 1 else done.stderr

    return run


@pytest.fixture
def chunks(cluster):
    client = cluster.client(1)
    if client.isdir("/kv"):
        client.rmtree("/kv")
    made = {
        "mine": store(client, IDENTITY, [b"aa", b"ab", b"ba"]),
        "other": store(client, OTHER, [b"aa"], 0) + store(client, OTHER, [b"aa"], 1),
        "tenant": store(client, IDENTITY, [b"ca"], tenant=TENANT),
    }
    yield client, made
    client.close()


def test_ls_shows_models_tenants_and_sizes(hearth, chunks):
    rows = {(row["tenant"], row["model"]): row for row in json.loads(hearth("ls", "--json"))}
    file = chunk_format.file_bytes(PAYLOAD)
    found = {key: (row["chunks"], row["size_bytes"]) for key, row in rows.items()}
    assert found == {
        ("", IDENTITY.model_directory): (3, 3 * file),
        ("", OTHER.model_directory): (2, 2 * file),
        (TENANT, IDENTITY.model_directory): (1, file),
    }
    text = hearth("ls", "Model")
    assert "Model-8B" in text
    assert "Other" not in text
    assert "128" in text.split()
    assert "does not exist" in hearth("ls", "--root", "/nowhere", code=1)


def test_show_says_what_a_chunk_is_and_where(hearth, chunks, cluster):
    (record,) = json.loads(hearth("show", b"ab".hex(), "--json"))
    assert (record["path"], record["payload_bytes"], record["state"]) == (chunks[1]["mine"][1], PAYLOAD, "good")
    assert len(record["nodes"]) == 1
    assert "no chunk" in hearth("show", "ffff", code=1)


def test_verify_names_the_bad_and_removes_them(hearth, chunks):
    client, made = chunks
    assert json.loads(hearth("verify", "--json")) == {"good": 6, "bad": []}
    swapped, altered, short = made["mine"][0], made["mine"][1], made["tenant"][0]
    client.write_bytes(swapped, client.read_bytes(made["other"][0]))
    data = bytearray(client.read_bytes(altered))
    data[100] ^= 1
    client.write_bytes(altered, data)
    client.write_bytes(short, b"short")
    found = json.loads(hearth("verify", "--json", code=3))
    assert found["good"] == 3
    assert {one["path"]: one["problem"].partition(":")[0] for one in found["bad"]} == {
        swapped: "Stale",
        altered: "BlockCorrupt",
        short: "BlockCorrupt",
    }
    assert "3 bad, removed" in hearth("verify", "--remove", code=3)
    assert "3 chunks are good, 0 bad" in hearth("verify")


def test_purge_removes_one_model_and_asks_first(hearth, chunks):
    client, made = chunks
    assert "no chunks" in hearth("purge", "Nobody", code=1)
    hearth("purge", "Other", input="n\n", code=1)
    assert client.exists(made["other"][0])
    assert "removed 2 chunks" in hearth("purge", "Other", "--yes")
    assert not client.exists(made["other"][0])
    assert "removed 1 chunks" in hearth("purge", TENANT, "--yes")
    assert [client.exists(path) for path in made["mine"]] == [True] * 3


def test_root_may_come_from_the_environment_of_the_connector(hearth, chunks, cluster):
    client, _ = chunks
    client.makedirs("/elsewhere/Model-1/layout", exist_ok=True)
    named = {"HEARTH_CONFIG": os.devnull, "HEARTH_CLIENT_MASTER": cluster.master_address}
    rows = json.loads(hearth("ls", "--json", env={**os.environ, **named, "HEARTH_CONNECTOR_ROOT": "/elsewhere/"}))
    assert [(row["model"], row["chunks"]) for row in rows] == [("Model-1", 0)]


class FakeEngine(BaseHTTPRequestHandler):
    """Just enough of vLLM's HTTP interface."""

    orders: ClassVar[list] = []

    def do_GET(self):
        self._answer(
            b'{"data": [{"id": "m"}]}'
            if self.path == "/v1/models"
            else b'vllm:hearth_kv_lookups_total{engine="0",result="present"} 3.0\n'
            b'vllm:hearth_kv_lookups_total{engine="0",result="absent"} 1.0\n'
        )

    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.orders.append(order)
        if order["prompt"] == "bad":
            self._answer(b"too long", 400)
        else:
            self._answer(b'{"usage": {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4}}}')

    def _answer(self, body, code=200):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def engine():
    FakeEngine.orders.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeEngine)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_warm_prefills_files_and_lines(hearth, engine, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("document")
    (tmp_path / "more.jsonl").write_text('"text"\n[1, 2, 3]\n\n{"prompt": "object"}\n')
    said = hearth("warm", tmp_path / "docs", tmp_path / "more.jsonl", "--engine", engine, "--salt", "s")
    assert said == "4 of 4 prompts, 40 tokens, 16 cached before\n"
    orders = FakeEngine.orders
    assert sorted(map(str, (order["prompt"] for order in orders))) == ["[1, 2, 3]", "document", "object", "text"]
    assert {(order["model"], order["max_tokens"], order["cache_salt"]) for order in orders} == {("m", 1, "s")}


def test_warm_goes_on_after_a_prompt_that_fails(hearth, engine, tmp_path):
    (tmp_path / "p.jsonl").write_text('"good"\n"bad"\n"good too"\n')
    assert "1 prompts failed, the first: " in hearth("warm", tmp_path / "p.jsonl", "--engine", engine, code=1)
    assert len(FakeEngine.orders) == 3
    (tmp_path / "p.jsonl").write_text('"good"\n7\n')
    assert "p.jsonl:2: give a string" in hearth("warm", tmp_path / "p.jsonl", "--engine", engine, code=1)


def test_ls_shows_the_hits_of_an_engine(hearth, chunks, engine):
    assert "3 of 4 chunk lookups were hits" in hearth("ls", "--engine", engine)
