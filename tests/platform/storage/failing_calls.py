"""The operating system's calls with one that fails, or at which the process dies."""

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ebbtide.storage.files.durable_files import Calls


class CountedCalls:
    """Does what module `os` does, and ``before`` each call first that changes something; counts these."""

    def __init__(self, before: Callable[[int, str], None] = lambda number, name: None) -> None:
        self._before = before
        self.count = 0
        self.names: list[str] = []
        self.events: list[tuple[str, Path, Path | None]] = []  # what happened, to what, and where it went
        self._open: dict[int, Path] = {}

    def note(self, what: str, path: Any, target: Any = None) -> None:
        """Remember what is about to happen."""
        self.events.append((what, Path(path), None if target is None else Path(target)))

    def at(self, name: str) -> None:
        self.names.append(name)
        self.count += 1
        self._before(self.count, name)

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            self.at("create")
            self.note("create", path)
        fd = os.open(path, flags, mode)
        self._open[fd] = Path(path)
        return fd

    def write(self, fd: int, data: Any, /) -> int:
        self.at("write")
        self.note("write", self._open[fd])
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        self.at("fsync")
        os.fsync(fd)
        self.note("fsync", self._open[fd])

    def close(self, fd: int) -> None:
        os.close(fd)

    def mkdir(self, path: Any, mode: int = 0o777) -> None:
        self.at("mkdir")
        self.note("create", path)
        os.mkdir(path, mode)

    def rename(self, src: Any, dst: Any) -> None:
        self.at("rename")
        self.note("rename", src, dst)
        os.rename(src, dst)

    def unlink(self, path: Any) -> None:
        self.at("unlink")
        self.note("remove", path)
        os.unlink(path)

    def rmdir(self, path: Any) -> None:
        self.at("rmdir")
        os.rmdir(path)

    def utime(self, path: Any) -> None:
        self.at("utime")
        os.utime(path)


def conforms(calls: CountedCalls) -> Calls:
    """For the type checker."""
    return calls


def failing_at(number: int, code: int, *, for_ever: bool = False) -> CountedCalls:
    """The ``number``-th call fails with an errno; all after it too, if that is for ever (but what removes)."""

    def fail(at: int, name: str) -> None:
        full = code in (errno.ENOSPC, errno.EDQUOT)
        if at == number or (for_ever and at > number and not (full and name in ("unlink", "rmdir"))):
            raise OSError(code, os.strerror(code))

    return CountedCalls(fail)


def dying_at(number: int) -> CountedCalls:
    """The process kills itself before the ``number``-th call."""

    def die(at: int, _name: str) -> None:
        if at == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return CountedCalls(die)
