"""A transport over a made-up operating system, which a test can make lie."""

import pytest

from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.posix.posix_transport import PosixTransport
from tests.platform.storage.posix.made_up_file import BYTES, CHUNK
from tests.platform.storage.shim.lying_system import LyingSystem


@pytest.fixture
def pool() -> BufferPool:
    return BufferPool(4, CHUNK)


@pytest.fixture(name="system")
def honest_system() -> LyingSystem:
    return LyingSystem(bytearray(BYTES))


@pytest.fixture
def transport(pool: BufferPool, system: LyingSystem) -> PosixTransport:
    return PosixTransport(pool, threads=2, calls=system.calls())
