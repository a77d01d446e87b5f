"""The second look sees what the storage has, wherever the chunk lies."""

import errno
import os
from pathlib import Path

import pytest

from ebbtide.storage.second_look import read_again
from ebbtide.storage.transport import Range
from tests.platform.storage.stores import random_bytes


@pytest.mark.parametrize("refused", [False, True], ids=["direct", "O_DIRECT refused"])
@pytest.mark.parametrize(("offset", "length"), [(0, 10_000), (0, 1), (4096, 4096), (5, 7), (8192, 1808), (9_999, 1)])
def test_any_part_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int, length: int, refused: bool
) -> None:
    content = random_bytes(10_000)
    path = tmp_path / "file"
    path.write_bytes(content)
    real = os.open

    def opened(name: str, flags: int, *more: int) -> int:
        if refused and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(name, flags, *more)

    monkeypatch.setattr(os, "open", opened)
    assert read_again(path, Range(offset, length)) == content[offset : offset + length]


def test_what_a_truncated_file_lacks_is_missing_and_links_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 5000)
    assert read_again(path, Range(4096, 4096)) == b"x" * 904
    assert read_again(path, Range(8192, 4096)) == b""
    (tmp_path / "link").symlink_to(path)
    for missing in ("link", "nothing"):
        with pytest.raises(OSError):
            read_again(tmp_path / missing, Range(0, 1))
