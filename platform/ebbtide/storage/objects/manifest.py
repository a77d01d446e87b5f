"""What an object consists of, and what makes two objects one.

An object's id is the SHA-256 of its manifest without what may differ between two imports of the same content (the
version that wrote it, the form of the sidecar indexes). So whoever publishes the same content, anywhere and at any
time, publishes the same object; and an id says which bytes must be in it.

``COMMIT`` is written after everything else and names the manifest's hash: a directory without it, or with another
hash in it, is not an object.
"""

import hashlib
import json
from collections.abc import Mapping
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from ebbtide.storage.errors import Corrupt, Refused
from ebbtide.storage.integrity.chunk_hash import SALT_BYTES, ContentHash
from ebbtide.storage.integrity.chunk_index import Hashing, check_chunk_bytes
from ebbtide.storage.names import ObjectId, case_collision, file_name, object_id

SCHEMA = 1
MAX_MANIFEST_BYTES = 64 << 20  # about 200,000 files
MAX_KEY_TEXT = 4096

Hex256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Kind(Enum):
    """What an object is for."""

    MODEL = "model"  # a checkpoint as published by its authors: safetensors, configuration, tokenizer
    FLAT = "flat"  # a model's parameters as an engine's ranks hold them in memory
    TRAINING = "training"  # state of a training job
    ARTEFACT = "artefact"  # caches of compilers and kernels


class Frozen(BaseModel):
    """Immutable, and strict about what it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


class FileEntry(Frozen):
    """One file of an object."""

    name: str = Field(description="relative to the object's directory")
    size_bytes: int = Field(ge=0, lt=1 << 63)
    digest: Hex256 = Field(description="SHA-256 of the content hashes of its chunks")
    index: Hex256 | None = Field(None, description="SHA-256 of its sidecar index; none for small files without one")

    @field_validator("name")
    @classmethod
    def _name_stays_inside(cls, value: str) -> str:
        return file_name(value)


class Manifest(Frozen):
    """What an object consists of; made by `make_manifest` and `parse_manifest`."""

    schema_version: Literal[1] = Field(1, alias="schema")
    kind: Kind
    key: dict[str, str] = Field(description="what tells objects of one kind apart: model, dtype, tp, layout, ...")
    chunk_bytes: int = Field(description="length of the chunks that are hashed and repaired")
    content_hash: ContentHash = Field(description="how chunks are hashed for identity")
    files: tuple[FileEntry, ...] = Field(description="in the order of their names")
    uses: tuple[Hex256, ...] = Field((), description="other objects that must live as long as this one")
    created_by: str = Field(description="the version that wrote it; no part of the identity")

    @model_validator(mode="after")
    def _makes_sense(self) -> "Manifest":
        names = [entry.name for entry in self.files]
        # guard: a manifest names each file once
        if names != sorted(set(names)) or list(self.uses) != sorted(set(self.uses)):
            raise ValueError("files and uses must be sorted, each named once")
        if clash := case_collision(names):  # guard: file names that differ only in case are refused
            raise ValueError(f"the file names {clash[0]!r} and {clash[1]!r} differ only in case")
        folders = {parent for name in names for parent in map(str, Path(name).parents)}
        if clashing := folders.intersection(names):  # guard: no name in a manifest is a file and a directory
            raise ValueError(f"{min(clashing)!r} cannot be a file and a directory")
        # guard: a file of more than one chunk has an index
        if any(entry.index is None and entry.size_bytes > self.chunk_bytes for entry in self.files):
            raise ValueError("a file of more than one chunk needs an index")
        for text in (*self.key, *self.key.values(), self.created_by):
            if len(text) > MAX_KEY_TEXT or not text.isprintable():  # guard: keys of an object are printable and short
                raise ValueError("keys and their values must be printable and not overlong")
        check_chunk_bytes(self.chunk_bytes)  # guard: the chunk size of an object divides a transfer
        return self

    def to_bytes(self) -> bytes:
        """The content of ``manifest.json``; the same for equal manifests."""
        fields = self.model_dump(mode="json", by_alias=True)
        return (json.dumps(fields, sort_keys=True, indent=1) + "\n").encode()

    @property
    def id(self) -> ObjectId:
        """The object's id."""
        fields: dict[str, Any] = self.model_dump(mode="json", by_alias=True, exclude={"created_by"})
        for entry in fields["files"]:
            del entry["index"]
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return object_id(hashlib.sha256(text.encode()).hexdigest())

    def file(self, name: str) -> FileEntry:
        """The entry of one file.

        Raises:
            Refused: there is none of that name.
        """
        for entry in self.files:
            if entry.name == name:
                return entry
        some = ", ".join(entry.name for entry in self.files[:8])
        raise Refused(f"object {self.id} has no file {name!r}; it has {some}{' ...' if len(self.files) > 8 else ''}")

    @property
    def size_bytes(self) -> int:
        """Of all files together, without indexes."""
        return sum(entry.size_bytes for entry in self.files)


def make_manifest(**fields: Any) -> Manifest:
    """A manifest of this version, ``files`` and ``uses`` in any order.

    Raises:
        Refused: something in it cannot be; the message says what.
    """
    fields["files"] = tuple(sorted(fields["files"], key=lambda entry: str(entry.name)))
    fields["uses"] = tuple(sorted(set(fields.get("uses", ()))))
    try:
        return Manifest(created_by=_this_version(), **fields)
    except ValidationError as error:
        raise Refused(f"this cannot be published: {_told(error)}") from error


def parse_manifest(raw: bytes, path: Path) -> Manifest:
    """Read ``manifest.json``.

    Raises:
        Corrupt: it is not exactly what `Manifest.to_bytes` writes.
        Refused: a newer version wrote it.
    """
    try:
        found = json.loads(raw)
        # guard: a newer manifest is refused
        if isinstance(found, dict) and found.get("schema") != SCHEMA and isinstance(found.get("schema"), int):
            raise Refused(f"{path} has schema {found['schema']}; this version of ebbtide reads {SCHEMA}: update it")
        manifest = Manifest.model_validate_json(raw)
    except ValidationError as error:
        raise Corrupt(f"this manifest makes no sense: {_told(error)}", path) from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, Refused):
            raise
        raise Corrupt(f"this manifest cannot be read: {error}", path) from error
    if manifest.to_bytes() != raw:  # guard: a manifest is exactly what was written
        raise Corrupt("this manifest was changed after it was written", path)
    return manifest


def commit_bytes(manifest_raw: bytes) -> bytes:
    """The content of ``COMMIT`` for a manifest's bytes."""
    return f"ebbtide object 1\nmanifest sha256 {hashlib.sha256(manifest_raw).hexdigest()}\n".encode()


def hashing_for(kind: Kind, key: Mapping[str, str], chunk_bytes: int) -> Hashing:
    """How to hash the files of an object: its salt comes from what it is for, so equal content hashes equally."""
    text = json.dumps([kind.value, dict(key)], sort_keys=True)
    salt = hashlib.sha256(text.encode()).digest()[:SALT_BYTES]
    if kind is Kind.TRAINING:
        return Hashing(salt, chunk_bytes, ContentHash.XXH3_128, with_device=False)
    return Hashing(salt, chunk_bytes, ContentHash.SHA256, with_device=kind in (Kind.MODEL, Kind.FLAT))


def _told(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in error.errors()[:5])


def _this_version() -> str:
    try:
        return f"ebbtide {version('ebbtide')}"
    except PackageNotFoundError:  # run from a bare checkout
        return "ebbtide"
