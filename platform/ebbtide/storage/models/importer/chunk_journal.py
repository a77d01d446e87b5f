"""Which chunks of a file that is being written are on disk, and their hashes: what is left after a kill -9.

A record is appended before its chunk is written, and neither is synced: a record only *claims*. Whoever goes on reads
each claimed chunk back and compares it with all its hashes, so that a chunk that never reached the disk, or that
somebody else wrote meanwhile, is copied again and never believed.

A thread that hung in the source may come back long after the journal was left: it is turned away (``descriptor``).

Layout: a line that names what is being written, then records of a fixed size, each with a hash of its own: one that was
torn or overwritten is skipped.
"""

import os
import struct
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import xxhash

from ebbtide.storage.files.descriptor import Descriptor
from ebbtide.storage.files.durable_files import telling
from ebbtide.storage.integrity.chunk_hash import CONTENT_BYTES
from ebbtide.storage.integrity.chunk_index import ChunkHashes

_RECORD = struct.Struct(f"<QQQ{CONTENT_BYTES}sQ")  # chunk, quick, device, content, hash of all before
_TITLE_BYTES = 128
MAX_JOURNAL_BYTES = 64 << 20  # a million chunks: 16 TB in one file


def journal_path(file: Path) -> Path:
    """Where the journal of a file lies: beside it, under a name that no file of an object can have."""
    return file.with_name(f".{file.name}.chunks")


def read_journal(path: Path, title: str) -> dict[int, ChunkHashes]:
    """The chunks that are claimed to be there; nothing, if the journal is of something else, or there is none."""
    content = b""
    with telling("read", path), suppress(FileNotFoundError), path.open("rb") as file:
        content = file.read(MAX_JOURNAL_BYTES)
    if content[:_TITLE_BYTES] != _title(title):
        return {}
    claimed: dict[int, ChunkHashes] = {}
    body = content[_TITLE_BYTES:]
    for start in range(0, len(body) - _RECORD.size + 1, _RECORD.size):
        record = body[start : start + _RECORD.size]
        chunk, quick, device, hashed, seal = _RECORD.unpack(record)
        if xxhash.xxh3_64_intdigest(record[:-8]) == seal:
            claimed[chunk] = ChunkHashes(quick, device, hashed)
    return claimed


class Journal:
    """Appends records; a context manager, may be used by several threads."""

    def __init__(self, path: Path, title: str) -> None:
        """Go on with the journal at ``path`` if it is of the same, else begin it anew."""
        self._path = path
        self._lock = threading.Lock()
        goes_on = bool(read_journal(path, title))
        with telling("create", path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = Descriptor(os.open(path, flags | (0 if goes_on else os.O_TRUNC), 0o600))
        if goes_on:
            self._complete_torn()
        else:
            self._append(_title(title))

    def claim(self, chunk: int, hashes: ChunkHashes) -> None:
        """Say that a chunk, counted from 0, is about to be written; raises TransferFailed once the journal was left."""
        record = _RECORD.pack(chunk, hashes.quick, hashes.device, hashes.content, 0)[:-8]
        self._append(record + xxhash.xxh3_64_intdigest(record).to_bytes(8, "little"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # it only claims, and what is not there is copied again
            self._file.close()  # without the lock: whoever has it may hang in a write

    def _complete_torn(self) -> None:
        """Fill up a last record that was torn, so that the next begins where one is looked for."""
        with self._file.lent() as fd:
            rest = -(os.fstat(fd).st_size - _TITLE_BYTES) % _RECORD.size
        if rest:
            self._append(b"\0" * rest)

    def _append(self, data: bytes) -> None:
        with self._lock, telling("write", self._path):
            while data:
                with self._file.lent() as fd:
                    data = data[os.write(fd, data) :]


def _title(title: str) -> bytes:
    return f"ebbtide chunks 1 {title}"[: _TITLE_BYTES - 1].ljust(_TITLE_BYTES - 1).encode("ascii") + b"\n"
