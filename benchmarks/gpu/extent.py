"""Whether cuFile moves what the driver maps for custom storage: a process's GPU memory to a file and back, compared.

``python -m benchmarks.gpu.extent PID FOLDER`` locks the process and has its memory mapped, one extent for each GPU.
Each is registered with cuFile, written to a file, overwritten with zeros, and read back; what is in the file and what
came back must be the very bytes that were there before. The process is lost by it.

Nobody was found who passes such memory to cuFile (NVIDIA's own users copy through host memory), so nothing is assumed.
"""

import ctypes
import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.gpu import freeze

COMPAT = "CUFILE_ALLOW_COMPAT_MODE"  # of cuFile: "false" forbids copies through the CPU, which it makes in silence
_LOOK_BYTES = 16 << 20  # are compared at a time


class WrongBytes(Exception):
    """The worst: cuFile said that all went well, and other bytes are there."""


def ask(pid: int, folder: Path, *, direct: bool) -> str:
    """What comes of it, in words.

    Args:
        pid: of a process that holds GPU memory, and may be lost.
        folder: on the filesystem that is tried.
        direct: cuFile may not copy through the CPU instead.
    """
    command = [sys.executable, "-m", "benchmarks.gpu.extent", str(pid), str(folder)]
    return freeze.answer(command, {**os.environ, COMPAT: "false" if direct else "true"})


def round_trips(cufile: Any, operation: Any, folder: Path) -> str:
    """All extents of an operation, in words.

    Args:
        cufile: ``cuda.bindings.cufile``, opened.
        operation: see `ebbtide.snapshot.driver.port.Operation`.
        folder: for the file, which is removed again.

    Raises:
        WrongBytes: see there.
        Exception: whatever cuFile refuses with.
    """
    said = []
    for extent in operation.extents:
        cufile.buf_register(extent.pointer, extent.size_bytes, 0)
        try:
            _round_trip(cufile, operation, extent, folder)
        finally:
            cufile.buf_deregister(extent.pointer)
        said.append(f"{extent.size_bytes} bytes were registered, written, read back and were the same")
    return "; ".join(said) or "the driver maps nothing"


def _round_trip(cufile: Any, operation: Any, extent: Any, folder: Path) -> None:
    size = extent.size_bytes
    with mmap.mmap(-1, size) as before, mmap.mmap(-1, size) as after, _file(folder) as (path, fd):
        operation.copy_out(extent, _address(before))
        with _registered(cufile, fd) as handle:
            _whole(size, "wrote", lambda at: cufile.write(handle, extent.pointer, size - at, at, at))
            os.fsync(fd)
            with path.open("rb") as written:
                _must_equal(before, written.read, "in the file")
            operation.copy_in(extent, _address(after))  # zeros: what is there next came from the file
            _whole(size, "read", lambda at: cufile.read(handle, extent.pointer, size - at, at, at))
        operation.copy_out(extent, _address(after))
        _must_equal(before, after.read, "on the GPU")


def _whole(size_bytes: int, did: str, move: Callable[[int], int]) -> None:
    """Until all is moved: one call may move less."""
    at = 0
    while at < size_bytes:
        moved = int(move(at))
        if moved <= 0:
            raise OSError(f"cuFile {did} {at} of {size_bytes} bytes and then gave {moved}")
        at += moved


def _must_equal(before: mmap.mmap, next_of: Callable[[int], bytes], where: str) -> None:
    for at in range(0, len(before), _LOOK_BYTES):
        wanted = before[at : at + _LOOK_BYTES]
        if next_of(len(wanted)) != wanted:
            raise WrongBytes(f"other bytes are {where} than were written, within {_LOOK_BYTES} bytes from {at} on")


@contextmanager
def _file(folder: Path) -> Iterator[tuple[Path, int]]:
    """A new file, past the page cache where its filesystem can: cuFile moves nothing directly without."""
    fd, name = tempfile.mkstemp(dir=folder, prefix=".ebbtide-extent-")
    try:
        with suppress(OSError):
            direct = os.open(name, os.O_RDWR | os.O_DIRECT)
            os.close(fd)
            fd = direct
        yield Path(name), fd
    finally:
        os.close(fd)
        os.unlink(name)


@contextmanager
def _registered(cufile: Any, fd: int) -> Iterator[int]:
    descriptor = cufile.Descr()
    descriptor.type = cufile.FileHandleType.OPAQUE_FD
    descriptor.handle.fd = fd
    descriptor.fs_ops = 0
    handle = cufile.handle_register(descriptor.ptr)
    try:
        yield handle
    finally:
        cufile.handle_deregister(handle)


def _address(memory: mmap.mmap) -> int:
    """Of its first byte; nothing is kept that would forbid closing it."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _use_gpus_of(operation: Any) -> None:
    """Make the context current on the GPU of the extents; several are told apart by nobody here."""
    torch: Any = import_module("torch")
    uuids = {extent.gpu for extent in operation.extents}
    for index in range(torch.cuda.device_count()):
        if f"GPU-{torch.cuda.get_device_properties(index).uuid}" in uuids:
            torch.cuda.set_device(index)
            torch.zeros(1, device="cuda")


def main() -> None:
    """``PID FOLDER``: see the module."""
    try:
        pid, folder = int(sys.argv[1]), Path(sys.argv[2])
        freezer = freeze.find()
        freezer.driver.lock(pid, freeze.LOCK_MS)
        operation = freezer.driver.open_checkpoint(pid)
        _use_gpus_of(operation)
        cufile: Any = import_module("cuda.bindings.cufile")
        cufile.driver_open()
        print(round_trips(cufile, operation, folder))
    except Exception as error:  # outermost: for people
        raise SystemExit(f"{type(error).__name__}: {error}") from error


if __name__ == "__main__":
    main()
