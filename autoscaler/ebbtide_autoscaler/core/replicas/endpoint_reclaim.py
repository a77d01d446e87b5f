"""Replicas that make place for another endpoint's where no job can. Pure.

Else the endpoint whose demand rose first would keep its room for surges while another one's requests wait, for as long
as its own demand lasts. A replica goes if those that are left are enough for what is asked of its endpoint now, without
room; and whoever has none at all gets one from whoever has two. Both leave the other nothing to take back.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil

from ebbtide.pool.events import DrainSeat, GrantSeat, ParkSeat, WakeSeat
from ebbtide.pool.ids import EndpointName, JobName, NodeId, endpoint_of, node_of
from ebbtide.pool.lookup.index import nodes_with
from ebbtide.pool.plural import many
from ebbtide.pool.state import SeatRecord
from ebbtide.pool.transitions import SeatState, SlotState
from ebbtide_autoscaler.core.demand.replica_target import ReplicaTarget, may_go
from ebbtide_autoscaler.core.plan.plan import Plan
from ebbtide_autoscaler.core.replicas.warm_pool import park_or_drain

# Of what an endpoint needs it keeps so many times as much: with less its own next rise would take the slots back.
# Measured, from 1.0 to 1.25, in the burst hour at 8,192: docs/decisions/031-making-place.md.
SPARE = 1.2
YIELDS = "makes place for"


def reclaim_from_endpoints(targets: Sequence[ReplicaTarget], plan: Plan) -> None:
    """Drain replicas for those that lack slots for what is asked of them now, beyond what is on its way already."""
    if not plan.denied:
        return
    have = Counter({target.endpoint: target.now for target in targets})
    for move in plan.moves:
        if isinstance(move, GrantSeat | WakeSeat):
            have[endpoint_of(move.seat)] += 1
        elif isinstance(move, DrainSeat | ParkSeat):
            have[endpoint_of(move.seat)] -= 1
    denied = frozenset(plan.denied)
    lacking = [target for target in targets if target.endpoint in denied and target.need > have[target.endpoint]]
    if lacking:
        _Places(targets, have, plan).make(lacking)


class _Places:
    """Who has how many replicas as this goes on, and what comes free where."""

    def __init__(self, targets: Sequence[ReplicaTarget], have: Counter[EndpointName], plan: Plan) -> None:
        self._now_s, self._state, self._have, self._plan = plan.now_s, plan.state, have, plan
        self._wants = {target.endpoint: target for target in targets}
        self._moved = plan.moved()
        self._soon = Counter(_coming_free(plan, self._moved))

    def make(self, lacking: Sequence[ReplicaTarget]) -> None:
        """In turn: priority, then who has least of what it needs."""
        for target in sorted(lacking, key=self._turn):  # a stable sort
            self._count_what_comes(target)
            if not self._have[target.endpoint]:
                self._make_for(target, 1)
            self._make_for(target, target.need)

    def _turn(self, target: ReplicaTarget) -> tuple[int, float]:
        return -self._state.endpoints[target.endpoint].spec.priority, self._have[target.endpoint] / target.need

    def _count_what_comes(self, target: ReplicaTarget) -> None:
        """Slots on their way that are enough for a replica count as one, where they are least beyond that."""
        count = self._slots_each(target)
        for node, slots in sorted(self._soon.items(), key=lambda one: one[1]):  # a stable sort
            more = min(slots // count, max(0, target.need - self._have[target.endpoint]))
            self._soon[node] -= more * count
            self._have[target.endpoint] += more

    def _make_for(self, target: ReplicaTarget, goal: int) -> None:
        """Place for so many, as far as others can give it: first where least is missing."""
        gives = self._gives(target) if self._have[target.endpoint] < goal else {}
        there: dict[NodeId, list[SeatRecord]] = {}
        for name in gives:
            for seat in reversed(self._state.seats_of(name)):  # the highest numbers go first
                if seat.state is SeatState.READY and seat.id not in self._moved:
                    there.setdefault(node_of(seat.slots[0]), []).append(seat)
        for node in sorted(there.keys() - self._state.draining, key=lambda node: (-self._soon[node], node)):
            while self._have[target.endpoint] < goal and self._make_on(node, there[node], gives, target):
                pass
            if self._have[target.endpoint] >= goal or not any(gives.values()):
                break

    def _gives(self, target: ReplicaTarget) -> dict[EndpointName, int]:
        """How many replicas each endpoint can give to this one; those that give none are left out."""
        priority = self._state.endpoints[target.endpoint].spec.priority
        found = {}
        for name, own in self._wants.items():
            if (
                name == target.endpoint
                or own.unheard
                or self._state.endpoints[name].spec.priority > priority  # guard: a higher priority makes no place
            ):
                continue
            keeps = max(1, own.least, ceil(own.need * SPARE) if self._have[target.endpoint] else 0)
            # Who has no more than it keeps, with those that start, has no more of those that are ready.
            if self._have[name] > keeps and (count := self._ready(name) - keeps) > 0:
                found[name] = count
        return found

    def _ready(self, name: EndpointName) -> int:
        """Its replicas that answer and stay: one that is still starting cannot stand in for one of them."""
        return sum(
            seat.state is SeatState.READY  # guard: a starting replica lets no other make place
            and seat.id not in self._moved
            for seat in self._state.seats_of(name)
        )

    def _make_on(
        self, node: NodeId, there: list[SeatRecord], gives: dict[EndpointName, int], target: ReplicaTarget
    ) -> bool:
        """Place for one replica on this node, if replicas that may go are enough for that."""
        count, found = self._slots_each(target), self._soon[node]
        going: list[SeatRecord] = []
        left = dict(gives)
        for seat in sorted(there, key=self._spare, reverse=True):  # a stable sort
            if found >= count:
                break
            if left[seat.endpoint] > 0 and may_go(self._now_s, self._state, self._state.endpoints[seat.endpoint], seat):
                going.append(seat)
                left[seat.endpoint] -= 1
                found += len(seat.slots)
        if found < count:
            return False
        for seat in going:
            there.remove(seat)
            self._moved.add(seat.id)
            park_or_drain(seat, self._why(seat.endpoint, target), self._plan)
            self._have[seat.endpoint] -= 1
        gives.update(left)
        self._soon[node] = found - count
        self._have[target.endpoint] += 1
        return True

    def _spare(self, seat: SeatRecord) -> float:
        """By how many times its endpoint has what it needs."""
        return self._have[seat.endpoint] / max(1, self._wants[seat.endpoint].need)

    def _why(self, name: EndpointName, target: ReplicaTarget) -> str:
        own, has = self._wants[name], self._have[target.endpoint]
        theirs = f"{target.endpoint}, which has {has} of {many(target.need, 'replica')} that it needs now"
        return f"{YIELDS} {theirs}; {name} needs {own.need} and has {self._have[name]}"

    def _slots_each(self, target: ReplicaTarget) -> int:
        return self._state.endpoints[target.endpoint].spec.slots_per_replica


def _coming_free(plan: Plan, moved: set[str]) -> Mapping[NodeId, int]:
    """Slots that are free and nobody gets by this decision, come free already, or will by it; by node."""
    state = plan.state
    found = Counter(node_of(slot) for slot in state.free_slots() if slot not in plan.owed)
    found.update(nodes_with(state.slots, SlotState.RECLAIMING))
    woken = {move.seat for move in plan.moves if isinstance(move, WakeSeat)}
    for name in moved - woken:
        job, seat = state.jobs.get(JobName(name)), state.seats.get(name)  # type: ignore[call-overload]
        found.update(node_of(slot) for slot in (job.gang if job else seat.slots if seat and seat.slots else ()))
    got = [state.seats[name].slots for name in woken] + [m.slots for m in plan.moves if isinstance(m, GrantSeat)]
    found.subtract(node_of(slot) for slots in got for slot in slots)
    # By node: of a set of names the order is another one in each process.
    return {node: count for node, count in sorted(found.items()) if node not in state.draining}
