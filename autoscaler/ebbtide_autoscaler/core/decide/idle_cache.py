"""A cache of the last decision without moves, which the caller of `decide` owns.

Most ticks find the pool as it was. Then only time can bring about another decision, and each part of the policy that
waits for a time notes it while the decision is made (`Plan.until_s`). The cached decision holds until then, and not
before the time at which it was made: a clock may be set back.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ebbtide.pool.ids import JobName
from ebbtide.pool.state import PoolState
from ebbtide.snapshot.tiers.step_aside import StepAside
from ebbtide_autoscaler.core.demand.replica_target import ReplicaTarget
from ebbtide_autoscaler.core.plan.inputs import Away, Memory, PolicyConfig, Snapshot


@dataclass(slots=True)
class IdleCache:
    """Of one caller, whose other arguments to `decide` may change as they like; ``last`` is replaced by `decide`."""

    last: "IdleDecision | None" = None


@dataclass(frozen=True, slots=True)
class IdleDecision:
    """A decision without moves, for exactly these objects, from ``since_s`` on and before ``until_s``."""

    state: PoolState
    asides: Mapping[JobName, StepAside]
    away: tuple[Away, ...]
    config: PolicyConfig
    reclaim: object  # the function that chose who steps aside
    since_s: float
    until_s: float
    waits: Collection[tuple[str, str]]

    def holds(
        self,
        now_s: float,
        snapshot: Snapshot,
        memory: Memory,
        config: PolicyConfig,
        targets: Sequence[ReplicaTarget],
        reclaim: object,
    ) -> bool:
        """Whether it would be made again."""
        return (
            self.state is snapshot.state
            and self.reclaim is reclaim
            and self.since_s <= now_s < self.until_s
            and all_met(targets)
            and self.config == config
            and self.away == memory.away
            and (self.asides is snapshot.asides or self.asides == snapshot.asides)
        )


def all_met(targets: Sequence[ReplicaTarget]) -> bool:
    """Whether every endpoint has what it wants."""
    return all(target.replicas == target.now for target in targets)
