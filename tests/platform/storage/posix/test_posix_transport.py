"""The POSIX transport: what its callers rely on, with real files and with an operating system that lies."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from ebbtide.storage.errors import Refused, StorageError, TransferFailed, TransferTimeout
from ebbtide.storage.memory.arena import Arena
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transfer_report import Mode
from ebbtide.storage.transport.transport import Range, Transport
from tests.platform.storage.posix.made_up_file import ALL, BYTES, CHUNK, LONG_S, PATH, ignore
from tests.platform.storage.shim.lying_system import LyingSystem


def test_it_is_a_transport(transport: PosixTransport) -> None:
    port: Transport = transport
    assert port is transport


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, CHUNK, 5 * CHUNK + 123])
def test_what_was_written_is_read_again(tmp_path: Path, pool: BufferPool, size: int) -> None:
    transport, path, model = PosixTransport(pool), tmp_path / "file", Random(size).randbytes(size)

    def fill(offset: int, memory: memoryview) -> None:
        memory[:] = model[offset : offset + len(memory)]

    written = transport.write(path, size, fill, deadline_s=LONG_S)
    assert path.read_bytes() == model
    assert written.bytes == size
    assert path.stat().st_mode & 0o777 == 0o600
    found = bytearray(size)

    def consume(offset: int, memory: memoryview) -> None:
        found[offset : offset + len(memory)] = memory

    assert transport.read(path, [Range(0, size)], consume, deadline_s=LONG_S).bytes == size
    assert found == model
    arena = Arena(size + 1)
    transport.read(path, [Range(0, size)], ignore, into=arena.view, deadline_s=LONG_S)
    assert arena.view[:size] == model
    assert pool.free == 4


def test_writing_ranges_keeps_the_rest_and_a_longer_file_is_cut(tmp_path: Path, pool: BufferPool) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"o" * 3 * CHUNK)

    def fill(offset: int, memory: memoryview) -> None:
        memory[:] = b"n" * len(memory)

    PosixTransport(pool).write(path, 2 * CHUNK + 5, fill, ranges=[Range(CHUNK - 1, 7000)], deadline_s=LONG_S)
    assert path.read_bytes() == b"o" * (CHUNK - 1) + b"n" * 7000 + b"o" * (CHUNK + 6 - 7000)


def test_resident_files_are_read_through_the_page_cache(system: LyingSystem, transport: PosixTransport) -> None:
    report = transport.read(PATH, ALL, ignore, deadline_s=LONG_S)
    assert report.bytes_by_mode == {Mode.DIRECT: len(BYTES)}
    system.resident = 0.9
    report = transport.read(PATH, ALL, ignore, deadline_s=LONG_S)
    assert (report.bytes_by_mode, report.why_not_better) == ({Mode.BUFFERED: len(BYTES)}, "")


def test_the_report_says_why_direct_requests_were_not_made(system: LyingSystem, transport: PosixTransport) -> None:
    system.alignment = (0, 0)
    report = transport.read(PATH, ALL, ignore, deadline_s=LONG_S)
    assert report.mode is Mode.BUFFERED and "O_DIRECT" in report.why_not_better
    report = transport.write(PATH, len(BYTES), ignore, deadline_s=LONG_S)
    assert report.mode is Mode.BUFFERED and "O_DIRECT" in report.why_not_better


# ---- what is refused


def test_only_ordinary_files_are_read(tmp_path: Path, pool: BufferPool) -> None:
    transport = PosixTransport(pool)
    for path in (tmp_path, Path("/dev/zero")):
        with pytest.raises(Refused, match="not an ordinary file"):
            transport.read(path, [Range(0, 1)], ignore, deadline_s=LONG_S)
    with pytest.raises(TransferFailed) as caught:
        transport.read(tmp_path / "missing", [Range(0, 1)], ignore, deadline_s=LONG_S)
    assert (caught.value.errno, caught.value.action) == (errno.ENOENT, "open")
    with pytest.raises(TransferFailed, match="EISDIR"):
        transport.write(tmp_path, 1, ignore, deadline_s=LONG_S)


def test_a_fifo_that_nobody_writes_does_not_hold_the_caller(tmp_path: Path, pool: BufferPool) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(TransferTimeout):
        PosixTransport(pool).read(tmp_path / "fifo", [Range(0, 1)], ignore, deadline_s=0.2)
    os.close(os.open(tmp_path / "fifo", os.O_WRONLY))  # lets the thread go


@pytest.mark.parametrize(
    ("into", "words"),
    [
        (memoryview(bytes(len(BYTES))), "read-only"),
        (memoryview(bytearray(len(BYTES) - 1)), "bytes"),
        (memoryview(bytearray(2 * len(BYTES)))[::2], "contiguous"),
    ],
)
def test_memory_that_cannot_take_the_bytes_is_refused(transport: PosixTransport, into: memoryview, words: str) -> None:
    with pytest.raises(Refused, match=words):
        transport.read(PATH, ALL, ignore, into=into, deadline_s=LONG_S)


def test_memory_of_another_item_type_takes_bytes(transport: PosixTransport) -> None:
    memory = memoryview(bytearray(len(BYTES) + 8 - len(BYTES) % 8)).cast("I")
    transport.read(PATH, ALL, ignore, into=memory, deadline_s=LONG_S)
    assert memory.cast("B")[: len(BYTES)] == BYTES


def test_ranges_that_are_none_are_refused_before_anything_is_opened(
    system: LyingSystem, transport: PosixTransport
) -> None:
    attempts: list[Callable[[], object]] = [
        lambda: transport.read(PATH, [Range(0, 2), Range(1, 2)], ignore, deadline_s=LONG_S),
        lambda: transport.write(PATH, 1, ignore, ranges=[Range(0, 2)], deadline_s=LONG_S),
        lambda: transport.write(PATH, -1, ignore, deadline_s=LONG_S),
    ]
    for attempt in attempts:
        with pytest.raises(Refused):
            attempt()
    assert system.counts["open"] == 0


def test_after_close_nothing_is_moved(transport: PosixTransport) -> None:
    transport.close()
    with pytest.raises(StorageError, match="closed"):
        transport.read(PATH, ALL, ignore, deadline_s=LONG_S)
    with pytest.raises(StorageError, match="closed"):
        transport.write(PATH, 1, ignore, deadline_s=LONG_S)


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="0 threads"):
        PosixTransport(BufferPool(1, CHUNK), threads=0)
    with pytest.raises(ValueError, match="must divide"):
        PosixTransport(BufferPool(1, 12288))
