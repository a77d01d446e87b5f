"""Boxes in arrays, and the runs of elements that hold them. Pure.

A saved part of a tensor lies in its file row by row. A reader of another shape wants a box of it, and gets the file in
pieces that begin and end anywhere. So two questions are asked again and again: which runs of elements hold this box,
and which boxes are in this run?
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Ints = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """A part of an array: ``sizes[d]`` indices from ``offsets[d]`` on in each dimension; of none, the one element."""

    offsets: Ints
    sizes: Ints

    @property
    def volume(self) -> int:
        """How many elements it has."""
        return math.prod(self.sizes)

    def __str__(self) -> str:
        return "[" + ",".join(f"{at}:{at + size}" for at, size in zip(self.offsets, self.sizes, strict=True)) + "]"


def whole(shape: Ints) -> Box:
    """All of an array."""
    return Box((0,) * len(shape), shape)


def overlap(one: Box, other: Box) -> Box | None:
    """What both have, or None if that is nothing."""
    offsets = tuple(map(max, one.offsets, other.offsets))
    ends = (min(a + b, c + d) for a, b, c, d in zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True))
    sizes = tuple(end - at for end, at in zip(ends, offsets, strict=True))
    return Box(offsets, sizes) if all(size > 0 for size in sizes) else None


def boxes_of_run(shape: Ints, first: int, last: int) -> Iterator[Box]:
    """The elements ``first`` to ``last`` (excluded) of an array, row by row, as boxes that follow each other.

    At most ``2 * len(shape) - 1`` of them: the rest of a row, whole rows, the beginning of a row; in each dimension.
    """
    if first >= last:
        return
    if not shape:
        yield Box((), ())
        return
    row = math.prod(shape[1:])
    (top, head), (bottom, tail) = divmod(first, row), divmod(last, row)
    if top == bottom:
        yield from _in_row(shape, top, head, tail)
        return
    if head:
        yield from _in_row(shape, top, head, row)
        top += 1
    if top < bottom:
        yield Box((top, *(0,) * (len(shape) - 1)), (bottom - top, *shape[1:]))
    if tail:
        yield from _in_row(shape, bottom, 0, tail)


def _in_row(shape: Ints, row: int, first: int, last: int) -> Iterator[Box]:
    for box in boxes_of_run(shape[1:], first, last):
        yield Box((row, *box.offsets), (1, *box.sizes))


def runs_of_box(shape: Ints, box: Box, gap: int) -> list[tuple[int, int]]:
    """The runs of elements of an array that hold ``box``, in order; runs no more than ``gap`` apart are made one.

    Their number is at most one more than the elements of the array divided by ``gap``.
    """
    if not box.volume:
        return []
    runs, row = [(0, 1)], 1
    for size, at, count in zip(reversed(shape), reversed(box.offsets), reversed(box.sizes), strict=True):
        if len(runs) == 1 and row - (runs[0][1] - runs[0][0]) <= gap:
            runs = [(runs[0][0], (count - 1) * row + runs[0][1])]
        else:
            runs = _repeated(runs, row, count, gap)
        runs = [(first + at * row, last + at * row) for first, last in runs]
        row *= size
    return runs


def _repeated(runs: list[tuple[int, int]], row: int, count: int, gap: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in range(count):
        for first, last in runs:
            if found and first + number * row - found[-1][1] <= gap:
                found[-1] = (found[-1][0], last + number * row)
            else:
                found.append((first + number * row, last + number * row))
    return found


def why_no_tiling(shape: Ints, boxes: Sequence[Box]) -> str:
    """Why ``boxes`` do not cover an array exactly once, in words; empty if they do."""
    full = [box for box in boxes if box.volume]
    for box in boxes:
        inside = len(box.sizes) == len(shape) == len(box.offsets) and all(
            at >= 0 and size >= 0 and at + size <= whole_size
            for at, size, whole_size in zip(box.offsets, box.sizes, shape, strict=True)
        )
        if not inside:
            return f"the part {box} is not within the shape {list(shape)}"
    if clash := _overlapping(shape, full):  # guard: parts of an array that overlap are found
        return f"the parts {clash[0]} and {clash[1]} overlap"
    missing = math.prod(shape) - sum(box.volume for box in full)
    return f"{missing} elements of the shape {list(shape)} are in no part" if missing else ""


def _overlapping(shape: Ints, boxes: list[Box]) -> tuple[Box, Box] | None:
    """Two boxes that overlap; a sweep along the dimension that is cut into most parts."""
    if not shape:
        return (boxes[0], boxes[1]) if len(boxes) > 1 else None
    along = max(range(len(shape)), key=lambda d: len({box.offsets[d] for box in boxes}))
    active: list[Box] = []
    for box in sorted(boxes, key=lambda one: one.offsets[along]):
        active = [one for one in active if one.offsets[along] + one.sizes[along] > box.offsets[along]]
        for one in active:
            if overlap(one, box) is not None:
                return one, box
        active.append(box)
    return None
