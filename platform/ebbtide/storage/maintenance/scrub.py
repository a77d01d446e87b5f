"""Reading a whole object to see whether it still is what was published: every file, every chunk, every index.

Unlike reading, which ends at the first wrong chunk, this goes on and lists all damage, so that it can be repaired. It
says after each stretch how far it is; who wants it to stop, or to be slow, asks for the next stretch later or never.

Not guaranteed: anything about the moment after a chunk was read.
"""

import stat
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ebbtide.storage.errors import Corrupt, TransferFailed, TransferTimeout
from ebbtide.storage.files.durable_files import telling
from ebbtide.storage.integrity.chunk_hash import content_hash, device_hash, place_seed
from ebbtide.storage.integrity.chunk_index import Index, IndexBuilder
from ebbtide.storage.integrity.chunk_verification import ChunkVerifier
from ebbtide.storage.leases.lease_subjects import of_object
from ebbtide.storage.names import ObjectId, object_id
from ebbtide.storage.objects.manifest import FileEntry, Manifest, hashing_for
from ebbtide.storage.objects.object_contents import read_index, read_manifest
from ebbtide.storage.objects.staging import deadline_for
from ebbtide.storage.objects.store_ports import StorePorts
from ebbtide.storage.objects.stored_file import StoredFile
from ebbtide.storage.transport.chunk_ranges import join_ranges
from ebbtide.storage.transport.transport import CHUNK_BYTES, Range

# What is read between two reports: well below a second of a disk, so that whoever stops does not wait.
STRETCH_BYTES = 4 * CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class Damage:
    """Something in an object that is not as published.

    Attributes:
        file: of the object.
        part: the bytes of it; None if the file's index is meant.
        what: in words.
    """

    file: str
    part: Range | None
    what: str

    def __str__(self) -> str:
        where = "the index" if self.part is None else f"bytes {self.part.offset} to {self.part.end}"
        return f"{where} of {self.file}: {self.what}"


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """How far a scrub is.

    Attributes:
        file: the one that is being checked.
        done_bytes: of all files, checked so far.
        total_bytes: of all files.
        damage: found since the last report.
    """

    file: str
    done_bytes: int
    total_bytes: int
    damage: tuple[Damage, ...]


def scrub(ports: StorePorts, wanted: str, *, deep: bool = False) -> Generator[ScrubProgress, None, None]:
    """Check all of an object; it is leased until the end, or until the generator is closed.

    Args:
        ports: of the store.
        wanted: the object's id.
        deep: check the content and device hashes too (1 CPU s/GB): then the bytes are those that the id names.

    Raises:
        NotPublished: there is no such object.
        Corrupt: its manifest or COMMIT is damaged. That cannot be repaired: move it to quarantine and publish anew.
        TransferTimeout: the filesystem hangs.
    """
    found = object_id(wanted)
    with ports.leases.hold(of_object(found), comes_back=True):  # guard: an object is held while it is looked through
        directory = ports.paths.object(found)
        manifest = read_manifest(directory, found)
        done = 0
        for entry in manifest.files:
            last = done + entry.size_bytes
            for count, damage in _scrub_file(ports, directory, manifest, found, entry, deep):
                done += count
                yield ScrubProgress(entry.name, done, manifest.size_bytes, tuple(damage))
            done = last


def damage_of(ports: StorePorts, wanted: str, *, deep: bool = False) -> list[Damage]:
    """All damage of an object; raises as `scrub` does."""
    return [one for progress in scrub(ports, wanted, deep=deep) for one in progress.damage]


def look_at(directory: Path, manifest: Manifest, object_id: ObjectId, entry: FileEntry) -> tuple[StoredFile, str]:
    """One file of a possibly damaged object, and what is wrong with its index, if it should have one."""
    index, problem = None, ""
    if entry.index is not None:
        try:
            index = read_index(directory, manifest, entry)
        except Corrupt as error:
            problem = str(error)
    return StoredFile(object_id, directory / entry.name, entry, index, manifest.content_hash), problem


