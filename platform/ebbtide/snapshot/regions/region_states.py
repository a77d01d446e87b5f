"""Whose a region is, what it may hold, and how that changes."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from ebbtide.snapshot.errors import RegionMisused


@dataclass(frozen=True, slots=True, order=True)
class RegionKey:
    """Whose region it is: one rank of the gang of one lease."""

    job: str
    lease_epoch: int
    rank: int


class RegionState(IntEnum):
    """What its payload is worth. The numbers are those in the files."""

    EMPTY = 0  # nothing
    FILLING = 1  # nothing yet: somebody writes, or died at it
    FULL = 2  # all that the rank held; it may be the only copy


EDGES: Mapping[RegionState, frozenset[RegionState]] = {
    RegionState.EMPTY: frozenset({RegionState.EMPTY, RegionState.FILLING}),
    RegionState.FILLING: frozenset({RegionState.EMPTY, RegionState.FILLING, RegionState.FULL}),
    RegionState.FULL: frozenset({RegionState.EMPTY, RegionState.FILLING}),
}
"""Into FULL leads FILLING alone: what counts was begun, so that no half of it is ever taken for the whole. FULL into
FULL would write the new note over the one that counts."""


def check(before: RegionState, after: RegionState) -> None:
    """Raises RegionMisused if the table has no such edge."""
    if after not in EDGES[before]:  # guard: into FULL leads FILLING alone
        raise RegionMisused(f"a region that is {before.name} cannot become {after.name}")
