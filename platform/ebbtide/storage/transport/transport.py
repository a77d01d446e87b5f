"""The port that all byte movers stand behind.

Why chunks and a callback: whoever needs the bytes (a hash, a copy to a device, a scatter into parameters) works while
the next chunk is on its way, in the thread that fetched it and while it is still in that core's cache.

A *chunk* is at most ``CHUNK_BYTES`` and starts at a multiple of it in the file: the unit of requests, of hashes and of
repair alike. 16 MiB: cuFile's largest direct request, and as fast as 4 MiB in measurements (docs/measured.md, "What the
design rests on").
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ebbtide.storage.transport.transfer_report import TransferReport

CHUNK_BYTES = 16 << 20
ALIGNMENT_BYTES = 4096  # of offsets, lengths and memory in direct I/O: the largest that any filesystem at hand asks for


class Pending(Protocol):
    """Work on a chunk's memory that goes on after the callback returned, such as a copy to a device."""

    def wait(self) -> None:
        """Until the memory is free again."""


# Called with the chunk's offset in the file and its bytes, from any of the transport's threads, in any order, each
# chunk once. The memory is the transport's own and valid until the callback returns, or until the Pending has ended.
Consume = Callable[[int, memoryview], Pending | None]

# Called with an offset in the file and memory to fill with what shall be written there.
Fill = Callable[[int, memoryview], None]


@dataclass(frozen=True, slots=True)
class Range:
    """``length`` bytes of a file from ``offset`` on."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.offset + self.length


class Transport(Protocol):
    """Moves bytes between files and host memory. Instances live as long as the process and may be shared by threads."""

    def read(
        self,
        path: Path,
        ranges: Iterable[Range],
        consume: Consume,
        *,
        into: memoryview | None = None,
        deadline_s: float,
    ) -> TransferReport:
        """Read ``ranges``, cut at chunk borders, handing each chunk to ``consume``.

        Args:
            path: an ordinary file.
            ranges: disjoint, in the order in which they are wanted.
            consume: see `Consume`. What it raises ends the transfer and is raised here.
            into: memory for the file's bytes, its index 0 standing for the file's byte 0, of at least the end of the
                last range; chunks then arrive in place (read straight into it where its alignment allows, else
                copied) and ``consume`` is given views of it.
            deadline_s: seconds for the whole transfer, without what it waits for traffic of higher classes (`traffic`).

        Raises:
            TransferFailed: with errno, path and offset; TransferTimeout and FileTruncated are kinds of it.
        """

    def write(
        self, path: Path, size_bytes: int, fill: Fill, *, ranges: Iterable[Range] | None = None, deadline_s: float
    ) -> TransferReport:
        """Write a file of ``size_bytes`` (or the named ranges of it) durably: allocated first, synced before returning.

        A file that did not exist is created with mode 0600; a failed write leaves it, and the caller removes it.

        Raises:
            NoRoom: ENOSPC or EDQUOT, wherever it showed (allocate, write, sync, close).
            TransferFailed: anything else. After a failed sync the data must be written again, not only synced.
        """
