"""What each row of a result carries: which commit, machine and code it is of, and when it was measured.

A result is a JSON file; its ``stamps`` has a stamp for each of its cases. A case is the unit of measuring again: all
its competitors are run together, so no figure is compared with one of another run.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evidence.digest import digest_of
from evidence.provenance import as_measured, commit, hardware

KEY = "stamps"


@dataclass(frozen=True, slots=True)
class Stamp:
    """Of one case.

    Attributes:
        commit: of the sources; ``-dirty`` where files that git tracks differed from it.
        date: when the case began, local time, ``YYYY-mm-dd HH:MM``.
        seconds: how long it took.
        processes: the kinds of processes that it stands on (`evidence.processes`).
        digest: of the product code behind them (`evidence.digest`).
    """

    commit: str
    hardware: str
    date: str
    seconds: float
    processes: tuple[str, ...]
    digest: str

    def as_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        return asdict(self) | {"processes": list(self.processes)}


@dataclass(frozen=True, slots=True)
class Begun:
    """What must be noted before a case begins: the time, and the code as it is then."""

    at_s: float
    commit: str
    processes: tuple[str, ...]
    digest: str

    @classmethod
    def now(cls, processes: Sequence[str]) -> "Begun":
        """A case begins."""
        names = tuple(sorted(processes))
        return cls(time.time(), commit(), names, digest_of(names))

    def ended(self) -> Stamp:
        """The case has ended."""
        date = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.at_s))
        seconds = round(time.time() - self.at_s, 1)
        return Stamp(as_measured(self.commit, commit()), hardware(), date, seconds, self.processes, self.digest)


def stamps_of(document: Mapping[str, Any] | None) -> dict[str, Stamp]:
    """Of a result, by case; none, if it is older than stamps are."""
    found = (document or {}).get(KEY, {})
    return {case: Stamp(**{**one, "processes": tuple(one["processes"])}) for case, one in found.items()}


def with_stamps(document: Mapping[str, Any], stamps: Mapping[str, Stamp]) -> dict[str, Any]:
    """The result with these stamps instead of what it has."""
    return {**document, KEY: {case: one.as_json() for case, one in stamps.items()}}
