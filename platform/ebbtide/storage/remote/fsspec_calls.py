"""Asking a filesystem of fsspec, again if it failed, and making its errors ours.

Each backend raises errors of its own, of no common kind. What looks final (not found, not allowed) is raised at once;
anything else may be a connection that was cut, and is asked again after a pause.
"""

import errno
from collections.abc import Callable
from typing import TypeVar

from ebbtide.storage.errors import StorageError, TransferFailed

T = TypeVar("T")

PAUSES_S = (1.0, 4.0)  # before asking again: a connection that was cut, a server that was busy
_FINAL = (PermissionError, NotADirectoryError, IsADirectoryError)
_BUSY = (408, 425, 429)  # of the HTTP errors in the 400s those that pass


class FileMissing(TransferFailed):
    """There is no such file (any more)."""

    def __init__(self, where: str) -> None:
        super().__init__("read", where, errno=errno.ENOENT)


class BackendFailed(TransferFailed):
    """The backend raised something; ``status`` is that of HTTP, if it says one."""

    def __init__(self, action: str, where: str, error: BaseException) -> None:
        said = " ".join(str(error).split()) or type(error).__name__  # some say it in several lines
        code = getattr(error, "errno", None)
        code = code if isinstance(code, int) and code > 0 else errno.EIO
        super().__init__(action, where, errno=code, hint=f"{type(error).__name__}: {said}"[:300])
        self.status = _status(error)


def ask(
    action: str, where: str, question: Callable[[], T], sleep: Callable[[float], None], *, pauses_s: tuple[float, ...]
) -> T:
    """``question()``, some times if need be.

    Args:
        action: what is tried, for messages.
        where: the file or URL, for messages.
        question: asks the backend.
        sleep: waits.
        pauses_s: before each further try.

    Raises:
        FileMissing: the backend says that there is no such file.
        BackendFailed: anything else that it raised, the last time.
        StorageError: what ``question`` raised of our own.
    """
    for pause_s in (*pauses_s, None):
        try:
            return question()
        except StorageError:
            raise
        # Outermost of what a backend does: nothing of ours has changed, and callers get one kind of error.
        except Exception as error:
            if isinstance(error, FileNotFoundError) and _status(error) in (0, 404, 410):
                raise FileMissing(where) from error
            if pause_s is None or isinstance(error, _FINAL) or _is_final(_status(error)):
                raise BackendFailed(action, where, error.__cause__ or error) from error
            sleep(pause_s)
    raise AssertionError("the last try returned or raised")


def _is_final(status: int) -> bool:
    return 400 <= status < 500 and status not in _BUSY


def _status(error: BaseException) -> int:
    """Of HTTP; of the error that this one was made of, too: fsspec calls every failed look a missing file."""
    for one in (error, error.__cause__):
        status = getattr(one, "status", None)
        if isinstance(status, int):
            return status
    # A missing file that was made of an error without a status: a connection that failed.
    return -1 if error.__cause__ is not None else 0
