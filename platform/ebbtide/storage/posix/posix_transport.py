"""The transport of plain files: direct reads and writes from a few threads, into memory that is kept for ever.

`os.preadv` is enough: in a probe, four threads with requests of 4 MiB came to 0.99 of fio's ceiling and one with 16 MiB
to 1.01, kvikio and io_uring to 0.98 to 1.04. What matters are large requests past the page cache into huge pages that
were touched before. The page cache is used where it has the bytes already, and where the filesystem refuses direct
requests; the report says so.

Not guaranteed: that memory is left alone after `TransferTimeout`, or after an interrupt (Ctrl-C). A request that hangs
in the kernel cannot be taken back. Buffers of the pool are then buried. Memory given as ``into`` is kept alive, but it
may be written, with bytes of this very file, as long as the process lives: never use it again for anything else. After
any other error, and after success, nothing is written any more.

Without ``traffic`` also not: fairness between transfers, or a bound on all threads together.

Source: open(2) O_DIRECT; docs/measured.md, "What the design rests on", for the numbers.
"""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ebbtide.storage.bandwidth.traffic import MOST, Traffic
from ebbtide.storage.errors import FileTruncated, Refused, StorageError, TransferFailed, TransferTimeout
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.posix.file_handle import OpenedFile
from ebbtide.storage.posix.posix_calls import Requests, SystemCalls
from ebbtide.storage.posix.posix_read import ChunkReader, ReadPlan
from ebbtide.storage.posix.posix_write import WritePlan
from ebbtide.storage.posix.spans import Spans
from ebbtide.storage.posix.transfer_threads import TransferThreads
from ebbtide.storage.transport.chunk_ranges import check_ranges, cut_at_chunks
from ebbtide.storage.transport.transfer_report import Mode, TransferReport
from ebbtide.storage.transport.transport import CHUNK_BYTES, Consume, Fill, Range

# Four threads reach the ceiling with 4 MiB requests already (docs/measured.md, "What the design rests on"); on a shared
# filesystem others have seen more of them to be slower (cudf #17185: 8 threads per GPU took four times as long as 4).
DEFAULT_THREADS = 4
# Transfers that may hang in the kernel before new ones are turned away at once: each holds threads for ever.
MOST_STUCK = 32


