"""The second look sees what the storage has, wherever the chunk lies."""

import errno
import os
from pathlib import Path

import pytest

from ebbtide.storage.integrity.chunk_reread import read_again
from ebbtide.storage.transport.transport import Range
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


@pytest.mark.proves(
    "a second look that comes short goes on",
    "a second look that gets nowhere within the file is an error",
)
@pytest.mark.parametrize("refused", [False, True], ids=["direct", "O_DIRECT refused"])
@pytest.mark.parametrize("most", [5000, 4097, 12_289, 700])
def test_a_read_that_comes_short_at_an_odd_byte_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, refused: bool
) -> None:
    content = random_bytes(66_000)  # at 700 bytes a time, O_DIRECT gets nowhere
    path = tmp_path / "file"
    path.write_bytes(content)
    real, direct = os.open, set[int]()

    def opened(name: str, flags: int, *more: int) -> int:
        if refused and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        fd = real(name, flags, *more)
        (direct.add if flags & os.O_DIRECT else direct.discard)(fd)
        return fd

    def short(fd: int, buffers: list[memoryview], offset: int) -> int:
        if fd in direct and offset % 4096:
            raise AssertionError("O_DIRECT wants a whole page")
        count = max(min(len(buffers[0]), most, len(content) - offset), 0)
        buffers[0][:count] = content[offset : offset + count]
        return count

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "preadv", short)
    for part in (Range(0, 65_536), Range(65_536, 464), Range(100, 20_000)):
        assert read_again(path, part) == content[part.offset : part.end]


def test_what_a_truncated_file_lacks_is_missing_and_links_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 5000)
    assert read_again(path, Range(4096, 4096)) == b"x" * 904
    assert read_again(path, Range(8192, 4096)) == b""
    (tmp_path / "link").symlink_to(path)
    for missing in ("link", "nothing"):
        with pytest.raises(OSError):
            read_again(tmp_path / missing, Range(0, 1))


@pytest.mark.proves("where O_DIRECT is refused the cached pages are dropped first")
@pytest.mark.parametrize("refused", [False, True], ids=["direct", "O_DIRECT refused"])
def test_it_goes_past_the_page_cache_or_has_its_pages_dropped_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    path = tmp_path / "file"
    path.write_bytes(random_bytes(10_000))
    asked: list[tuple[str, int, int]] = []
    real = os.open

    def opened(name: str, flags: int, *more: int) -> int:
        if flags & os.O_DIRECT:
            asked.append(("direct", 0, 0))
            if refused:
                raise OSError(errno.EINVAL, "Invalid argument")
        return real(name, flags & ~os.O_DIRECT, *more)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "posix_fadvise", lambda _fd, offset, length, advice: asked.append(("", offset, length)))
    read_again(path, Range(5000, 100))
    assert asked == [("direct", 0, 0), *([("", 5000, 100)] if refused else [])]
