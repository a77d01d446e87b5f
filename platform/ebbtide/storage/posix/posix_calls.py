"""One request to the operating system, asked until it is answered: what is retried, and what is given up.

EINTR is asked again at once, EAGAIN after a short and growing pause, both until the transfer's deadline. EIO is asked
again once where asking is harmless (open, read, write of the same bytes): a path of a multipath device may have failed
over meanwhile. Nothing else is retried here. A sync is never asked again: after an error Linux drops the dirty pages
and the second sync succeeds (https://lwn.net/Articles/752063/).

The calls are a dataclass of functions, so that a test can let the operating system lie.
"""

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from ebbtide.storage.errors import NoRoom, StorageError, TransferFailed
from ebbtide.storage.files import libc
from ebbtide.storage.posix import page_cache
from ebbtide.storage.transport.transfer_report import Mode

FIRST_PAUSE_S, LAST_PAUSE_S = 0.001, 0.1
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_REMEDY = "free some space, or raise the quota; the file is incomplete and can be removed"

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class SystemCalls:
    """What the POSIX transport asks of the operating system; each raises OSError."""

    open: Callable[[Path, int, int], int] = os.open
    close: Callable[[int], None] = os.close
    fstat: Callable[[int], os.stat_result] = os.fstat
    preadv: Callable[[int, list[memoryview], int], int] = os.preadv
    pwritev: Callable[[int, list[memoryview], int], int] = os.pwritev
    fallocate: Callable[[int, int, int], None] = libc.fallocate
    ftruncate: Callable[[int, int], None] = os.ftruncate
    fsync: Callable[[int], None] = os.fsync
    direct_io_alignment: Callable[[int], tuple[int, int] | None] = libc.direct_io_alignment
    resident_share: Callable[[int, int, int], float | None] = page_cache.resident_share


class Watch(Protocol):
    """Who watches over the threads of a transfer."""

    def doing(self, action: str, offset: int | None) -> None:
        """Called before each request; may raise to end it."""

    def pause(self, seconds: float) -> None:
        """Wait; may raise to end it."""


class Requests:
    """The requests of one transfer to one path, and what they came to. Shared by its threads.

    Attributes:
        retries: requests that had to be asked again.
        moved: bytes of finished chunks by the mode that ran.
    """

    def __init__(self, path: Path, watch: Watch) -> None:
        self.path = path
        self.retries = 0
        self.moved: Counter[Mode] = Counter()
        self._watch = watch
        self._lock = threading.Lock()

    def repeat(self) -> None:
        """Count one request that has to be asked again."""
        with self._lock:
            self.retries += 1

    def finish(self, mode: Mode, size_bytes: int) -> None:
        """Count a chunk that has been moved."""
        with self._lock:
            self.moved[mode] += size_bytes

    def begin_again(self) -> None:
        """All that was moved has to be moved once more."""
        with self._lock:
            self.moved.clear()
            self.retries += 1

    def ask(self, action: str, offset: int | None, call: Callable[[], Answer], *, io_errors_borne: int = 1) -> Answer:
        """What ``call`` answers in the end.

        Raises:
            OSError: as the operating system gave it, once asking again is no use.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            self._watch.doing(action, offset)
            try:
                return call()
            except OSError as error:
                if error.errno == errno.EAGAIN:
                    self._watch.pause(pause_s)
                    pause_s = min(2 * pause_s, LAST_PAUSE_S)
                elif error.errno == errno.EIO and io_errors_borne > 0:
                    io_errors_borne -= 1
                elif error.errno != errno.EINTR:
                    raise
                self.repeat()

    def failed(self, action: str, error: OSError, offset: int | None = None, *, hint: str = "") -> StorageError:
        """The error of this package for one of the operating system."""
        return storage_error(action, self.path, error, offset, hint=hint)


def storage_error(
    action: str, path: Path, error: OSError, offset: int | None = None, *, hint: str = ""
) -> StorageError:
    """`NoRoom` for a full filesystem or quota, else `TransferFailed`; both say action, path, offset and errno."""
    code = error.errno if error.errno is not None else errno.EIO
    if code in NO_ROOM:
        return NoRoom(str(TransferFailed(action, path, errno=code, offset=offset, hint=_REMEDY)))
    return TransferFailed(action, path, errno=code, offset=offset, hint=hint)


def error_name(error: OSError) -> str:
    """``EIO`` and the like."""
    return errno.errorcode.get(error.errno or 0, str(error.errno))