class PosixTransport:
    """Moves bytes between plain files and host memory; see `ebbtide.storage.transport.transport.Transport`.

    Chunks are as large as the pool's buffers, which divide ``CHUNK_BYTES``.
    """

    def __init__(
        self,
        pool: BufferPool,
        *,
        threads: int | None = None,
        calls: SystemCalls | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        """Make a transport.

        Args:
            pool: its buffers; with two for each thread, fetching goes on while a callback's `Pending` has not ended.
            threads: of each transfer, at least one; with ``traffic`` at most so many. None: ``DEFAULT_THREADS``, or
                as many as ``traffic`` finds to be worth it.
            calls: the operating system; tests give one that lies.
            traffic: the class in which all its transfers are; None: they share the filesystem with nobody.

        Raises:
            ValueError: for numbers that cannot be.
        """
        if (threads is not None and threads < 1) or CHUNK_BYTES % pool.buffer_bytes:
            hint = f"threads must be at least 1 and buffers must divide {CHUNK_BYTES} bytes"
            raise ValueError(f"{threads} threads with buffers of {pool.buffer_bytes} bytes: {hint}")
        self._pool, self._threads, self._calls = pool, threads, calls or SystemCalls()
        self._traffic = traffic
        self._closed = False
        self._lock = threading.Lock()
        self._stuck: list[TransferThreads] = []

    def read(
        self,
        path: Path,
        ranges: Iterable[Range],
        consume: Consume,
        *,
        into: memoryview | None = None,
        deadline_s: float,
    ) -> TransferReport:
        """Read ``ranges`` of a file; see `Transport.read`.

        A callback that runs at the deadline goes on, since nothing can stop it, but none is called after the return.

        Raises:
            TransferTimeout: memory given as ``into`` may still be written: never use it again.
            TransferFailed: with errno, path and offset; ``into`` holds any mixture of old and new bytes, and is left
                alone from now on.
            Refused: ranges that are none, or ``into`` too small.
        """
        wanted, began = check_ranges(ranges), time.monotonic()
        end = max((each.end for each in wanted), default=0)
        memory = _bytes_of(into, end)
        crew = self._crew(path, deadline_s)
        requests = Requests(path, crew)
        why_not = ""

        def nothing(offset: int) -> StorageError:
            return FileTruncated(path, offset=offset, expected_bytes=end)

        def lead() -> None:
            nonlocal why_not
            file = OpenedFile(path, requests, self._calls, flags=os.O_RDONLY, chunk_bytes=self._pool.buffer_bytes)
            try:
                if file.status.st_size < end:
                    raise nothing(file.status.st_size)
                spans = Spans("read", file, requests, self._calls.preadv, nothing=nothing, reopen=True)
                plan = ReadPlan(file, spans, requests, self._calls, crew, consume, memory)
                chunks = list(cut_at_chunks(wanted, self._pool.buffer_bytes))
                self._share(crew, chunks, lambda items: ChunkReader(plan).read(items))
                why_not = file.why_not_direct
                crew.doing("close", None)
            finally:
                file.close_quietly()

        self._run(crew, lead)
        return _report(requests, began, why_not)

    def write(
        self, path: Path, size_bytes: int, fill: Fill, *, ranges: Iterable[Range] | None = None, deadline_s: float
    ) -> TransferReport:
        """Write a file, or ranges of it, durably; see `Transport.write`.

        ``fill`` is called once for each chunk, and once more for each if the first sync fails.
        The directory's entry is not synced: that is the business of whoever publishes.

        Raises:
            NoRoom: no space or quota, wherever it showed.
            TransferFailed: anything else; after TransferTimeout a late request may still write what it was given
                into the file: try again under another name.
            Refused: ranges that are none, or beyond the size.
        """
        wanted, began = check_ranges([Range(0, size_bytes)] if ranges is None else ranges), time.monotonic()
        if max((each.end for each in wanted), default=0) > size_bytes:
            raise Refused(f"ranges end after byte {size_bytes} of {path}: give the size that the file shall have")
        crew = self._crew(path, deadline_s)
        requests = Requests(path, crew)
        why_not = ""

        def nothing(offset: int) -> StorageError:
            return TransferFailed(
                "write", path, errno=errno.EIO, offset=offset, hint="nothing was written, and no reason given"
            )

        def lead() -> None:
            nonlocal why_not
            file = OpenedFile(
                path, requests, self._calls, flags=os.O_WRONLY | os.O_CREAT, chunk_bytes=self._pool.buffer_bytes
            )
            try:
                spans = Spans("write", file, requests, self._calls.pwritev, nothing=nothing, reopen=False)
                plan = WritePlan(file, spans, requests, self._calls, crew, fill)
                plan.allocate(size_bytes)
                chunks = list(cut_at_chunks(wanted, self._pool.buffer_bytes))
                self._share(crew, chunks, plan.write)
                if plan.sync(again=False) is not None:
                    requests.begin_again()
                    self._share(crew, chunks, plan.write)
                    plan.sync(again=True)
                why_not = file.why_not_direct
                plan.close()
            finally:
                file.close_quietly()

        self._run(crew, lead)
        return _report(requests, began, why_not)

    def close(self) -> None:
        """Turn further transfers away; those that run go on. Memory and hanging threads stay with the process."""
        self._closed = True

    def _crew(self, path: Path, deadline_s: float) -> TransferThreads:
        if self._closed:
            raise Refused(f"cannot move bytes of {path}: this transport was closed")
        with self._lock:
            self._stuck = [crew for crew in self._stuck if not crew.ended]
            if len(self._stuck) >= MOST_STUCK:
                raise TransferTimeout("open", path, after_s=0)
        threads = self._threads or (DEFAULT_THREADS if self._traffic is None else MOST)
        return TransferThreads(path, self._pool, threads=threads, deadline_s=deadline_s)

    def _share(self, crew: TransferThreads, chunks: list[Range], work: Callable[[Iterator[Range]], None]) -> None:
        if self._traffic is None:
            crew.share(chunks, work, threads=len(chunks))
            return
        with self._traffic.transfer(crew, sum(each.length for each in chunks), most=self._threads) as lanes:
            crew.share(chunks, lambda items: work(lanes.over(items)), threads=lanes.first(len(chunks)))

    def _run(self, crew: TransferThreads, lead: Callable[[], None]) -> None:
        try:
            crew.run(lead)
        finally:
            if not crew.ended:
                with self._lock:
                    self._stuck.append(crew)


def _bytes_of(into: memoryview | None, end: int) -> memoryview | None:
    if into is None:
        return None
    if into.readonly or not into.c_contiguous or into.nbytes < end:
        have = f"{'read-only, ' if into.readonly else ''}{into.nbytes} bytes"
        raise Refused(
            f"cannot read {end} bytes into this memory ({have}): give writable, contiguous memory of that size"
        )
    return into.cast("B") if end else None


def _report(requests: Requests, began: float, why_not_direct: str) -> TransferReport:
    why_not = why_not_direct if requests.moved[Mode.BUFFERED] else ""
    moved = {mode: count for mode, count in requests.moved.items() if count}
    return TransferReport(moved, time.monotonic() - began, requests.retries, why_not)
