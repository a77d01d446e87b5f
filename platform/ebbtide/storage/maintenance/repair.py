"""Mending a damaged object from good copies of its files, in place and without a moment in which it is not there.

Of a damaged file a new copy is made in a work directory: the good chunks from the file itself, the bad ones from the
source, each compared with the hash under which it was published. The copy is then renamed over the damaged file.
Readers see the old file or the new one; either way every chunk is checked. Since the id names the content, the object
is the same afterwards, whoever repaired it, and two who repair at once do no harm.

Manifest and COMMIT cannot be repaired: they say how the rest should be. Publish the object anew; it gets the same id,
and what stands there is moved to quarantine.
"""

import errno
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from ebbtide.storage.errors import Refused, StorageError
from ebbtide.storage.files.durable_files import storage_error
from ebbtide.storage.leases.lease_subjects import of_object, of_work
from ebbtide.storage.maintenance.scrub import Damage, look_at
from ebbtide.storage.maintenance.space_reservation import reserve
from ebbtide.storage.names import FileName, attempt, index_name, object_id
from ebbtide.storage.objects.manifest import FileEntry, hashing_for
from ebbtide.storage.objects.object_contents import open_contents, read_manifest
from ebbtide.storage.objects.staging import Staging
from ebbtide.storage.objects.store_ports import StorePorts
from ebbtide.storage.objects.stored_file import StoredFile
from ebbtide.storage.transport.transport import Range


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was mended.

    Attributes:
        files: that were replaced.
        source_bytes: how many of their bytes came from the sources.
    """

    files: tuple[str, ...]
    source_bytes: int


def repair(ports: StorePorts, wanted: str, damage: Sequence[Damage], sources: Mapping[str, Path]) -> Repaired:
    """Mend an object.

    Args:
        ports: of the store; in its budget must be room for a copy of the largest damaged file.
        wanted: the object's id.
        damage: what `scrub` found.
        sources: for each damaged file a good copy of it; for one of which only the index is damaged, none is needed.

    Raises:
        Refused: a source is missing, or is no copy of the file; that file is as it was.
        NotPublished, Corrupt: the object cannot be repaired.
        NoRoom, TransferFailed: that file is as it was; those before it are mended.
    """
    found = object_id(wanted)
    name = attempt(f"repair-{found[:16]}-{secrets.token_hex(8)}")
    work, directory = ports.paths.work(name), ports.paths.object(found)
    names = sorted({one.file for one in damage})
    taken = 0
    with ExitStack() as held:
        held.enter_context(ports.leases.hold(of_object(found)))  # guard: an object is held while it is repaired
        held.enter_context(ports.leases.hold(of_work(name)))  # guard: the work of a repair is held
        manifest = read_manifest(directory, found)
        hashing = hashing_for(manifest.kind, manifest.key, manifest.chunk_bytes)
        staging = Staging(work, hashing, ports.transport, ports.disk)
        held.callback(_remove, ports, work)  # guard: the work of a repair goes in the end
        ports.disk.make_directory(work)
        # One file at a time: each copy takes the place of what it mends before the next is begun.
        largest = max((manifest.file(file_name).size_bytes for file_name in names), default=0)
        reserve(ports, name, largest)  # guard: a repair asks the budget for a copy of the largest file
        for file_name in names:
            entry = manifest.file(file_name)
            file, _ = look_at(directory, manifest, found, entry)
            bad = [one.part for one in damage if one.file == file_name and one.part is not None]
            with Mixer(file, manifest.chunk_bytes, bad, sources.get(file_name)) as mixer:
                staged = staging.write(file_name, entry.size_bytes, mixer.fill)
            if staged != entry:  # guard: what was mended is what was published, as a whole
                raise mixer.unsuitable("the result is not what was published")
            taken += mixer.source_bytes
            _put_in_place(ports, work, directory, entry)
        open_contents(directory, found)  # guard: a whole object is looked at after a repair
    return Repaired(tuple(names), taken)


class Mixer:
    """Gives the bytes of a file: its own where they are right, those of the source elsewhere."""

    def __init__(self, file: StoredFile, chunk_bytes: int, bad: Sequence[Range], source: Path | None) -> None:
        self._file, self._chunk_bytes, self._bad, self._source = file, chunk_bytes, bad, source
        self._own_fd = self._source_fd = -1
        self.source_bytes = 0

    def __enter__(self) -> Self:
        flags = os.O_RDONLY | os.O_CLOEXEC
        try:
            self._own_fd = os.open(self._file.path, flags | os.O_NOFOLLOW)
        except OSError as error:
            # guard: a damaged file that cannot be opened is an error and not a gap
            if error.errno not in (errno.ENOENT, errno.ELOOP):  # missing, or a link: all of it comes from the source
                raise storage_error(error, "open", self._file.path) from error
        if self._source is not None:
            try:
                self._source_fd = os.open(self._source, flags)
            except OSError as error:
                self._close()
                raise self.unsuitable(f"it cannot be opened: {error.strerror}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def unsuitable(self, why: str) -> Refused:
        """Says what is wrong with the source, and what to do."""
        what = "a source is needed" if self._source is None else f"{self._source} cannot be used: {why}"
        return Refused(
            f"{self._file.entry.name} of object {self._file.object_id} cannot be mended: {what}. "
            "Give a good copy of that very file, or publish the object anew"
        )

    def fill(self, offset: int, memory: memoryview) -> None:
        """See `Fill`."""
        for start in range(0, len(memory), self._chunk_bytes):
            part = memory[start : start + self._chunk_bytes]
            chunk = Range(offset + start, len(part))
            if not self._from_own(chunk, part):
                self._from_source(chunk, part)

    def _close(self) -> None:
        for fd in (self._own_fd, self._source_fd):
            if fd >= 0:
                with suppress(OSError):  # what was read was read
                    os.close(fd)

    def _from_own(self, chunk: Range, memory: memoryview) -> bool:
        if (
            self._own_fd < 0
            # guard: a chunk that is on the list of damage is not taken from the file
            or any(bad.offset < chunk.end and chunk.offset < bad.end for bad in self._bad)
        ):
            return False
        try:
            whole = _read(self._own_fd, chunk, memory)
        except OSError:
            return False
        # Without an index only the whole file can be compared, which is done in the end.
        return whole and (
            self._file.index is None
            or self._file.is_right(chunk, memory)  # guard: a chunk that went bad after the look is not taken over
        )

    def _from_source(self, chunk: Range, memory: memoryview) -> None:
        if self._source_fd < 0:
            raise self.unsuitable("")
        try:
            if not _read(self._source_fd, chunk, memory):  # guard: a repair's source that is too short is refused
                raise self.unsuitable("it is too short")
        except OSError as error:
            raise self.unsuitable(f"it cannot be read: {error.strerror}") from error
        # guard: a chunk of a repair's source is compared
        if self._file.index is not None and not self._file.is_right(chunk, memory):
            raise self.unsuitable(f"at byte {chunk.offset} it is not what was published")
        self.source_bytes += chunk.length


def _read(fd: int, chunk: Range, memory: memoryview) -> bool:
    done = 0
    while done < chunk.length:
        count = os.preadv(fd, [memory[done:]], chunk.offset + done)
        if count == 0:
            return False
        done += count
    return True


def _put_in_place(ports: StorePorts, work: Path, directory: Path, entry: FileEntry) -> None:
    """The file first, then its index: until both are there, the object is as damaged as before, and no more."""
    ports.disk.make_directory((directory / entry.name).parent)
    ports.disk.move_over(work / entry.name, directory / entry.name)
    if entry.index is not None:
        beside = index_name(FileName(entry.name))
        ports.disk.move_over(work / beside, directory / beside)


def _remove(ports: StorePorts, work: Path) -> None:
    with suppress(StorageError):  # what is left is collected
        ports.disk.remove_tree(work)
