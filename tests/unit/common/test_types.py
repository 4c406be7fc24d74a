import stat

import pytest
from hearthfs.common.types import BlockKey, file_type


def test_a_block_key_prints_as_its_two_numbers():
    assert str(BlockKey(0xB10C, 3)) == "000000000000b10c.3"


@pytest.mark.parametrize(
    ("mode", "word"),
    [
        (stat.S_IFREG | 0o644, "file"),
        (stat.S_IFDIR | 0o755, "directory"),
        (stat.S_IFLNK | 0o777, "symlink"),
        (stat.S_IFIFO, "fifo"),
        (stat.S_IFSOCK, "socket"),
        (stat.S_IFCHR, "character device"),
        (stat.S_IFBLK, "block device"),
        (0o644, "unknown"),
    ],
)
def test_file_types_have_words(mode, word):
    assert file_type(mode) == word
