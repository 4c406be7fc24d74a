import json

from hearthfs.cli import journal_lines
from hearthfs.master import commands
from hearthfs.master.journal import Record

MKDIR = commands.Mkdir(1, b"a\x1b[2Jb \xff", 0o755, 0, 0)
REQUEST = commands.Request(MKDIR, 1_500_000_000_123_456_789, client_id=0xAB, request_id=9, user=commands.User(5, 6))


def test_a_record_is_one_line_that_cannot_rewrite_the_screen():
    line = journal_lines.line(Record(7, REQUEST, error="Exists"))
    assert line == (
        r"7 2017-07-14T02:40:00.123Z Mkdir parent=1 name='a\x1b[2Jb \xff' mode=493 uid=0 gid=0 "
        "client=00000000000000ab/9 user=5:6 -> Exists"
    )


def test_the_masters_own_commands_have_no_client():
    record = Record(1, commands.Request(commands.BeginEpoch("c"), 0))
    assert journal_lines.line(record) == "1 1970-01-01T00:00:00.000Z BeginEpoch cluster_id='c'"


def test_long_values_are_cut_for_people_only():
    many = commands.UnlinkMany(1, tuple(b"%032d" % number for number in range(4096)))
    record = Record(1, commands.Request(many, 0))
    assert len(journal_lines.line(record)) < 200
    assert len(journal_lines.as_record(record)["fields"]["names"]) == 4096


def test_scripts_get_all_of_it():
    shown = journal_lines.as_record(Record(7, REQUEST))
    assert shown["fields"] == {"parent": 1, "name": MKDIR.name, "mode": 0o755, "uid": 0, "gid": 0}
    assert (shown["number"], shown["command"], shown["user"], shown["error"]) == (7, "Mkdir", [5, 6], None)
    assert shown["time_ns"] == REQUEST.now_ns
    json.dumps(shown, default=repr)
