"""Chunks to tensors: every byte where it belongs, and no other."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ebbtide_serve.loading.places import Place, Scatter, bytes_of

FILE = bytes(range(256)) * 4


@given(st.data())
def test_any_cut_of_the_file_fills_any_places_exactly(data: st.DataObject) -> None:
    edges = sorted(data.draw(st.sets(st.integers(0, len(FILE)), min_size=2, max_size=12)))
    wanted = [(a, b) for a, b in pairwise(edges) if data.draw(st.booleans())]
    cuts = sorted({0, len(FILE), *data.draw(st.sets(st.integers(0, len(FILE)), max_size=8))})
    chunks = data.draw(st.permutations(list(pairwise(cuts))))
    places = [Place(a, torch.full((b - a,), 251, dtype=torch.uint8)) for a, b in wanted]
    scatter = Scatter(places)
    for start, end in chunks:
        assert scatter(start, memoryview(bytearray(FILE[start:end]))) is None
    for (a, b), place in zip(wanted, places, strict=True):
        assert bytes(place.target.numpy()) == FILE[a:b]
    assert scatter.placed == scatter.wanted == sum(b - a for a, b in wanted)


def test_what_is_missing_shows_in_the_count() -> None:
    scatter = Scatter([Place(0, torch.zeros(100, dtype=torch.uint8))])
    scatter(0, memoryview(bytearray(60)))
    assert (scatter.placed, scatter.wanted) == (60, 100)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.int64])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_bytes_of_any_tensor_are_its_own_memory(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.zeros(shape, dtype=dtype)
    memory = bytes_of(tensor)
    assert (memory.dtype, memory.numel()) == (torch.uint8, tensor.nbytes)
    memory.fill_(1)
    assert tensor.numel() == 0 or bool((tensor.reshape(-1).view(torch.uint8) == 1).all())


def test_bytes_of_memory_with_gaps_are_an_error() -> None:
    with pytest.raises(AssertionError, match="contiguous"):
        bytes_of(torch.zeros(4, 4)[:, :2])
