"""The few changes made to directories and small files, each durable when it returns, and their errors made ours.

Bulk data goes through a `Transport`; this is for manifests, refs, and the renames that publish. The operating system's
calls are an argument, so that tests can fail any of them and kill a process between any two.

Not guaranteed: that a *read* sees another node's rename at once. NFS clients cache names and attributes for up to
acdirmax (60 s by default); `read_small` looks twice, and writers order their steps so that an old answer is harmless.
"""

import errno
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from ebbtide.storage.errors import NoRoom, StorageError, TransferFailed

TEMPORARY_SUFFIX = ".tmp"  # with a leading dot: no name that `names` lets through looks like this
# A server answers within this; then a rename that was seen in part (old handle gone, new name unknown) is seen whole.
LOOK_AGAIN_AFTER_S = 0.05


class Calls(Protocol):
    """What is asked of the operating system, with the meaning that module `os` gives it."""

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int: ...
    def write(self, fd: int, data: Any, /) -> int: ...
    def fsync(self, fd: int) -> None: ...
    def close(self, fd: int) -> None: ...
    def mkdir(self, path: Any, mode: int = 0o777) -> None: ...
    def rename(self, src: Any, dst: Any) -> None: ...
    def unlink(self, path: Any) -> None: ...
    def rmdir(self, path: Any) -> None: ...
    def utime(self, path: Any) -> None: ...


def storage_error(error: OSError, action: str, path: Path, *, offset: int | None = None) -> StorageError:
    """What an `OSError` means to callers of this package."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "the quota" if error.errno == errno.EDQUOT else "the filesystem"
        return NoRoom(f"cannot {action} {path}: {what} is full; collect what is not needed, or make room")
    return TransferFailed(action, path, errno=error.errno or errno.EIO, offset=offset)


@contextmanager
def telling(action: str, path: Path) -> Iterator[None]:
    """Raise what goes wrong in the block as an error of this package that names ``action`` and ``path``."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, action, path) from error


