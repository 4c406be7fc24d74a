import pytest
from hearthfs.common.errors import InvalidArgument, NameTooLong, TooBig
from hearthfs.master import codec, commands
from hearthfs.proto import common_pb2, master_pb2


def names(limit=10, **fields):
    return codec.names(common_pb2.PackedNames(**fields), limit)


def test_names():
    assert names(width=3, packed=b"abcdef") == [b"abc", b"def"]
    assert names(names=[b"a", b"bcd"]) == [b"a", b"bcd"]
    assert names() == []
    assert names(width=3) == []


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"width": 3, "packed": b"abcd"}, InvalidArgument),
        ({"packed": b"abcd"}, InvalidArgument),
        ({"width": 1, "packed": b"a", "names": [b"b"]}, InvalidArgument),
        ({"width": 256, "packed": b"a" * 256}, NameTooLong),
        ({"width": 1, "packed": b"a" * 11}, TooBig),
        ({"names": [b"a"] * 11}, TooBig),
    ],
)
def test_bad_names(fields, error):
    with pytest.raises(error):
        names(**fields)


def make(**op):
    placed = []

    def place(prefer_node, size_bytes, avoid, count):
        placed.append((prefer_node, size_bytes, avoid, count))
        return [f"w{number}" for number in range(1, count + 1)]

    request = master_pb2.MutateRequest(**op)
    command = codec.command(request, place, ("w1",))
    assert type(command).__name__ == codec.operation(request)
    return command, placed


def test_every_operation_becomes_the_command_of_its_name():
    operations = master_pb2.MutateRequest.DESCRIPTOR.oneofs_by_name["op"].fields
    for field in operations:
        message = {"allocate": master_pb2.Allocate(count=1)}.get(field.name)
        op = message or getattr(master_pb2, field.message_type.name)()
        make(**{field.name: op})


def test_no_operation():
    with pytest.raises(InvalidArgument):
        make()


def test_placement_is_asked_where_blocks_are_allocated():
    command, placed = make(
        allocate=master_pb2.Allocate(count=2, prefer_node="n", size_hint_bytes=5, avoid_workers=["x"])
    )
    assert command == commands.Allocate(("w1", "w2"))
    assert placed == [("n", 5, ("x",), 2)]
    command, placed = make(create=master_pb2.Create(parent=1, name=b"f", allocate=True, prefer_node="n"))
    assert command.worker_id == "w1"
    assert make(create=master_pb2.Create(parent=1, name=b"f"))[1] == []


@pytest.mark.parametrize("count", [0, 4097, 1 << 31])
def test_allocate_bounds(count):
    with pytest.raises(InvalidArgument):
        make(allocate=master_pb2.Allocate(count=count))


def test_setattr_knows_what_was_given():
    command, _ = make(setattr=master_pb2.Setattr(inode=5, size_bytes=0, mode=0, mtime_ns=-5))
    assert command == commands.Setattr(5, mode=0, size_bytes=0, mtime_ns=-5)
    with pytest.raises(InvalidArgument):
        make(setattr=master_pb2.Setattr(inode=5, atime_ns=-(1 << 63)))


def test_live_workers_only_where_they_decide():
    assert make(put_many=master_pb2.PutMany(keep_existing=True))[0].live_workers == ("w1",)
    assert make(put_many=master_pb2.PutMany())[0].live_workers == ()


def test_lists_are_bounded():
    items = [master_pb2.Publish()] * (codec.BATCH_ITEMS_MAX + 1)
    with pytest.raises(TooBig):
        make(publish_many=master_pb2.PublishMany(items=items))
