"""What can go wrong with bytes, split by what the catcher does.

::

    StorageError
    ├── TransferFailed    the filesystem failed at one place: with errno, path and offset; another node may fare better
    │   ├── TransferTimeout   nothing came back before the deadline; the buffers concerned are never used again
    │   └── FileTruncated     the file ends before the range does
    ├── Corrupt           the bytes are not those that were published: never use them; repair, or fall back
    ├── NotPublished      no such object or ref, or one that nobody committed
    ├── NoRoom            the filesystem, the quota or the store's budget is full; nothing was left behind
    ├── Refused           the caller's or the user's input cannot be used: a bad name, a pickle, a newer format
    ├── WaitTimeout       a wait for others did not end before its deadline; nothing is known to be wrong
    └── Superseded        another holder took over (a lease, a flight, an epoch): leave everything as it is
"""

import errno as codes
import os
from pathlib import Path
from typing import Any


class StorageError(Exception):
    """Base of this package's errors. Its text names the object or file, the offset if there is one, and the cause."""

    def __reduce__(self) -> tuple[Any, ...]:
        """So that it survives the way to another process, whatever its own constructor wants."""
        return _again, (type(self), self.args, self.__dict__)


class TransferFailed(StorageError):
    """The operating system refused a transfer.

    Attributes:
        errno: as the operating system gave it.
        path: the file.
        offset: the byte in the file at which the transfer stood, or None where there is none (open, fsync, close).
        action: what was tried: ``open``, ``read``, ``write``, ``allocate``, ``sync``, ``close``, ``rename``;
            ``copy`` where a device refused the bytes, ``check`` where it hung over their hash.
    """

    def __init__(self, action: str, path: Path | str, *, errno: int, offset: int | None = None, hint: str = "") -> None:
        self.action, self.path, self.errno, self.offset = action, Path(path), errno, offset
        where = "" if offset is None else f" at byte {offset}"
        name = codes.errorcode.get(errno, str(errno))
        super().__init__(f"cannot {action} {path}{where}: {os.strerror(errno)} ({name}){'; ' if hint else ''}{hint}")


class TransferTimeout(TransferFailed):
    """A transfer did not end before its deadline."""

    def __init__(self, action: str, path: Path | str, *, after_s: float, offset: int | None = None) -> None:
        hint = f"no answer within {after_s:g} s: the filesystem hangs or is very slow"
        super().__init__(action, path, errno=codes.ETIMEDOUT, offset=offset, hint=hint)
        self.after_s = after_s


class FileTruncated(TransferFailed):
    """A file is shorter than what it should hold."""

    def __init__(self, path: Path | str, *, offset: int, expected_bytes: int) -> None:
        hint = f"the file ends here; {expected_bytes} bytes were expected"
        super().__init__("read", path, errno=codes.ENODATA, offset=offset, hint=hint)
        self.expected_bytes = expected_bytes


class NoRoom(StorageError):
    """Not enough space; whatever was begun has been removed."""


class Corrupt(StorageError):
    """Bytes differ from what was published, or an index or header does not make sense."""

    def __init__(self, what: str, path: Path | str, *, offset: int | None = None) -> None:
        self.path, self.offset = Path(path), offset
        where = "" if offset is None else f" at byte {offset}"
        super().__init__(f"{path}{where}: {what}")


class NotPublished(StorageError):
    """There is no such ref or object, or it was never committed."""


class Refused(StorageError, ValueError):
    """The input cannot be used; nothing was changed."""


class WaitTimeout(StorageError):
    """Others kept this process waiting until its deadline.

    Attributes:
        why: what it waited for last.
        after_s: how long.
    """

    def __init__(self, what: str, *, why: str, after_s: float) -> None:
        self.why, self.after_s = why, after_s
        super().__init__(f"gave up {what} after {after_s:.3g} s: {why}")


class Superseded(StorageError):
    """Somebody else has taken over what this process believed to hold."""


def _again(kind: type[StorageError], args: tuple[Any, ...], fields: dict[str, Any]) -> StorageError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error
