"""The manifest: one form on disk, and an id that depends on the content alone."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.storage.errors import Corrupt, Refused
from ebbtide.storage.integrity.chunk_hash import ContentHash
from ebbtide.storage.objects.manifest import (
    FileEntry,
    Kind,
    Manifest,
    commit_bytes,
    hashing_for,
    make_manifest,
    parse_manifest,
)
from tests.examples import examples

PATH = Path("manifest.json")
HEX = "0123456789abcdef" * 4
FILE = FileEntry(name="a.safetensors", size_bytes=5, digest=HEX, index="f" * 64)
SMALL = FileEntry(name="b/config.json", size_bytes=5, digest=HEX)


def made(**changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "kind": Kind.MODEL,
        "key": {"model": "org/m", "tp": "1"},
        "chunk_bytes": 4096,
        "content_hash": ContentHash.SHA256,
        "files": (SMALL, FILE),
    }
    return make_manifest(**fields | changes)


def test_what_is_written_is_read_again_and_people_can_read_it_too() -> None:
    manifest = made(uses=("1" * 64,))
    assert parse_manifest(manifest.to_bytes(), PATH) == manifest
    assert [entry.name for entry in manifest.files] == ["a.safetensors", "b/config.json"]
    assert manifest.file("b/config.json") == SMALL
    assert manifest.size_bytes == 10
    assert json.loads(manifest.to_bytes())["schema"] == 1
    with pytest.raises(Refused, match=r"has no file 'c'; it has a\.safetensors, b/config\.json"):
        manifest.file("c")


def test_published_ids_never_change() -> None:
    """Else the same content would be published twice, and existing objects could not be opened any more."""
    assert made().id == "8ea9faa87aeaf560618749731dc5d5091685f56ae0693b50e52445f4056d34ad"


def test_the_id_knows_the_content_and_nothing_else() -> None:
    manifest = made()
    assert manifest.model_copy(update={"created_by": "ebbtide 99"}).id == manifest.id
    other_index = FILE.model_copy(update={"index": "e" * 64})
    assert made(files=(other_index, SMALL)).id == manifest.id
    changes: list[dict[str, Any]] = [
        {"kind": Kind.FLAT},
        {"key": {"model": "org/m", "tp": "2"}},
        {"key": {"model": "org/m"}},
        {"chunk_bytes": 8192},
        {"content_hash": ContentHash.XXH3_128},
        {"files": (FILE,)},
        {"files": (FILE, SMALL.model_copy(update={"name": "b/c"}))},
        {"files": (FILE, SMALL.model_copy(update={"size_bytes": 6}))},
        {"files": (FILE, SMALL.model_copy(update={"digest": "0" * 64}))},
        {"uses": ("1" * 64,)},
    ]
    assert len({made(**change).id for change in changes} | {manifest.id}) == len(changes) + 1


BAD: dict[str, dict[str, Any]] = {
    "a name that climbs": {"files": ({"name": "../x", "size_bytes": 1, "digest": HEX, "index": None},)},
    "the store's own name": {"files": ({"name": "COMMIT", "size_bytes": 1, "digest": HEX, "index": None},)},
    "a file twice": {"files": (FILE, FILE)},
    "names that differ in case": {"files": (FILE, FILE.model_copy(update={"name": "A.safetensors"}))},
    "a file that is a directory too": {"files": (SMALL, SMALL.model_copy(update={"name": "b"}))},
    "a large file without an index": {"files": (SMALL.model_copy(update={"size_bytes": 4097}),)},
    "an odd chunk size": {"chunk_bytes": 5000},
    "a use that is no id": {"uses": ("x",)},
    "a key with a line break": {"key": {"a": "b\nc"}},
    "a key that never ends": {"key": {"a": "b" * 5000}},
}


@pytest.mark.proves(
    "a file of more than one chunk has an index",
    "a manifest names each file once",
    "a manifest's file names stay inside its directory",
    "file names that differ only in case are refused",
    "keys of an object are printable and short",
    "no name in a manifest is a file and a directory",
    "the chunk size of an object divides a transfer",
)
@pytest.mark.parametrize("changes", BAD.values(), ids=BAD.keys())
def test_what_cannot_be_published_is_refused(changes: dict[str, Any]) -> None:
    if isinstance(changes.get("files", (FILE,))[0], dict):
        with pytest.raises(ValueError):
            FileEntry(**changes["files"][0])
        changes = {"files": tuple(FileEntry.model_construct(**one) for one in changes["files"])}
        fields = json.loads(made().to_bytes())
        fields["files"] = [one.model_dump() for one in changes["files"]]
        with pytest.raises(Corrupt):
            parse_manifest(json.dumps(fields, sort_keys=True, indent=1).encode() + b"\n", PATH)
        return
    with pytest.raises(Refused, match="cannot be published"):
        made(**changes)


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_any_byte_changed_is_corrupt_or_another_object(data: st.DataObject) -> None:
    manifest = made()
    raw = bytearray(manifest.to_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 127))
    try:
        other = parse_manifest(bytes(raw), PATH)
    except (Corrupt, Refused):
        return
    assert other != manifest
    assert commit_bytes(bytes(raw)) != commit_bytes(manifest.to_bytes())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"[" * 100_000,
        b"\xff",
        b'{"schema":1}',
    ],
    ids=["empty", "object", "list", "null", "nested", "binary", "fields missing"],
)
def test_noise_is_corrupt(raw: bytes) -> None:
    with pytest.raises(Corrupt, match=r"manifest\.json"):
        parse_manifest(raw, PATH)


@pytest.mark.proves("a manifest is exactly what was written")
def test_a_byte_more_or_less_is_corrupt() -> None:
    for raw in (made().to_bytes() + b"\n", made().to_bytes()[:-1]):
        with pytest.raises(Corrupt, match=r"manifest\.json"):
            parse_manifest(raw, PATH)


def test_a_name_twice_in_the_json_is_corrupt() -> None:
    raw = made().to_bytes().replace(b'{\n "chunk_bytes"', b'{\n "kind": "flat",\n "chunk_bytes"')
    with pytest.raises(Corrupt, match="changed after"):
        parse_manifest(raw, PATH)


@pytest.mark.proves("a newer manifest is refused")
def test_a_newer_schema_is_refused_with_a_remedy() -> None:
    with pytest.raises(Refused, match="update it"):
        parse_manifest(made().to_bytes().replace(b'"schema": 1', b'"schema": 2'), PATH)


def test_equal_purposes_salt_equally_and_state_is_hashed_cheaply() -> None:
    one = hashing_for(Kind.MODEL, {"a": "1", "b": "2"}, 4096)
    assert one == hashing_for(Kind.MODEL, {"b": "2", "a": "1"}, 4096)
    assert one.salt != hashing_for(Kind.MODEL, {"a": "1"}, 4096).salt != hashing_for(Kind.FLAT, {"a": "1"}, 4096).salt
    assert one.content_kind is ContentHash.SHA256 and one.with_device
    state = hashing_for(Kind.TRAINING, {"a": "1"}, 4096)
    assert state.content_kind is ContentHash.XXH3_128 and not state.with_device
