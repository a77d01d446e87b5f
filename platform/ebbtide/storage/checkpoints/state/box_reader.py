"""Reading boxes of stored tensors into tensors of the caller: each chunk once, checked, and only those needed.

What is wanted of a file is gathered first, as ranges of bytes; the transport then fetches the chunks that hold them, in
pieces that begin and end anywhere, and each thread puts what it has fetched where it belongs: a piece is a few boxes of
each tensor in it, and a box is copied as one. Nothing is held in memory but the pieces under way, so rows, columns and
blocks of any size can be read without a copy of the whole.

Equal types are copied as bits, so that not even a NaN changes; others are converted as torch does it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from ebbtide.storage.checkpoints.state.boxes import Box, boxes_of_run, overlap, runs_of_box
from ebbtide.storage.checkpoints.state.tensor_index import Part
from ebbtide.storage.objects.stored_object import StoredObject
from ebbtide.storage.safetensors.torch_views import DTYPE_NAMES
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide.storage.transport.transport import Range

DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class BoxRequest:
    """A box of a stored part, and where its elements shall go.

    Attributes:
        part: the stored part.
        dtype: of its elements.
        box: which elements of the part.
        target: of the shape of the box; on any device, of any strides.
    """

    part: Part
    dtype: torch.dtype
    box: Box
    target: torch.Tensor


def read_boxes(stored: StoredObject, wanted: Iterable[BoxRequest]) -> TransferReport:
    """Read all of it.

    Raises:
        Corrupt: a chunk is not what was committed; names file and offset. Targets hold any mixture then.
        NotPublished: the checkpoint was removed meanwhile.
        TransferFailed: it cannot be read.
    """
    by_file: dict[str, list[BoxRequest]] = {}
    for one in wanted:
        if one.box.volume:
            by_file.setdefault(one.part.file, []).append(one)
    report = TransferReport({}, 0.0)
    for name, ones in by_file.items():
        chunk_bytes = stored.file(name).chunk_bytes
        ones.sort(key=lambda one: one.part.at)
        ranges = [run for one in ones for run in _ranges(one, chunk_bytes)]
        report += stored.read_file(name, consume=_Scatter(ones), ranges=ranges)
    return report


def _ranges(one: BoxRequest, chunk_bytes: int) -> list[Range]:
    """The bytes that are needed; runs between which no whole chunk lies are made one range."""
    size = one.part.item_bytes
    runs = runs_of_box(one.part.box.sizes, one.box, chunk_bytes // size - 1)
    return [Range(one.part.at + first * size, (last - first) * size) for first, last in runs]


class _Scatter:
    """Puts what is in a piece of a file where it belongs; called by any of the transport's threads."""

    def __init__(self, ones: Sequence[BoxRequest]) -> None:
        """``ones`` in the order of the file."""
        self._ones = ones
        self._reach = list(accumulate((one.part.end for one in ones), max))  # rises, also if two lie in one place

    def __call__(self, offset: int, memory: memoryview) -> None:
        end = offset + len(memory)
        for number in range(bisect_right(self._reach, offset), len(self._ones)):
            one = self._ones[number]
            if one.part.at >= end:
                return
            first, last = max(one.part.at, offset), min(one.part.end, end)
            if first < last:
                _put(one, first - one.part.at, memory[first - offset : last - offset])


def _put(one: BoxRequest, start: int, memory: memoryview) -> None:
    """``memory`` is what lies ``start`` bytes behind the beginning of the part."""
    size, shape = one.part.item_bytes, one.part.box.sizes
    source = torch.frombuffer(memory, dtype=one.dtype)
    done = 0
    for box in boxes_of_run(shape, start // size, (start + len(memory)) // size):
        common = overlap(box, one.box)
        if common is not None:
            _copy(
                _narrow(one.target, common, one.box.offsets),
                _narrow(source[done : done + box.volume].view(box.sizes), common, box.offsets),
            )
        done += box.volume


def _narrow(tensor: torch.Tensor, box: Box, origin: tuple[int, ...]) -> torch.Tensor:
    """``box`` of an array of which ``tensor`` is the part that begins at ``origin``."""
    for dimension, (at, size, start) in enumerate(zip(box.offsets, box.sizes, origin, strict=True)):
        if size != tensor.shape[dimension]:
            tensor = tensor.narrow(dimension, at - start, size)
    return tensor


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    if target.dtype == source.dtype:  # guard: the bits of a chunk are copied as bits
        bits = _BITS[source.dtype.itemsize]
        target, source = target.view(bits), source.view(bits)
    target.copy_(source)
