"""The sidecar ``<file>.idx``: the hashes of a file's chunks, in a fixed binary form.

::

    magic "EBBTIDX\\0" | version u16 | content hash u8 | flags u8 | chunk bytes u32 | file bytes u64 | salt 16 bytes |
    count u32 | zeros up to 64 bytes | count records: quick u64, device u64, content 32 bytes | SHA-256 of all before

All little endian. Beside the file and not inside it, so that the file stays plain safetensors. Binary, since a
terabyte has 65536 chunks. Parsing believes nothing: any deviation is `Corrupt`, before any record is used.
"""

import hashlib
import struct
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

from ebbtide.storage.errors import Corrupt, Refused
from ebbtide.storage.integrity.chunk_hash import (
    CONTENT_BYTES,
    SALT_BYTES,
    ContentHash,
    content_hash,
    device_hash,
    place_seed,
    quick_hash,
)
from ebbtide.storage.transport.transport import ALIGNMENT_BYTES, CHUNK_BYTES

MAGIC = b"EBBTIDX\0"
VERSION = 1
MAX_INDEX_BYTES = 1 << 30  # 350 TB in chunks of 16 MiB
_HEADER = struct.Struct(f"<8sHBBIQ{SALT_BYTES}sI20x")
_RECORD = struct.Struct(f"<QQ{CONTENT_BYTES}s")
_TRAILER_BYTES = 32
_HAS_DEVICE = 1  # flag: the device hashes were computed
_CODES = {ContentHash.SHA256: 1, ContentHash.XXH3_128: 2}
_KINDS = {code: kind for kind, code in _CODES.items()}


class ChunkHashes(NamedTuple):
    """The hashes of one chunk; ``device`` is 0 where it was not computed."""

    quick: int
    device: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Index:
    """The hashes of one file.

    Attributes:
        file_bytes: the file's length.
        chunk_bytes: length of each chunk but the last.
        salt: of the object.
        content_kind: which hash of content.
        has_device: whether the device hashes were computed.
        chunks: in the order of the file.
    """

    file_bytes: int
    chunk_bytes: int
    salt: bytes
    content_kind: ContentHash
    has_device: bool
    chunks: tuple[ChunkHashes, ...]

    @property
    def digest(self) -> str:
        """What names the file's content: the SHA-256 of its chunks' content hashes."""
        return hashlib.sha256(b"".join(chunk.content for chunk in self.chunks)).hexdigest()

    def to_bytes(self) -> bytes:
        """The sidecar's content."""
        flags = _HAS_DEVICE if self.has_device else 0
        code = _CODES[self.content_kind]
        header = (MAGIC, VERSION, code, flags, self.chunk_bytes, self.file_bytes, self.salt, len(self.chunks))
        body = _HEADER.pack(*header) + b"".join(_RECORD.pack(*chunk) for chunk in self.chunks)
        return body + hashlib.sha256(body).digest()


def chunk_count(file_bytes: int, chunk_bytes: int) -> int:
    """How many chunks a file has."""
    return -(-file_bytes // chunk_bytes)


def check_chunk_bytes(chunk_bytes: int) -> int:
    """Check a chunk size: a power of two from 4096 to `CHUNK_BYTES`, so that it divides a transport's chunks.

    Raises:
        Refused: it is not.
    """
    if not ALIGNMENT_BYTES <= chunk_bytes <= CHUNK_BYTES or chunk_bytes & (chunk_bytes - 1):
        raise Refused(
            f"a chunk size of {chunk_bytes} bytes: a power of two from {ALIGNMENT_BYTES} to {CHUNK_BYTES} is needed"
        )
    return chunk_bytes


def parse_index(raw: bytes, path: Path) -> Index:
    """Read a sidecar.

    Args:
        raw: all of its bytes.
        path: for messages.

    Raises:
        Corrupt: it is not exactly what `Index.to_bytes` writes.
        Refused: a newer version wrote it.
    """

    def corrupt(what: str, offset: int = 0) -> NoReturn:
        raise Corrupt(f"this index of chunk hashes {what}", path, offset=offset)

    if not raw.startswith(MAGIC):
        corrupt("does not begin like one")
    if len(raw) < _HEADER.size + _TRAILER_BYTES:
        corrupt(f"has only {len(raw)} bytes", len(raw))
    _, version, code, flags, chunk_bytes, file_bytes, salt, count = _HEADER.unpack_from(raw)
    if version != VERSION:
        raise Refused(f"{path} has version {version}; this version of ebbtide reads {VERSION}: update it")
    body = raw[:-_TRAILER_BYTES]
    if hashlib.sha256(body).digest() != raw[-_TRAILER_BYTES:]:  # guard: an index has its hash at its end
        corrupt("does not have the hash at its end", len(body))
    try:
        check_chunk_bytes(chunk_bytes)  # guard: an index has a chunk size that can be
    except Refused as error:
        corrupt(f"has {error}")
    # guard: an index has no fields of unknown meaning
    if code not in _KINDS or flags & ~_HAS_DEVICE or any(raw[_HEADER.size - 20 : _HEADER.size]):
        corrupt("has fields of unknown meaning")
    # guard: an index fits its file
    if count != chunk_count(file_bytes, chunk_bytes) or len(body) != _HEADER.size + count * _RECORD.size:
        corrupt(f"has {count} chunks and {len(raw)} bytes, which do not fit a file of {file_bytes}")
    chunks = tuple(ChunkHashes(*record) for record in _RECORD.iter_unpack(body[_HEADER.size :]))
    return Index(file_bytes, chunk_bytes, salt, _KINDS[code], bool(flags & _HAS_DEVICE), chunks)


@dataclass(frozen=True, slots=True)
class Hashing:
    """How the files of one object are hashed."""

    salt: bytes
    chunk_bytes: int = CHUNK_BYTES
    content_kind: ContentHash = ContentHash.SHA256
    with_device: bool = True


class IndexBuilder:
    """Gathers the hashes of a file's chunks, in any order and from any thread."""

    def __init__(self, name: str, file_bytes: int, hashing: Hashing) -> None:
        self._name, self._file_bytes, self._hashing = name, file_bytes, hashing
        self._chunks: dict[int, ChunkHashes] = {}
        self._changed = threading.Lock()

    def add(self, offset: int, data: memoryview) -> None:
        """Hash ``data``, which stands at ``offset`` and consists of whole chunks; again if a write is repeated."""
        size = self._hashing.chunk_bytes
        assert offset % size == 0 and (len(data) % size == 0 or offset + len(data) == self._file_bytes)
        for start in range(0, len(data), size):
            chunk = hash_chunk(data[start : start + size], self._name, offset + start, self._hashing)
            with self._changed:
                self._chunks[(offset + start) // size] = chunk

    def build(self) -> Index:
        """The index of the whole file."""
        how = self._hashing
        count = chunk_count(self._file_bytes, how.chunk_bytes)
        # guard: an index with a hole is never made
        assert self._chunks.keys() == set(range(count)), "every chunk must have been written"
        chunks = tuple(self._chunks[number] for number in range(count))
        return Index(self._file_bytes, how.chunk_bytes, how.salt, how.content_kind, how.with_device, chunks)


def hash_chunk(data: memoryview, name: str, offset: int, how: Hashing) -> ChunkHashes:
    """All hashes of one chunk."""
    seed = place_seed(how.salt, name, offset)
    device = device_hash(data, seed) if how.with_device else 0
    return ChunkHashes(quick_hash(data, seed), device, content_hash(data, how.content_kind))
