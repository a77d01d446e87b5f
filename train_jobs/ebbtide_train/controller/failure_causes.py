"""Who is to blame for a gang's failure, and how a person is told. Pure.

A failure is given as what went wrong by rank; -1 is the gang's controller. A rank that fails makes the collectives of
the others fail: so where a process died, what the others raised says less, and where a rank failed by its own code, so
does what the others say of a closed connection.
"""

from collections.abc import Mapping

from ebbtide_train.controller.failure_kinds import MACHINE, Kind, kind_of
from ebbtide_train.worker.rank_failure import RankFailed, as_told

CONTROLLER = -1
SHOWN = 3  # failures at most, the cause first: a line is to be read


class ProcessDied(Exception):
    """Stands for the process of a rank that is gone."""


def culprits(found: Mapping[int, BaseException]) -> list[int]:
    """The ranks on which the fault lies: of those with the weightiest cause all."""
    weights = {rank: _weight(cause) for rank, cause in found.items()}
    return sorted(rank for rank, weight in weights.items() if weight == min(weights.values()))


def describe(found: Mapping[int, BaseException]) -> str:
    """A failure of a gang in one line: its cause first, in the words of the process that raised it."""
    said: dict[str, list[int]] = {}
    for rank in sorted(found, key=lambda rank: (_weight(found[rank]), rank)):
        said.setdefault(_what(found[rank]), []).append(rank)
    lines = [f"{_who(ranks)}: {what}" for what, ranks in said.items()]
    return "; ".join(lines[:SHOWN])


def told(cause: BaseException) -> RankFailed:
    """What a rank said of its failure; of others what can be told from here."""
    return cause if isinstance(cause, RankFailed) else as_told(cause)


def kind(cause: BaseException) -> Kind:
    """Of what kind it is; a death is the machine's."""
    return Kind.PEER if isinstance(cause, ProcessDied) else kind_of(told(cause).chain)


def only_consequences(found: Mapping[int, BaseException]) -> bool:
    """Whether all that is known so far is that others are gone: who failed first has not said so yet."""
    return bool(found) and all(
        not isinstance(cause, ProcessDied) and kind(cause) is Kind.PEER for cause in found.values()
    )


def _weight(cause: BaseException) -> int:
    if isinstance(cause, ProcessDied):
        return 0
    found = kind(cause)
    if found is Kind.PEER:
        return 3
    return 2 if found in MACHINE else 1


def _who(ranks: list[int]) -> str:
    if ranks[0] == CONTROLLER:
        return "its controller"
    more = len(ranks) - 1
    return f"rank {ranks[0]}" + (f" and {more} more" if more else "")


def _what(cause: BaseException) -> str:
    return "its process died" if isinstance(cause, ProcessDied) else told(cause).raised.line
