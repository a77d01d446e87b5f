"""A filesystem in memory that lies as it is told: the system calls of the POSIX transport, for tests in one process.

Stricter than the real one where that finds bugs: a misaligned direct request is an assertion, not an EINVAL; a direct
read scribbles over the rest of its last block, as real ones may; every call after `over` is a violation; what was not
synced can be lost.
"""

import errno
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.storage.memory.arena import address_of
from ebbtide.storage.posix.posix_calls import SystemCalls

BLOCK = 4096
SCRIBBLE = 0xEE
WAIT_S = 60.0

# Decides about one call, given its name, the descriptor's file offset (or None) and whether it is direct: an errno to
# fail with, a number of bytes to move at most, or None for the truth.
Lie = Callable[[str, int | None, bool], "Errno | Most | None"]


@dataclass(frozen=True)
class Errno:
    """The call fails."""

    code: int


@dataclass(frozen=True)
class Most:
    """The call moves no more than so many bytes."""

    size_bytes: int


def truth(name: str, offset: int | None, direct: bool) -> None:
    """No lies."""


@dataclass
class LyingSystem:
    """One file, ``content``, that may be opened under any path.

    Attributes:
        content: what a read would see.
        durable: what a crash would leave.
        exists: whether it can be opened without O_CREAT.
        resident: the share of it in the page cache.
        inode: changes when another file takes its place.
        counts: calls by name.
        violations: what no transport may do.
    """

    content: bytearray
    lie: Lie = truth
    resident: float | None = 0.0
    alignment: tuple[int, int] | None = (512, 512)
    exists: bool = True
    inode: int = 1
    over: bool = False
    durable: bytearray = field(default_factory=bytearray)
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    flags: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._next_fd = 1_000_000  # numbers that are never used again, and are no real ones
        self.durable = bytearray(self.content)

    def calls(self) -> SystemCalls:
        """What the transport is given."""
        return SystemCalls(
            open=self.open,
            close=self.close,
            fstat=self.fstat,
            preadv=self.preadv,
            pwritev=self.pwritev,
            fallocate=self.fallocate,
            ftruncate=self.ftruncate,
            fsync=self.fsync,
            direct_io_alignment=lambda fd: self.alignment,
            resident_share=lambda fd, offset, size: self.resident,
        )

    def open(self, path: Path, flags: int, mode: int) -> int:
        """A new descriptor."""
        self._enter("open", None, bool(flags & os.O_DIRECT))
        with self._lock:
            if not self.exists and not flags & os.O_CREAT:
                raise OSError(errno.ENOENT, "")
            self.exists = True
            self._next_fd += 1
            self.flags[self._next_fd] = flags
            return self._next_fd

    def close(self, fd: int) -> None:
        """It is gone, whatever this says."""
        with self._lock:
            self._check(fd)
            self.flags.pop(fd, None)
        self._enter("close", None, False)

    def fstat(self, fd: int) -> os.stat_result:
        """Of an ordinary file."""
        self._check(fd)
        self._enter("fstat", None, False)
        return os.stat_result((stat.S_IFREG | 0o600, self.inode, 7, 1, 0, 0, len(self.content), 0, 0, 0))

    def preadv(self, fd: int, buffers: list[memoryview], offset: int) -> int:
        """Read into one buffer."""
        (memory,) = buffers
        most = self._before_moving("read", fd, memory, offset)
        found = self.content[offset : offset + min(len(memory), most)]
        memory[: len(found)] = found
        if self._direct(fd):  # the device writes whole blocks
            end = min(-(-len(found) // BLOCK) * BLOCK, len(memory))
            memory[len(found) : end] = bytes([SCRIBBLE]) * (end - len(found))
        return len(found)

    def pwritev(self, fd: int, buffers: list[memoryview], offset: int) -> int:
        """Write one buffer."""
        (memory,) = buffers
        most = self._before_moving("write", fd, memory, offset)
        part = memory[:most]
        with self._lock:
            if offset + len(part) > len(self.content):
                self.violations.append(f"write beyond the allocated size at {offset}")
            self.content[offset : offset + len(part)] = part
        return len(part)

    def fallocate(self, fd: int, offset: int, size: int) -> None:
        """Extends the file."""
        self._check(fd)
        self._enter("allocate", None, False)
        with self._lock:
            self.content.extend(bytes(max(offset + size - len(self.content), 0)))

    def ftruncate(self, fd: int, size: int) -> None:
        """Sets its size."""
        self._check(fd)
        self._enter("truncate", None, False)
        with self._lock:
            del self.content[size:]
            self.content.extend(bytes(size - len(self.content)))

    def fsync(self, fd: int) -> None:
        """All or nothing becomes durable; what does not is lost."""
        self._check(fd)
        try:
            self._enter("sync", None, False)
        except OSError as error:
            if error.errno == errno.EINTR:  # nothing was written back, and nothing lost
                raise
            with self._lock:
                kept = self.durable[: len(self.content)]
                self.content[:] = kept + bytes(len(self.content) - len(kept))
            raise
        with self._lock:
            self.durable = bytearray(self.content)

    def _before_moving(self, name: str, fd: int, memory: memoryview, offset: int) -> int:
        self._check(fd)
        direct = self._direct(fd)
        if direct and (offset % BLOCK or len(memory) % BLOCK or address_of(memory) % BLOCK):
            self.violations.append(f"misaligned direct {name} of {len(memory)} bytes at {offset}")
        return self._enter(name, offset, direct)

    def _enter(self, name: str, offset: int | None, direct: bool) -> int:
        with self._lock:
            self.counts[name] += 1
            if self.over:
                self.violations.append(f"{name} after the transfer's end")
        told = self.lie(name, offset, direct)
        if isinstance(told, Errno):
            raise OSError(told.code, os.strerror(told.code))
        return told.size_bytes if told is not None else 1 << 62

    def _direct(self, fd: int) -> bool:
        return bool(self.flags.get(fd, 0) & os.O_DIRECT)

    def _check(self, fd: int) -> None:
        if fd not in self.flags:
            self.violations.append(f"a call on descriptor {fd}, which is closed")
            raise OSError(errno.EBADF, "")


class Hang:
    """Calls of one name at one offset wait for an event."""

    def __init__(self, name: str, offset: int | None = None) -> None:
        self.name, self.offset = name, offset
        self.answer, self.begun = threading.Event(), threading.Event()

    def __call__(self, name: str, offset: int | None, direct: bool) -> Errno | Most | None:
        if name == self.name and (self.offset is None or offset == self.offset):
            self.begun.set()
            self.answer.wait(WAIT_S)
        return None


def until(true: Callable[[], bool]) -> None:
    """Wait for it."""
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)
