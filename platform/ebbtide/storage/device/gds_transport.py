"""The transport of GPUDirect Storage: files into device memory by cuFile, without a copy in host memory.

A request goes into scratch memory on the device, is checked there by the device hash, and is copied on to where it is
wanted. Why not straight to its place: a request that hangs may still write hours later. Into scratch memory, which
its thread keeps, that harms nobody, so the same file can be read in another way at once. It also means that bytes are
checked before anybody sees them, that no tensor needs an alignment, and that memory which cuFile cannot reach (virtual
memory management, as engines use to sleep) can be loaded. The copy reads and writes each byte once at the speed of the
device's memory, a hundred times that of the storage.

Deadlines and failures are those of the POSIX transport (``transfer_threads``): all calls into kvikio run in threads of
their own; each has ended before an error is raised, except after `TransferTimeout`, and then its scratch memory and its
file stay with it for ever. A transport with a hanging transfer takes no further ones.

Not guaranteed: that DMA was used. Each report says what is proven (``gds_mode``).
"""

import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from ebbtide.storage.bandwidth.traffic import Traffic
from ebbtide.storage.device.device_hash import DeviceHasher
from ebbtide.storage.device.device_queue import DeviceQueue
from ebbtide.storage.device.device_transport import Source, device_errors
from ebbtide.storage.device.gds_mode import STATS, counted_reads, modes
from ebbtide.storage.device.kvikio_files import DeviceFile, DeviceFiles
from ebbtide.storage.device.placements import Placement, Placements, rounded_out
from ebbtide.storage.device.staged_transport import Scatter
from ebbtide.storage.errors import FileTruncated, Refused, TransferFailed, TransferTimeout
from ebbtide.storage.integrity.chunk_reread import read_again
from ebbtide.storage.integrity.chunk_verification import Checked, ReadAgain, chunks_of, look_again
from ebbtide.storage.posix.posix_calls import Requests
from ebbtide.storage.posix.transfer_threads import TransferThreads
from ebbtide.storage.transport.chunk_ranges import cut_at_chunks, down, join_ranges
from ebbtide.storage.transport.transfer_report import Mode, TransferReport
from ebbtide.storage.transport.transport import ALIGNMENT_BYTES, CHUNK_BYTES, Range


@dataclass(frozen=True, slots=True)
class GdsSettings:
    """How cuFile is used.

    Attributes:
        threads: of each transfer, each with one request under way. 8: enough for one GPU's share of a fast
            filesystem; many more are slower on a shared one (cudf #17185). To be measured where cuFile works.
        request_bytes: of each request, and of the scratch memory of each thread. 16 MiB: cuFile's largest direct one.
        register: make the scratch memory known to the driver, which saves a copy on the device and costs some ms per
            transfer. One transfer of the process at a time does so.
    """

    threads: int = 8
    request_bytes: int = CHUNK_BYTES
    register: bool = False

    def __post_init__(self) -> None:
        if self.threads < 1 or self.request_bytes < ALIGNMENT_BYTES or CHUNK_BYTES % self.request_bytes:
            hint = f"at least one thread, and requests that divide {CHUNK_BYTES} bytes, are needed"
            raise ValueError(f"{self.threads} threads with requests of {self.request_bytes} bytes: {hint}")


_registering = threading.Lock()
_never_freed: list[torch.Tensor] = []  # registered and not to be deregistered: cuFile hangs if such memory is freed
Answer = TypeVar("Answer")


