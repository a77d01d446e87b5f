"""Who is to blame for a gang's failure, and how a person is told. Pure.

A failure is given as what went wrong by rank; -1 is the gang's controller. A rank that dies makes the collectives of
the others fail, so where a process died, what the others raised says less.
"""

from collections.abc import Mapping

CONTROLLER = -1


class ProcessDied(Exception):
    """Stands for the process of a rank that is gone."""


def culprits(found: Mapping[int, BaseException]) -> list[int]:
    """The ranks whose processes died, or, if none did, those that raised."""
    died = [rank for rank, cause in found.items() if isinstance(cause, ProcessDied)]
    return sorted(died or found)


def describe(found: Mapping[int, BaseException]) -> str:
    """A failure of a gang in one line: its first cause, by whoever raised it."""
    ranks = sorted(found, key=lambda rank: (not isinstance(found[rank], ProcessDied), rank))
    return "; ".join(f"{_who(rank)}: {_what(found[rank])}" for rank in ranks)


def _who(rank: int) -> str:
    return "its controller" if rank == CONTROLLER else f"rank {rank}"


def _what(cause: BaseException) -> str:
    return "its process died" if isinstance(cause, ProcessDied) else f"{type(cause).__name__}: {cause}"
