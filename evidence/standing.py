"""Which cases of a result are fresh, stale or missing, and in which order they are measured again. Pure.

A case is stale when the code behind it is another than the one that was measured, and only then: neither its age nor
another commit makes it so. A recorded statement (`evidence.carried`) can say that two versions of the code do the same.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from evidence.results import Case
from evidence.stamps import Stamp


class Standing(Enum):
    """Of a case, in the order in which cases are measured again."""

    MISSING = "missing"
    STALE = "stale"
    FRESH = "fresh"


ORDER = list(Standing)


@dataclass(frozen=True, slots=True)
class Row:
    """A case with its last measurement."""

    case: Case
    stamp: Stamp | None
    standing: Standing

    @property
    def takes_s(self) -> float:
        """How long it took last time; by default what it usually takes."""
        return self.stamp.seconds if self.stamp is not None else self.case.usual_s


def rows(
    cases: Iterable[Case],
    stamps: Mapping[str, Stamp],
    digest_of: Callable[[Sequence[str]], str],
    same: Mapping[str, str],
) -> list[Row]:
    """All cases of a result.

    Args:
        digest_of: of the present code behind processes.
        same: digests of earlier code, each with the digest of code that was stated to do the same.
    """
    found = []
    for case in cases:
        stamp = stamps.get(case.name)
        if stamp is None:
            standing = Standing.MISSING
        else:
            fresh = led_on(stamp.digest, same) == digest_of(case.processes)
            standing = Standing.FRESH if fresh else Standing.STALE
        found.append(Row(case, stamp, standing))
    return found


def led_on(digest: str, same: Mapping[str, str]) -> str:
    """The newest code that was stated to do the same as ``digest``."""
    seen = {digest}
    while (after := same.get(digest)) is not None and after not in seen:
        seen.add(after)
        digest = after
    return digest


def stalest_first(found: Iterable[Row]) -> list[Row]:
    """Missing ones, then stale ones from the oldest on, then fresh ones from the oldest on."""
    return sorted(found, key=lambda row: (ORDER.index(row.standing), row.stamp.date if row.stamp else ""))


def within(found: Sequence[Row], limit_s: float, clock: Callable[[], float], *, halves: bool = False) -> Iterator[Row]:
    """Those of ``found`` for which there is time, judged by what each takes when its turn comes.

    Args:
        halves: a case that is broken off goes on where it was, so it may begin as long as there is any time.
    """
    until_s = clock() + limit_s
    for row in found:
        if clock() + (0.0 if halves else row.takes_s) < until_s:
            yield row
