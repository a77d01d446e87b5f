"""Is this directory an object, whole and the one it is called? All that can be told without reading the large files.

Checked here at every opening, in this order: the manifest is there; COMMIT is there and names it; it is the manifest
of this id; each file has its length; each index is the one that the manifest names, and belongs to its file. What is
left is the content of the files, which is checked chunk by chunk while it is read.
"""

import hashlib
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ebbtide.storage.errors import Corrupt, NotPublished
from ebbtide.storage.files.durable_files import read_small, telling
from ebbtide.storage.integrity.chunk_index import MAX_INDEX_BYTES, Index, parse_index
from ebbtide.storage.names import COMMIT, MANIFEST, FileName, ObjectId, index_name
from ebbtide.storage.objects.manifest import (
    MAX_MANIFEST_BYTES,
    FileEntry,
    Manifest,
    commit_bytes,
    hashing_for,
    parse_manifest,
)

MOST_LOOKS = 10  # each but the last needs a move in just the moment of a look


@dataclass(frozen=True, slots=True)
class Contents:
    """What was found in an object's directory.

    Attributes:
        indexes: of the files that have one, by the file's name.
    """

    directory: Path
    id: ObjectId
    manifest: Manifest
    indexes: Mapping[str, Index]


def read_manifest(directory: Path, object_id: ObjectId) -> Manifest:
    """The manifest of a committed object.

    Raises:
        NotPublished: there is no such object, or nobody committed it.
        Corrupt: manifest, COMMIT and id do not fit together.
    """
    raw = _read(directory / MANIFEST, MAX_MANIFEST_BYTES)
    commit = _read(directory / COMMIT, MAX_MANIFEST_BYTES)
    if raw is None or commit is None:  # guard: without COMMIT it is no object
        missing = MANIFEST if raw is None else COMMIT
        with telling("open", directory):
            what = "was never committed" if directory.is_dir() else "is not published"
        raise NotPublished(f"object {object_id} {what}: there is no {directory / missing}")
    if commit != commit_bytes(raw):  # guard: COMMIT names the manifest
        raise Corrupt("COMMIT names another manifest than the one beside it", directory / COMMIT)
    manifest = parse_manifest(raw, directory / MANIFEST)
    if manifest.id != object_id:  # guard: a manifest is that of its object
        raise Corrupt(f"this is the manifest of object {manifest.id}", directory / MANIFEST)
    return manifest


def open_contents(directory: Path, object_id: ObjectId) -> Contents:
    """Check an object's directory, except for the content of its files.

    A collector may move the directory away, and a publisher put another in its place, while it is looked at: what was
    found wrong then is no damage, and it is looked at again.

    Raises:
        NotPublished: there is no such object, or nobody committed it.
        Corrupt: something in it is not as published; names the file.
    """
    for _ in range(MOST_LOOKS - 1):
        before = _which(directory)
        try:
            return _look(directory, object_id)
        except Corrupt:  # guard: what moved while it was looked at is looked at again
            if _which(directory) == before:
                raise
    return _look(directory, object_id)


def _which(directory: Path) -> tuple[int, int] | None:
    """Tells this directory from another of its name, and from itself after a move; None if there is none."""
    with telling("open", directory):
        try:
            found = directory.stat(follow_symlinks=False)
        except FileNotFoundError:
            return None
    return found.st_ino, found.st_ctime_ns  # inodes are used again; a move changes the time


def _look(directory: Path, object_id: ObjectId) -> Contents:
    manifest = read_manifest(directory, object_id)
    for entry in manifest.files:
        _check_length(directory / entry.name, entry)
    indexes = {entry.name: read_index(directory, manifest, entry) for entry in manifest.files if entry.index}
    return Contents(directory, object_id, manifest, indexes)


def read_index(directory: Path, manifest: Manifest, entry: FileEntry) -> Index:
    """The index of one file that has one, checked against the manifest.

    Raises:
        Corrupt: it is missing, or another.
    """
    path = directory / index_name(FileName(entry.name))
    raw = _read(path, MAX_INDEX_BYTES)
    if raw is None:
        raise Corrupt("this index of chunk hashes is missing", path)
    if hashlib.sha256(raw).hexdigest() != entry.index:  # guard: an index is the one that the manifest names
        raise Corrupt("this index is not the one that the manifest names", path)
    index = parse_index(raw, path)
    how = hashing_for(manifest.kind, manifest.key, manifest.chunk_bytes)
    belongs = (index.file_bytes, index.digest) == (entry.size_bytes, entry.digest)
    # guard: an index is of its file and object
    if not belongs or (index.salt, index.chunk_bytes) != (how.salt, manifest.chunk_bytes):
        raise Corrupt("this index is of another file than the manifest says", path)
    return index


def _check_length(path: Path, entry: FileEntry) -> None:
    with telling("open", path):
        try:
            found = path.stat(follow_symlinks=False)
        except FileNotFoundError:
            raise Corrupt("this file of the object is missing", path) from None
    if not stat.S_ISREG(found.st_mode):  # guard: each file of an object is an ordinary one
        raise Corrupt("this file of the object is no ordinary file", path)
    if found.st_size != entry.size_bytes:  # guard: each file of an object has its length
        what = f"this file has {found.st_size} bytes, and was published with {entry.size_bytes}"
        raise Corrupt(what, path, offset=min(found.st_size, entry.size_bytes))


def _read(path: Path, limit_bytes: int) -> bytes | None:
    try:
        return read_small(path, limit_bytes)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise Corrupt(f"this file is longer than any of its kind: {error}", path) from error
