"""Who gets nothing and why, as a decision says it: one reason for all of a line is kept as one. Pure.

Thousands may wait in a large pool, and each decision has a word for each of them. Most of these words nobody reads: the
arbiter does at each of its ticks, a simulation asks only whether there are any.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import chain, islice, repeat


@dataclass(frozen=True, slots=True)
class SharedReason:
    """One reason for those from ``begin`` up to ``end``, but for the ones that are told something else."""

    names: Sequence[str]
    begin: int
    end: int
    why: str
    others: Set[str]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        names: Iterable[str] = islice(self.names, self.begin, self.end)
        return zip((name for name in names if name not in self.others) if self.others else names, repeat(self.why))


class PendingReasons(Collection[tuple[str, str]]):
    """Names, each with why nothing is done for it; made once, and equal to any other collection of the same."""

    __slots__ = ("_pieces",)

    def __init__(self, pieces: Iterable[tuple[str, str] | SharedReason] = ()) -> None:
        self._pieces = tuple(pieces)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return chain.from_iterable(piece if isinstance(piece, SharedReason) else (piece,) for piece in self._pieces)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def __contains__(self, one: object) -> bool:
        return any(mine == one for mine in self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Collection) and (self is other or tuple(self) == tuple(other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PendingReasons({list(self)!r})"
