"""The columns of the transport's fault matrix, run in a process of their own by ``test_fault_matrix.py``."""

import os
from pathlib import Path
from random import Random

from ebbtide.storage.memory.arena import Arena
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide.storage.transport.transport import Range
from tests.platform.storage.shim.faults import Cell, serve

CHUNK = 1 << 20
SIZE = 2 * CHUNK + 5000  # an odd tail after two chunks that are large enough to be read in place
BYTES = Random(1).randbytes(SIZE)

transport = PosixTransport(BufferPool(4, CHUNK), threads=2)
arena = Arena(SIZE)


def prepared(cell: Cell, *, resident: bool) -> Path:
    """A whole file, in the page cache or not."""
    path, whole = cell.folder / f"{cell.victim}read", cell.folder / "whole"
    if not whole.exists() or whole.stat().st_size != SIZE:
        whole.write_bytes(BYTES)
    os.link(whole, path)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    if resident:
        path.read_bytes()
    else:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    return path


def tell(cell: Cell, report: TransferReport) -> None:
    """What the report says."""
    assert report.bytes == SIZE, "count in the report"
    modes = {mode.value: count for mode, count in report.bytes_by_mode.items()}
    cell.detail |= {"modes": modes, "retries": report.retries, "why_not_better": report.why_not_better}


def read(cell: Cell, *, resident: bool) -> None:
    """Into the transport's buffers."""
    path, found, offsets = prepared(cell, resident=resident), bytearray(SIZE), []

    def consume(offset: int, memory: memoryview) -> None:
        offsets.append(offset)
        found[offset : offset + len(memory)] = memory

    with cell.lies():
        report = transport.read(path, [Range(0, SIZE)], consume, deadline_s=cell.deadline_s)
    assert found == BYTES, "bytes"
    assert sorted(offsets) == list(range(0, SIZE, CHUNK)), "chunks"
    tell(cell, report)


def cold(cell: Cell) -> None:
    """Past the page cache."""
    read(cell, resident=False)


def cached(cell: Cell) -> None:
    """Through the page cache, which has it all."""
    read(cell, resident=True)


def in_place(cell: Cell) -> None:
    """Straight into the caller's memory."""
    path = prepared(cell, resident=False)
    memory = arena.view[:SIZE]
    memory[:] = bytes(SIZE)
    with cell.lies():
        report = transport.read(path, [Range(0, SIZE)], lambda *_: None, into=memory, deadline_s=cell.deadline_s)
    assert memory == BYTES, "bytes"
    tell(cell, report)


def write(cell: Cell) -> None:
    """A new file, durably."""
    path, filled = cell.folder / f"{cell.victim}written", 0

    def fill(offset: int, memory: memoryview) -> None:
        nonlocal filled
        filled += 1
        memory[:] = BYTES[offset : offset + len(memory)]

    try:
        with cell.lies():
            report = transport.write(path, SIZE, fill, deadline_s=cell.deadline_s)
        assert path.read_bytes() == BYTES, "bytes"
    finally:
        path.unlink(missing_ok=True)
    tell(cell, report)
    cell.detail["filled"] = filled


if __name__ == "__main__":
    serve({"read cold": cold, "read cached": cached, "read in place": in_place, "write": write})
