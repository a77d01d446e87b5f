"""A model out of the store, as any tool reads it: the safetensors files, configuration and tokenizer, nothing else.

Every byte is checked while it is read. A marker in the destination says of which object the export is and that it has
not ended; it is removed last. Where one stands, the same export goes on; anything else that is there is never
overwritten.

Not guaranteed: that two exports to one destination at the same time both succeed; what they write is the same.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ebbtide.storage.errors import Refused
from ebbtide.storage.files.descriptor import Descriptor
from ebbtide.storage.files.durable_files import TEMPORARY_SUFFIX, Disk, storage_error, telling
from ebbtide.storage.objects.stored_file import StoredFile
from ebbtide.storage.objects.stored_object import StoredObject
from ebbtide.storage.remote.remote_target import RemoteTarget
from ebbtide.storage.remote.urls import local_path
from ebbtide.storage.transport.transport import CHUNK_BYTES, Range

MARKER = ".ebbtide-export.json"
STRETCH_BYTES = 4 * CHUNK_BYTES  # what is read at once: that much memory, where it goes to a URL
_MOST_SHOWN = 3

Progress = Callable[[int, int], None]  # called with bytes done and bytes of all, from one thread


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export did.

    Attributes:
        where: the directory or URL, without passwords.
        files: all that are there now.
        written_bytes, saved_bytes: written now; found there, from an export that was cut off.
    """

    where: str
    files: tuple[str, ...]
    written_bytes: int
    saved_bytes: int


def export(stored: StoredObject, destination: str, *, progress: Progress | None = None) -> Exported:
    """Write a model to a local directory or a URL that fsspec knows.

    Args:
        stored: the model, open.
        destination: a directory that is empty, not there, or holds the beginning of this very export.
        progress: told how far it is.

    Raises:
        Refused: something else is there, or nobody knows such URLs.
        Corrupt: the model is damaged; what was exported before is right.
        NoRoom, TransferFailed: it cannot be written.
    """
    path = local_path(destination)
    tell = progress or _nobody
    return _Local(stored, path.absolute(), tell).run() if path else _Remote(stored, destination, tell).run()


class _Local:
    def __init__(self, stored: StoredObject, root: Path, progress: Progress) -> None:
        self._stored, self._root, self._progress = stored, root, progress
        self._disk = Disk()
        self._written = self._saved = 0

    def run(self) -> Exported:
        self._begin()
        names = tuple(entry.name for entry in self._stored.manifest.files)
        for name in names:
            self._write(self._stored.file(name))
        with telling("list", self._root):
            strays = [one for one in self._root.iterdir() if _is_stray(one.name)]
        for path in [self._root / MARKER, *strays]:
            self._disk.remove(path)
        return Exported(str(self._root), names, self._written, self._saved)

    def _begin(self) -> None:
        marker = self._root / MARKER
        with telling("look at", self._root):
            if self._root.exists() and not self._root.is_dir():
                raise Refused(f"{self._root} is a file: name a directory")
            there = sorted(one.name for one in self._root.iterdir()) if self._root.is_dir() else []
            there = [name for name in there if not _is_stray(name)]
            content = marker.read_bytes() if MARKER in there else b""
        _check_free(str(self._root), there, content, self._stored.id)
        with telling("create", self._root):
            self._root.mkdir(parents=True, exist_ok=True)
        self._disk.replace(marker, _marker(self._stored.id))

    def _write(self, file: StoredFile) -> None:
        target = self._root / file.entry.name
        part = target.with_name(f".{target.name}.part")
        with telling("create", target):
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                os.replace(target, part)  # looked at like any other beginning
            opened = Descriptor(os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666))
        try:
            self._fill(file, opened, part)
            with telling("sync", part), opened.lent() as fd:
                os.fsync(fd)
        finally:
            with telling("close", part):
                opened.close()
        self._disk.move_over(part, target)

    def _fill(self, file: StoredFile, opened: Descriptor, path: Path) -> None:
        size = file.entry.size_bytes
        with telling("write", path), opened.lent() as fd:
            before = os.fstat(fd).st_size
            os.ftruncate(fd, size)

        def write(offset: int, memory: memoryview) -> None:  # may come when the transfer was given up long since
            done = 0
            while done < len(memory):
                try:
                    with opened.lent() as fd:
                        done += os.pwrite(fd, memory[done:], offset + done)
                except OSError as error:
                    raise storage_error(error, "write", path, offset=offset + done) from error

        for chunk in file.chunks():
            if chunk.offset < before and self._is_there(file, opened, chunk):
                self._saved += chunk.length
            else:
                self._stored.read_file(file.entry.name, consume=write, ranges=[chunk])
                self._written += chunk.length
            self._progress(self._written + self._saved, self._stored.manifest.size_bytes)

    def _is_there(self, file: StoredFile, opened: Descriptor, chunk: Range) -> bool:
        try:
            with opened.lent() as fd:
                return file.is_right(chunk, os.pread(fd, chunk.length, chunk.offset))
        except OSError:
            return False


