"""One metric as plain data, so that docs, dashboard and tests read the same names as the code that counts."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

UNKNOWN = "-"
"""The value of a label for whatever a stranger named: what a client sends never becomes a label."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: its labels, and for a histogram the upper bounds of its buckets.

    Names have the prefix ``ebbtide_`` and base units; counters end in ``_total``.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        assert self.name.startswith("ebbtide_"), self.name
        assert self.name.endswith("_total") == (self.kind == "counter"), self.name
        assert bool(self.buckets) == (self.kind == "histogram"), self.name


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a family: of a gauge what it is, of a counter how much more, of a histogram one observation."""

    family: Family
    value: float
    labels: tuple[str, ...] = ()
