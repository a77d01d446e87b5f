"""Writing a file's chunks durably: allocated first, the aligned middle past the page cache, the edges through it.

Edges are not padded to the alignment: a padded tail would for a moment be longer than the file, and a padded edge in
the middle of a file would overwrite what another writer puts there.
"""

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from ebbtide.storage.errors import StorageError
from ebbtide.storage.posix.file_handle import OpenedFile
from ebbtide.storage.posix.posix_calls import NO_ROOM, Requests, SystemCalls
from ebbtide.storage.posix.spans import Spans
from ebbtide.storage.posix.transfer_threads import TransferThreads
from ebbtide.storage.transport.chunk_ranges import down, split
from ebbtide.storage.transport.transfer_report import Mode
from ebbtide.storage.transport.transport import Fill, Range

_CANNOT_ALLOCATE = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What one transfer writes."""

    file: OpenedFile
    spans: Spans
    requests: Requests
    calls: SystemCalls
    crew: TransferThreads
    fill: Fill

    def allocate(self, size_bytes: int) -> None:
        """Give the file its size, and blocks where the filesystem can: a full one says so now and not at the end.

        Raises:
            NoRoom: there is no space, or no quota.
        """
        handle = self.file.cached()
        try:
            if size_bytes:
                self._ask("allocate", lambda: self.calls.fallocate(handle.fd, 0, size_bytes))
        except OSError as error:
            if error.errno not in _CANNOT_ALLOCATE:
                raise self.requests.failed("allocate", error) from error
        try:
            if self._ask("allocate", lambda: self.calls.fstat(handle.fd)).st_size != size_bytes:
                self._ask("allocate", lambda: self.calls.ftruncate(handle.fd, size_bytes))
        except OSError as error:
            raise self.requests.failed("allocate", error) from error

    def write(self, chunks: Iterator[Range]) -> None:
        """Fill and write chunks until there are none."""
        for chunk in chunks:
            buffer = self.crew.borrow(chunk.offset)
            try:
                start = down(chunk.offset, self.file.alignment)
                memory = buffer.memory[: chunk.end - start]
                self.crew.doing("fill", chunk.offset)
                self.fill(chunk.offset, memory[chunk.offset - start :])
                self._write(chunk, memory, start)
            finally:
                self.crew.give_back(buffer)

    def sync(self, *, again: bool) -> StorageError | None:
        """Make it durable; None if it is.

        Args:
            again: whether this is the second time, so that there is no third.

        Raises:
            StorageError: there is no room, or it failed again.
        """
        handle = self.file.cached()
        try:
            self._ask("sync", lambda: self.calls.fsync(handle.fd))
        except OSError as error:
            failure = self.requests.failed("sync", error)
            if again or error.errno in NO_ROOM:
                raise failure from error
            return failure
        return None

    def close(self) -> None:
        """Close the file: some filesystems say only now that they could not keep the bytes."""
        self.crew.doing("close", None)
        try:
            self.file.close()
        except OSError as error:
            raise self.requests.failed("close", error) from error

    def _ask(self, action: str, call: Callable[[], Answer]) -> Answer:
        return self.requests.ask(action, None, call, io_errors_borne=0)

    def _write(self, chunk: Range, memory: memoryview, start: int) -> None:
        parts, mode = split(chunk, self.file.alignment), Mode.BUFFERED
        if parts.middle.length:
            part = memory[parts.middle.offset - start : parts.middle.end - start]
            mode = self.spans.move(part, parts.middle.offset, parts.middle.length, direct=True)
        for edge in parts.edges:
            self.spans.move(memory[edge.offset - start : edge.end - start], edge.offset, edge.length, direct=False)
        self.requests.finish(mode, parts.middle.length)
        self.requests.finish(Mode.BUFFERED, chunk.length - parts.middle.length)
