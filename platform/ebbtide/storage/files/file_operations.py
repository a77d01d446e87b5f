"""Operations on small files in a shared directory, as values: each of them one step that other nodes may see between.

Protocols built of them (leases, claims) are generators that yield an operation and are sent its answer. Production
performs each at once (``shared_files``); tests interleave the steps of many processes, pause and kill them at each one,
and let a model of a filesystem answer late or from a cache. Pure.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

RECORD_BYTES = 2048  # size of every such file: one write, far below a page, so that no reader sees half of one


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """Make a directory with mode 0700, and its parents; nothing happens where there is one. Answer: None."""

    path: Path


@dataclass(frozen=True, slots=True)
class ListNames:
    """The names in a directory. Answer: frozenset[str]."""

    path: Path


@dataclass(frozen=True, slots=True)
class ReadFile:
    """The content, read after a fresh open. Answer: bytes, or None where there is no such file."""

    path: Path


@dataclass(frozen=True, slots=True)
class CreateFile:
    """A new file with this content, exclusively. Answer: False where there is one already.

    A process that is killed in between leaves an empty file, which counts as created.
    """

    path: Path
    data: bytes


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Write over a file in place, if it still holds ``expected``. Answer: False where it is gone or another's.

    In place and not by rename: other clients keep the inode of a name cached, and would read the old file for long.
    """

    path: Path
    data: bytes
    expected: bytes


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """Remove a file, if it is there. Answer: None."""

    path: Path


Operation = MakeDirectory | ListNames | ReadFile | CreateFile | Overwrite | RemoveFile
Perform = Callable[[Operation], Any]
Steps = Generator[Operation, Any, T]


def carry_out(steps: Steps[T], perform: Perform) -> T:
    """Perform a protocol's operations one after the other; what it returns.

    Raises:
        StorageError: of an operation that failed; the steps after it are not taken.
    """
    answer: Any = None
    try:
        while True:
            answer = perform(steps.send(answer))
    except StopIteration as end:
        result: T = end.value
        return result