class GdsTransport:
    """By cuFile; see `DeviceTransport`."""

    def __init__(
        self,
        files: DeviceFiles,
        queue: DeviceQueue,
        settings: GdsSettings | None = None,
        *,
        read_again: ReadAgain = read_again,
        stats: Path = STATS,
        traffic: Traffic | None = None,
    ) -> None:
        """Make it.

        Args:
            files: opens and reads files.
            queue: of the device.
            settings: how.
            read_again: reads a chunk through host memory, past all caches, after its hash was wrong.
            stats: where nvidia-fs tells what it did.
            traffic: the class in which its transfers ask for leave; their number of threads is that of the settings.
        """
        self._files, self.queue, self._settings = files, queue, settings or GdsSettings()
        self._read_again, self._stats, self._traffic = read_again, stats, traffic
        self._lock = threading.Lock()
        self._hasher: DeviceHasher | None = None
        self._stuck: TransferThreads | None = None

    @property
    def device(self) -> torch.device:
        """Whose memory it serves."""
        return self.queue.device

    def why_not(self, source: Source, *, verify: bool = True) -> str:
        """Why this file cannot be read in this way, in words; empty if it can."""
        if isinstance(source, Path) or not verify or not source.size_bytes:
            return ""
        # guard: what cannot be checked on the device is not read there
        if source.chunk_bytes > self._settings.request_bytes or source.device_hash(Range(0, 1)) is None:
            return f"{source.title} cannot be checked on the device: it has no device hashes in its index"
        return ""

    def read_device(
        self, source: Source, placements: Iterable[Placement], *, verify: bool = True, deadline_s: float
    ) -> TransferReport:
        """See `DeviceTransport.read_device`.

        Raises:
            TransferTimeout: the placements' memory is left alone all the same, but for a copy that is under way.
            Refused: also what `why_not` says.
        """
        if why := self.why_not(source, verify=verify):
            raise Refused(f"{why}; read it through host memory")
        wanted, began = Placements(placements, self.device), time.monotonic()
        path = source if isinstance(source, Path) else source.path
        checked = None if isinstance(source, Path) or not verify else source
        with device_errors(path, None):
            self.queue.begin()
        crew = self._crew(path, deadline_s)
        reading = _Reading(self, path, checked, wanted, crew)
        found: list[tuple[dict[Mode, int], str]] = []
        try:
            crew.run(lambda: found.append(self._lead(reading)))
        finally:
            if not crew.ended:
                self._stuck = crew
        ((bytes_by_mode, why_not_better),) = found
        return TransferReport(bytes_by_mode, time.monotonic() - began, reading.requests.retries, why_not_better)

    def _crew(self, path: Path, deadline_s: float) -> TransferThreads:
        with self._lock:
            if self._stuck is not None and not self._stuck.ended:  # guard: a transfer that hangs turns new ones away
                raise TransferTimeout("open", path, after_s=0)
        return TransferThreads(path, None, threads=self._settings.threads, deadline_s=deadline_s)

    def _lead(self, reading: "_Reading") -> tuple[dict[Mode, int], str]:
        parts = reading.parts(self._settings.request_bytes)
        if not parts:
            return {}, ""
        self.queue.enter()
        before = counted_reads(self._stats)
        file = reading.ask("open", None, lambda: self._files.open(reading.path))
        try:
            may_fall_back = reading.ask("open", None, lambda: self._files.may_fall_back)
            self._read_all(reading, file, parts)
            reading.crew.doing("close", None)
        finally:
            file.close()
        moved = reading.requests.moved[Mode.GDS]
        if may_fall_back is None:
            return {Mode.COMPAT: moved}, "cuFile was told to copy through host memory"
        return modes(moved, before, counted_reads(self._stats), may_fall_back=may_fall_back)

    def _read_all(self, reading: "_Reading", file: DeviceFile, parts: list[Range]) -> None:
        threads, size = min(self._settings.threads, len(parts)), self._settings.request_bytes
        # In the queue's order: torch lends memory that kernels which the caller has queued may still read, and cuFile
        # waits for no stream.
        # guard: scratch memory is taken in the order of the queue
        with device_errors(reading.path, None), self.queue.scope():
            scratch = torch.empty(threads * size, dtype=torch.uint8, device=self.device)
        free = [scratch[start : start + size] for start in range(0, len(scratch), size)]
        with self._registered(scratch), contextlib.ExitStack() as stack:
            lanes = None
            if self._traffic is not None:
                nbytes = sum(part.length for part in parts)
                lanes = stack.enter_context(self._traffic.transfer(reading.crew, nbytes, fixed=True))

            def work(items: Iterator[Range]) -> None:
                reading.read(items if lanes is None else lanes.over(items), file, free.pop())

            reading.crew.share(parts, work, threads=threads)

    @contextlib.contextmanager
    def _registered(self, scratch: torch.Tensor) -> Iterator[None]:
        # guard: one transfer of a process registers memory at a time
        if not self._settings.register or not _registering.acquire(blocking=False):
            yield
            return
        registered = False
        try:
            registered = self._files.register(scratch)
            yield
        finally:
            # guard: memory that is still registered is never freed
            if registered and not self._files.deregister(scratch):
                _never_freed.append(scratch)
            _registering.release()

    def mend(self, file: Checked, chunk: Range, memory: torch.Tensor) -> bool:
        """Check a chunk in device memory, and put it right by a second look if it is wrong; whether that was needed.

        Raises:
            Corrupt: it stays wrong.
        """
        with self._lock:
            if self._hasher is None:
                self._hasher = DeviceHasher(self.device)
        expected = file.device_hash(chunk)
        assert expected is not None, "why_not was asked before"
        with self.queue.scope():
            if self._hasher(memory, expected[0]) == expected[1]:  # guard: wrong bytes are seen on the device
                return False
            memory.copy_(torch.frombuffer(bytearray(look_again(file, chunk, self._read_again)), dtype=torch.uint8))
            return True


