"""A finding: what is so, with values, why it matters, and what to do.

Why a person gets four parts: "GDS: no" sends people to a manual. A finding that is not in order must say what it
costs and the next step; that is checked where it is made.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


class Verdict(Enum):
    """How a subject stands, the worst first."""

    MISSING = "missing"  # not there, or does not work
    LIMITED = "limited"  # works, and could do more
    UNKNOWN = "unknown"  # could not be read
    OK = "ok"


Value = str | int | float | bool | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One subject of one node.

    Attributes:
        id: ``<subject>.<part>``, stable: programs look for it.
        verdict: see `Verdict`.
        what: what is so, one sentence.
        why: what it costs or endangers; empty only where the verdict is ok.
        remedy: what to do; empty only where the verdict is ok.
        values: what was read, for programs.
        broken: the node cannot serve as long as this is so.
    """

    id: str
    verdict: Verdict
    what: str
    why: str = ""
    remedy: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)
    broken: bool = False

    def __post_init__(self) -> None:
        assert self.what
        assert self.verdict is Verdict.OK or (self.why and self.remedy), f"{self.id} must say why, and what to do"
        assert not (self.broken and self.verdict is Verdict.OK)

    def as_json(self) -> dict[str, object]:
        """All parts, under names that a program can rely on."""
        return {
            "id": self.id,
            "verdict": self.verdict.value,
            "broken": self.broken,
            "what": self.what,
            "why": self.why,
            "remedy": self.remedy,
            "values": dict(self.values),
        }


def by_verdict(findings: Iterable[Finding]) -> dict[Verdict, list[Finding]]:
    """Findings in groups, worst first; what is broken comes first in its group."""
    everything = list(findings)
    groups = {verdict: [one for one in everything if one.verdict is verdict] for verdict in Verdict}
    return {verdict: sorted(group, key=lambda one: not one.broken) for verdict, group in groups.items() if group}
