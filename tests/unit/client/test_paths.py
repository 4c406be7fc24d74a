import pytest
from hearthfs.client import paths
from hearthfs.common.errors import InvalidArgument, NameTooLong
from hypothesis import given
from hypothesis import strategies as st

NAME = st.binary(min_size=1, max_size=20).filter(lambda name: b"/" not in name and b"\0" not in name)


@pytest.mark.parametrize(
    ("given_path", "normal"),
    [
        ("/", b"/"),
        ("///", b"/"),
        ("/a//b/./c/", b"/a/b/c"),
        (b"/\xff", b"/\xff"),
        ("/\udcff", b"/\xff"),
        ("/a/../b", b"/a/../b"),
    ],
)
def test_normal_form(given_path: str, normal: bytes) -> None:
    assert paths.normalise(given_path) == normal


@pytest.mark.parametrize("bad", ["", "a", "./a", "/a\0b"])
def test_no_path(bad: str) -> None:
    with pytest.raises(InvalidArgument):
        paths.normalise(bad)


def test_limits() -> None:
    assert paths.normalise("/" + "x" * 255)
    assert paths.normalise("/" + "/".join(["x" * 254] * 16)[:4095])
    with pytest.raises(NameTooLong):
        paths.normalise("/" + "x" * 256)
    with pytest.raises(NameTooLong):
        paths.normalise("/" + "é" * 128)  # 256 bytes
    with pytest.raises(NameTooLong):
        paths.normalise("/x" * 2049)


@pytest.mark.parametrize("bad", ["/", "/..", "/a/.."])
def test_what_has_no_name(bad: str) -> None:
    with pytest.raises(InvalidArgument):
        paths.split(bad)


@pytest.mark.parametrize("bad", ["", ".", "..", "a/b", "a\0"])
def test_names_that_cannot_be(bad: str) -> None:
    with pytest.raises(InvalidArgument):
        paths.check_name(bad)


@given(st.lists(NAME, min_size=1, max_size=6).filter(lambda names: not {b".", b".."} & set(names)))
def test_split_and_join_are_inverse(names: list[bytes]) -> None:
    path = b"/" + b"/".join(names)
    parent, name = paths.split(path)
    assert paths.join(parent, name) == path
    assert paths.encode(paths.decode(path)) == path
    assert paths.check_name(name) == names[-1]
