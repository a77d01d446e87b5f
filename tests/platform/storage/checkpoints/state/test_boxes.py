"""Boxes and runs, against arrays of numbers."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.storage.checkpoints.state.boxes import Box, boxes_of_run, overlap, runs_of_box, whole, why_no_tiling

SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    firsts = [draw(st.integers(0, size)) for size in shape]
    lasts = [draw(st.integers(at, size)) for at, size in zip(firsts, shape, strict=True)]
    return Box(tuple(firsts), tuple(b - a for a, b in zip(firsts, lasts, strict=True)))


@st.composite
def shapes_and_boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], Box]:
    shape = draw(SHAPES)
    return shape, draw(boxes(shape))


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(math.prod(shape)).reshape(shape)


def within(array: np.ndarray, box: Box) -> np.ndarray:
    return array[tuple(slice(at, at + size) for at, size in zip(box.offsets, box.sizes, strict=True))]


@settings(deadline=None)
@given(SHAPES, st.data())
def test_the_boxes_of_a_run_are_its_elements_in_order(shape: tuple[int, ...], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, math.prod(shape)))
    last = data.draw(st.integers(first, math.prod(shape)))
    found = list(boxes_of_run(shape, first, last))
    elements = [number for box in found for number in within(numbered(shape), box).flatten().tolist()]
    assert elements == list(range(first, last))
    assert len(found) <= max(1, 2 * len(shape) - 1)


@settings(deadline=None)
@given(shapes_and_boxes(), st.integers(0, 40))
def test_the_runs_of_a_box_hold_it_and_little_else(case: tuple[tuple[int, ...], Box], gap: int) -> None:
    shape, box = case
    wanted = set(within(numbered(shape), box).flatten().tolist())
    runs = runs_of_box(shape, box, gap)
    assert runs == sorted(runs) and all(first < last for first, last in runs)
    assert all(after[0] - before[1] > gap for before, after in pairwise(runs)), "near ones are made one"
    held = {number for first, last in runs for number in range(first, last)}
    assert wanted <= held
    ordered = sorted(wanted)
    for first, last in runs:
        inside = [number for number in ordered if first <= number < last]
        assert (inside[0], inside[-1]) == (first, last - 1), "no run begins or ends with what is not wanted"
        assert all(b - a - 1 <= gap for a, b in pairwise(inside))


def test_the_number_of_runs_is_bounded_by_the_gap() -> None:
    shape, column = (100_000, 1000), Box((0, 3), (100_000, 1))
    assert runs_of_box(shape, column, 999) == [(3, 99_999 * 1000 + 4)]
    assert len(runs_of_box(shape, column, 998)) == 100_000


@settings(deadline=None)
@given(SHAPES, st.data())
def test_overlaps_are_those_of_sets(shape: tuple[int, ...], data: st.DataObject) -> None:
    one, other = data.draw(boxes(shape)), data.draw(boxes(shape))
    array = numbered(shape)
    both = set(within(array, one).flatten().tolist()) & set(within(array, other).flatten().tolist())
    found = overlap(one, other)
    assert (set() if found is None else set(within(array, found).flatten().tolist())) == both


@settings(deadline=None)
@given(SHAPES, st.data())
def test_a_tiling_is_told_from_anything_else(shape: tuple[int, ...], data: st.DataObject) -> None:
    parts = data.draw(st.lists(boxes(shape), max_size=4))
    if data.draw(st.booleans()) and shape:  # a real one, by cutting along one dimension
        along = data.draw(st.integers(0, len(shape) - 1))
        cuts = sorted([0, *data.draw(st.lists(st.integers(0, shape[along]), max_size=3)), shape[along]])
        parts = [
            Box(
                tuple(a if d == along else 0 for d in range(len(shape))),
                tuple(b - a if d == along else size for d, size in enumerate(shape)),
            )
            for a, b in pairwise(cuts)
        ]
    counts = np.zeros(shape, dtype=int)
    for part in parts:
        counts[tuple(slice(at, at + size) for at, size in zip(part.offsets, part.sizes, strict=True))] += 1
    assert (why_no_tiling(shape, parts) == "") == bool((counts == 1).all())


@pytest.mark.proves("parts of an array that overlap are found")
def test_what_is_wrong_is_said_in_words() -> None:
    assert "[0:2,0:3] and [1:3,2:4] overlap" in why_no_tiling((4, 4), [Box((0, 0), (2, 3)), Box((1, 2), (2, 2))])
    assert "12 elements" in why_no_tiling((4, 4), [Box((0, 0), (2, 2))])
    assert "not within" in why_no_tiling((4, 4), [Box((3, 0), (2, 4))])
    assert "not within" in why_no_tiling((4, 4), [Box((3,), (1,))])
    assert why_no_tiling((), [whole(())]) == ""
    assert "overlap" in why_no_tiling((), [whole(()), whole(())])
