"""Files to a device through page-locked host memory: the way that works everywhere.

A chunk is read into a page-locked buffer, checked there by the core that fetched it, and copied to the device while the
next chunk is on its way. The buffer is lent again only after its copies have ended, so the memory needed is that of the
pool, whatever the size of the file. Copies go where the bytes are wanted, be it one tensor or all parameters of a
model: nothing is copied twice on the device.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import torch

from ebbtide.storage.device.device_queue import DeviceQueue
from ebbtide.storage.device.device_transport import Source, device_errors
from ebbtide.storage.device.placements import Placement, Placements
from ebbtide.storage.integrity.chunk_verification import Checked, ChunkVerifier, chunks_of
from ebbtide.storage.transport.chunk_ranges import join_ranges
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide.storage.transport.transport import Consume, Pending, Range, Transport


class StagedTransport:
    """Through host memory; see `DeviceTransport`."""

    def __init__(self, host: Transport, queue: DeviceQueue, *, why_not_better: str = "") -> None:
        """Make it.

        Args:
            host: reads into host memory; its buffers should be page-locked (`pinned_pool`), two for each thread.
            queue: of the device.
            why_not_better: for reports: why no faster way was taken, or why copies are slow.
        """
        self._host, self._queue, self._why_not_better = host, queue, why_not_better

    @property
    def device(self) -> torch.device:
        """Whose memory it serves."""
        return self._queue.device

    def read_device(
        self, source: Source, placements: Iterable[Placement], *, verify: bool = True, deadline_s: float
    ) -> TransferReport:
        """See `DeviceTransport.read_device`; the report's mode is that of the reading."""
        wanted = Placements(placements, self.device)
        path = source if isinstance(source, Path) else source.path
        with device_errors(path, None):
            self._queue.begin()
        scatter = Scatter(wanted, self._queue, path)
        if isinstance(source, Path) or not verify:  # guard: a file on the way to a device is checked
            report = self._host.read(path, wanted.ranges, scatter.from_host, deadline_s=deadline_s)
        else:
            report = self._read_checked(source, wanted, scatter.from_host, deadline_s)
        if not self._why_not_better:
            return report
        reasons = "; ".join(filter(None, (self._why_not_better, report.why_not_better)))
        return dataclasses.replace(report, why_not_better=reasons)

    def _read_checked(self, source: Checked, wanted: Placements, consume: Consume, deadline_s: float) -> TransferReport:
        checker = ChunkVerifier(source, consume)
        chunks = join_ranges(chunks_of(source, wanted.ranges))
        report = self._host.read(source.path, chunks, checker, deadline_s=deadline_s)
        return dataclasses.replace(report, retries=report.retries + checker.mended)


class Scatter:
    """Copies what has arrived to where it is wanted."""

    def __init__(self, wanted: Placements, queue: DeviceQueue, path: Path) -> None:
        self._wanted, self._queue, self._path = wanted, queue, path

    def from_host(self, offset: int, memory: memoryview) -> Pending | None:
        """A `Consume`: the copies of one chunk in host memory."""
        return self(offset, torch.frombuffer(memory, dtype=torch.uint8))

    def __call__(self, offset: int, chunk: torch.Tensor) -> Pending | None:
        """Queue the copies of one chunk, which stands at ``offset`` in the file."""
        with device_errors(self._path, offset):
            for start, target in self._wanted.within(Range(offset, chunk.numel())):
                self._queue.copy(target, chunk[start : start + target.numel()])
            pending = self._queue.mark()
        return None if pending is None else _Watched(pending, self._path, offset)


@dataclasses.dataclass(frozen=True, slots=True)
class _Watched:
    pending: Pending
    path: Path
    offset: int

    def wait(self) -> None:
        with device_errors(self.path, self.offset):
            self.pending.wait()
