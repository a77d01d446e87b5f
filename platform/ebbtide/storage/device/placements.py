"""Where the bytes of a file go in device memory: to one tensor, or scattered over many.

Placements may leave out parts of the file, and several may want the same bytes (tied weights that are not shared).

Not guaranteed: anything sensible when the memory of two placements overlaps.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import torch

from ebbtide.storage.errors import Refused
from ebbtide.storage.transport.chunk_ranges import down, up
from ebbtide.storage.transport.transport import ALIGNMENT_BYTES, Range


@dataclass(frozen=True, slots=True)
class Placement:
    """Bytes of a file and where they go; see also `place`.

    Attributes:
        offset: of the first byte in the file.
        memory: a flat and contiguous tensor of uint8; it has as many elements as bytes are wanted.
    """

    offset: int
    memory: torch.Tensor

    @property
    def part(self) -> Range:
        """The bytes that are wanted."""
        return Range(self.offset, self.memory.numel())


def place(offset: int, tensor: torch.Tensor) -> Placement:
    """The bytes from ``offset`` on go into ``tensor``, of any type and shape, as many as it holds.

    Raises:
        Refused: its elements do not follow each other in memory.
    """
    if not tensor.is_contiguous():
        raise Refused(f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} is not contiguous")
    return Placement(offset, tensor.detach().reshape(-1).view(torch.uint8))


class Placements:
    """All placements of one transfer, checked, and found by where in the file they are.

    Attributes:
        ranges: the bytes of the file that are wanted, sorted, without overlaps.
        end: the first byte after the last of them.
    """

    def __init__(self, placements: Iterable[Placement], device: torch.device) -> None:
        """Check them.

        Raises:
            Refused: one is no flat memory of ``device``, or begins before the file.
        """
        self._sorted = sorted((each for each in placements if _is_wanted(each, device)), key=lambda each: each.offset)
        self._starts = [each.offset for each in self._sorted]
        # The largest end up to here, which never falls: what ends before a chunk is left out by bisection.
        self._reach = list(accumulate((each.part.end for each in self._sorted), max))
        self.ranges = unite(each.part for each in self._sorted)
        self.end = self._reach[-1] if self._reach else 0

    def within(self, part: Range) -> list[tuple[int, torch.Tensor]]:
        """What of ``part`` is wanted: where it begins in ``part``, and the memory for it, of that length."""
        found = []
        for number in range(bisect_right(self._reach, part.offset), bisect_left(self._starts, part.end)):
            each = self._sorted[number]
            start, end = max(each.offset, part.offset), min(each.part.end, part.end)
            if start < end:
                found.append((start - part.offset, each.memory[start - each.offset : end - each.offset]))
        return found


def _is_wanted(each: Placement, device: torch.device) -> bool:
    memory = each.memory
    if memory.dtype != torch.uint8 or memory.dim() != 1 or not memory.is_contiguous():
        raise Refused(
            f"bytes at {each.offset} cannot go into {memory.dtype} of shape {tuple(memory.shape)}: "
            "a flat, contiguous tensor of uint8 is needed (`place` makes one)"
        )
    if memory.device != device:
        raise Refused(f"bytes at {each.offset} are wanted on {memory.device}, and this transport serves {device}")
    if each.offset < 0:
        raise Refused(f"{each.part} is no range of a file: the offset must not be negative")
    return memory.numel() > 0


def unite(parts: Iterable[Range]) -> list[Range]:
    """The same bytes without overlaps, of parts sorted by offset."""
    found: list[Range] = []
    for part in parts:
        if found and part.offset <= found[-1].end:
            found[-1] = Range(found[-1].offset, max(found[-1].end, part.end) - found[-1].offset)
        else:
            found.append(part)
    return found


def rounded_out(parts: Iterable[Range], size_bytes: int) -> list[Range]:
    """Whole pages that hold ``parts``, sorted, without overlaps, within a file of ``size_bytes``."""
    pages = []
    for part in parts:
        start, end = down(part.offset, ALIGNMENT_BYTES), min(up(part.end, ALIGNMENT_BYTES), size_bytes)
        pages.append(Range(start, end - start))
    return unite(pages)
