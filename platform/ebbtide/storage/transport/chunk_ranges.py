"""Cutting ranges of a file into chunks, and chunks into what direct I/O can move and what it cannot. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from ebbtide.storage.errors import Refused
from ebbtide.storage.transport.transport import Range


def down(position: int, alignment: int) -> int:
    """The largest multiple of ``alignment`` that is not after ``position``."""
    return position - position % alignment


def up(position: int, alignment: int) -> int:
    """The smallest multiple of ``alignment`` that is not before ``position``."""
    return -(-position // alignment) * alignment


def check_ranges(ranges: Iterable[Range]) -> list[Range]:
    """The ranges that hold bytes, in their order.

    Raises:
        Refused: when one is negative or two overlap.
    """
    found = list(ranges)
    for each in found:
        if each.offset < 0 or each.length < 0:
            raise Refused(f"{each} is no range of a file: offset and length must not be negative")
    found = [each for each in found if each.length]
    in_order = sorted(found, key=lambda each: each.offset)
    for before, after in pairwise(in_order):
        if after.offset < before.end:
            raise Refused(f"{before} and {after} overlap: ask for disjoint ranges")
    return found


def cut_at_chunks(ranges: Iterable[Range], chunk_bytes: int) -> Iterator[Range]:
    """The same bytes in pieces that cross no multiple of ``chunk_bytes``."""
    for each in ranges:
        start = each.offset
        while start < each.end:
            end = min(down(start, chunk_bytes) + chunk_bytes, each.end)
            yield Range(start, end - start)
            start = end


def join_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Neighbours that follow each other made one; their order stays."""
    result: list[Range] = []
    for each in ranges:
        if result and result[-1].end == each.offset:
            result[-1] = Range(result[-1].offset, result[-1].length + each.length)
        else:
            result.append(each)
    return result


@dataclass(frozen=True, slots=True)
class Split:
    """A chunk as an aligned middle and the unaligned edges around it; each may be empty, and none overlaps another."""

    head: Range
    middle: Range
    tail: Range

    @property
    def edges(self) -> list[Range]:
        """Those of head and tail that hold bytes."""
        return [edge for edge in (self.head, self.tail) if edge.length]


def split(chunk: Range, alignment: int) -> Split:
    """The largest aligned part of ``chunk``, and the rest."""
    start, end = up(chunk.offset, alignment), down(chunk.end, alignment)
    if start >= end:  # nothing aligned: all of it is head
        return Split(chunk, Range(chunk.end, 0), Range(chunk.end, 0))
    return Split(Range(chunk.offset, start - chunk.offset), Range(start, end - start), Range(end, chunk.end - end))
