"""Writing files into a work directory: durable, hashed while they are written, invisible to every reader.

Several processes may stage files of one object in one work directory, each other files; what each gets back is a
`FileEntry`, small and plain, which goes to whoever publishes them all. A file's index is written after the file itself
was synced: an index that is there says that its file is whole, which is how work goes on after a kill.
"""

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from ebbtide.storage.errors import Corrupt, Refused, StorageError
from ebbtide.storage.files.durable_files import Disk, read_small, telling
from ebbtide.storage.integrity.chunk_hash import small_digest
from ebbtide.storage.integrity.chunk_index import MAX_INDEX_BYTES, Hashing, Index, IndexBuilder, parse_index
from ebbtide.storage.names import FileName, file_name, index_name
from ebbtide.storage.objects.manifest import FileEntry
from ebbtide.storage.safetensors.file_header import SUFFIX
from ebbtide.storage.transport.transport import Fill, Range, Transport

# Up to here a file needs no index of its own: its digest is checked whenever it is read, in a millisecond.
SMALL_BYTES = 1 << 20
# A transfer that is slower than this will not end in useful time: a hundredth of one NVMe drive.
LEAST_BYTES_PER_S = 20e6
LEAST_DEADLINE_S = 60.0

# Filled and hashed before the next piece is filled: both hashes then read it from a core's cache, for half of the CPU
# time that they take from memory (docs/measured.md).
HOT_BYTES = 1 << 20

Progress = Callable[[int], None]  # called with the bytes that were moved since the last call, from any thread


def deadline_for(size_bytes: int) -> float:
    """How long a transfer may take if the caller has no opinion, in seconds."""
    return LEAST_DEADLINE_S + size_bytes / LEAST_BYTES_PER_S


def needs_index(name: str, size_bytes: int, chunk_bytes: int) -> bool:
    """Whether a file gets an index: every safetensors file, so that loaders find one, and every large one."""
    return name.endswith(SUFFIX) or size_bytes > min(SMALL_BYTES, chunk_bytes)


