"""What ``MINUTES=N`` measures: the cases of a result that are missing or stale, the stalest first, as time allows.

Without a bound everything that was chosen is measured, fresh or not.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from evidence import carried
from evidence.digest import digest_of
from evidence.report import in_words
from evidence.results import cases_of
from evidence.stamps import stamps_of
from evidence.standing import Row, Standing, rows, stalest_first, within


def stale(name: str, document: Mapping[str, Any] | None, chosen: Collection[str]) -> list[Row]:
    """Those of the ``chosen`` cases of a result that no run of the present code stands behind, the stalest first."""
    found = rows(cases_of(name), stamps_of(document), digest_of, carried.same())
    return [row for row in stalest_first(found) if row.standing is not Standing.FRESH and row.case.name in chosen]


def in_turn(
    name: str,
    document: Mapping[str, Any] | None,
    chosen: Collection[str],
    minutes: float | None,
    *,
    halves: bool = False,
    clock: Callable[[], float] = time.monotonic,
    tell: Callable[[str], object] = print,
) -> Iterator[str]:
    """The cases to measure, one after the other; the next is given when the one before has ended.

    Args:
        name: of the result.
        document: it, as it stands.
        chosen: cases that may be measured, in the order in which all would be.
        minutes: for all of it; None: all that is chosen, however long it takes.
        halves: a case that is broken off goes on where it was.
    """
    if minutes is None:
        yield from chosen
        return
    wanted = stale(name, document, chosen)
    if not wanted:
        tell(f"{name}: every case is fresh; without MINUTES all are measured again")
        return
    begun = 0
    for row in within(wanted, 60 * minutes, clock, halves=halves):
        begun += 1
        tell(f"{name}: {row.case.name} is {row.standing.value}, takes {in_words(row.takes_s)}")
        yield row.case.name
    if begun < len(wanted):
        tell(left(name, wanted, begun))


def left(name: str, wanted: list[Row], begun: int) -> str:
    """What is said when time was too short for all."""
    shortest = min(wanted, key=lambda row: row.takes_s)
    hint = f": the shortest takes {in_words(shortest.takes_s)}" if not begun else ""
    return f"{name}: {begun} of {len(wanted)} missing or stale cases were begun{hint}"
