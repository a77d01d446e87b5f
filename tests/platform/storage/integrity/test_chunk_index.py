"""The sidecar of chunk hashes: what is written is read again, and anything else is refused before it is used."""

import hashlib
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.storage.errors import Corrupt, Refused
from ebbtide.storage.integrity.chunk_hash import ContentHash, content_hash, device_hash, place_seed, quick_hash
from ebbtide.storage.integrity.chunk_index import (
    ChunkHashes,
    Hashing,
    Index,
    IndexBuilder,
    check_chunk_bytes,
    parse_index,
)
from tests.examples import examples
from tests.platform.storage.stores import random_bytes

PATH = Path("model.safetensors.idx")
SALT = b"0123456789abcdef"
U64 = st.integers(0, 2**64 - 1)


@st.composite
def indexes(draw: st.DrawFn) -> Index:
    chunk = draw(st.sampled_from([4096, 65536, 16 << 20]))
    size = draw(st.integers(0, 5 * chunk))
    hashes = st.builds(ChunkHashes, U64, U64, st.binary(min_size=32, max_size=32))
    count = -(-size // chunk)
    chunks = tuple(draw(st.lists(hashes, min_size=count, max_size=count)))
    salt = draw(st.binary(min_size=16, max_size=16))
    return Index(size, chunk, salt, draw(st.sampled_from(ContentHash)), draw(st.booleans()), chunks)


@settings(deadline=None)
@given(indexes())
def test_what_is_written_is_read_again(index: Index) -> None:
    assert parse_index(index.to_bytes(), PATH) == index


@pytest.mark.proves("an index has its hash at its end")
@settings(deadline=None)
@given(indexes(), st.data())
def test_any_change_is_corrupt(index: Index, data: st.DataObject) -> None:
    raw = bytearray(index.to_bytes())
    how = data.draw(st.sampled_from(["flip", "cut", "extend"]))
    if how == "flip":
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= data.draw(st.integers(1, 255))
    elif how == "cut":
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    else:
        raw += data.draw(st.binary(min_size=1, max_size=60))
    with pytest.raises((Corrupt, Refused), match=r"model\.safetensors\.idx"):
        parse_index(bytes(raw), PATH)


@settings(max_examples=examples(300), deadline=None)
@given(indexes(), st.data())
def test_fields_that_make_no_sense_are_refused_even_with_the_right_hash_at_the_end(
    index: Index, data: st.DataObject
) -> None:
    raw = bytearray(index.to_bytes()[:-32])
    at = data.draw(st.integers(0, 63))
    raw[at] = data.draw(st.integers(0, 255))
    raw += hashlib.sha256(raw).digest()
    try:
        parsed = parse_index(bytes(raw), PATH)
    except (Corrupt, Refused):
        return
    assert parsed.to_bytes() == raw


HEADER = struct.Struct("<8sHBBIQ16sI20s")
GOOD = (b"EBBTIDX\0", 1, 1, 1, 4096, 5000, SALT, 2, bytes(20))
FIELDS: dict[str, tuple[int, object]] = {
    "no content hash": (2, 0),
    "an unknown content hash": (2, 3),
    "an unknown flag": (3, 2),
    "a flag too many": (3, 3),
    "a chunk size that is no power of two": (4, 4999),
    "a chunk size of nothing": (4, 0),
    "too large a chunk size": (4, 1 << 31),
    "a file of one chunk": (5, 4096),
    "a file of three chunks": (5, 8193),
    "the largest file": (5, 2**64 - 1),
    "one chunk": (7, 1),
    "three chunks": (7, 3),
    "chunks without end": (7, 2**32 - 1),
    "something in the zeros": (8, bytes(19) + b"\1"),
}


@pytest.mark.proves(
    "an index fits its file",
    "an index has a chunk size that can be",
    "an index has no fields of unknown meaning",
)
@pytest.mark.parametrize(("field", "value"), FIELDS.values(), ids=FIELDS.keys())
def test_each_field_is_checked_even_with_the_right_hash_at_the_end(field: int, value: object) -> None:
    def written(fields: tuple[object, ...]) -> bytes:
        body = HEADER.pack(*fields) + bytes(2 * 48)
        return body + hashlib.sha256(body).digest()

    assert parse_index(written(GOOD), PATH).file_bytes == 5000
    with pytest.raises(Corrupt):
        parse_index(written((*GOOD[:field], value, *GOOD[field + 1 :])), PATH)


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_noise_is_refused(noise: bytes, framed: bool) -> None:
    raw = b"EBBTIDX\0\1\0" + noise if framed else noise
    raw = raw + hashlib.sha256(raw).digest() if framed else raw
    with pytest.raises((Corrupt, Refused)):
        parse_index(raw, PATH)


def test_a_newer_version_is_refused_with_a_remedy() -> None:
    raw = Index(0, 4096, SALT, ContentHash.SHA256, True, ()).to_bytes()
    with pytest.raises(Refused, match="update it"):
        parse_index(raw[:8] + b"\2\0" + raw[10:], PATH)


def test_the_form_on_disk_never_changes() -> None:
    index = Index(
        5000, 4096, SALT, ContentHash.SHA256, True, (ChunkHashes(1, 2, b"3" * 32), ChunkHashes(4, 5, b"6" * 32))
    )
    raw = index.to_bytes()
    assert len(raw) == 64 + 2 * 48 + 32
    assert (
        raw[:44]
        == b"EBBTIDX\0\1\0\1\1" + (4096).to_bytes(4, "little") + (5000).to_bytes(8, "little") + SALT + b"\2\0\0\0"
    )
    assert index.digest == hashlib.sha256(b"3" * 32 + b"6" * 32).hexdigest()


@pytest.mark.parametrize("with_device", [True, False])
@pytest.mark.parametrize("kind", ContentHash)
@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 40_000])
def test_an_index_has_the_hashes_of_its_chunks_in_whatever_order_they_came(
    size: int, kind: ContentHash, with_device: bool
) -> None:
    data, how = random_bytes(size), Hashing(SALT, 4096, kind, with_device)
    builder = IndexBuilder("a/b", size, how)
    for start in [
        *reversed(range(0, size, 8192)),
        *range(0, min(size, 4096), 4096),
    ]:  # the first again, as after a retry
        builder.add(start, memoryview(data)[start : start + 8192 if start else min(size, 4096)])
    for start in range(4096, min(size, 8192), 4096):
        builder.add(start, memoryview(data)[start : start + 4096])
    index = builder.build()
    assert parse_index(index.to_bytes(), PATH) == index
    for number, chunk in enumerate(index.chunks):
        part = data[number * 4096 : (number + 1) * 4096]
        seed = place_seed(SALT, "a/b", number * 4096)
        assert chunk == (
            quick_hash(part, seed),
            device_hash(part, seed) if with_device else 0,
            content_hash(part, kind),
        )


@pytest.mark.proves("an index with a hole is never made")
def test_an_index_with_a_hole_is_never_made() -> None:
    builder = IndexBuilder("a", 8192, Hashing(SALT, 4096))
    builder.add(4096, memoryview(bytes(4096)))
    with pytest.raises(AssertionError):
        builder.build()


@pytest.mark.parametrize("size", [0, 1, 4095, 4097, 12288, 32 << 20, -4096])
def test_chunk_sizes_that_do_not_divide_a_transfers_are_refused(size: int) -> None:
    with pytest.raises(Refused, match="power of two"):
        check_chunk_bytes(size)
