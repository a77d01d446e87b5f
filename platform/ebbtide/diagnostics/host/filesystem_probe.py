"""What a directory really does: a few blocks written and read with and without O_DIRECT, renamed, synced, removed.

Why not trust what is documented: overlay, FUSE and network filesystems differ by version and mount option, and
``statx`` answers for the few filesystems that implement it.

Not guaranteed: that a sync survives a power cut; no program can see that.
"""

import contextlib
import errno
import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.diagnostics.host.deadline import NoAnswer, within
from ebbtide.storage.files import libc

PREFIX = ".ebbtide-doctor-"
DEADLINE_S = 10.0  # a few blocks take milliseconds; over a busy network a second
STALE_S = 3600.0  # no probe runs for an hour: what is older was left by one that was killed
_ALIGNMENTS = (512, 4096, 65536)  # sector, page, and the stripe unit of some network filesystems
_BLOCK = 65536


@dataclass(frozen=True, slots=True)
class FilesystemReading:
    """What a directory did.

    Attributes:
        error: why the directory cannot be used at all: it hangs, is not writable, has no space; empty if it can.
        failures: steps that went wrong though they must work, as ``step: cause``.
        direct_error: why O_DIRECT was refused; empty if it works.
        alignment: smallest multiple in bytes at which a direct read works; 0 if none does.
        stated: alignment of memory and of offsets as ``statx`` states it; None if it does not.
        reserves: whether space can be reserved (fallocate).
        free_bytes: for this user.
        total_bytes: of the filesystem.
        free_files: files that can still be made; None where the filesystem sets no bound.
    """

    error: str = ""
    failures: tuple[str, ...] = ()
    direct_error: str = ""
    alignment: int = 0
    stated: tuple[int, int] | None = None
    reserves: bool = True
    free_bytes: int = 0
    total_bytes: int = 0
    free_files: int | None = None


@dataclass(frozen=True)
class Calls:
    """The operating system's calls, so that tests can have them fail."""

    open: Callable[..., int] = os.open
    pwritev: Callable[[int, list[memoryview], int], int] = os.pwritev
    preadv: Callable[[int, list[memoryview], int], int] = os.preadv
    fsync: Callable[[int], None] = os.fsync
    rename: Callable[[Path, Path], None] = os.replace
    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs
    fallocate: Callable[[int, int, int], None] = libc.fallocate
    alignment: Callable[[int], tuple[int, int] | None] = libc.direct_io_alignment
    now_s: Callable[[], float] = time.time


@dataclass
class _Found:
    failures: list[str] = field(default_factory=list)
    direct_error: str = ""
    alignment: int = 0
    stated: tuple[int, int] | None = None
    reserves: bool = True


def read_filesystem(
    directory: Path, calls: Calls | None = None, *, deadline_s: float = DEADLINE_S
) -> FilesystemReading:
    """Probe ``directory``; one that hangs counts as one that cannot be used."""
    try:
        return within(deadline_s, lambda: probe_filesystem(directory, calls))
    except NoAnswer as error:
        return FilesystemReading(error=f"{error}: the filesystem hangs")


