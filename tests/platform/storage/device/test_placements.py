"""Scattering a file over tensors, against a model that copies byte by byte."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.storage.device.placements import Placement, Placements, place, rounded_out
from ebbtide.storage.errors import Refused
from ebbtide.storage.transport.transport import ALIGNMENT_BYTES, Range
from tests.platform.storage.device_fakes import CPU, content_of

FILE = bytes(range(251)) * 4  # no power of two divides its period
SPOTS = st.lists(st.tuples(st.integers(0, 900), st.integers(0, 104)), max_size=12)


def scatter(wanted: Placements, parts: list[Range]) -> None:
    for part in parts:
        for start, target in wanted.within(part):
            data = FILE[part.offset + start : part.offset + start + target.numel()]
            target.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))


@given(SPOTS, st.integers(1, 300))
def test_every_wanted_byte_comes_to_its_place_whatever_the_chunks(spots: list[tuple[int, int]], step: int) -> None:
    placements = [Placement(offset, torch.zeros(length, dtype=torch.uint8)) for offset, length in spots]
    wanted = Placements(placements, CPU)
    parts = [Range(start, min(step, len(FILE) - start)) for start in range(0, len(FILE), step)]
    scatter(wanted, parts)
    for each, (offset, length) in zip(placements, spots, strict=True):
        assert content_of(each.memory) == FILE[offset : offset + length]


@given(SPOTS)
def test_ranges_are_the_wanted_bytes_once_each_in_order(spots: list[tuple[int, int]]) -> None:
    wanted = Placements([Placement(offset, torch.zeros(length, dtype=torch.uint8)) for offset, length in spots], CPU)
    told = [byte for part in wanted.ranges for byte in range(part.offset, part.end)]
    assert told == sorted({byte for offset, length in spots for byte in range(offset, offset + length)})
    assert wanted.end == max(told, default=-1) + 1


@given(SPOTS)
def test_pages_hold_what_is_wanted_and_stay_in_the_file(spots: list[tuple[int, int]]) -> None:
    parts = sorted((Range(100 * offset, length + 1) for offset, length in spots), key=lambda part: part.offset)
    size = max((part.end for part in parts), default=0) + 3
    pages = rounded_out(parts, size)
    for before, after in pairwise(pages):
        assert before.end < after.offset
    for page in pages:
        assert page.offset % ALIGNMENT_BYTES == 0 and page.end <= size
        assert page.end % ALIGNMENT_BYTES == 0 or page.end == size
    for part in parts:
        assert any(page.offset <= part.offset and part.end <= page.end for page in pages)


def test_a_tensor_of_any_type_and_shape_is_a_place_for_its_bytes() -> None:
    for dtype in (torch.bfloat16, torch.float32, torch.bool, torch.float8_e4m3fn, torch.complex64):
        tensor = torch.zeros(3, 5, dtype=dtype, requires_grad=dtype.is_floating_point and dtype.itemsize > 1)
        each = place(40, tensor)
        assert each.part == Range(40, 15 * dtype.itemsize)
        assert each.memory.data_ptr() == tensor.data_ptr()
    assert place(0, torch.tensor(1.5)).part.length == 4
    assert Placements([place(3, torch.empty(0, 7))], CPU).ranges == []


@pytest.mark.parametrize(
    ("placement", "told"),
    [
        (lambda: place(0, torch.zeros(4, 4).t()), "strides"),
        (lambda: place(0, torch.zeros(8)[::2]), "not contiguous"),
        (lambda: Placement(0, torch.zeros(4)), "flat, contiguous tensor of uint8"),
        (lambda: Placement(0, torch.zeros(2, 2, dtype=torch.uint8)), "flat, contiguous tensor of uint8"),
        (lambda: Placement(0, torch.zeros(8, dtype=torch.uint8)[::2]), "flat, contiguous tensor of uint8"),
        (lambda: Placement(-1, torch.zeros(8, dtype=torch.uint8)), "must not be negative"),
        (lambda: Placement(0, torch.zeros(8, dtype=torch.uint8, device="meta")), "are wanted on meta"),
    ],
)
def test_what_cannot_be_a_place_is_refused(placement: object, told: str) -> None:
    with pytest.raises(Refused, match=told):
        Placements([placement()], CPU)  # type: ignore[operator]
