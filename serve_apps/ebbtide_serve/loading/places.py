"""From the chunks of a file to where their bytes belong: into tensors, wherever these lie.

The bytes are copied by the thread that fetched and checked them, while they are in its core's cache; to a device they
are copied asynchronously, and the transport lends the memory again when the copy has ended. So nothing of a chunk that
failed its check ever reaches a tensor.
"""

import threading
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ebbtide.storage.transport import Pending, Range


@dataclass(frozen=True, slots=True)
class Place:
    """Where a range of a file goes.

    Attributes:
        offset: of its first byte in the file.
        target: flat, of type uint8, of the range's length, on any device.
    """

    offset: int
    target: torch.Tensor

    @property
    def range(self) -> Range:
        """The range of the file."""
        return Range(self.offset, self.target.numel())


class Scatter:
    """A transport's callback that copies what it is given to its places; what has no place is passed over."""

    def __init__(self, places: Iterable[Place]) -> None:
        """``places`` must not overlap in the file."""
        self._places = sorted((one for one in places if one.target.numel()), key=lambda one: one.offset)
        self._ends = [one.range.end for one in self._places]
        self._changed = threading.Lock()
        self.wanted = sum(one.target.numel() for one in self._places)
        self.placed = 0  # bytes so far

    def __call__(self, offset: int, memory: memoryview) -> Pending | None:
        """Copy the bytes that begin at ``offset`` of the file."""
        end, devices, copied = offset + len(memory), set[torch.device](), 0
        try:
            for place in self._places[bisect_right(self._ends, offset) :]:
                if place.offset >= end:
                    break
                first, last = max(place.offset, offset), min(place.range.end, end)
                source = torch.frombuffer(memory, dtype=torch.uint8, count=last - first, offset=first - offset)
                if place.target.is_cuda:
                    devices.add(place.target.device)
                target = place.target[first - place.offset : last - place.offset]
                target.copy_(source, non_blocking=target.is_cuda)
                copied += last - first
        except BaseException:
            _DeviceCopies(devices).wait()  # the memory is lent again as soon as this is raised
            raise
        with self._changed:
            self.placed += copied
        return _DeviceCopies(devices) if devices else None


class _DeviceCopies:
    """Copies to devices that were begun by this thread."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._events = []
        for device in devices:
            with torch.cuda.device(device):
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record()
            self._events.append(event)

    def wait(self) -> None:
        """See `Pending`."""
        for event in self._events:
            event.synchronize()


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's memory as a flat tensor of bytes."""
    assert tensor.is_contiguous(), "only contiguous memory can be seen as bytes"
    return tensor.detach().reshape(-1).view(torch.uint8)