class _Remote:
    def __init__(self, stored: StoredObject, url: str, progress: Progress) -> None:
        self._stored, self._target, self._progress = stored, RemoteTarget(url), progress
        self._done: dict[str, int] = {}
        self._written = self._saved = 0

    def run(self) -> Exported:
        there = self._target.names()
        content = self._target.read(MARKER) if MARKER in there else b""
        _check_free(self._target.where, sorted(there), content, self._stored.id)
        before = _done_before(content)
        self._note()
        files = self._stored.manifest.files
        for entry in files:
            if before.get(entry.name) == entry.size_bytes == self._target.size_of(entry.name):
                self._saved += entry.size_bytes
            else:
                self._upload(self._stored.file(entry.name))
            self._done[entry.name] = entry.size_bytes
            self._note()
        self._target.remove(MARKER)
        return Exported(self._target.where, tuple(file.name for file in files), self._written, self._saved)

    def _upload(self, file: StoredFile) -> None:
        name, size = file.entry.name, file.entry.size_bytes
        before = self._written

        def write_to(sink: Callable[[bytes], object]) -> None:
            self._written = before  # asked again: all of the file is sent again
            for start in range(0, size, STRETCH_BYTES):
                sink(self._read(name, Range(start, min(STRETCH_BYTES, size - start))))

        self._target.write(name, size, write_to)

    def _read(self, name: str, part: Range) -> bytes:
        content = bytearray(part.length)

        def keep(offset: int, memory: memoryview) -> None:
            first, last = max(offset, part.offset), min(offset + len(memory), part.end)
            content[first - part.offset : last - part.offset] = memory[first - offset : last - offset]

        self._stored.read_file(name, consume=keep, ranges=[part])
        self._written += part.length
        self._progress(self._written + self._saved, self._stored.manifest.size_bytes)
        return bytes(content)

    def _note(self) -> None:
        self._target.put(MARKER, _marker(self._stored.id, self._done))


def _is_stray(name: str) -> bool:
    """What a process leaves that is killed while it puts the marker in its place."""
    return name.startswith(f".{MARKER}.") and name.endswith(TEMPORARY_SUFFIX)


def _marker(object_id: str, done: dict[str, int] | None = None) -> bytes:
    what = "an export by ebbtide that has not ended: run it again to go on, or remove this directory"
    return json.dumps({"what": what, "object": object_id, "done": done or {}}).encode() + b"\n"


def _check_free(where: str, there: list[str], marker: bytes, object_id: str) -> None:
    """Raise Refused unless the destination is empty, or holds the beginning of this export."""
    if not marker:
        if there:
            some = ", ".join(ascii(name)[1:-1] for name in there[:_MOST_SHOWN])
            raise Refused(f"{where} is not empty ({some} is there), and nothing is overwritten: name another directory")
        return
    try:
        other = json.loads(marker)["object"]
    except (ValueError, KeyError, TypeError, RecursionError):
        other = None
    if other != object_id:
        what = f"object {other}" if isinstance(other, str) else "something unknown"
        raise Refused(f"{where} holds an export of {what} that has not ended: end it, or remove that directory")


def _done_before(marker: bytes) -> dict[str, int]:
    """The files that an export to a URL has finished, with their sizes."""
    done = json.loads(marker).get("done", {}) if marker else {}
    return {name: size for name, size in done.items() if isinstance(size, int)} if isinstance(done, dict) else {}


def _nobody(_done: int, _total: int) -> None:
    return None
