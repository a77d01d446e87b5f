"""What the page cache holds, asked in two ways that must agree; and who may not ask."""

import errno
import mmap
import os
from pathlib import Path

import pytest

from ebbtide.storage.files import libc
from ebbtide.storage.posix import page_cache

PAGE = mmap.PAGESIZE


@pytest.fixture
def file(tmp_path: Path) -> int:
    path = tmp_path / "file"
    path.write_bytes(bytes(64 * PAGE))
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    path.read_bytes()
    return fd


def evict(fd: int) -> None:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead from now on
    if page_cache.share_by_mincore(fd, 0, 64):
        pytest.skip("the page cache cannot be emptied here (tmpfs?)")


def test_what_was_just_read_is_resident(file: int) -> None:
    assert page_cache.resident_share(file, 0, 64 * PAGE) == 1.0
    assert page_cache.share_by_mincore(file, 0, 64) == 1.0


def test_what_was_dropped_is_not_and_a_part_is_told_apart(file: int) -> None:
    evict(file)
    assert page_cache.resident_share(file, 0, 64 * PAGE) == 0.0
    os.pread(file, 16 * PAGE, 16 * PAGE)
    assert page_cache.resident_share(file, 16 * PAGE, 16 * PAGE) == 1.0
    assert page_cache.resident_share(file, 48 * PAGE, 16 * PAGE) == 0.0
    assert page_cache.share_by_mincore(file, 16 * PAGE, 16) == 1.0
    assert page_cache.share_by_mincore(file, 48 * PAGE, 16) == 0.0


def test_a_range_counts_with_all_pages_that_it_touches(file: int) -> None:
    evict(file)
    os.pread(file, PAGE, 2 * PAGE)
    assert page_cache.resident_share(file, 3 * PAGE - 1, 2) == pytest.approx(0.5)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM])
def test_without_cachestat_mincore_answers_about_our_own_files(
    file: int, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(fd: int, offset: int, size: int) -> int:
        raise OSError(code, "")

    monkeypatch.setattr(libc, "cachestat", refuse)
    assert page_cache.resident_share(file, 0, 64 * PAGE) == 1.0
    monkeypatch.setattr(os, "geteuid", lambda: os.fstat(file).st_uid + 1)
    assert page_cache.resident_share(file, 0, 64 * PAGE) is None, "mincore says 'resident' of what is not ours"


def test_an_error_that_is_no_refusal_comes_out(file: int) -> None:
    os.close(file)
    with pytest.raises(OSError, match="Bad file descriptor"):
        page_cache.resident_share(file, 0, PAGE)
    assert page_cache.share_by_mincore(file, 0, 1) is None


def test_nothing_has_no_share(file: int) -> None:
    assert page_cache.resident_share(file, 0, 0) is None
