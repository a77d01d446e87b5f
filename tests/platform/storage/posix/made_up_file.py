"""A file that exists in a made-up operating system alone, for tests of the transport that reads it."""

from pathlib import Path
from random import Random

from ebbtide.storage.transport.transport import Range

CHUNK = 64 << 10
LONG_S = 60.0  # a deadline that no test meets
PATH = Path("made-up")
BYTES = Random(0).randbytes(4 * CHUNK + 1000)
ALL = [Range(0, len(BYTES))]


def ignore(offset: int, memory: memoryview) -> None:
    """Consumes."""
