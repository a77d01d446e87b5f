"""A whole file into one arena that was touched before, to make views of: the fastest way into host memory.

Whole-file requests into memory that is aligned like the file need no copy but that of the last few bytes; reading
tensor by tensor to wherever they fall was 0.5 to 0.8 as fast at ten times the CPU (docs/measured.md, "What the design
rests on").
"""

from dataclasses import dataclass
from pathlib import Path

from ebbtide.storage.arenas import Arenas
from ebbtide.storage.report import TransferReport
from ebbtide.storage.transport import Consume, Pending, Range, Transport


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """A file's bytes, valid as long as anybody holds this memory or a view of it.

    Attributes:
        memory: exactly the file's bytes.
        report: how they came.
    """

    memory: memoryview
    report: TransferReport


def read_whole(
    transport: Transport,
    path: Path,
    size_bytes: int,
    arenas: Arenas,
    *,
    consume: Consume | None = None,
    deadline_s: float,
) -> LoadedFile:
    """Read the first ``size_bytes`` of a file into an arena.

    Args:
        transport: what reads.
        path: an ordinary file.
        size_bytes: as its manifest says. Not asked from the filesystem: that might hang, or lie.
        arenas: lend the memory; it goes back by itself with its last view, also after an error or a request that hangs.
        consume: called with each chunk in place, for instance to hash it.
        deadline_s: seconds for the whole transfer.

    Raises:
        TransferFailed: see `Transport.read`.
        MemoryError: when no arena can be had.
    """
    memory = arenas.lend(size_bytes)
    report = transport.read(path, [Range(0, size_bytes)], consume or _nothing, into=memory, deadline_s=deadline_s)
    return LoadedFile(memory, report)


def _nothing(offset: int, chunk: memoryview) -> Pending | None:
    return None
