"""Telling right chunks from wrong ones, in the thread that fetched them and before anybody sees a byte of them.

A chunk whose hash is wrong is read once more past the page cache (``chunk_reread``); wrong again, the read ends with
`Corrupt`. Only whole chunks can be checked, so reads of parts are rounded out to chunk borders.

Not guaranteed: anything against bytes that were made on purpose (see ``chunk_hash``).
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ebbtide.storage.errors import Corrupt, Refused
from ebbtide.storage.integrity.chunk_hash import place_seed, quick_hash
from ebbtide.storage.integrity.chunk_index import Index
from ebbtide.storage.integrity.chunk_reread import read_again
from ebbtide.storage.transport.transport import Consume, Pending, Range

ReadAgain = Callable[[Path, Range], bytes]


class Checked(Protocol):
    """A file of which every chunk can be told right from wrong."""

    @property
    def path(self) -> Path:
        """Where it lies."""

    @property
    def title(self) -> str:
        """What messages call it."""

    @property
    def size_bytes(self) -> int:
        """Its length."""

    @property
    def chunk_bytes(self) -> int:
        """Length of the pieces that are checked, the last one apart; positive."""

    def is_right(self, chunk: Range, data: memoryview | bytes) -> bool:
        """Whether ``data`` is what belongs there."""

    def device_hash(self, chunk: Range) -> tuple[int, int] | None:
        """The seed and the device hash of a chunk (see ``chunk_hash``), or None where that was never computed."""


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A file with the hashes of its chunks, in no object.

    Attributes:
        path: where it lies.
        name: with which the hashes were computed.
        index: the hashes.
    """

    path: Path
    name: str
    index: Index

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"file {self.name}"

    @property
    def size_bytes(self) -> int:
        """Its length."""
        return self.index.file_bytes

    @property
    def chunk_bytes(self) -> int:
        """Length of the pieces that are checked."""
        return self.index.chunk_bytes

    def is_right(self, chunk: Range, data: memoryview | bytes) -> bool:
        """Whether ``data`` is what belongs there."""
        seed = place_seed(self.index.salt, self.name, chunk.offset)
        hashes = self.index.chunks[chunk.offset // self.chunk_bytes]
        return len(data) == chunk.length and quick_hash(data, seed) == hashes.quick

    def device_hash(self, chunk: Range) -> tuple[int, int] | None:
        """The seed and the device hash of a chunk, if the index has them."""
        if not self.index.has_device:
            return None
        return place_seed(self.index.salt, self.name, chunk.offset), self.index.chunks[
            chunk.offset // self.chunk_bytes
        ].device


def chunks_of(file: Checked, ranges: Iterable[Range] | None = None) -> list[Range]:
    """The chunks that hold ``ranges`` (all, if None), each once, in the order in which they are wanted first.

    Raises:
        Refused: a range is not in the file.
    """
    size, step = file.size_bytes, file.chunk_bytes
    numbers: dict[int, None] = {}
    for part in [Range(0, size)] if ranges is None else ranges:
        if part.offset < 0 or part.length < 0 or part.end > size:  # guard: a part outside its file is refused
            raise Refused(f"{part} is not in {file.title}, which has {size} bytes")
        if part.length:
            # guard: parts are rounded out to chunks
            numbers |= dict.fromkeys(range(part.offset // step, -(-part.end // step)))
    return [Range(number * step, min(step, size - number * step)) for number in numbers]


def look_again(file: Checked, chunk: Range, read: ReadAgain = read_again) -> bytes:
    """The right bytes of a chunk that came wrong, if a second look past all caches finds them.

    Raises:
        Corrupt: it does not.
    """
    corrupt = Corrupt(
        f"chunk of {chunk.length} bytes of {file.title} is not what was published; "
        "repair the object, or import it again",
        file.path,
        offset=chunk.offset,
    )
    try:
        found = read(file.path, chunk)
    except OSError as error:  # guard: a second look that fails means damage
        raise corrupt from error
    if not file.is_right(chunk, found):  # guard: a chunk that is wrong at the second look too ends the read
        raise corrupt
    return found


class ChunkVerifier:
    """Stands between a transport and whoever consumes its chunks in host memory."""

    def __init__(self, file: Checked, consume: Consume | None, read_again: ReadAgain = read_again) -> None:
        self._file, self._consume, self._read_again = file, consume, read_again
        self._changed = threading.Lock()
        self.mended = 0  # chunks that were right at the second look

    def __call__(self, offset: int, memory: memoryview) -> Pending | None:
        """Check the chunks in ``memory``, and hand it on."""
        file = self._file
        whole = offset % file.chunk_bytes == 0
        # guard: only whole chunks are checked
        if not whole or (len(memory) % file.chunk_bytes and offset + len(memory) != file.size_bytes):
            raise Refused(
                f"{file.path} is checked in chunks of {file.chunk_bytes} bytes; this transport moves smaller pieces: "
                "give it buffers of at least that size"
            )
        for start in range(0, len(memory), file.chunk_bytes):
            part = memory[start : start + file.chunk_bytes]
            chunk = Range(offset + start, len(part))
            if not file.is_right(chunk, part):  # guard: a chunk whose hash is wrong is not handed on
                part[:] = look_again(file, chunk, self._read_again)
                with self._changed:
                    self.mended += 1
        return self._consume(offset, memory) if self._consume is not None else None
