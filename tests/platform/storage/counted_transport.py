"""A transport whose steps are counted, so that a process can be killed, or overtaken, before any one of them."""

from collections.abc import Iterable
from pathlib import Path

from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide.storage.transport.transport import Fill, Range
from tests.platform.storage.failing_calls import CountedCalls


class CountedTransport(PosixTransport):
    """Counts each chunk that is written and, by the names that it is given, what is beside it."""

    def __init__(self, calls: CountedCalls, pool: BufferPool, *, fetch: str = "", end: str = "") -> None:
        """Args:
        calls: told of each step, by name, before it is done.
        pool: of the buffers; a forked process needs its own, since none lives on there.
        fetch: the step before a chunk is filled, where that is apart from its write; "": it is not.
        end: the step after all chunks of a call; "": none.
        """
        super().__init__(pool, threads=1)
        self._counted, self._fetch, self._end = calls, fetch, end

    def write(
        self, path: Path, size_bytes: int, fill: Fill, *, ranges: Iterable[Range] | None = None, deadline_s: float
    ) -> TransferReport:
        def counted(offset: int, memory: memoryview) -> None:
            if self._fetch:
                self._counted.at(self._fetch)
                fill(offset, memory)
            self._counted.at("chunk")
            if not self._fetch:
                fill(offset, memory)

        report = super().write(path, size_bytes, counted, ranges=ranges, deadline_s=deadline_s)
        if self._end:
            self._counted.at(self._end)
        return report
