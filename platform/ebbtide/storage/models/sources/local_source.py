"""A directory that this machine can read, a mounted share among them.

Links to files are followed, since downloaded models are often trees of links into a cache; links to directories are
not. A file's stamp is its inode with the times of its last changes: the time of modification alone can be set back,
as tools that unpack archives do.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from ebbtide.storage.errors import Refused
from ebbtide.storage.files.descriptor import Descriptor
from ebbtide.storage.files.durable_files import storage_error
from ebbtide.storage.models.sources.source import Part, SourceChanged, SourceFile

MAX_FILES = 20_000  # the largest published checkpoints have a few hundred
MAX_DEPTH = 3  # of directories: "1_Pooling/config.json", "original/params.json"


class LocalSource:
    """See `Source`."""

    def __init__(self, directory: Path) -> None:
        """``directory`` need not be absolute; links to it are followed once, now."""
        self._root = Path(os.path.realpath(directory))

    @property
    def where(self) -> str:
        """The directory, absolute and without links."""
        return str(self._root)

    def listing(self) -> list[SourceFile]:
        """See `Source.listing`; hidden files and directories are left out."""
        try:
            if self._root.is_file():
                raise Refused(f"{self._root} is a file: name the directory that holds the whole model")
            found: list[SourceFile] = []
            for file in _walk(self._root, "", MAX_DEPTH):
                if len(found) >= MAX_FILES:
                    raise Refused(f"{self._root} has more than {MAX_FILES} files: name the directory of one model")
                found.append(file)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                raise Refused(f"there is no directory {self._root}") from error
            raise storage_error(error, "list", self._root) from error
        return sorted(found)

    def look_for(self, names: Iterable[str]) -> list[SourceFile]:
        """See `Source.look_for`: a directory shows all that is in it."""
        return []

    def open(self, file: SourceFile) -> "LocalReading":
        """See `Source.open`."""
        path = self._root / file.name
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not block here
        except FileNotFoundError as error:
            raise SourceChanged(str(path), "is gone") from error
        except OSError as error:
            raise storage_error(error, "open", path) from error
        reading = LocalReading(path, Descriptor(fd), file)
        try:
            reading.check()
        except BaseException:
            reading.close()
            raise
        return reading


class LocalReading:
    """See `Reading`. It looks at the file's stamp when it is opened and when it is closed without an error.

    Whoever reads after it was closed, as a thread that hung, gets an error and no bytes of another file.
    """

    def __init__(self, path: Path, opened: Descriptor, file: SourceFile) -> None:
        self._path, self._opened, self._file = path, opened, file

    def check(self) -> None:
        """Raise `SourceChanged` unless the file is as it was listed."""
        try:
            with self._opened.lent() as fd:
                found = os.fstat(fd)
        except OSError as error:
            raise storage_error(error, "open", self._path) from error
        if (found.st_size, _stamp(found)) != (self._file.size_bytes, self._file.stamp):
            raise SourceChanged(str(self._path), "is another file than it was")

    def read(self, parts: Sequence[Part]) -> None:
        """See `Reading.read`."""
        for part in parts:
            done = 0
            while done < len(part.memory):
                at = part.offset + done
                try:
                    with self._opened.lent() as fd:
                        count = os.preadv(fd, [part.memory[done:]], at)
                except OSError as error:
                    raise storage_error(error, "read", self._path, offset=at) from error
                if count == 0:
                    raise SourceChanged(str(self._path), f"ends at byte {at} of {self._file.size_bytes}")
                done += count

    def close(self) -> None:
        """Nobody reads any more; waits for nobody."""
        with suppress(OSError):  # what was read was read
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.check()
        finally:
            self.close()


def _walk(folder: Path, prefix: str, depth: int) -> Iterator[SourceFile]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                if depth > 1:
                    yield from _walk(Path(entry.path), f"{prefix}{entry.name}/", depth - 1)
                continue
            try:
                found = entry.stat()
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ELOOP):
                    continue  # a link that leads nowhere; if it is needed, its absence is told
                raise
            if stat.S_ISREG(found.st_mode):
                yield SourceFile(prefix + entry.name, found.st_size, _stamp(found))


def _stamp(found: os.stat_result) -> str:
    return f"inode {found.st_ino} modified {found.st_mtime_ns} changed {found.st_ctime_ns}"
