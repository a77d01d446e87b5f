"""Reading a published file: every chunk is checked in the thread that fetched it, before anybody sees a byte of it.

Checking costs what reading the bytes once from memory costs (xxh3: 0.03 CPU s/GB, 0.05 on a busy machine; any sum of
them would cost 0.04 there), so it is always on, and turned off only by whoever checks in another way (on the device).
A chunk whose hash is wrong is read once more past the page cache (``chunk_reread``); wrong again, the read ends with
`Corrupt`.

Only whole chunks can be checked. A read of parts of a file is therefore rounded out to chunk borders, and costs that
much more; objects of which parts are read (training state) are published with smaller chunks.

Not guaranteed: that memory given as ``into`` is left alone when a read fails. It holds unchecked bytes then, and after
a `TransferTimeout` it may go on being written.
"""

import dataclasses
import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ebbtide.storage.errors import Corrupt, NotPublished, TransferFailed
from ebbtide.storage.files.shared_files import Bounded
from ebbtide.storage.integrity.chunk_hash import ContentHash, place_seed, quick_hash, small_digest
from ebbtide.storage.integrity.chunk_index import Index
from ebbtide.storage.integrity.chunk_reread import read_again
from ebbtide.storage.integrity.chunk_verification import ChunkVerifier, ReadAgain, chunks_of
from ebbtide.storage.names import ObjectId
from ebbtide.storage.objects.manifest import FileEntry
from ebbtide.storage.objects.staging import deadline_for
from ebbtide.storage.transport.chunk_ranges import join_ranges
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide.storage.transport.transport import Consume, Range, Transport

# For one look at a name after a read failed; a server that answers does so within milliseconds.
LOOK_S = 5.0


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

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"file {self.entry.name} of object {self.object_id}"

    @property
    def size_bytes(self) -> int:
        """Its length."""
        return self.entry.size_bytes

    def chunks(self, ranges: Iterable[Range] | None = None) -> list[Range]:
        """The chunks that hold ``ranges`` (all, if None), each once, in the order in which they are wanted first."""
        return chunks_of(self, ranges)

    def is_right(self, chunk: Range, data: memoryview | bytes) -> bool:
        """Whether ``data`` is what was published as this chunk."""
        if len(data) != chunk.length:
            return False
        if self.index is None or not data:
            # guard: a small file is compared with its digest
            return small_digest(data, self.content_kind) == self.entry.digest
        seed = place_seed(self.index.salt, self.entry.name, chunk.offset)
        return quick_hash(data, seed) == self.index.chunks[chunk.offset // self.chunk_bytes].quick

    def device_hash(self, chunk: Range) -> tuple[int, int] | None:
        """The seed and the device hash of a chunk; None where it was not computed, as for small files."""
        if self.index is None or not self.index.has_device:
            return None
        seed = place_seed(self.index.salt, self.entry.name, chunk.offset)
        return seed, self.index.chunks[chunk.offset // self.chunk_bytes].device


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
        deadline_s: for all of it, in seconds; by default generous. Where the file is gone, up to `LOOK_S` more.
        read_again: reads a chunk once more past all caches.

    Raises:
        Corrupt: bytes are not those that were published; nothing of that chunk was consumed.
        NotPublished: the object was removed meanwhile.
        TransferFailed: they cannot be read.
    """
    chunks = file.chunks(ranges)
    checker = ChunkVerifier(file, consume, read_again)
    receive: Consume = checker if verify else consume or _ignore
    total = sum(chunk.length for chunk in chunks)
    # guard: an empty file was empty when it was published
    if verify and file.entry.size_bytes == 0 and not file.is_right(Range(0, 0), b""):
        raise Corrupt("this empty file was not empty when it was published", file.path)
    patience_s = deadline_for(total) if deadline_s is None else deadline_s
    try:
        report = transport.read(file.path, join_ranges(chunks), receive, into=into, deadline_s=patience_s)
    except TransferFailed as error:
        # guard: an object that was removed meanwhile is not published, and not failing
        if was_removed(error, file.path):
            raise NotPublished(f"object {file.object_id} was removed while {file.path} was being read") from error
        raise
    if not checker.mended:
        return report
    return dataclasses.replace(report, retries=report.retries + checker.mended)


def was_removed(error: TransferFailed, path: Path) -> bool:
    """Whether a transfer failed since its file was removed; False too if nobody can tell within `LOOK_S`."""
    if error.errno not in (errno.ENOENT, errno.ESTALE):  # guard: only what looks like absence is taken for it
        return False
    try:
        Bounded()("look at", path, LOOK_S, lambda: os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return True
    # guard: a look at a file that hangs leaves the first error
    # guard: a look at a file without a thread leaves the first error
    except (OSError, TransferFailed):
        return False  # guard: what may still be there is not taken for removed
    return False


def _ignore(_offset: int, _memory: memoryview) -> None:
    return None
