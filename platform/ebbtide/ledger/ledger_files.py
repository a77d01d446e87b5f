"""The few things that are done to the ledger's files, each at one place: make, write, sync, look."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from ebbtide.ledger.errors import LedgerUnusable
from ebbtide.ledger.reader import epoch_path, list_epochs


def create(path: Path) -> int:
    """A new file, open for appending.

    Raises:
        FileExistsError: there is one already.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)


def create_epoch(directory: Path) -> tuple[int, int]:
    """The next free epoch and its new, empty file."""
    epoch = max(list_epochs(directory), default=0) + 1
    while True:
        try:
            return epoch, create(epoch_path(directory, epoch))
        except FileExistsError:  # guard: who loses the race for an epoch takes the next one
            epoch += 1


def sync_directory(directory: Path, fsync: Callable[[int], None]) -> None:
    """Make the names in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fsync(fd)
    finally:
        os.close(fd)


def write_all(write: Callable[[int, bytes], int], fd: int, data: bytes) -> None:
    """Write ``data`` whole, however many calls that takes."""
    view = data
    while view:  # guard: a short write is finished
        written = write(fd, view)
        if written <= 0:  # guard: a write that takes nothing fails
            raise OSError(errno.EIO, "write took nothing")
        view = view[written:]


def exists(path: Path) -> bool:
    """Whether there is such a file; raises OSError where that cannot be told."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def free_bytes(directory: Path) -> int:
    """What is left for files of ours on the directory's filesystem."""
    state = os.statvfs(directory)
    return state.f_bavail * state.f_frsize


def refuse(directory: Path, what: str, error: OSError) -> NoReturn:
    """Say that the ledger cannot be used, and what to do."""
    raise LedgerUnusable(
        f"cannot {what} the ledger {directory}: [errno {error.errno}] {error.strerror}; "
        "it needs a shared directory that is writable and has space"
    ) from error
