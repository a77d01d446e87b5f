"""A directory behind a URL that files are written to, whole and in order: what object stores offer.

A file that fails half way is abandoned: what was sent of it is thrown away and never closed, since closing is what
makes an object of it, and nothing is left under its name.

Not guaranteed: the same after a kill, where a filesystem shows files while they are written (sftp, smb).
"""

import errno
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from fsspec.spec import AbstractBufferedFile  # type: ignore[import-untyped]

from ebbtide.storage.errors import Refused, StorageError, TransferFailed
from ebbtide.storage.remote.fsspec_calls import PAUSES_S, FileMissing, ask
from ebbtide.storage.remote.urls import filesystem, without_secrets

T = TypeVar("T")


class RemoteTarget:
    """Writes files; each is asked for again from its beginning if that fails."""

    def __init__(self, url: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Raises Refused: nobody knows such URLs here, a package is missing, or nothing can be written there."""
        self.where, self._sleep = without_secrets(url), sleep
        self._fs, self._root = filesystem(url)
        if not isinstance(self._fs.protocol, str) and "http" in self._fs.protocol:
            raise Refused(f"{self.where}: nothing can be written by HTTP; name a directory or another URL")

    def names(self) -> list[str]:
        """What is there, files and directories; empty if there is no such directory."""
        self._fs.invalidate_cache()
        try:
            entries = self._ask("list", "", lambda: self._fs.ls(self._root, detail=False))
        except FileMissing:
            return []
        return [str(entry).rstrip("/").rpartition("/")[2] for entry in entries if str(entry).rstrip("/") != self._root]

    def size_of(self, name: str) -> int | None:
        """The length of a file; None if there is none."""
        self._fs.invalidate_cache()
        try:
            size = self._ask("look at", name, lambda: self._fs.info(self._path(name)).get("size"))
        except FileMissing:
            return None
        return size if isinstance(size, int) else None

    def read(self, name: str) -> bytes:
        """A small file."""
        content: bytes = self._ask("read", name, lambda: self._fs.cat_file(self._path(name)))
        return content

    def put(self, name: str, content: bytes) -> None:
        """A small file, in place of what is there."""
        self._make_parent(name)
        self._ask("write", name, lambda: self._fs.pipe_file(self._path(name), content))

    def write(self, name: str, size_bytes: int, write_to: Callable[[Callable[[bytes], object]], None]) -> None:
        """A file of ``size_bytes`` that ``write_to`` gives in order; raises TransferFailed unless all of it arrives."""
        self._make_parent(name)

        def upload() -> None:
            file = self._fs.open(self._path(name), "wb")
            try:
                write_to(file.write)
                file.close()
            except BaseException:
                self._abandon(name, file)
                raise

        self._ask("write", name, upload)
        found = self.size_of(name)
        if found != size_bytes:
            hint = f"{size_bytes} bytes were written, and {found} are there"
            raise TransferFailed("write", f"{self.where}/{name}", errno=errno.EIO, hint=hint)

    def remove(self, name: str) -> None:
        """A file that is there."""
        self._ask("remove", name, lambda: self._fs.rm_file(self._path(name)))

    def _abandon(self, name: str, file: Any) -> None:
        """Leave nothing of a file, as far as can be; why not is not told, since an error is on its way."""

        def discard() -> None:
            if isinstance(file, AbstractBufferedFile):
                file.closed = True  # nobody closes it now: that would send what is left, and make an object of it
                file.discard()
            else:
                file.close()

        for act in (discard, lambda: self._fs.rm_file(self._path(name))):
            with suppress(StorageError):
                ask("remove", f"{self.where}/{name}", act, self._sleep, pauses_s=())

    def _make_parent(self, name: str) -> None:
        parent = self._path(name).rpartition("/")[0]
        self._ask("create", name, lambda: self._fs.makedirs(parent, exist_ok=True))

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _ask(self, action: str, name: str, question: Callable[[], T]) -> T:
        return ask(action, f"{self.where}/{name}", question, self._sleep, pauses_s=PAUSES_S)
