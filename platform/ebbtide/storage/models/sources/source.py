"""Where a model comes from: what any source must be able to say and to give.

A source is never trusted. What it lists is checked by whoever uses it, a read gives exactly what was asked for or
fails, and a file that is another than it was when the import began is noticed: by its *stamp*, whatever the filesystem
offers that changes with the content (inode and times, ETag, version, generation).

Not guaranteed: to notice a change that leaves size, stamp and header as they were. A source that gives no stamp is
*vague*: nothing is remembered of it, so nothing that was read earlier is ever mixed with what it gives now.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from ebbtide.storage.errors import Refused


class SourceChanged(Refused):
    """The source is not what it was when the import began; nothing was published."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(
            f"{where} {what}: the source changed while it was being imported, and nothing was published. "
            "Import it again when nobody writes to it any more"
        )


@dataclass(frozen=True, slots=True, order=True)
class SourceFile:
    """A file of a source.

    Attributes:
        name: relative to the source, parts joined by ``/``, as the source says it.
        size_bytes: its length.
        stamp: changes whenever the content does; empty if the source gives nothing of the kind.
    """

    name: str
    size_bytes: int
    stamp: str


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a file from ``offset`` on, and where they go."""

    offset: int
    memory: memoryview


class Reading(Protocol):
    """One file of a source, open; may be used by several threads."""

    def read(self, parts: Sequence[Part]) -> None:
        """Fill the memory of all ``parts``.

        Raises:
            SourceChanged: the file is shorter than it was, or another.
            TransferFailed: it cannot be read.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Source(Protocol):
    """A directory of files, here or elsewhere."""

    @property
    def where(self) -> str:
        """The directory or URL, for people, records and identity; passwords are left out."""

    def listing(self) -> list[SourceFile]:
        """All ordinary files, as they are now, sorted.

        Raises:
            Refused: there is no such directory, or nobody could import so much.
            TransferFailed: it cannot be looked at.
        """

    def look_for(self, names: Iterable[str]) -> list[SourceFile]:
        """Files that `listing` cannot show, as some servers do not list; those that are not there are left out."""

    def open(self, file: SourceFile) -> Reading:
        """Open a file that `listing` gave.

        Raises:
            SourceChanged: it is another file now.
            TransferFailed: it cannot be opened.
        """


def read_all(source: Source, file: SourceFile) -> bytes:
    """All of a small file; raises as `Source.open` and `Reading.read` do."""
    return read_first(source, file, file.size_bytes)


def read_first(source: Source, file: SourceFile, count: int) -> bytes:
    """The first ``count`` bytes of a file, or all if it is shorter."""
    content = bytearray(min(count, file.size_bytes))
    if content:
        with source.open(file) as reading, memoryview(content) as memory:
            reading.read([Part(0, memory)])
    return bytes(content)
