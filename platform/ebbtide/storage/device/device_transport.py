"""The port of what moves ranges of files into device memory, and the way through host memory that works everywhere.

Through host memory: a chunk is read into a page-locked buffer, checked there by the core that fetched it, and copied
to the device while the next chunk is on its way. The buffer is lent again only after its copies have ended, so the
memory needed is that of the pool, whatever the size of the file. Copies go where the bytes are wanted, be it one
tensor or all parameters of a model: nothing is copied twice on the device.

Not guaranteed: what is in the memory after an error. It holds any mixture of old bytes and right new ones; bytes that
were not checked are never copied. After `TransferTimeout` a thread that hangs may have one more copy under way: use
the memory again only if its content does not matter until the device is idle.
"""

import dataclasses
import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch

from ebbtide.storage.device.device_queue import DeviceQueue
from ebbtide.storage.device.placements import Placement, Placements
from ebbtide.storage.errors import TransferFailed
from ebbtide.storage.integrity.chunk_verification import Checked, ChunkVerifier, chunks_of
from ebbtide.storage.transport.chunk_ranges import joined
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide.storage.transport.transport import Consume, Pending, Range, Transport

# A file that can be checked, or a path of which nothing is known.
Source = Checked | Path


class DeviceTransport(Protocol):
    """Moves ranges of files into the memory of one device. May be shared by threads.

    Attributes:
        device: with its index.
    """

    @property
    def device(self) -> torch.device:
        """Whose memory it serves."""

    def read_device(
        self, source: Source, placements: Iterable[Placement], *, verify: bool = True, deadline_s: float
    ) -> TransferReport:
        """Read what is wanted of a file to where it is wanted; when this returns, all bytes are there.

        Args:
            source: which file. Where it can be checked, whole chunks are read, even if less is wanted.
            placements: in any order.
            verify: turn it off only if the bytes are checked in another way. A path cannot be checked.
            deadline_s: seconds for the whole transfer.

        Raises:
            Corrupt: bytes are not those that were published.
            TransferFailed: with errno, path and offset; TransferTimeout and FileTruncated are kinds of it. What the
                device refuses has the action ``copy``.
            Refused: placements that cannot be, or that are not in the file.
        """


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
        chunks = joined(chunks_of(source, wanted.ranges))
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


@contextmanager
def device_errors(path: Path, offset: int | None) -> Iterator[None]:
    """Within it, what torch raises for its device (RuntimeError, also for want of memory) names file and place.

    Raises:
        TransferFailed: of the action ``copy``.
    """
    try:
        yield
    except RuntimeError as error:
        hint = f"the device refuses: {' '.join(str(error).split())}"
        raise TransferFailed("copy", path, errno=errno.EIO, offset=offset, hint=hint) from error
