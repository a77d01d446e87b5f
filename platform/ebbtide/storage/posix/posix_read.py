"""Reading a file's chunks: straight into place, into a buffer, or through the page cache where it has them already.

Direct requests need aligned memory, offsets and lengths. What is wanted is therefore rounded out into a buffer, or,
with the caller's own memory, cut into an aligned middle (read in place) and edges (read into a buffer and copied): no
byte of the caller's memory outside the wanted range is ever written.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ebbtide.storage.memory.arena import address_of
from ebbtide.storage.memory.buffer_pool import Buffer
from ebbtide.storage.posix.file_handle import OpenedFile
from ebbtide.storage.posix.page_cache import RESIDENT_SHARE
from ebbtide.storage.posix.posix_calls import Requests, SystemCalls
from ebbtide.storage.posix.spans import Spans
from ebbtide.storage.posix.transfer_threads import TransferThreads
from ebbtide.storage.transport.chunk_ranges import down, split, up
from ebbtide.storage.transport.transfer_report import Mode
from ebbtide.storage.transport.transport import Consume, Pending, Range

# Below this, more requests for the edges cost more than copying all of it: 1 MiB is copied in about 0.1 ms.
LEAST_IN_PLACE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What one transfer reads.

    Attributes:
        into: memory whose index 0 stands for the file's byte 0, or None.
    """

    file: OpenedFile
    spans: Spans
    requests: Requests
    calls: SystemCalls
    crew: TransferThreads
    consume: Consume
    into: memoryview | None


class ChunkReader:
    """One thread's share of a transfer: at most one buffer being filled, and one that a Pending still uses."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan
        self._filling: Buffer | None = None
        self._waiting: tuple[Buffer | None, Pending] | None = None

    def read(self, chunks: Iterator[Range]) -> None:
        """Read chunks and hand them over until there are none; then wait for what is pending."""
        try:
            for chunk in chunks:
                memory, mode = self._fetch(chunk)
                self._hand_over(chunk, memory)
                self._plan.requests.finish(mode, chunk.length)
        except BaseException as error:
            self._plan.crew.fail(error)  # before what may yet go wrong below, and so that the others stop now
            raise
        finally:
            with contextlib.ExitStack() as last:  # each happens, whatever the others raise
                last.callback(self._drop)
                last.callback(self._settle)

    def _fetch(self, chunk: Range) -> tuple[memoryview, Mode]:
        plan = self._plan
        direct = self._worth_direct(chunk)
        if plan.into is None:
            return self._fetch_into_buffer(chunk, direct=direct)
        target = plan.into[chunk.offset : chunk.end]
        if not direct:
            return target, plan.spans.move(target, chunk.offset, chunk.length, direct=False)
        middle = split(chunk, plan.file.alignment).middle
        if middle.length < LEAST_IN_PLACE_BYTES or address_of(plan.into) % plan.file.alignment:
            return target, self._fetch_and_copy(chunk)
        return target, self._fetch_in_place(chunk)

    def _fetch_into_buffer(self, part: Range, *, direct: bool) -> tuple[memoryview, Mode]:
        alignment = self._plan.file.alignment
        start = down(part.offset, alignment)
        memory = self._borrow(part.offset).memory[: up(part.end - start, alignment)]
        mode = self._plan.spans.move(memory, start, part.end - start, direct=direct)
        return memory[part.offset - start : part.end - start], mode

    def _fetch_and_copy(self, part: Range) -> Mode:
        assert self._plan.into is not None
        found, mode = self._fetch_into_buffer(part, direct=True)
        self._plan.crew.check()
        np.copyto(np.frombuffer(self._plan.into[part.offset : part.end], np.uint8), np.frombuffer(found, np.uint8))
        self._drop()
        return mode

    def _fetch_in_place(self, chunk: Range) -> Mode:
        assert self._plan.into is not None
        parts = split(chunk, self._plan.file.alignment)
        middle = self._plan.into[parts.middle.offset : parts.middle.end]
        mode = self._plan.spans.move(middle, parts.middle.offset, parts.middle.length, direct=True)
        for edge in parts.edges:
            self._fetch_and_copy(edge)
        return mode

    def _worth_direct(self, chunk: Range) -> bool:
        plan = self._plan
        if plan.file.why_not_direct:
            return False
        fd = plan.file.cached().fd
        plan.crew.doing("read", chunk.offset)
        try:
            share = plan.calls.resident_share(fd, chunk.offset, chunk.length)
        except OSError:  # it decides on speed only: the read itself will say what is wrong
            share = None
        return share is None or share < RESIDENT_SHARE

    def _hand_over(self, chunk: Range, memory: memoryview) -> None:
        self._plan.crew.doing("consume", chunk.offset)
        pending = self._plan.consume(chunk.offset, memory)
        self._settle()
        if pending is None:
            if self._filling is not None:
                with contextlib.suppress(BufferError):  # so that a reference that was kept raises and does not show
                    memory.release()  # bytes of another chunk; who made a view of it promised to have dropped that
            self._drop()
        else:
            self._waiting, self._filling = (self._filling, pending), None

    def _borrow(self, offset: int) -> Buffer:
        """A buffer to fill; waits for what is pending first, rather than for a buffer while holding one."""
        if self._filling is None:
            self._filling = self._plan.crew.borrow_at_once() if self._waiting else None
        if self._filling is None:
            self._settle()
            self._filling = self._plan.crew.borrow(offset)
        return self._filling

    def _settle(self) -> None:
        if self._waiting is not None:
            (buffer, pending), self._waiting = self._waiting, None
            try:
                pending.wait()
            finally:
                if buffer is not None:
                    self._plan.crew.give_back(buffer)

    def _drop(self) -> None:
        if self._filling is not None:
            buffer, self._filling = self._filling, None
            self._plan.crew.give_back(buffer)