def probe_filesystem(directory: Path, calls: Calls | None = None) -> FilesystemReading:
    """Try everything in ``directory``; leaves nothing behind, and removes what a killed probe left.

    May hang where the filesystem does: call it within a deadline.
    """
    calls = calls or Calls()
    found = _Found()
    first, second = (directory / f"{PREFIX}{os.getpid()}-{os.urandom(4).hex()}.{part}" for part in ("a", "b"))
    try:
        _remove_stale(directory, calls.now_s())
        space = calls.statvfs(directory)
        file = calls.open(first, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _buffered(file, calls, found)
        finally:
            os.close(file)
        _exclusive(first, calls, found)
        _direct(first, calls, found)
        _renamed(first, second, calls, found)
    except OSError as error:
        return FilesystemReading(error=_cause(error))
    finally:
        for path in (first, second):
            with contextlib.suppress(OSError):
                path.unlink()
    return FilesystemReading(
        failures=tuple(found.failures),
        direct_error=found.direct_error,
        alignment=found.alignment,
        stated=found.stated,
        reserves=found.reserves,
        free_bytes=space.f_bavail * space.f_frsize,
        total_bytes=space.f_blocks * space.f_frsize,
        free_files=space.f_favail if space.f_files else None,
    )


def _remove_stale(directory: Path, now_s: float) -> None:
    for path in directory.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if now_s - path.lstat().st_mtime > STALE_S:
                path.unlink()


def _cause(error: OSError) -> str:
    return f"{error.strerror or error} ({errno.errorcode.get(error.errno or 0, error.errno)})"


def _pattern() -> bytes:
    return os.urandom(_BLOCK)


def _buffered(file: int, calls: Calls, found: _Found) -> None:
    """Reserve, write, sync, read back; the first OSError of a write or sync means that the directory is of no use."""
    try:
        calls.fallocate(file, 0, _BLOCK)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise
        found.reserves = False
    data = _pattern()
    if calls.pwritev(file, [memoryview(data)], 0) != _BLOCK:
        raise OSError(errno.EIO, "a write of 64 KiB came back short")
    calls.fsync(file)
    back = bytearray(_BLOCK)
    if calls.preadv(file, [memoryview(back)], 0) != _BLOCK or back != data:
        found.failures.append("read: other bytes came back than were written")


def _exclusive(path: Path, calls: Calls, found: _Found) -> None:
    """Making a file that is there already must fail: the ledger relies on it."""
    try:
        os.close(calls.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        found.failures.append(f"exclusive create: {_cause(error)}")
        return
    found.failures.append("exclusive create: a file that is there already was made again")


def _direct(path: Path, calls: Calls, found: _Found) -> None:
    try:
        file = calls.open(path, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        found.direct_error = f"open: {_cause(error)}"
        return
    memory = mmap.mmap(-1, 2 * _BLOCK)  # anonymous: aligned to a page
    view = memoryview(memory)
    try:
        found.stated = calls.alignment(file)
        _direct_transfer(file, view, calls, found)
    except OSError as error:
        found.direct_error = _cause(error)
    finally:
        view.release()
        memory.close()
        os.close(file)


def _direct_transfer(file: int, view: memoryview, calls: Calls, found: _Found) -> None:
    data = _pattern()
    view[:_BLOCK] = data
    if calls.pwritev(file, [view[:_BLOCK]], 0) != _BLOCK:
        raise OSError(errno.EIO, "a direct write of 64 KiB came back short")
    view[:_BLOCK] = bytes(_BLOCK)
    if calls.preadv(file, [view[:_BLOCK]], 0) != _BLOCK or view[:_BLOCK] != data:
        found.failures.append("direct read: other bytes came back than were written")
        return
    for step in _ALIGNMENTS[:-1]:  # the largest has just been shown to work
        try:
            count = calls.preadv(file, [view[_BLOCK : _BLOCK + step]], step)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            continue
        if count == step and view[_BLOCK : _BLOCK + step] == data[step : 2 * step]:
            found.alignment = step
            return
    found.alignment = _ALIGNMENTS[-1]


def _renamed(first: Path, second: Path, calls: Calls, found: _Found) -> None:
    """Publish as the store does: rename over a file that is there, then sync the directory."""
    os.close(calls.open(second, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        calls.rename(first, second)
    except OSError as error:
        found.failures.append(f"rename: {_cause(error)}")
        return
    if first.exists() or not second.exists() or second.stat().st_size != _BLOCK:
        found.failures.append("rename: the new name does not hold the file")
    directory = calls.open(second.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        calls.fsync(directory)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network filesystems do it with the rename
            found.failures.append(f"sync of the directory: {_cause(error)}")
    finally:
        os.close(directory)
