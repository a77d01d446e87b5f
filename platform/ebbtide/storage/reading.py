"""Reading a published file: every chunk is checked in the thread that fetched it, before anybody sees a byte of it.

Checking is done while the chunk is still in that core's cache (xxh3: 0.03 CPU s/GB), so it is always on, and turned
off only by whoever checks in another way (on the device). A chunk whose hash is wrong is read once more past the page
cache (``second_look``); wrong again, the read ends with `Corrupt`.

Only whole chunks can be checked. A read of parts of a file is therefore rounded out to chunk borders, and costs that
much more; objects of which parts are read (training state) are published with smaller chunks.

Not guaranteed: that memory given as ``into`` is left alone when a read fails. It holds unchecked bytes then, and after
a `TransferTimeout` it may go on being written.
"""

import dataclasses
import errno
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from ebbtide.storage.chunk_hash import ContentHash, content_hash, place_seed, quick_hash
from ebbtide.storage.errors import Corrupt, NotPublished, Refused, TransferFailed
from ebbtide.storage.index import Index
from ebbtide.storage.manifest import FileEntry
from ebbtide.storage.names import ObjectId
from ebbtide.storage.report import TransferReport
from ebbtide.storage.second_look import read_again
from ebbtide.storage.staging import deadline_for
from ebbtide.storage.transport import Consume, Pending, Range, Transport

ReadAgain = Callable[[Path, Range], bytes]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of an open object.

    Attributes:
        object_id: whose file it is.
        path: where it lies.
        entry: what the manifest says of it.
        index: its chunk hashes; None for a small file, whose digest is checked instead.
        content_kind: how the object's content is hashed.
    """

    object_id: ObjectId
    path: Path
    entry: FileEntry
    index: Index | None
    content_kind: ContentHash

    @property
    def chunk_bytes(self) -> int:
        """Length of the pieces that are checked; all of a small file is one."""
        return self.index.chunk_bytes if self.index is not None else max(self.entry.size_bytes, 1)

    def chunks(self, ranges: Iterable[Range] | None = None) -> list[Range]:
        """The chunks that hold ``ranges`` (all, if None), each once, in the order in which they are wanted first."""
        size, step = self.entry.size_bytes, self.chunk_bytes
        numbers: dict[int, None] = {}
        for part in [Range(0, size)] if ranges is None else ranges:
            if part.offset < 0 or part.length < 0 or part.end > size:
                raise Refused(f"{part} is not in {self.entry.name} of object {self.object_id}, which has {size} bytes")
            if part.length:
                numbers |= dict.fromkeys(range(part.offset // step, -(-part.end // step)))
        return [Range(number * step, min(step, size - number * step)) for number in numbers]

    def is_right(self, chunk: Range, data: memoryview | bytes) -> bool:
        """Whether ``data`` is what was published as this chunk."""
        if len(data) != chunk.length:
            return False
        if self.index is None:
            return sha256(content_hash(data, self.content_kind)).hexdigest() == self.entry.digest
        seed = place_seed(self.index.salt, self.entry.name, chunk.offset)
        return quick_hash(data, seed) == self.index.chunks[chunk.offset // self.chunk_bytes].quick


class Checker:
    """Stands between a transport and whoever consumes its chunks."""

    def __init__(self, file: StoredFile, consume: Consume | None, read_again: ReadAgain = read_again) -> None:
        self._file, self._consume, self._read_again = file, consume, read_again
        self._changed = threading.Lock()
        self.mended = 0  # chunks that were right at the second look

    def __call__(self, offset: int, memory: memoryview) -> Pending | None:
        """Check the chunks in ``memory``, and hand it on."""
        file = self._file
        whole = offset % file.chunk_bytes == 0
        if not whole or (len(memory) % file.chunk_bytes and offset + len(memory) != file.entry.size_bytes):
            raise Refused(
                f"{file.path} is checked in chunks of {file.chunk_bytes} bytes; this transport moves smaller pieces: "
                "give it buffers of at least that size"
            )
        for start in range(0, len(memory), file.chunk_bytes):
            part = memory[start : start + file.chunk_bytes]
            chunk = Range(offset + start, len(part))
            if not file.is_right(chunk, part):
                self._look_again(chunk, part)
        return self._consume(offset, memory) if self._consume is not None else None

    def _look_again(self, chunk: Range, memory: memoryview) -> None:
        file = self._file
        corrupt = Corrupt(
            f"chunk of {chunk.length} bytes of file {file.entry.name} of object {file.object_id} is not what was "
            "published; repair the object, or import it again",
            file.path,
            offset=chunk.offset,
        )
        try:
            found = self._read_again(file.path, chunk)
        except OSError as error:
            raise corrupt from error
        if not file.is_right(chunk, found):
            raise corrupt
        memory[:] = found
        with self._changed:
            self.mended += 1


def read_stored(
    transport: Transport,
    file: StoredFile,
    *,
    consume: Consume | None = None,
    into: memoryview | None = None,
    ranges: Iterable[Range] | None = None,
    verify: bool = True,
    deadline_s: float | None = None,
    read_again: ReadAgain = read_again,
) -> TransferReport:
    """Read a file, or the chunks that hold ``ranges`` of it.

    Args:
        transport: moves the bytes.
        file: which file.
        consume: called with each piece of whole chunks, see `Consume`; they are right, unless ``verify`` is off.
        into: memory for the file's bytes, index 0 standing for byte 0, as long as the end of the last chunk read.
        ranges: in the order in which they are wanted; they may overlap. What is read is rounded out to chunks.
        verify: turn it off only if the bytes are checked in another way.
        deadline_s: for all of it, in seconds; by default generous.
        read_again: reads a chunk once more past all caches.

    Raises:
        Corrupt: bytes are not those that were published; nothing of that chunk was consumed.
        NotPublished: the object was removed meanwhile.
        TransferFailed: they cannot be read.
    """
    chunks = file.chunks(ranges)
    checker = Checker(file, consume, read_again)
    receive: Consume = checker if verify else consume or _ignore
    total = sum(chunk.length for chunk in chunks)
    if verify and file.entry.size_bytes == 0 and file.entry.digest != sha256(b"").hexdigest():
        raise Corrupt("this empty file was not empty when it was published", file.path)
    patience_s = deadline_for(total) if deadline_s is None else deadline_s
    try:
        report = transport.read(file.path, joined(chunks), receive, into=into, deadline_s=patience_s)
    except TransferFailed as error:
        if error.errno in (errno.ENOENT, errno.ESTALE) and not file.path.exists():
            raise NotPublished(f"object {file.object_id} was removed while {file.path} was being read") from error
        raise
    if not checker.mended:
        return report
    return dataclasses.replace(report, retries=report.retries + checker.mended)


def joined(chunks: Sequence[Range]) -> list[Range]:
    """Neighbours that follow each other made one."""
    result: list[Range] = []
    for chunk in chunks:
        if result and result[-1].end == chunk.offset:
            result[-1] = Range(result[-1].offset, result[-1].length + chunk.length)
        else:
            result.append(chunk)
    return result


def _ignore(_offset: int, _memory: memoryview) -> None:
    return None