def length_of(path: Path) -> int | None:
    """The length of an ordinary file; None if there is none."""
    with telling("open", path):
        try:
            found = path.stat(follow_symlinks=False)
        except FileNotFoundError:
            return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _scrub_file(
    ports: StorePorts, directory: Path, manifest: Manifest, object_id: ObjectId, entry: FileEntry, deep: bool
) -> Iterator[tuple[int, list[Damage]]]:
    file, problem = look_at(directory, manifest, object_id, entry)
    length = length_of(file.path)
    if length is None:
        yield 0, [Damage(entry.name, Range(0, entry.size_bytes), "the file is missing")]
        return
    if length > entry.size_bytes:  # guard: bytes after a file's end are damage
        yield 0, [Damage(entry.name, Range(entry.size_bytes, length - entry.size_bytes), "bytes after the file's end")]
    if problem:  # guard: a damaged index is damage
        yield 0, [Damage(entry.name, None, problem)]
        # guard: without its index a file is compared as a whole
        yield entry.size_bytes, _check_whole(ports, manifest, file, length)
        return
    for stretch in _stretches(file.chunks()):
        there = [chunk for chunk in stretch if chunk.end <= length]
        # guard: what is cut off a file is damage
        cut_off = [Damage(entry.name, chunk, "the file ends before") for chunk in stretch if chunk.end > length]
        yield sum(chunk.length for chunk in stretch), _check(ports, file, there, deep) + cut_off
    if not entry.size_bytes and not file.is_right(Range(0, 0), b""):
        yield 0, [Damage(entry.name, Range(0, 0), "the file should not be empty")]


def _check(ports: StorePorts, file: StoredFile, chunks: Sequence[Range], deep: bool) -> list[Damage]:
    """What is wrong with some chunks; where the filesystem fails, each is asked for by itself."""
    damage: list[Damage] = []
    checker = ChunkVerifier(file, None)

    def judge(offset: int, memory: memoryview) -> None:
        for start in range(0, len(memory), file.chunk_bytes):
            part = memory[start : start + file.chunk_bytes]
            chunk = Range(offset + start, len(part))
            try:
                checker(chunk.offset, part)
            except Corrupt:  # guard: a scrub goes on after damage
                damage.append(Damage(file.entry.name, chunk, "not what was published"))
                continue
            if deep and not _is_deeply_right(file, chunk, part):  # guard: a deep look compares the other hashes
                damage.append(Damage(file.entry.name, chunk, "its quick hash is right, and others are not"))

    try:
        total = sum(chunk.length for chunk in chunks)
        ports.transport.read(file.path, join_ranges(chunks), judge, deadline_s=deadline_for(total))
    except TransferTimeout:  # guard: a hang is no damage
        raise
    except TransferFailed as error:
        if len(chunks) == 1:  # guard: a sector that cannot be read is damage of its chunk alone
            return [Damage(file.entry.name, chunks[0], f"cannot be read: {error}")]
        return [one for chunk in chunks for one in _check(ports, file, [chunk], deep)]
    return sorted(damage, key=lambda one: one.part.offset if one.part else -1)


def _is_deeply_right(file: StoredFile, chunk: Range, data: memoryview) -> bool:
    if file.index is None:  # its digest was checked already
        return True
    hashes = file.index.chunks[chunk.offset // file.chunk_bytes]
    seed = place_seed(file.index.salt, file.entry.name, chunk.offset)
    return content_hash(data, file.content_kind) == hashes.content and (
        not file.index.has_device or device_hash(data, seed) == hashes.device
    )


def _check_whole(ports: StorePorts, manifest: Manifest, file: StoredFile, length: int) -> list[Damage]:
    """Without its index a file can only be compared as a whole."""
    size = file.entry.size_bytes
    whole = Range(0, size)
    if length < size:
        return [Damage(file.entry.name, whole, f"the file ends at byte {length}")]
    try:
        index = hash_file(ports, manifest, file)
    except TransferTimeout:
        raise
    except TransferFailed as error:
        return [Damage(file.entry.name, whole, f"cannot be read: {error}")]
    return [] if index.digest == file.entry.digest else [Damage(file.entry.name, whole, "not what was published")]


def hash_file(ports: StorePorts, manifest: Manifest, file: StoredFile) -> Index:
    """The index that a file should have for what is in it now; raises as `Transport.read` does."""
    hashing = hashing_for(manifest.kind, manifest.key, manifest.chunk_bytes)
    builder = IndexBuilder(file.entry.name, file.entry.size_bytes, hashing)

    def take(offset: int, memory: memoryview) -> None:
        builder.add(offset, memory)

    size = file.entry.size_bytes
    ports.transport.read(file.path, [Range(0, size)], take, deadline_s=deadline_for(size))
    return builder.build()


def _stretches(chunks: Iterable[Range]) -> Iterator[list[Range]]:
    stretch: list[Range] = []
    for chunk in chunks:
        stretch.append(chunk)
        if sum(one.length for one in stretch) >= STRETCH_BYTES:
            yield stretch
            stretch = []
    if stretch:
        yield stretch
