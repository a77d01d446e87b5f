"""Whole files in arenas: the bytes, where they are, and when the memory is free again."""

import errno
import gc
from pathlib import Path
from random import Random

import pytest

from ebbtide.storage.arenas import Arenas
from ebbtide.storage.buffers import BufferPool
from ebbtide.storage.errors import TransferFailed, TransferTimeout
from ebbtide.storage.load_file import read_whole
from ebbtide.storage.posix import PosixTransport
from tests.platform.storage.shim.lying_system import Errno, Hang, LyingSystem, until

CHUNK = 64 << 10
PATH = Path("made-up")
BYTES = Random(0).randbytes(3 * CHUNK + 1001)


def test_a_file_is_read_into_an_arena_that_is_used_again(tmp_path: Path) -> None:
    path, arenas, transport = tmp_path / "file", Arenas(), PosixTransport(BufferPool(2, CHUNK))
    path.write_bytes(BYTES)
    chunks: dict[int, bytes] = {}
    for _ in range(3):
        chunks.clear()
        loaded = read_whole(
            transport,
            path,
            len(BYTES),
            arenas,
            consume=lambda at, memory: chunks.update({at: bytes(memory)}),
            deadline_s=60,
        )
        assert loaded.memory == BYTES == b"".join(chunks[at] for at in sorted(chunks))
        assert loaded.report.bytes == len(BYTES)
        del loaded
    assert arenas.total_bytes == arenas.free_bytes == 2 << 20


def test_an_empty_file_is_empty(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    loaded = read_whole(PosixTransport(BufferPool(1, CHUNK)), tmp_path / "file", 0, Arenas(), deadline_s=60)
    assert len(loaded.memory) == 0


def test_after_an_error_the_arena_is_free() -> None:
    system = LyingSystem(bytearray(BYTES), lambda name, offset, direct: Errno(errno.EACCES) if name == "read" else None)
    arenas = Arenas()
    with pytest.raises(TransferFailed):
        read_whole(PosixTransport(BufferPool(1, CHUNK), calls=system.calls()), PATH, len(BYTES), arenas, deadline_s=60)
    gc.collect()  # tracebacks
    assert arenas.free_bytes == arenas.total_bytes > 0


def test_after_a_timeout_the_arena_is_free_only_when_the_request_has_ended() -> None:
    hang, arenas = Hang("read", CHUNK), Arenas()
    system = LyingSystem(bytearray(BYTES), hang)
    transport = PosixTransport(BufferPool(4, CHUNK), calls=system.calls())
    with pytest.raises(TransferTimeout):
        read_whole(transport, PATH, len(BYTES), arenas, deadline_s=0.3)
    gc.collect()
    assert arenas.free_bytes == 0
    hang.answer.set()
    until(lambda: gc.collect() >= 0 and arenas.free_bytes > 0)
