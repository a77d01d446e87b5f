"""Perfect foresight knows how its own moves turn out: it plays its plan, and orders sooner what came too late.

How long before its need a replica must be ordered depends on what nobody can reckon beforehand: whether one wakes or
starts, how long that very start is drawn to take, cold or not; which job has to leave first, and whether it may be
asked once more within the hour. All of it is the same when the same scene is played again. So a plan is played, and
what came of it is a `lessons.lesson` for the next one. What jobs lose by their moves is not known beforehand either: so
it is played with longer holds throughout too, and without a move. In a pool in which one replica is much, it is also
played with as few as do, and as few as do for some late requests. Of all that was played the best counts: the most
training among those that serve as well as any. The others are what foresight could have instead.

Not guaranteed: that no better plan exists. It is better than whoever has to guess, which `report` checks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ebbtide.pool.events import Decision
from ebbtide.pool.ids import EndpointName
from ebbtide.pool.lookup.derived_maps import sum_by
from ebbtide.pool.state import SeatRecord
from ebbtide.pool.transitions import SeatState
from ebbtide_autoscaler.core.plan.inputs import Memory, PolicyConfig, Snapshot
from ebbtide_simulator.model.meter import Use
from ebbtide_simulator.policies.bounded import Bounded
from ebbtide_simulator.policies.contradictions import AS_WELL, GANGS, SERVES
from ebbtide_simulator.policies.foresight import STRETCH_S, Learnt, fewest_constant, lead_s, nothing_learnt, plan
from ebbtide_simulator.policies.leaner import leaner
from ebbtide_simulator.policies.lessons import lesson
from ebbtide_simulator.run.run import Outcome, Run, Scene
from ebbtide_simulator.traffic.traces import Array

REHEARSALS = 8  # at most: each takes as long as a run
GOOD = 0.0005  # of the requests late: nobody tells less from nothing, and half of what is called serving as well
EQUAL = 0.0002  # of the requests: two plans serve alike
# Of the requests. A rival with `AS_WELL` more late ones counts as one that serves as well: a plan must stand beside it,
# with no more than as much again.
LATE = (0.0, AS_WELL, 2 * AS_WELL)
LONGER_S = 300.0  # dips up to it are not used in one rehearsal: less is moved, and more answers than is needed


@sum_by
def _ready(seat: SeatRecord) -> Mapping[EndpointName, int] | None:
    return {seat.endpoint: 1} if seat.state is SeatState.READY else None


class Foreseeing:
    """A contender that does what its plans say; one for each run.

    Attributes:
        ready: the fewest replicas that answered in each stretch, as seen at its ticks; NaN: it had none.
    """

    def __init__(self, begins_s: float, plans: Mapping[EndpointName, Array], *, patient: bool = False) -> None:
        """``plans``: replicas by stretches of `STRETCH_S` from ``begins_s`` on; ``patient``: never more than these."""
        self.ready = {name: np.full(len(one), np.nan) for name, one in plans.items()}
        self._begins_s, self._plans, self._bounded = begins_s, plans, Bounded(self._bounds)
        self._patient = patient

    def __call__(
        self, now_s: float, snapshot: Snapshot, memory: Memory, config: PolicyConfig
    ) -> tuple[Decision, Memory]:
        """As `ebbtide_autoscaler.core.decide.policy.decide`."""
        counts = _ready(snapshot.state.seats)
        for name, seen in self.ready.items():
            at = self._at(now_s, seen)
            seen[at] = np.fmin(seen[at], float(counts.get(name, 0)))
        return self._bounded(now_s, snapshot, memory, config)

    def _at(self, now_s: float, stretches: Array) -> int:
        return min(int((now_s - self._begins_s) // STRETCH_S), len(stretches) - 1)

    def _bounds(self, now_s: float, snapshot: Snapshot) -> Mapping[EndpointName, tuple[int, int]]:
        found = {}
        for name, one in self._plans.items():
            if name not in snapshot.state.endpoints:
                continue
            count = int(one[self._at(now_s, one)])
            more = not self._patient and _behind(name, count, snapshot)
            found[name] = (count, count + 1 + count // 8 if more else count)
        return found


def _behind(name: EndpointName, replicas: int, snapshot: Snapshot) -> bool:
    """Whether more waits than these do within the time promised: some were late, and no plan knows of the rest.

    What waits for a moment is in the plan and gone by itself: a job would be sent away for nothing.
    """
    traffic, spec = snapshot.traffic[name], snapshot.state.endpoints[name].spec
    return traffic.held * traffic.stay_s > replicas * spec.target_requests * spec.ttft_slo_s


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """A plan that was played, and what came about; ``patient``: as `Foreseeing` has it."""

    plans: Mapping[EndpointName, Array]
    outcome: Outcome
    patient: bool = False

    @property
    def late_share(self) -> float:
        """Of all requests."""
        asked = float(self.outcome.requests.sum())
        return float(self.outcome.late.sum()) / asked if asked else 0.0


def rehearse(scene: Scene, config: PolicyConfig) -> list[Rehearsed]:
    """A few plans, each of which has learnt from those before it, the best one first; requests are a fluid."""
    learnt = [nothing_learnt(service.load) for service in scene.services]
    played: list[Rehearsed] = []
    while len(played) < REHEARSALS:
        plans = _plans(scene, learnt)
        if played and _alike(plans, played[-1].plans):
            break  # nothing more can be done
        one, contender = _play(scene, plans, config)
        played.append(one)
        if one.late_share <= GOOD:
            break
        learnt = [
            lesson(scene, one, known, contender.ready[one.spec.name], waits)
            for one, known, waits in zip(scene.services, learnt, one.outcome.waits, strict=True)
        ]
    longer = _plans(scene, [replace(known, dip_s=np.maximum(known.dip_s, LONGER_S)) for known in learnt])
    if not _alike(longer, played[-1].plans):
        played.append(_play(scene, longer, config)[0])
    still = _unmoved(scene, learnt)
    if not _alike(still, played[-1].plans) and _may_be_better(scene, still, best(played)):
        played.append(_play(scene, still, config)[0])
    played += _leaner(scene, config, best(played).plans, still)
    first = best(played)
    found = [first, *(one for one in played if one is not first)]
    return found if scene.timed else [replace(one, outcome=replace(one.outcome, waits=())) for one in found]


def _leaner(
    scene: Scene, config: PolicyConfig, plans: Mapping[EndpointName, Array], still: Mapping[EndpointName, Array]
) -> list[Rehearsed]:
    """With fewer replicas, moved and unmoved, where one of them is more of the pool than luck with gangs is."""
    if scene.singly or max((service.engine.slots for service in scene.services), default=0) <= GANGS * scene.slots:
        return []  # one by one, requests need what a fluid does not
    played: list[Rehearsed] = []
    tried = [plans, still]
    for share in LATE:
        lean, unmoved = (leaner(scene.services, one, share, int(scene.warm_up_s)) for one in (plans, still))
        if not any(_alike(lean, one) for one in tried):
            played.append(_play(scene, lean, config, patient=True)[0])
        trained_s = max((one.outcome.slot_s[Use.TRAINING] for one in played), default=0.0)
        if not any(_alike(unmoved, one) for one in (*tried, lean)) and _room_s(scene, unmoved) > trained_s:
            played.append(_play(scene, unmoved, config, patient=True)[0])
        tried += [lean, unmoved]
    return played


def _play(
    scene: Scene, plans: Mapping[EndpointName, Array], config: PolicyConfig, *, patient: bool = False
) -> tuple[Rehearsed, Foreseeing]:
    contender = Foreseeing(scene.begins_s, plans, patient=patient)
    outcome = Run(replace(scene, timed=True, singly=False), contender, config).outcome()
    return Rehearsed(plans, outcome, patient), contender


def _alike(some: Mapping[EndpointName, Array], others: Mapping[EndpointName, Array]) -> bool:
    return all(np.array_equal(some[name], one) for name, one in others.items())


def _plans(scene: Scene, learnt: Sequence[Learnt]) -> Mapping[EndpointName, Array]:
    usual_s = lead_s(scene.times, scene.tick_s)
    return {
        one.spec.name: np.minimum(
            plan(one.load, one.engine, one.spec.ttft_slo_s, usual_s, known), float(one.spec.replicas_max)
        )
        for one, known in zip(scene.services, learnt, strict=True)
    }


def _unmoved(scene: Scene, learnt: Sequence[Learnt]) -> Mapping[EndpointName, Array]:
    found = {}
    for one, known in zip(scene.services, learnt, strict=True):
        count = fewest_constant(one.load, one.engine, one.spec.ttft_slo_s, GOOD / 2, one.spec.replicas_max)
        found[one.spec.name] = np.full(len(known.more), float(count))
    return found


def _room_s(scene: Scene, still: Mapping[EndpointName, Array]) -> float:
    """Slot-seconds of training from the end of the warm-up on, at most, if replicas do not move."""
    serve = sum(service.engine.slots * float(still[service.spec.name].max()) for service in scene.services)
    return (scene.slots - serve) * (scene.horizon_s - scene.warm_up_s)


def _may_be_better(scene: Scene, still: Mapping[EndpointName, Array], so_far: Rehearsed) -> bool:
    """Whether replicas that do not move may train more, or serve where all that was played does not."""
    return so_far.late_share > 1.0 - SERVES or _room_s(scene, still) > so_far.outcome.slot_s[Use.TRAINING]


def best(played: Sequence[Rehearsed]) -> Rehearsed:
    """The most training among those that serve as well as any; of equals the first."""
    least = min(one.late_share for one in played)
    as_well = [one for one in played if one.late_share <= max(GOOD, least + EQUAL)]
    return max(as_well, key=lambda one: one.outcome.slot_s[Use.TRAINING])
