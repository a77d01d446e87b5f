"""The POSIX transport against real files: the bytes come out, wherever they start and wherever they go."""

from pathlib import Path
from random import Random

import pytest

from ebbtide.storage.buffers import BufferPool
from ebbtide.storage.memory import Arena
from ebbtide.storage.posix import PosixTransport
from ebbtide.storage.transport import Range

CHUNK = 64 << 10


@pytest.fixture(scope="module")
def pool() -> BufferPool:
    return BufferPool(8, CHUNK)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, CHUNK, 5 * CHUNK + 123])
def test_what_was_written_is_read_again(tmp_path: Path, pool: BufferPool, size: int) -> None:
    transport, path, model = PosixTransport(pool), tmp_path / "file", Random(size).randbytes(size)

    def fill(offset: int, memory: memoryview) -> None:
        memory[:] = model[offset : offset + len(memory)]

    written = transport.write(path, size, fill, deadline_s=60)
    assert path.read_bytes() == model
    assert written.bytes == size
    found = bytearray(size)

    def consume(offset: int, memory: memoryview) -> None:
        found[offset : offset + len(memory)] = memory

    assert transport.read(path, [Range(0, size)], consume, deadline_s=60).bytes == size
    assert found == model
    arena = Arena(size + 1)
    transport.read(path, [Range(0, size)], lambda offset, memory: None, into=arena.view, deadline_s=60)
    assert arena.view[:size] == model
    assert pool.free == 8
