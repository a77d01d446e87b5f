"""One file, opened through the page cache and, when it is wanted and possible, past it.

A stale handle (ESTALE: the server forgot it, as after a failover) is opened again by path, once in a transfer, and only
if the path still leads to the same file, of the same size and age: half of an old file and half of a new one would be
wrong bytes. Descriptors that went stale stay open until the end, since another thread may be inside a call on them,
and a number that is used again would lead its next call into another file.
"""

import errno
import os
import stat
import threading
from dataclasses import dataclass
from pathlib import Path

from ebbtide.storage.errors import Refused, TransferFailed
from ebbtide.storage.posix.direct_io import REFUSALS, DirectIo, direct_io
from ebbtide.storage.posix.posix_calls import Requests, SystemCalls, error_name

_ANOTHER_FILE = "another file has taken its place meanwhile; start the transfer again if that is the one you want"

NEW_FILE_MODE = 0o600  # checkpoints hold secrets


@dataclass(frozen=True, slots=True)
class Handle:
    """A descriptor, and how often the file had been opened again when it was made."""

    fd: int
    generation: int


class OpenedFile:
    """Made by `open`; shared by the threads of one transfer; closed once, when all their calls have ended."""

    def __init__(self, path: Path, requests: Requests, calls: SystemCalls, *, flags: int, chunk_bytes: int) -> None:
        self._path, self._requests, self._calls = path, requests, calls
        self._flags = flags
        self._lock = threading.Lock()  # held while opening: whoever needs the new handle must wait for it anyway
        self._generation = 0
        self._all: list[int] = []
        self._direct: int | None = None
        self._way = DirectIo()
        try:
            self._buffered, self.status = self._open_cached()
            self._way = direct_io(calls.direct_io_alignment(self._buffered), chunk_bytes)
        except BaseException:
            self.close_quietly()
            raise

    @property
    def alignment(self) -> int:
        """Of memory, offsets and lengths in direct I/O."""
        return self._way.alignment

    @property
    def why_not_direct(self) -> str:
        """Why direct I/O is not used on it, in words, or nothing."""
        return self._way.why_not

    def cached(self) -> Handle:
        """For requests through the page cache."""
        with self._lock:
            return Handle(self._buffered, self._generation)

    def direct(self) -> Handle | None:
        """For requests past the page cache, opened by the first who asks; None where that is refused."""
        with self._lock:
            if self._way.why_not:
                return None
            if self._direct is None:
                self._direct = self._open_direct()
            return None if self._direct is None else Handle(self._direct, self._generation)

    def refuse_direct(self, error: OSError, action: str) -> None:
        """A request past the page cache was refused: none will be made again."""
        with self._lock:
            if not self._way.why_not:
                self._way = DirectIo(self._way.alignment, f"O_DIRECT was refused at {action} ({error_name(error)})")

    def reopen(self, stale: Handle) -> bool:
        """Open it again because a request on ``stale`` was answered with ESTALE.

        Returns:
            False if that was done before and did not help.

        Raises:
            TransferFailed: it cannot be opened, or another file is there now.
        """
        with self._lock:
            if stale.generation < self._generation:
                return True  # another thread did it; ask with the new handle
            if self._generation:
                return False
            fd, status = self._open_cached()
            if _identity(status) != _identity(self.status):
                raise self._another_file()
            self._buffered, self._direct = fd, None
            self._generation += 1
        self._requests.repeat()
        return True

    def close(self) -> None:
        """Close all descriptors.

        Raises:
            OSError: the first error, after all have been closed; EINTR is none, since Linux has closed it by then.
        """
        failure = None
        while self._all:
            try:
                self._calls.close(self._all.pop())
            except OSError as error:
                if error.errno != errno.EINTR:
                    failure = failure or error
        if failure is not None:
            raise failure

    def close_quietly(self) -> None:
        """Close after reading, or after a failure that says more than a second one would."""
        try:
            self.close()
        except OSError:
            return

    def _open(self, flags: int) -> int:
        def call() -> int:
            return self._calls.open(self._path, flags | os.O_CLOEXEC, NEW_FILE_MODE)

        try:
            fd = self._requests.ask("open", None, call)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            self._requests.repeat()
            fd = self._requests.ask("open", None, call)
        self._all.append(fd)
        return fd

    def _open_cached(self) -> tuple[int, os.stat_result]:
        try:
            fd = self._open(self._flags)
            status = self._requests.ask("open", None, lambda: self._calls.fstat(fd))
        except OSError as error:
            raise self._requests.failed("open", error) from error
        if not stat.S_ISREG(status.st_mode):
            raise Refused(f"{self._path} is not an ordinary file: name one")
        return fd, status

    def _open_direct(self) -> int | None:
        try:
            fd = self._open((self._flags & ~os.O_CREAT) | os.O_DIRECT)
            status = self._requests.ask("open", None, lambda: self._calls.fstat(fd))
        except OSError as error:
            if error.errno not in REFUSALS:
                raise self._requests.failed("open", error) from error
            self._way = DirectIo(self._way.alignment, f"O_DIRECT was refused at open ({error_name(error)})")
            return None
        if (status.st_dev, status.st_ino) != (self.status.st_dev, self.status.st_ino):
            raise self._another_file()
        return fd

    def _another_file(self) -> TransferFailed:
        return TransferFailed("open", self._path, errno=errno.ESTALE, hint=_ANOTHER_FILE)


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns
