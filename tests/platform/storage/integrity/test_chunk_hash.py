"""The three hashes: fixed for ever, bound to their place, and what the one for devices detects."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.storage.device.device_hash import DeviceHasher
from ebbtide.storage.integrity.chunk_hash import (
    ContentHash,
    content_hash,
    device_hash,
    place_seed,
    quick_hash,
    word_keys,
)
from tests.examples import examples

SALT = bytes(range(16))


def by_the_book(data: bytes, seed: int) -> int:
    """The device hash as its docstring writes it, with Python's own integers."""
    padded = data + bytes(-len(data) % 4)
    total, state = seed + len(data), 0
    for start in range(0, len(padded), 4):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        key = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) % 2**64
        total += int.from_bytes(padded[start : start + 4], "little", signed=True) * ((key ^ (key >> 31)) | 1)
    return total % 2**64


@pytest.mark.proves("a chunk's hash knows its object and its file")
def test_published_hashes_never_change() -> None:
    """Objects that were published with other values could not be read any more: then the format needs a new version."""
    seed = place_seed(SALT, "model.safetensors", 16 << 20)
    assert seed == 0x34F000A16251B2E0
    data = bytes(range(256)) * 5 + b"xyz"
    assert quick_hash(data, seed) == 0xFA274C553D20AAF
    assert device_hash(data, seed) == 0x72566EFD131B123
    assert content_hash(data, ContentHash.SHA256) == hashlib.sha256(data).digest()
    assert (
        content_hash(data, ContentHash.XXH3_128).hex()
        == "73a0f592ec40da9205ae3df853c5392200000000000000000000000000000000"
    )


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=300), st.integers(0, 2**64 - 1))
def test_the_device_hash_is_what_its_description_says_on_host_and_device(data: bytes, seed: int) -> None:
    assert device_hash(data, seed) == by_the_book(data, seed)
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    assert HASHER(tensor, seed) == by_the_book(data, seed)


HASHER = DeviceHasher("cpu")


def test_host_and_device_agree_on_large_chunks() -> None:
    data = np.random.default_rng(3).bytes((3 << 20) + 2)
    assert device_hash(data, 5) == HASHER(torch.frombuffer(bytearray(data), dtype=torch.uint8), 5)


def test_the_keys_are_odd_and_fill_the_largest_chunk() -> None:
    keys = word_keys()
    assert keys.dtype == np.int64 and len(keys) * 4 == 16 << 20
    assert (keys & 1).all() and len(np.unique(keys[:100_000])) == 100_000


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(min_size=4, max_size=64), st.data())
def test_any_error_within_one_word_changes_the_device_hash(content: bytes, data: st.DataObject) -> None:
    wrong = bytearray(content)
    word = data.draw(st.integers(0, len(content) // 4 - 1)) * 4
    wrong[word : word + 4] = data.draw(
        st.binary(min_size=4, max_size=4).filter(lambda w: w != content[word : word + 4])
    )
    assert device_hash(bytes(wrong), 0) != device_hash(content, 0)


@pytest.mark.parametrize("bits", [[31], [63], [31, 63], [0], [0, 32], [15, 31, 47, 63]], ids=str)
def test_bits_stuck_in_every_word_change_the_device_hash(bits: list[int]) -> None:
    """With words of 64 bits, flipped top bits would cancel in pairs."""
    words = np.random.default_rng(1).integers(0, 2**63, 4096, dtype=np.uint64)
    mask = np.uint64(sum(1 << bit for bit in bits))
    assert device_hash((words ^ mask).tobytes(), 0) != device_hash(words.tobytes(), 0)
    two = words.copy()
    two[[10, 3000]] ^= mask
    assert device_hash(two.tobytes(), 0) != device_hash(words.tobytes(), 0)


def test_words_that_changed_places_change_the_device_hash() -> None:
    words = np.arange(1000, dtype=np.int32)
    for other in (words[::-1], np.roll(words, 1), words[[1, 0, *range(2, 1000)]]):
        assert device_hash(np.ascontiguousarray(other).tobytes(), 0) != device_hash(words.tobytes(), 0)


@pytest.mark.parametrize("data", [b"", b"\0" * 64, b"\0" * 65, b"abc" * 1000])
def test_length_counts_even_where_zeros_are_added(data: bytes) -> None:
    for hashed in (quick_hash, device_hash):
        assert hashed(data, 1) != hashed(data + b"\0", 1)


@settings(max_examples=examples(100), deadline=None)
@given(st.tuples(st.binary(min_size=16, max_size=16), st.text(max_size=9), st.integers(0, 2**63)), st.data())
def test_the_same_bytes_elsewhere_have_other_hashes(place: tuple[bytes, str, int], data: st.DataObject) -> None:
    other = data.draw(
        st.tuples(
            st.sampled_from([place[0], bytes(16)]), st.sampled_from([place[1], "x"]), st.sampled_from([place[2], 4096])
        ).filter(lambda one: one != place)
    )
    seeds = place_seed(*place), place_seed(*other)
    assert seeds[0] != seeds[1]
    for hashed in (quick_hash, device_hash):
        assert hashed(b"\0" * 4096, seeds[0]) != hashed(b"\0" * 4096, seeds[1])


def test_content_hashes_know_no_place() -> None:
    for kind in ContentHash:
        assert content_hash(b"abc", kind) == content_hash(memoryview(bytearray(b"abc")), kind)
        assert len(content_hash(b"", kind)) == 32
