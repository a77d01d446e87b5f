"""The decision as it grows within one call of the policy; it never leaves that call."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from ebbtide.pool.events import GrantSeat, Move, WakeSeat
from ebbtide.pool.ids import EndpointName, JobName, SlotId
from ebbtide.pool.state import PoolState
from ebbtide.pool.subject import subject
from ebbtide.snapshot.tiers.step_aside import StepAside
from ebbtide_autoscaler.core.plan.fair_share import Shares
from ebbtide_autoscaler.core.plan.free_slots import FreeSlots
from ebbtide_autoscaler.core.plan.inputs import PolicyConfig
from ebbtide_autoscaler.core.plan.pending_reasons import SharedReason
from ebbtide_autoscaler.core.plan.shortfall import Shortfall


@dataclass(slots=True)
class Plan:
    """What the decision is made from, free slots that are promised to none yet, the moves so far, and why others wait.

    The steps of a decision change a plan one after the other; ``now_s``, ``state`` and ``config`` stay as they are.
    """

    now_s: float
    state: PoolState
    config: PolicyConfig
    free: FreeSlots
    moves: list[Move] = field(default_factory=list)
    waits: list[tuple[str, str] | SharedReason] = field(default_factory=list)
    shortfall: Shortfall = field(default_factory=Shortfall)  # slots that replicas need and nobody has free
    owed: list[SlotId] = field(default_factory=list)  # free slots kept for jobs that may never lose all of theirs
    minima: Mapping[JobName, int] = field(default_factory=dict)  # how many each of those jobs is owed
    denied: list[EndpointName] = field(default_factory=list)  # endpoints with a replica that lacks slots
    contested: bool = False  # a replica waits for slots: jobs take nothing now
    asides: Mapping[JobName, StepAside] = field(default_factory=dict)  # how jobs would step aside, where that is known
    expected_s: float | None = None  # how long a preemption lasts in this pool; None: nobody knows
    best: set[SlotId] = field(default_factory=set)  # of those missing: where a warm replica could wake
    shares: Shares | None = None  # of the teams; None: nobody is promised any
    until_s: float = inf  # with all else as it is, time alone brings about nothing before

    def restart_costs_s(self, job: JobName) -> float:
        """What a restart costs ``job`` more than a park."""
        aside = self.asides.get(job)
        return self.config.restart_cost_s if aside is None else aside.restart_costs_s

    def grant(self, move: GrantSeat) -> None:
        """Promise a replica its slots."""
        self.free.place(move.slots)
        self.moves.append(move)

    def wake(self, move: WakeSeat, slots: tuple[SlotId, ...]) -> None:
        """Promise a warm replica its slots."""
        self.free.take(slots)
        self.moves.append(move)

    def waits_until(self, at_s: float) -> None:
        """Somebody waits for that time."""
        self.until_s = min(self.until_s, at_s)

    def moved(self) -> set[str]:
        """The jobs and seats that this decision moves already."""
        return {str(subject(move)) for move in self.moves}
