"""Not deciding again what was decided already: a state in which nothing moves, and until when that holds. Pure.

Most ticks find the pool as it was, everybody with what they want. Then only time could bring about another decision,
and whoever waits for a time says so while the decision is made (`Draft.until_s`). So the same decision holds until
then: `decide` without this gives the same, which its tests check.

Not before it was made, though: whoever looks ahead (`foresee`) asks for a later time with the very state of now, and a
clock may be set back.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from ebbtide.pool.ids import JobName
from ebbtide.pool.state import PoolState
from ebbtide.snapshot.tiers.aside import StepAside
from ebbtide_autoscaler.serving import Want
from ebbtide_autoscaler.signals import Away, Memory, PolicyConfig, Snapshot


@dataclass(frozen=True, slots=True)
class Quiet:
    """A decision without moves, for exactly these objects, from ``since_s`` on and before ``until_s``."""

    state: PoolState
    asides: Mapping[JobName, StepAside]
    away: tuple[Away, ...]
    config: PolicyConfig
    since_s: float
    until_s: float
    waits: Collection[tuple[str, str]]

    def holds(
        self, now_s: float, snapshot: Snapshot, memory: Memory, config: PolicyConfig, wanted: Sequence[Want]
    ) -> bool:
        """Whether it would be made again."""
        return (
            self.state is snapshot.state
            and self.since_s <= now_s < self.until_s
            and satisfied(wanted)
            and self.config == config
            and self.away == memory.away
            and (self.asides is snapshot.asides or self.asides == snapshot.asides)
        )


def satisfied(wanted: Sequence[Want]) -> bool:
    """Whether every endpoint has what it wants."""
    return all(one.want == one.now for one in wanted)


NEVER = Quiet(PoolState(), {}, (), PolicyConfig(), inf, -inf, ())