class Disk:
    """Durable changes. Every method raises `NoRoom` or `TransferFailed`, and nothing else unless it says so."""

    def __init__(self, calls: Calls = os) -> None:
        self._calls = calls

    def make_directory(self, path: Path) -> None:
        """Make a directory, with mode 0700, and what is missing above it; what is there stays as it is."""
        with telling("create", path):
            if path.is_dir():
                return
        if path.parent != path:
            self.make_directory(path.parent)
        with telling("create", path), suppress(FileExistsError):
            self._calls.mkdir(path, 0o700)
        self.sync_directory(path.parent)  # guard: a new directory is synced into the one above

    def write(self, path: Path, data: bytes) -> None:
        """Write a small file, mode 0600, that nobody else reads before all of it is there."""
        with telling("write", path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = self._calls.open(path, flags, 0o600)
            try:
                rest = memoryview(data)
                while rest:  # guard: a short write goes on
                    written = self._calls.write(fd, rest)
                    if written <= 0:
                        raise OSError(errno.EIO, "write took nothing")
                    rest = rest[written:]
                self._calls.fsync(fd)  # guard: a small file is synced before it counts
            finally:
                self._close(fd)

    def replace(self, path: Path, data: bytes) -> None:
        """Put ``data`` in a small file's place: readers find the old content or the new, whole."""
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
        try:
            self.write(temporary, data)
            with telling("rename", temporary):
                self._calls.rename(temporary, path)  # guard: a small file is replaced by a rename
        except StorageError:
            with suppress(OSError):  # the first error is the one to tell; a left temporary file is collected later
                self._calls.unlink(temporary)  # guard: a replacement that fails leaves no temporary file
            raise
        self.sync_directory(path.parent)  # guard: a replaced file's directory is synced

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        self._sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def sync_file(self, path: Path) -> None:
        """Make a file's content durable, whoever wrote it on this node."""
        self._sync(path, os.O_RDWR | os.O_NOFOLLOW)

    def _sync(self, path: Path, flags: int) -> None:
        with telling("sync", path):
            fd = self._calls.open(path, flags | os.O_CLOEXEC)
            try:
                self._calls.fsync(fd)
            finally:
                self._close(fd)

    def _close(self, fd: int) -> None:
        with suppress(InterruptedError):  # Linux has given the number back all the same, and the content was synced
            self._calls.close(fd)

    def move(self, source: Path, target: Path) -> bool:
        """Rename a directory to a name that must be free, and make that durable.

        Returns:
            False, with nothing changed, if something stands at ``target``, or ``source`` is gone.
        """
        with telling("rename", source):
            try:
                self._calls.rename(source, target)
            except OSError as error:
                # guard: a rename whose answer was lost is no failure
                if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR, errno.ENOENT):
                    return False
                raise
        self.sync_directory(target.parent)  # guard: a moved directory is synced where it came to
        if source.parent != target.parent:  # guard: a moved directory is synced where it came from
            self.sync_directory(source.parent)
        return True

    def move_over(self, source: Path, target: Path) -> None:
        """Put one synced file in another's place; readers find the one or the other."""
        with telling("rename", source):
            self._calls.rename(source, target)
        self.sync_directory(target.parent)  # guard: a file put in another's place is durable

    def touch(self, path: Path) -> bool:
        """Set a file's time of modification to now, as the filesystem's clock has it. Whether there is one."""
        with telling("touch", path):
            try:
                self._calls.utime(path)
            except FileNotFoundError:
                return False
        return True

    def remove(self, path: Path) -> bool:
        """Remove one file, durably.

        Returns:
            Whether there was one.
        """
        with telling("remove", path):
            try:
                self._calls.unlink(path)
            except FileNotFoundError:
                return False
        self.sync_directory(path.parent)  # guard: a removed file is durably gone
        return True

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with all in it, or a file, as far as it is there; links are removed, not followed."""
        with telling("remove", path):
            self._remove_tree(path)

    def _remove_tree(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            if not is_real_directory(path):  # guard: a tree is removed without following links
                self._calls.unlink(path)
                return
            for name in os.listdir(path):
                self._remove_tree(path / name)
            self._calls.rmdir(path)


def is_real_directory(path: Path) -> bool:
    """Whether there is a directory, and not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def read_small(
    path: Path,
    limit_bytes: int,
    *,
    open_file: Callable[[Path, int], int] = os.open,
    sleep: Callable[[float], None] = time.sleep,
) -> bytes:
    """Read a small file whole; looks a second time, by path, where NFS may still show what was before a rename.

    Raises:
        FileNotFoundError: it is not there, the second time too.
        ValueError: it is longer than ``limit_bytes``.
        TransferFailed: anything else.
    """
    for is_last in (False, True):
        try:
            return _read_whole(path, limit_bytes, open_file)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise storage_error(error, "read", path) from error
            if is_last:  # guard: a small file is looked for twice
                if error.errno == errno.ENOENT:
                    raise
                raise storage_error(error, "read", path) from error
            with suppress(OSError), os.scandir(path.parent) as entries:  # makes a client look at the directory anew
                next(entries, None)
            sleep(LOOK_AGAIN_AFTER_S)
    raise AssertionError("the second look returned or raised")


def _read_whole(path: Path, limit_bytes: int, open_file: Callable[[Path, int], int]) -> bytes:
    fd = open_file(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)  # no pipe is waited for
    parts: list[bytes] = []
    try:
        while part := os.read(fd, 1 << 20):
            parts.append(part)
            if sum(map(len, parts)) > limit_bytes:  # guard: a small file of any length is not read
                raise ValueError(f"{path} is longer than {limit_bytes} bytes")
    finally:
        with suppress(OSError):  # what was read was read
            os.close(fd)
    return b"".join(parts)
