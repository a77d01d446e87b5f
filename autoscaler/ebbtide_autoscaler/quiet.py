"""Not deciding again what was decided already: a state in which nothing moves, and until when that holds. Pure.

Most ticks find the pool as it was, everybody with what they want. Then only time could bring about another decision,
and whoever waits for a time says so while the decision is made (`Draft.until_s`). So the same decision holds until
then: `decide` without this gives the same, which its tests check.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from ebbtide.pool.ids import JobName
from ebbtide.pool.state import PoolState
from ebbtide.snapshot.tiers.aside import StepAside
from ebbtide_autoscaler.serving import Want
from ebbtide_autoscaler.signals import PolicyConfig


@dataclass(frozen=True, slots=True)
class Quiet:
    """A decision without moves, for exactly these objects."""

    state: PoolState
    asides: Mapping[JobName, StepAside]
    config: PolicyConfig
    until_s: float
    waits: tuple[tuple[str, str], ...]

    def holds(
        self,
        now_s: float,
        state: PoolState,
        asides: Mapping[JobName, StepAside],
        config: PolicyConfig,
        wanted: Sequence[Want],
    ) -> bool:
        """Whether it would be made again."""
        return (
            self.state is state
            and now_s < self.until_s
            and satisfied(wanted)
            and self.config == config
            and (self.asides is asides or self.asides == asides)
        )


def satisfied(wanted: Sequence[Want]) -> bool:
    """Whether every endpoint has what it wants."""
    return all(one.want == one.now for one in wanted)


NEVER = Quiet(PoolState(), {}, PolicyConfig(), -inf, ())