class _Reading:
    """One transfer, shared by its threads."""

    def __init__(
        self, transport: GdsTransport, path: Path, checked: Checked | None, wanted: Placements, crew: TransferThreads
    ) -> None:
        self.path, self.crew, self.requests = path, crew, Requests(path, crew)
        self._transport, self._checked, self._wanted = transport, checked, wanted
        self._scatter = Scatter(wanted, transport.queue, path)
        self._end = wanted.end

    def ask(self, action: str, offset: int | None, call: Callable[[], Answer]) -> Answer:
        """What ``call`` answers, asked again as files are; raises this package's errors."""
        try:
            return self.requests.ask(action, offset, call)
        except OSError as error:
            hint = str(error.strerror) if error.strerror != os.strerror(error.errno or 0) else ""
            raise self.requests.failed(action, error, offset, hint=hint) from error

    def parts(self, request_bytes: int) -> list[Range]:
        """What to ask for: whole chunks where they are checked, else what is wanted, rounded out to pages."""
        status = self.ask("open", None, lambda: os.stat(self.path))
        if not stat.S_ISREG(status.st_mode):
            raise Refused(f"{self.path} is not an ordinary file: name one")
        if self._checked is not None:
            ranges = join_ranges(chunks_of(self._checked, self._wanted.ranges))
        else:
            ranges = rounded_out(self._wanted.ranges, max(status.st_size, self._wanted.end))
        self._end = max((each.end for each in ranges), default=0)
        if status.st_size < self._end:  # guard: a file that is too short is told before cuFile reads anything
            raise self._truncated(status.st_size)
        return list(cut_at_chunks(ranges, request_bytes))

    def read(self, parts: Iterator[Range], file: DeviceFile, scratch: torch.Tensor) -> None:
        """One thread's share."""
        self._transport.queue.enter()
        for part in parts:
            self._fetch(part, file, scratch)
            self._check(part, scratch)
            # guard: after the deadline nothing is copied to its place on the device
            self.crew.doing("consume", part.offset)
            pending = self._scatter(part.offset, scratch[: part.length])
            if pending is not None:  # guard: scratch memory is not used again before its copies ended
                pending.wait()
            self.requests.finish(Mode.GDS, part.length)

    def _fetch(self, part: Range, file: DeviceFile, scratch: torch.Tensor) -> None:
        done = at = 0
        while done < part.length:
            count = self._request(part, file, scratch, at)
            if count == 0:  # guard: the end of a file that cuFile reads is told
                raise self._truncated(part.offset + at)
            if not 0 < count <= part.length - at:  # guard: a count of bytes that cannot be is an error
                hint = f"cuFile says that {count} bytes came, of {part.length - at}"
                raise TransferFailed("read", self.path, errno=errno.EIO, offset=part.offset + at, hint=hint)
            # Go on from the aligned byte before, unless that brought nothing new.
            stuck, done = at + count <= done, max(done, at + count)
            # guard: what came short goes on from a page; a driver that brings nothing new goes on from where it stands
            at = done if stuck else down(done, ALIGNMENT_BYTES)
            if done < part.length:
                self.requests.repeat()

    def _truncated(self, offset: int) -> FileTruncated:
        return FileTruncated(self.path, offset=offset, expected_bytes=self._end)

    def _request(self, part: Range, file: DeviceFile, scratch: torch.Tensor, at: int) -> int:
        offset, count = part.offset + at, part.length - at
        return self.ask("read", offset, lambda: file.read(scratch, at, offset, count))

    def _check(self, part: Range, scratch: torch.Tensor) -> None:
        if self._checked is None:
            return
        for chunk in cut_at_chunks([part], self._checked.chunk_bytes):
            self.crew.doing("check", chunk.offset)
            memory = scratch[chunk.offset - part.offset : chunk.end - part.offset]
            with device_errors(self.path, chunk.offset):
                if self._transport.mend(self._checked, chunk, memory):
                    self.requests.repeat()
