"""A file's descriptors: opened when they are wanted, exchanged once when stale, closed once and never under a call."""

import errno
import os
from pathlib import Path

import pytest

from ebbtide.storage.errors import TransferFailed
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.posix.file_handle import NEW_FILE_MODE, OpenedFile
from ebbtide.storage.posix.posix_calls import Requests
from ebbtide.storage.posix.transfer_threads import TransferThreads
from tests.platform.storage.shim.lying_system import Errno, LyingSystem, Most

PATH = Path("made-up")
POOL = BufferPool(1, 4096)


def opened(system: LyingSystem, flags: int = os.O_RDONLY) -> OpenedFile:
    crew = TransferThreads(PATH, POOL, threads=1, deadline_s=60)
    return OpenedFile(PATH, Requests(PATH, crew), system.calls(), flags=flags, chunk_bytes=1 << 20)


def honest() -> LyingSystem:
    return LyingSystem(bytearray(10_000))


def test_the_direct_descriptor_is_opened_by_the_first_who_wants_it() -> None:
    system = honest()
    file = opened(system)
    assert system.counts["open"] == 1
    first, second = file.direct(), file.direct()
    assert first == second and first is not None
    assert system.counts["open"] == 2
    assert system.flags[first.fd] & os.O_DIRECT and not system.flags[file.cached().fd] & os.O_DIRECT
    file.close()
    assert system.flags == {}


def test_only_the_first_opening_creates() -> None:
    system = LyingSystem(bytearray(), exists=False)
    file = opened(system, os.O_WRONLY | os.O_CREAT)
    direct = file.direct()
    assert direct is not None and not system.flags[direct.fd] & os.O_CREAT
    assert NEW_FILE_MODE == 0o600


def test_descriptors_are_not_inherited() -> None:
    system = honest()
    file = opened(system)
    file.direct()
    assert all(flags & os.O_CLOEXEC for flags in system.flags.values())


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_refusal_at_open_is_remembered(code: int) -> None:
    system = LyingSystem(bytearray(10), lambda name, offset, direct: Errno(code) if direct else None)
    file = opened(system)
    assert file.direct() is None is file.direct()
    assert system.counts["open"] == 2
    assert f"refused at open ({errno.errorcode[code]})" in file.why_not_direct


def test_the_first_reason_against_direct_requests_is_kept() -> None:
    file = opened(honest())
    file.refuse_direct(OSError(errno.EINVAL, ""), "read")
    file.refuse_direct(OSError(errno.EINVAL, ""), "write")
    assert "at read" in file.why_not_direct and file.direct() is None


def test_a_stale_handle_is_exchanged_once_however_many_see_it() -> None:
    system = honest()
    file = opened(system)
    stale, direct = file.cached(), file.direct()
    assert direct is not None
    assert file.reopen(stale) and file.reopen(stale) and file.reopen(direct)
    assert system.counts["open"] == 3, "one for all"
    assert file.cached().fd != stale.fd
    fresh = file.direct()
    assert fresh is not None and fresh.fd != direct.fd
    assert {stale.fd, direct.fd} <= set(system.flags), "another thread may be inside a call on them"
    assert not file.reopen(fresh), "a second time is no use"
    file.close()
    assert system.flags == {} and system.violations == []


@pytest.mark.parametrize("what", ["inode", "size"])
def test_it_is_not_exchanged_for_another_file(what: str) -> None:
    system = honest()
    file = opened(system)
    if what == "inode":
        system.inode += 1
    else:
        system.content.extend(b"more")
    with pytest.raises(TransferFailed, match="another file has taken its place"):
        file.reopen(file.cached())
    file.close()
    assert system.flags == {}


def test_all_are_closed_also_when_one_says_that_it_could_not() -> None:
    system = honest()
    file = opened(system)
    file.direct()
    system.lie = lambda name, offset, direct: Errno(errno.EIO) if name == "close" else None
    with pytest.raises(OSError, match="Input/output"):
        file.close()
    assert system.flags == {}
    file.close_quietly()
    assert system.violations == [], "closed twice"


def test_an_interrupted_close_has_closed() -> None:
    system = honest()
    file = opened(system)
    system.lie = lambda name, offset, direct: Errno(errno.EINTR) if name == "close" else None
    file.close()
    assert system.flags == {} and system.counts["close"] == 1


def test_what_was_opened_is_closed_when_looking_at_it_fails() -> None:
    def lie(name: str, offset: int | None, direct: bool) -> Errno | Most | None:
        return Errno(errno.EACCES) if name == "fstat" else None

    system = LyingSystem(bytearray(10), lie)
    with pytest.raises(TransferFailed):
        opened(system)
    assert system.flags == {} and system.counts["open"] == 1
