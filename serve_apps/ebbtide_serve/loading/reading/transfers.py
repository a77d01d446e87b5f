"""Reading a stored file into tensors, some chunks at a time.

The transport to the device (``storage.device``) checks each chunk before any of it reaches a tensor, and asks leave of
the node's other traffic. It is asked for a few hundred megabytes at a time, each with a deadline of its own.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch

from ebbtide.storage.device.device_reading import read_to_device
from ebbtide.storage.device.device_transport import DeviceTransport
from ebbtide.storage.device.placements import Placement, Placements
from ebbtide.storage.objects.stored_object import StoredObject
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide.storage.transport.transport import Range

SEGMENT_BYTES = 256 << 20  # sixteen chunks: reading is at full speed from a few on; 1 s of a slow link
NOTHING = TransferReport({}, 0.0)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's memory as a flat tensor of bytes."""
    assert tensor.is_contiguous(), "only contiguous memory can be seen as bytes"
    return tensor.detach().reshape(-1).view(torch.uint8)


def read_ranges(
    found: StoredObject,
    name: str,
    wanted: Placements,
    ranges: Sequence[Range],
    *,
    transport: DeviceTransport,
) -> TransferReport:
    """Read what ``wanted`` has in some ranges of a file, which consist of whole chunks.

    Raises:
        Corrupt: bytes are not those that were published; nothing of their chunk reached a tensor.
        NotPublished, TransferFailed: see `read_to_device`.
    """
    placements = [Placement(part.offset + at, memory) for part in ranges for at, memory in wanted.within(part)]
    if not placements:
        return NOTHING
    return read_to_device(found, name, transport, placements)


def read_all(found: StoredObject, name: str, wanted: Placements, *, transport: DeviceTransport) -> TransferReport:
    """Read everything that ``wanted`` has of a file; raises as `read_ranges` does."""
    file = found.file(name)
    report = NOTHING
    for segment in segments(file.entry.size_bytes, file.chunk_bytes):
        report = report + read_ranges(found, name, wanted, [segment], transport=transport)
    return report


def segments(size_bytes: int, chunk_bytes: int, segment_bytes: int = SEGMENT_BYTES) -> Iterator[Range]:
    """A file cut into ranges of whole chunks, each of at most ``segment_bytes`` or one chunk."""
    step = max(segment_bytes // chunk_bytes, 1) * chunk_bytes
    for start in range(0, size_bytes, step):
        yield Range(start, min(step, size_bytes - start))


def by_device(memory: Iterable[tuple[int, torch.Tensor]]) -> dict[torch.device, list[Placement]]:
    """Placements of offsets and flat memory, apart by device: an engine may keep some parameters in host memory."""
    found: dict[torch.device, list[Placement]] = {}
    for offset, target in memory:
        found.setdefault(target.device, []).append(Placement(offset, target))
    return found
