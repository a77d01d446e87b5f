"""More replicas: wake warm ones, grant slots to cold seats, or note how many slots are missing. Pure.

Endpoints of one priority take turns: next is the one that has the smallest share of what it needs for what comes in
now, and once all have that, of what it wants. Else whoever is looked at first would take all that is free, and the
others would wait until its demand falls.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from ebbtide.pool.events import GrantSeat
from ebbtide.pool.ids import SeatId
from ebbtide.pool.plural import many
from ebbtide.pool.state import PoolState, SeatRecord
from ebbtide_autoscaler.core.demand.replica_target import ReplicaTarget
from ebbtide_autoscaler.core.plan.plan import Plan
from ebbtide_autoscaler.core.replicas import start_backoff, warm_pool
from ebbtide_autoscaler.core.replicas.slot_shortage import record_further_shortage, record_shortage
from ebbtide_autoscaler.core.replicas.start_backoff import StartAttempts, start_attempts
from ebbtide_autoscaler.core.replicas.warm_pool import may_wake, seats_of_warm, wake


def refresh_lookups(state: PoolState) -> None:
    """Look at what a burst asks for in the ticks between bursts too: see ``warm_pool.refresh_lookups``."""
    warm_pool.refresh_lookups(state)
    start_backoff.refresh_lookups(state)


@dataclass(slots=True)
class _Line:
    """What one endpoint wants, and how far it has come."""

    target: ReplicaTarget
    found: StartAttempts
    may_wake: Iterator[SeatRecord]
    have: int  # replicas, with those that this decision wakes or grants slots
    used: int = 0  # of its cold seats
    lacks: bool = False  # the others were noted as lacking slots

    def left(self) -> tuple[SeatId, ...]:
        """Cold seats that may start, as many as are still wanted."""
        return self.found.seats[self.used :][: self.target.replicas - self.have]


def scale_up_round_robin(wants: Sequence[ReplicaTarget], plan: Plan) -> None:
    """``wants``: of one priority, each for more replicas than there are.

    What is needed for what comes in goes first, whoever's it is; then room for more.
    """
    state = plan.state
    lines = []
    for target in wants:
        limit = state.endpoints[target.endpoint].spec.replicas_max + len(seats_of_warm(state, target.endpoint))
        found = start_attempts(plan.now_s, state, target.endpoint, limit)
        lines.append(_Line(target, found, may_wake(state, target.endpoint), target.now))
    _raise(lines, lambda target: target.need, plan)
    _raise(lines, lambda target: target.replicas, plan)


def _raise(lines: Sequence[_Line], goal: Callable[[ReplicaTarget], int], plan: Plan) -> None:
    """All to this goal: first those that need no other slots than their own, then the others by turns."""
    turns: list[tuple[float, int]] = []  # share of what it is for, place in `lines`
    for place, line in enumerate(lines):
        least = goal(line.target)
        if line.have < least and not line.lacks:
            line.have += wake(line.target, line.may_wake, least - line.have, plan)
            turns.append((line.have / least, place))
    heapify(turns)
    while turns:
        _, place = heappop(turns)
        line = lines[place]
        target, least = line.target, goal(line.target)
        if line.have >= least:
            continue
        slots = plan.free.for_replica(plan.state.endpoints[target.endpoint].spec.slots_per_replica)
        if line.used < len(line.found.seats) and slots:
            why = f"{target.reason}: {many(target.replicas, 'replica')} instead of {target.now}"
            plan.grant(GrantSeat(line.found.seats[line.used], slots, why))
            line.used, line.have = line.used + 1, line.have + 1
            heappush(turns, (line.have / least, place))
        else:
            line.lacks = True
            _lack(line, plan)


def _lack(line: _Line, plan: Plan) -> None:
    """None of its further replicas can be placed now."""
    state = plan.state
    target, found, seats = line.target, line.found, line.left()
    if len(seats) < target.replicas - line.have:
        # A cause comes first: a line that is cut must still have it.
        known = (found.story(), target.reason) if found.failures else (target.reason, "all its seats are taken")
        plan.waits.append((target.endpoint, "; ".join(known)))
    if not seats:
        return
    count = state.endpoints[target.endpoint].spec.slots_per_replica
    # guard: jobs step aside for a failing seat less and less often
    if found.disturb_in_s and not plan.free.fits(count):
        no_job = f"no job steps aside for it within the next {found.disturb_in_s:.0f} s"
        why = f"{found.story()}; when a slot is free, {no_job}; {target.reason}"
        plan.waits += [(seat, why) for seat in seats]
        return
    plan.denied.append(target.endpoint)
    plan.best |= {slot for one in seats_of_warm(state, target.endpoint) for slot in one.slots}
    for number, seat in enumerate(seats):
        if not record_shortage(target, seat, plan):
            record_further_shortage(target, seats[number + 1 :], plan)
            return
