"""A device that is late, files that cuFile reads badly, and files with their hashes: for tests without a GPU."""

import contextlib
import ctypes
import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ebbtide.storage.device.placements import Placement
from ebbtide.storage.integrity.chunk_index import Hashing, IndexBuilder
from ebbtide.storage.integrity.chunk_verification import IndexedFile
from ebbtide.storage.transport.transport import Pending, Range

CHUNK = 64 << 10
LONG_S = 60.0
CPU = torch.device("cpu")


def indexed(path: Path, content: bytes, *, chunk_bytes: int = CHUNK, with_device: bool = True) -> IndexedFile:
    """Write a file, and hash it."""
    path.write_bytes(content)
    builder = IndexBuilder(path.name, len(content), Hashing(bytes(16), chunk_bytes, with_device=with_device))
    builder.add(0, memoryview(content))
    return IndexedFile(path, path.name, builder.build())


def flip(path: Path, offset: int) -> None:
    """Turn one bit of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def whole(size: int) -> tuple[list[Placement], torch.Tensor]:
    """One placement for a whole file, filled with a byte that says that nothing came."""
    memory = torch.full((size,), 0xEE, dtype=torch.uint8)
    return [Placement(0, memory)], memory


def content_of(memory: torch.Tensor) -> bytes:
    return bytes(memory.numpy())


class LateQueue:
    """A device that copies as late as it may: when somebody waits for it. Until then the source must not change.

    ``refuse`` lets copies, and ``refuse_wait`` waits, fail as torch does.
    """

    def __init__(self, *, refuse: int = -1, refuse_wait: int = -1) -> None:
        self.device = CPU
        self.entered: set[int] = set()
        self.began = 0
        self.copied = 0
        self.before_wait: Callable[[], object] = lambda: None
        self._refuse, self._refuse_wait = refuse, refuse_wait
        self._local = threading.local()
        self._lock = threading.Lock()

    def begin(self) -> None:
        self.began += 1

    def enter(self) -> None:
        self.entered.add(threading.get_ident())

    def scope(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        assert self.began, "the caller's work must be waited for first"
        with self._lock:
            self.copied += 1
            if self.copied - 1 == self._refuse:
                raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with")
        queued = getattr(self._local, "queued", [])
        # No reference to the source: a real device has its address only.
        queued.append((target, source.data_ptr(), source.numel()))
        self._local.queued = queued

    def mark(self) -> Pending | None:
        queued, self._local.queued = getattr(self._local, "queued", []), []
        return _Late(self, queued)

    def do(self, queued: list[tuple[torch.Tensor, int, int]]) -> None:
        self.before_wait()
        with self._lock:
            self._refuse_wait -= 1
            if self._refuse_wait == -1:
                raise RuntimeError("CUDA error: unspecified launch failure")
        for target, address, size in queued:
            ctypes.memmove(target.data_ptr(), address, size)


class _Late:
    def __init__(self, queue: LateQueue, queued: list[tuple[torch.Tensor, int, int]]) -> None:
        self._queue, self._queued = queue, queued

    def wait(self) -> None:
        self._queue.do(self._queued)


# What a fault makes of a request: called with its number (from 0), offset and size, and how to read the real bytes.
Fault = Callable[[int, int, int], int | None]


class BadFiles:
    """Files as cuFile reads them, with its faults: short counts, errors, hangs, wrong bytes.

    ``fault`` returns how many bytes come, or None for all; it may raise, or wait.
    """

    def __init__(self, fault: Fault = lambda number, offset, size: None, *, spoil: set[int] | None = None) -> None:
        self.fault = fault
        self.spoil = spoil if spoil is not None else set()  # bytes of the file that come wrong
        self.may_fall_back: bool | None = False
        self.requests: list[tuple[int, int]] = []
        self.on_open: Callable[[], None] = lambda: None
        self.readers: set[int] = set()  # threads
        self.open_files = 0
        self.inside = 0
        self.registered: list[int] = []
        self.refuse_register = self.refuse_deregister = False
        self.open_error: OSError | None = None
        self._lock = threading.Lock()

    def open(self, path: Path) -> "BadFile":
        if self.open_error is not None:
            raise self.open_error
        fd = os.open(path, os.O_RDONLY)
        self.on_open()
        self.open_files += 1
        return BadFile(self, fd)

    def register(self, memory: torch.Tensor) -> bool:
        if self.refuse_register:
            return False
        self.registered.append(memory.data_ptr())
        return True

    def deregister(self, memory: torch.Tensor) -> bool:
        assert self.inside == 0, "deregistered while requests are under way"
        self.registered.remove(memory.data_ptr())
        return not self.refuse_deregister


class BadFile:
    def __init__(self, files: BadFiles, fd: int) -> None:
        self._files, self._fd, self._closed = files, fd, False

    def read(self, memory: torch.Tensor, memory_offset: int, file_offset: int, size_bytes: int) -> int:
        assert not self._closed, "read after close"
        assert memory_offset >= 0 and memory_offset + size_bytes <= memory.numel(), "beyond the memory"
        files = self._files
        with files._lock:
            number = len(files.requests)
            files.requests.append((file_offset, size_bytes))
            files.readers.add(threading.get_ident())
            files.inside += 1
        try:
            told = files.fault(number, file_offset, size_bytes)
            data = bytearray(os.pread(self._fd, size_bytes, file_offset))[: None if told is None else max(told, 0)]
            for at in files.spoil:
                if file_offset <= at < file_offset + len(data):
                    data[at - file_offset] ^= 0x10
            if data:
                memory[memory_offset : memory_offset + len(data)] = torch.frombuffer(data, dtype=torch.uint8)
            return len(data) if told is None or 0 <= told <= size_bytes else told
        finally:
            with files._lock:
                files.inside -= 1

    def close(self) -> None:
        assert not self._closed, "closed twice"
        assert self._files.inside == 0, (
            "closed while requests are under way: their descriptor may become another file's"
        )
        self._closed = True
        self._files.open_files -= 1
        os.close(self._fd)


def once(error: OSError, number: int = 0) -> Fault:
    """The request of this number fails."""

    def fault(at: int, offset: int, size: int) -> int | None:
        if at == number:
            raise error
        return None

    return fault


def always(code: int) -> Fault:
    """All requests fail."""

    def fault(number: int, offset: int, size: int) -> int | None:
        raise OSError(code, os.strerror(code))

    return fault


INTERRUPTED = OSError(errno.EINTR, "cuFile error at: file_handle.cpp:1: Interrupted system call")


def parts_of(requests: list[tuple[int, int]]) -> list[Range]:
    return sorted((Range(offset, size) for offset, size in requests), key=lambda part: part.offset)


def until_true(condition: Callable[[], bool]) -> bool:
    """Wait for it, but not for ever."""
    until = time.monotonic() + LONG_S
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()
