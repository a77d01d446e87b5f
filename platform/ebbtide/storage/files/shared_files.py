"""Small files in a shared directory: performs ``file_operations``, each within a deadline if it shall be.

No locks: flock and fcntl locks on NFS and Lustre depend on how the client was mounted, and a paused holder keeps them.
What is relied upon is only what a file server does in one step of its own: a name is created exclusively once, and a
file that is opened after another node closed it shows what that node wrote (close-to-open consistency, nfs(5)).

Not guaranteed: that a listing or the absence of a name is fresh (clients cache directories and negative lookups, up to
60 s by default on NFS, ``acdirmax``); object stores mounted as filesystems, which lack exclusive creation.
"""

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, TypeVar

from ebbtide.storage.errors import TransferFailed, TransferTimeout
from ebbtide.storage.files.durable_files import storage_error
from ebbtide.storage.files.file_operations import (
    RECORD_BYTES,
    CreateFile,
    ListNames,
    MakeDirectory,
    Operation,
    Overwrite,
    ReadFile,
    RemoveFile,
)

T = TypeVar("T")


def perform(operation: Operation) -> Any:
    """Do it for real; may block for as long as the filesystem likes, see `Bounded`.

    Raises:
        NoRoom: the filesystem or the quota is full.
        TransferFailed: anything else, with errno and path.
    """
    action, deed = _DEEDS[type(operation)]
    try:
        try:
            return deed(operation)
        except OSError as error:  # guard: a handle that went stale is opened again
            if error.errno != errno.ESTALE:
                raise
            return deed(operation)  # the name was looked up in a cache: another file lies there now
    except OSError as error:
        raise storage_error(error, action, operation.path) from error


def _make_directory(operation: MakeDirectory) -> None:
    os.makedirs(operation.path, mode=0o700, exist_ok=True)


def _list(operation: ListNames) -> frozenset[str]:
    return frozenset(os.listdir(operation.path))


def _read(operation: ReadFile) -> bytes | None:
    try:
        fd = os.open(operation.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        return os.pread(fd, RECORD_BYTES, 0)
    finally:
        os.close(fd)


def _create(operation: CreateFile) -> bool:
    try:
        fd = os.open(operation.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return False  # guard: a file that is there already was not created by who asks for it
    try:
        _write_and_close(fd, operation.data)
    except OSError:
        with contextlib.suppress(OSError):
            # guard: a file that could not be made leaves nothing
            os.unlink(operation.path)  # ours: created a moment ago
        raise
    return True


def _overwrite(operation: Overwrite) -> bool:
    try:
        fd = os.open(operation.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        mine = operation.expected in os.pread(fd, RECORD_BYTES, 0)
    except OSError:
        os.close(fd)
        raise
    if not mine:  # guard: a file is written over only by who wrote it
        os.close(fd)
        return False
    _write_and_close(fd, operation.data)
    return True


def _remove(operation: RemoveFile) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(operation.path)


def _write_and_close(fd: int, data: bytes) -> None:
    """The close counts: an NFS client sends the bytes then, and tells then that it could not."""
    try:
        if os.pwrite(fd, data, 0) != len(data):
            raise OSError(errno.EIO, "short write")
    except OSError:
        os.close(fd)
        raise
    os.close(fd)


_DEEDS: dict[type[Operation], tuple[str, Callable[[Any], Any]]] = {
    MakeDirectory: ("make", _make_directory),
    ListNames: ("list", _list),
    ReadFile: ("read", _read),
    CreateFile: ("create", _create),
    Overwrite: ("write", _overwrite),
    RemoveFile: ("remove", _remove),
}


class Bounded:
    """Makes calls that may hang, each in a daemon thread, and one at a time: an outage costs one thread, not many."""

    def __init__(self) -> None:
        self._under_way: Future[Any] | None = None

    def __call__(self, action: str, path: Path | str, deadline_s: float, call: Callable[[], T]) -> T:
        """``call()``; not to be used by several threads at once.

        Raises:
            TransferTimeout: neither it nor the call before it came back within ``deadline_s`` seconds.
            TransferFailed: no thread can be had for it.
        """
        until_s = time.monotonic() + deadline_s
        if self._under_way is not None and not wait([self._under_way], deadline_s).done:
            raise TransferTimeout(action, path, after_s=deadline_s)
        answer: Future[T] = Future()
        thread = threading.Thread(target=_answer, args=(call, answer), name=f"{action} {path}"[:60], daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # "can't start new thread": the process or the machine has too many
            raise TransferFailed(action, path, errno=errno.EAGAIN, hint=str(error)) from error
        self._under_way = answer
        if not wait([answer], max(0.0, until_s - time.monotonic())).done:
            raise TransferTimeout(action, path, after_s=deadline_s)
        return answer.result()


def _answer(call: Callable[[], T], answer: "Future[T]") -> None:
    try:
        answer.set_result(call())
    except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
        answer.set_exception(error)
