"""Which nodes of a simulated pool fail, and when. Deterministic: equal seeds draw equal failures, whoever plays.

A GPU that fails takes its node with it until the node is repaired: the pool knows no smaller failure than that either.
Once in a run of days there is a storm. Both are as the benchmark has them (docs/simulate.md).
"""

from dataclasses import dataclass
from math import ceil
from random import Random

HOUR_S = 3600.0
STORM_SHARE = 0.01  # of the nodes
STORM_S = 300.0  # within which they fail
STORM_FROM_S = 86_400.0  # of scored time: there is one in a week, and an hour by itself has none


@dataclass(frozen=True, slots=True)
class Failure:
    """A node that fails; times in seconds from the start of the run."""

    at_s: float
    node: int
    repair_s: float


def failures(
    nodes: int,
    per_node: int,
    *,
    gpu_hours_each: float | None,
    storm: bool,
    repair_s: float,
    scored_s: tuple[float, float],
    seed: int,
) -> tuple[Failure, ...]:
    """All failures of a run, in order.

    Args:
        gpu_hours_each: GPU-hours for each failure; None: there are none but the storm's.
        repair_s: until a node is back.
        scored_s: begin and end of what is scored, in which the storm is.
    """
    random = Random(seed)
    found, at_s = list[Failure](), 0.0
    if gpu_hours_each is not None:
        each_s = gpu_hours_each * HOUR_S / (nodes * per_node)
        while (at_s := at_s + random.expovariate(1.0 / each_s)) < scored_s[1]:
            found.append(Failure(at_s, random.randrange(nodes), repair_s))
    begin_s, end_s = scored_s
    if storm and end_s - begin_s >= STORM_FROM_S:
        from_s = random.uniform(begin_s, end_s - STORM_S)
        for node in random.sample(range(nodes), ceil(nodes * STORM_SHARE)):
            found.append(Failure(from_s + random.uniform(0.0, STORM_S), node, repair_s))
    return _apart(sorted(found, key=lambda one: one.at_s))


def _apart(found: list[Failure]) -> tuple[Failure, ...]:
    """Without those of a node that is down already."""
    back_s, kept = dict[int, float](), list[Failure]()
    for one in found:
        if one.at_s >= back_s.get(one.node, 0.0):
            kept.append(one)
            back_s[one.node] = one.at_s + one.repair_s
    return tuple(kept)