class Staging:
    """One process's share in filling a work directory; its methods may be called from several threads."""

    def __init__(self, directory: Path, hashing: Hashing, transport: Transport, disk: Disk) -> None:
        self.directory, self.hashing = directory, hashing
        self._transport, self._disk = transport, disk

    def write(
        self,
        name: str,
        size_bytes: int,
        fill: Fill,
        *,
        progress: Progress | None = None,
        deadline_s: float | None = None,
    ) -> FileEntry:
        """Write a file through the transport, durably.

        Args:
            name: relative to the object.
            size_bytes: its length.
            fill: see `Fill`; what it gives for a range must not change when it is asked again.
            progress: called with the number of bytes, whenever a chunk was filled.
            deadline_s: for the whole file, in seconds; by default generous.

        Raises:
            Refused: the name cannot be used.
            NoRoom: there is no space; what was begun of the file is removed.
            TransferFailed: it cannot be written; what was begun of the file is removed.
        """
        builder = IndexBuilder(name, size_bytes, self.hashing)

        step = max(HOT_BYTES, self.hashing.chunk_bytes)

        def fill_and_hash(offset: int, memory: memoryview) -> None:
            for start in range(0, len(memory), step):
                part = memory[start : start + step]
                fill(offset + start, part)
                builder.add(offset + start, part)
            if progress is not None:
                progress(len(memory))

        path = self._place(name)
        patience_s = deadline_for(size_bytes) if deadline_s is None else deadline_s
        try:
            self._transport.write(path, size_bytes, fill_and_hash, deadline_s=patience_s)
        except BaseException:
            self._discard(path)  # guard: what was begun of a file that failed goes
            raise
        return self._finish(name, path, builder.build())

    def write_bytes(self, name: str, data: bytes) -> FileEntry:
        """Write a small file, durably; raises as `write` does."""
        if needs_index(name, len(data), self.hashing.chunk_bytes):

            def fill(offset: int, memory: memoryview) -> None:
                memory[:] = data[offset : offset + len(memory)]

            return self.write(name, len(data), fill)
        path = self._place(name)
        try:
            self._disk.write(path, data)
        except StorageError:
            self._discard(path)  # guard: what was begun of a small file that failed goes
            raise
        self._disk.sync_directory(path.parent)
        return FileEntry(name=name, size_bytes=len(data), digest=small_digest(data, self.hashing.content_kind))

    def copy(self, source: Path, name: str, *, progress: Progress | None = None) -> FileEntry:
        """Copy a file from outside, as it is; raises as `write` does, and OSError for the source."""
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size_bytes = os.fstat(fd).st_size

            def fill(offset: int, memory: memoryview) -> None:
                done = 0
                while done < len(memory):
                    count = os.preadv(fd, [memory[done:]], offset + done)
                    if count == 0:
                        # guard: a source that shrinks while it is copied is told
                        raise Corrupt("the file became shorter while it was copied", source, offset=offset + done)
                    done += count

            return self.write(name, size_bytes, fill, progress=progress)
        finally:
            os.close(fd)

    def adopt(self, name: str, *, progress: Progress | None = None) -> FileEntry:
        """Take over a file that stands in the work directory already, as a killed process or another tool left it.

        If its index is there, it is believed; else the file is read, hashed, synced and given one.

        Raises:
            TransferFailed: there is no such file, or it cannot be read.
        """
        path = self.directory / file_name(name)
        with telling("open", path):
            size_bytes = path.stat(follow_symlinks=False).st_size
        index = self._index_of(path)
        if (
            index is not None
            and index.file_bytes == size_bytes  # guard: an index of another length than its file is not believed
        ):
            return self._entry(name, index, index.to_bytes())
        builder = IndexBuilder(name, size_bytes, self.hashing)

        def hash_only(offset: int, memory: memoryview) -> None:
            builder.add(offset, memory)
            if progress is not None:
                progress(len(memory))

        self._disk.sync_file(path)  # guard: a file that another process left is synced before it counts
        self._transport.read(path, [Range(0, size_bytes)], hash_only, deadline_s=deadline_for(size_bytes))
        return self._finish(name, path, builder.build())

    def _index_of(self, path: Path) -> Index | None:
        """The index beside a file, if it is one of ours and made the way we make it now."""
        beside = path.with_name(index_name(FileName(path.name)))
        with telling("look at", beside):  # guard: an index that cannot be looked at is an error of ours
            is_there = beside.is_file()
        if not is_there:
            return None
        try:
            index = parse_index(read_small(beside, MAX_INDEX_BYTES), beside)
        # guard: a damaged index of a staged file is not believed
        except (FileNotFoundError, ValueError, Corrupt, Refused):
            return None
        how = self.hashing
        same = (index.salt, index.chunk_bytes, index.content_kind, index.has_device) == (
            how.salt,
            how.chunk_bytes,
            how.content_kind,
            how.with_device,
        )
        return index if same else None  # guard: an index that was made in another way is not believed

    def _finish(self, name: str, path: Path, index: Index) -> FileEntry:
        if not needs_index(name, index.file_bytes, self.hashing.chunk_bytes):
            self._disk.sync_directory(path.parent)
            return FileEntry(name=name, size_bytes=index.file_bytes, digest=index.digest)
        raw = index.to_bytes()
        self._disk.write(path.with_name(index_name(FileName(path.name))), raw)
        self._disk.sync_directory(path.parent)  # guard: a staged file's name is durable
        return self._entry(name, index, raw)

    def _entry(self, name: str, index: Index, raw: bytes) -> FileEntry:
        return FileEntry(name=name, size_bytes=index.file_bytes, digest=index.digest, index=sha256(raw).hexdigest())

    def _place(self, name: str) -> Path:
        """Where a file goes; what was left of an earlier one is gone when this returns.

        The file too, not only its content: a request that hung may still write into the old one.
        """
        path = self.directory / file_name(name)
        self._disk.make_directory(path.parent)
        # guard: a file's old index goes before the file is written
        self._disk.remove(path.with_name(index_name(FileName(path.name))))
        self._disk.remove(path)  # guard: a staged file is never written over in place
        return path

    def _discard(self, path: Path) -> None:
        """Remove what was begun; what cannot be removed goes with the work directory."""
        try:
            self._disk.remove(path)
        except StorageError:
            return
