"""Which hunts a run begins with, and whether there is still time for one. Pure.

Hunts are the long forms of tests: those that are marked so, and properties with many examples. A run has no time for
all of them; which come first follows from a hash of the commit and the hunt, so that each has its turn within a few
commits, and the same commit hunts the same again.
"""

import hashlib
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ci.part import Unit

UNKNOWN_S = 120.0  # of a hunt that has no duration on record yet: about the median of those that have one
SLOWEST = 5.0  # a machine that is slower than this runs no hunt to its end
PATIENCE = 2.0  # times its usual duration on a machine as slow as today: then a hunt is cut off
ENOUGH = 1.25  # times that: it does not begin with less time left, for then it would be cut off for coming late
LEAST_S = 60.0  # and none is cut off before, but by the end of the budget
STARTS_S = 20.0  # none begins with less left: starting pytest alone can take 10 s on a slow day

PROPERTIES = "properties: "  # before the module, in the name of a hunt with many examples
MARKED, OF_PROPERTIES = "hunt", "hypothesis and not ray and not gpu and not hunt"


@dataclass(frozen=True, slots=True)
class Budget:
    """The time that is left for hunts, in seconds, and how many times slower than usual this machine is today."""

    left_s: float
    slowness: float

    def allows(self, usual_s: float) -> bool:
        """Whether a hunt that usually takes ``usual_s`` may begin."""
        return max(STARTS_S, usual_s * self.slowness * ENOUGH) <= self.left_s

    def limit_s(self, usual_s: float) -> float:
        """After which time a hunt is cut off."""
        return min(self.left_s, max(LEAST_S, usual_s * self.slowness * PATIENCE))


def unit(name: str) -> Unit:
    """The pytest of a hunt."""
    module = name.removeprefix(PROPERTIES)
    if module == name:
        return Unit(name, ("-q", "-m", MARKED, module))
    return Unit(name, ("-q", "-m", OF_PROPERTIES, module), always=("-p", "ci.many_examples"))


def in_turn(commit: str, hunts: Iterable[str]) -> list[str]:
    """All hunts, in the order in which a run of ``commit`` takes them."""
    return sorted(hunts, key=lambda hunt: hashlib.sha256(f"{commit} {hunt}".encode()).digest())


def slowness(seconds: Mapping[str, float], usual_s: Mapping[str, float]) -> float:
    """How many times longer the parts took today than usually: the median of those that have a usual duration."""
    ratios = [seconds[name] / usual_s[name] for name in seconds if usual_s.get(name)]
    return min(SLOWEST, max(1.0, statistics.median(ratios))) if ratios else 1.0
