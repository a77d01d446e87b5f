"""The probe of a directory: what the filesystem does wrong is found, and nothing is left behind."""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ebbtide.diagnostics.host.filesystem_probe import PREFIX, STALE_S, Calls, FilesystemReading, probe_filesystem
from ebbtide.diagnostics.host.filesystem_probe import read_filesystem as read


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    assert list(tmp_path.iterdir()) == [], "every probe removes its files"


def failing(code: int, *, when: Callable[..., bool] = lambda *_: True, real: Callable[..., Any] | None = None) -> Any:
    """A call that fails with ``code`` when ``when`` says so of its arguments."""

    def call(*arguments: Any) -> Any:
        if when(*arguments):
            raise OSError(code, os.strerror(code))
        assert real is not None
        return real(*arguments)

    return call


def is_direct(*arguments: Any) -> bool:
    return len(arguments) > 1 and isinstance(arguments[1], int) and bool(arguments[1] & os.O_DIRECT)


def test_a_good_directory_does_everything(here: Path) -> None:
    reading = probe_filesystem(here)
    assert (reading.error, reading.failures) == ("", ())
    assert reading.total_bytes > reading.free_bytes > 0
    assert reading.direct_error or reading.alignment in (512, 4096, 65536)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("call", ["open", "pwritev", "fsync", "fallocate", "statvfs"])
def test_what_a_write_cannot_do_without_makes_the_directory_useless(here: Path, call: str, code: int) -> None:
    reading = probe_filesystem(here, Calls(**{call: failing(code)}))
    assert errno.errorcode[code] in reading.error
    assert reading == FilesystemReading(error=reading.error)


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    assert "ENOENT" in probe_filesystem(tmp_path / "none").error


def test_a_filesystem_that_reserves_nothing_is_no_error(here: Path) -> None:
    reading = probe_filesystem(here, Calls(fallocate=failing(errno.EOPNOTSUPP)))
    assert (reading.error, reading.failures, reading.reserves) == ("", (), False)


def test_direct_io_refused_at_open_or_at_write_is_told_and_no_error(here: Path) -> None:
    at_open = probe_filesystem(here, Calls(open=failing(errno.EINVAL, when=is_direct, real=os.open)))
    assert (at_open.error, at_open.failures) == ("", ())
    assert at_open.direct_error == "open: Invalid argument (EINVAL)"
    opened: list[int] = []

    def watched(path: Path, flags: int, mode: int = 0o777) -> int:
        file = os.open(path, flags & ~os.O_DIRECT, mode)
        if flags & os.O_DIRECT:
            opened.append(file)
        return file

    def direct_file(file: int, *_rest: Any) -> bool:
        return file in opened

    calls = Calls(open=watched, pwritev=failing(errno.EINVAL, when=direct_file, real=os.pwritev))
    at_write = probe_filesystem(here, calls)
    assert (at_write.error, at_write.failures, at_write.alignment) == ("", (), 0)
    assert at_write.direct_error == "Invalid argument (EINVAL)"


@pytest.mark.parametrize("needed", [512, 4096, 65536])
def test_the_smallest_alignment_that_works_is_found(here: Path, needed: int) -> None:
    def preadv(file: int, buffers: list[memoryview], offset: int) -> int:
        if offset % needed or len(buffers[0]) % needed:
            raise OSError(errno.EINVAL, "Invalid argument")
        return os.preadv(file, buffers, offset)

    def opened(path: Path, flags: int, mode: int = 0o777) -> int:
        return os.open(path, flags & ~os.O_DIRECT, mode)

    reading = probe_filesystem(here, Calls(open=opened, preadv=preadv))
    assert (reading.error, reading.direct_error, reading.alignment) == ("", "", needed)


def test_wrong_bytes_are_a_failure(here: Path) -> None:
    def lying(file: int, buffers: list[memoryview], offset: int) -> int:
        count = os.preadv(file, buffers, offset)
        buffers[0][0] ^= 1
        return count

    failures = probe_filesystem(here, Calls(preadv=lying)).failures
    assert failures[0] == "read: other bytes came back than were written"


def test_a_direct_read_that_brings_nothing_is_a_failure(here: Path) -> None:
    opened: list[int] = []

    def watched(path: Path, flags: int, mode: int = 0o777) -> int:
        file = os.open(path, flags & ~os.O_DIRECT, mode)
        if flags & os.O_DIRECT:
            opened.append(file)
        return file

    def idle(file: int, buffers: list[memoryview], offset: int) -> int:
        return len(buffers[0]) if file in opened else os.preadv(file, buffers, offset)

    reading = probe_filesystem(here, Calls(open=watched, preadv=idle))
    assert reading.failures == ("direct read: other bytes came back than were written",)


@pytest.mark.parametrize("call", ["pwritev", "preadv"])
def test_a_short_transfer_is_not_taken_for_a_whole_one(here: Path, call: str) -> None:
    real = getattr(os, call)

    def short(file: int, buffers: list[memoryview], offset: int) -> int:
        return int(real(file, [buffers[0][:4096]], offset))

    reading = probe_filesystem(here, Calls(pwritev=short) if call == "pwritev" else Calls(preadv=short))
    assert reading.error or reading.failures


def test_a_filesystem_without_exclusive_create_is_found(here: Path) -> None:
    def careless(path: Path, flags: int, mode: int = 0o777) -> int:
        return os.open(path, flags & ~os.O_EXCL, mode)

    assert (
        "exclusive create: a file that is there already was made again"
        in probe_filesystem(here, Calls(open=careless)).failures
    )


def test_a_rename_that_fails_or_lies_is_found(here: Path) -> None:
    refused = probe_filesystem(here, Calls(rename=failing(errno.EPERM)))
    assert refused.failures == ("rename: Operation not permitted (EPERM)",)
    lied = probe_filesystem(here, Calls(rename=lambda _old, _new: None))
    assert lied.failures == ("rename: the new name does not hold the file",)


@pytest.mark.parametrize(("code", "told"), [(errno.EIO, True), (errno.EINVAL, False)])
def test_a_directory_s_sync_may_be_unknown_but_must_not_fail(here: Path, code: int, told: bool) -> None:
    def fsync(file: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{file}"):
            raise OSError(code, os.strerror(code))
        os.fsync(file)

    reading = probe_filesystem(here, Calls(fsync=fsync))
    assert reading.error == "" and bool(reading.failures) is told


def test_a_filesystem_that_hangs_is_given_up(tmp_path: Path) -> None:
    released = threading.Event()

    def hanging(_path: Path) -> os.statvfs_result:
        released.wait(60)
        raise OSError(errno.EIO, "given up")

    began = time.monotonic()
    reading = read(tmp_path, Calls(statvfs=hanging), deadline_s=0.2)
    released.set()
    assert reading.error == "no answer within 0.2 s: the filesystem hangs"
    assert time.monotonic() - began < 30


def test_what_a_killed_probe_left_is_removed_after_an_hour(tmp_path: Path) -> None:
    old, new, other = (tmp_path / name for name in (f"{PREFIX}1-a.bandwidth", f"{PREFIX}2-a.bandwidth", "model"))
    for path in (old, new, other):
        path.write_text("x")
    os.utime(old, (0, time.time() - STALE_S - 1))
    os.utime(other, (0, 0))
    probe_filesystem(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([new, other])
