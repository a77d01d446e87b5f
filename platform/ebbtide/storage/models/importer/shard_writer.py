"""One shard from its source into a work directory, going on where an earlier attempt was cut off.

What an earlier attempt left is read back chunk by chunk and compared with the hashes that it claimed
(``chunk_journal``), or with the index, if the shard was finished. Right chunks stay; the others are fetched. Then the
file is synced, and only then its index is written.

Written in stretches, each a transfer of its own with its own deadline: a slow source may take hours for a shard, while
one that hangs is noticed within minutes.

Not guaranteed: that an earlier attempt on another node, paused and woken up again, writes nothing any more: at most the
chunks on which its threads were at work, into this very file, the same bytes as ours. If they are not the same, readers
find that the chunk's hash is wrong.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256

from ebbtide.storage.errors import Corrupt, Refused, TransferFailed, TransferTimeout
from ebbtide.storage.files.durable_files import read_small
from ebbtide.storage.integrity.chunk_index import (
    MAX_INDEX_BYTES,
    ChunkHashes,
    Index,
    chunk_count,
    hash_chunk,
    parse_index,
)
from ebbtide.storage.maintenance.scrub import length_of
from ebbtide.storage.models.importer.chunk_journal import Journal, journal_path, read_journal
from ebbtide.storage.models.importer.import_progress import Tally
from ebbtide.storage.models.sources.source import Source
from ebbtide.storage.models.sources.source_checkpoint import Shard
from ebbtide.storage.models.sources.source_patience import within_patience
from ebbtide.storage.names import FileName, index_name
from ebbtide.storage.objects.manifest import FileEntry
from ebbtide.storage.objects.staging import Staging, deadline_for
from ebbtide.storage.objects.store_ports import StorePorts
from ebbtide.storage.transport.chunk_ranges import join_ranges
from ebbtide.storage.transport.transport import Range

STRETCH_BYTES = 256 << 20  # one transfer: seconds on a fast link, minutes on a slow one
# A source that is slower will not end in useful time: a terabyte in two weeks.
LEAST_SOURCE_BYTES_PER_S = 1e6
LEAST_PATIENCE_S = 120.0


@dataclass(frozen=True)
class Workplace:
    """Where shards are written, and who is told."""

    ports: StorePorts
    staging: Staging
    tally: Tally
    stretch_bytes: int = STRETCH_BYTES


class ShardWriter:
    """Writes one shard; used once."""

    def __init__(self, place: Workplace, source: Source, shard: Shard) -> None:
        self._place, self._source, self._shard = place, source, shard
        self._plan = shard.layout.plan
        self._path = place.staging.directory / shard.file.name
        self._hashing = place.staging.hashing
        self._index_path = self._path.with_name(index_name(FileName(self._path.name)))
        self._count = chunk_count(self._plan.file_bytes, self._hashing.chunk_bytes)
        self._chunks: dict[int, ChunkHashes] = {}
        self._changed = threading.Lock()
        layout = sha256(self._plan.header).hexdigest()[:32]
        self._title = f"{layout} {self._plan.file_bytes} {self._hashing.chunk_bytes} {self._hashing.salt.hex()}"

    def write(self) -> FileEntry:
        """Write what is missing of it.

        Raises:
            SourceChanged: the source is not what it was.
            NoRoom: there is no space.
            TransferFailed: the source cannot be read, or the file cannot be written.
        """
        disk = self._place.ports.disk
        self._take_what_is_there()
        if missing := self._missing():
            self._copy(missing)
        disk.sync_file(self._path)  # chunks of an earlier attempt may not have been
        chunks = tuple(self._chunks[number] for number in range(self._count))
        disk.write(self._index_path, self._index(chunks).to_bytes())
        disk.sync_directory(self._path.parent)
        return self._place.staging.adopt(self._shard.file.name)

    # ---- what an earlier attempt left

    def _take_what_is_there(self) -> None:
        """Read back what is claimed to be there, and keep what is right."""
        if length_of(self._path) != self._plan.file_bytes:
            self._discard()
            return
        claimed = self._claimed()
        step = self._hashing.chunk_bytes

        def judge(offset: int, memory: memoryview) -> None:
            self._place.tally.check()
            for start in range(0, len(memory), step):
                part = memory[start : start + step]
                number = (offset + start) // step
                found = hash_chunk(part, self._shard.file.name, offset + start, self._hashing)
                if found == claimed.get(number):
                    with self._changed:
                        self._chunks[number] = found
                    self._place.tally.verified(len(part))

        wanted = [self._range(number) for number in sorted(claimed)]
        transport = self._place.ports.transport
        try:
            for stretch in _stretches(join_ranges(wanted), self._place.stretch_bytes, step):
                size = sum(one.length for one in stretch)
                transport.read(self._path, stretch, judge, deadline_s=deadline_for(size))
        except TransferTimeout:
            raise
        except TransferFailed:  # it cannot be read back: begin anew, in a new file
            self._place.tally.discarded(sum(self._range(number).length for number in self._chunks))
            self._chunks.clear()
            self._discard()

    def _claimed(self) -> Mapping[int, ChunkHashes]:
        try:
            index = parse_index(read_small(self._index_path, MAX_INDEX_BYTES), self._index_path)
        except (FileNotFoundError, ValueError, Corrupt, Refused):
            index = None
        if index is not None and index == self._index(index.chunks):
            return dict(enumerate(index.chunks))
        claimed = read_journal(journal_path(self._path), self._title)
        return {number: hashes for number, hashes in claimed.items() if number < self._count}

    def _discard(self) -> None:
        for path in (self._index_path, journal_path(self._path), self._path):
            self._place.ports.disk.remove(path)

    # ---- what is missing

    def _missing(self) -> list[Range]:
        return join_ranges([self._range(number) for number in range(self._count) if number not in self._chunks])

    def _copy(self, missing: list[Range]) -> None:
        file = self._shard.file
        opened = within_patience(self._source, f"open {file.name} of", lambda: self._source.open(file))
        with opened as reading, Journal(journal_path(self._path), self._title) as journal:

            def fill(offset: int, memory: memoryview) -> None:
                self._place.tally.check()
                reading.read(list(self._shard.layout.parts(offset, memory)))
                self._place.tally.check()  # that may have taken minutes
                self._place.tally.copied(self._keep(offset, memory, journal))

            for stretch in _stretches(missing, self._place.stretch_bytes, self._hashing.chunk_bytes):
                self._transfer(stretch, fill)

    def _keep(self, offset: int, memory: memoryview, journal: Journal) -> int:
        """Hash the chunks in ``memory``; how many bytes were not counted before (a failed sync writes all twice)."""
        step, fresh = self._hashing.chunk_bytes, 0
        for start in range(0, len(memory), step):
            part = memory[start : start + step]
            number = (offset + start) // step
            hashes = hash_chunk(part, self._shard.file.name, offset + start, self._hashing)
            with self._changed:
                fresh += 0 if number in self._chunks else len(part)
                self._chunks[number] = hashes
            journal.claim(number, hashes)
        return fresh

    def _transfer(self, stretch: list[Range], fill: Callable[[int, memoryview], None]) -> None:
        size = sum(one.length for one in stretch)
        patience_s = LEAST_PATIENCE_S + size / LEAST_SOURCE_BYTES_PER_S
        try:
            self._place.ports.transport.write(
                self._path, self._plan.file_bytes, fill, ranges=stretch, deadline_s=patience_s
            )
        except TransferTimeout as error:
            if error.action != "fill":
                raise
            where = f"{self._source.where}/{self._shard.file.name}"
            raise TransferTimeout("read", where, after_s=error.after_s) from error

    def _index(self, chunks: tuple[ChunkHashes, ...]) -> Index:
        how = self._hashing
        return Index(self._plan.file_bytes, how.chunk_bytes, how.salt, how.content_kind, how.with_device, chunks)

    def _range(self, number: int) -> Range:
        start = number * self._hashing.chunk_bytes
        return Range(start, min(self._hashing.chunk_bytes, self._plan.file_bytes - start))


def _stretches(ranges: Iterable[Range], stretch_bytes: int, chunk_bytes: int) -> Iterable[list[Range]]:
    """The ranges, cut at chunks, in lists of at most ``stretch_bytes`` (or one chunk)."""
    stretch: list[Range] = []
    size = 0
    most = max(stretch_bytes - stretch_bytes % chunk_bytes, chunk_bytes)
    for span in ranges:
        start = span.offset
        while start < span.end:
            part = Range(start, min(span.end - start, most - size))
            stretch.append(part)
            size += part.length
            start = part.end
            if size >= most:
                yield stretch
                stretch, size = [], 0
    if stretch:
        yield stretch
