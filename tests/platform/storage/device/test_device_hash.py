"""The device hash by torch is bit for bit that of numpy, for every length, alignment and size of block."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.storage.device.device_hash import DeviceHasher
from ebbtide.storage.integrity.chunk_hash import device_hash
from ebbtide.storage.transport.transport import CHUNK_BYTES
from tests.examples import examples

HASHER = DeviceHasher("cpu")
SMALL_BLOCKS = [DeviceHasher("cpu", block_words=words) for words in (1, 3, 64)]
SEEDS = st.integers(0, 2**64 - 1)


def tensor(data: bytes, *, shift: int = 0) -> torch.Tensor:
    """``data`` in memory that begins ``shift`` bytes after an aligned address."""
    memory = torch.zeros(shift + len(data) + 8, dtype=torch.uint8)
    found = memory[shift : shift + len(data)]
    if data:
        found.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return found


@given(st.binary(max_size=1500), SEEDS, st.integers(0, 7))
def test_torch_and_numpy_agree(data: bytes, seed: int, shift: int) -> None:
    expected = device_hash(data, seed)
    assert HASHER(tensor(data, shift=shift), seed) == expected
    for hasher in SMALL_BLOCKS:
        assert hasher(tensor(data, shift=shift), seed) == expected


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, (1 << 18) - 1, 1 << 18, (1 << 18) + 5])
@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x80, 0x7F])
def test_extreme_words_wrap_around_alike(size: int, fill: int) -> None:
    data = bytes([fill]) * size
    assert HASHER(tensor(data), 2**64 - 1) == device_hash(data, 2**64 - 1)


def test_a_chunk_of_the_largest_size_agrees_and_a_larger_one_does_not_pass_for_it() -> None:
    data = np.random.default_rng(1).bytes(CHUNK_BYTES)
    assert HASHER(torch.frombuffer(bytearray(data), dtype=torch.uint8), 7) == device_hash(data, 7)
    with pytest.raises(ValueError, match="at most 16777216"):
        HASHER(torch.zeros(CHUNK_BYTES + 4, dtype=torch.uint8), 7)


@settings(max_examples=examples(50))
@given(st.binary(min_size=1, max_size=400), st.data())
def test_any_changed_byte_is_seen(content: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(content) - 1))
    change = data.draw(st.integers(1, 255))
    wrong = bytearray(content)
    wrong[at] ^= change
    assert HASHER(tensor(bytes(wrong)), 0) != HASHER(tensor(content), 0)


def test_it_makes_no_temporary_larger_than_a_block() -> None:
    chunk = torch.zeros(1 << 20, dtype=torch.uint8)
    hasher = DeviceHasher("cpu", block_words=1 << 10)
    with torch.profiler.profile(profile_memory=True) as profile:
        hasher.total(chunk)
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    assert 0 < largest <= 8 << 10  # products of 8 bytes for 1024 words
