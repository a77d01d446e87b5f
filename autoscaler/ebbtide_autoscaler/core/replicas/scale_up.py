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
from ebbtide_autoscaler.core.demand.replica_target import Want
from ebbtide_autoscaler.core.plan.plan import Draft
from ebbtide_autoscaler.core.replicas import start_backoff, warm_pool
from ebbtide_autoscaler.core.replicas.slot_shortage import note_lack, note_more
from ebbtide_autoscaler.core.replicas.start_backoff import Tries, tries
from ebbtide_autoscaler.core.replicas.warm_pool import may_wake, seats_of_warm, wake


def followed(state: PoolState) -> None:
    """Look at what a burst asks for in the ticks between bursts too: see ``warm_pool.followed``."""
    warm_pool.followed(state)
    start_backoff.followed(state)


@dataclass(slots=True)
class _Line:
    """What one endpoint wants, and how far it has come."""

    want: Want
    found: Tries
    may_wake: Iterator[SeatRecord]
    have: int  # replicas, with those that this decision wakes or grants slots
    used: int = 0  # of its cold seats
    lacks: bool = False  # the others were noted as lacking slots

    def left(self) -> tuple[SeatId, ...]:
        """Cold seats that may start, as many as are still wanted."""
        return self.found.seats[self.used :][: self.want.want - self.have]


def raise_by_turns(now_s: float, state: PoolState, wants: Sequence[Want], draft: Draft) -> None:
    """``wants``: of one priority, each for more replicas than there are.

    What is needed for what comes in goes first, whoever's it is; then room for more.
    """
    lines = []
    for want in wants:
        limit = state.endpoints[want.endpoint].spec.replicas_max + len(seats_of_warm(state, want.endpoint))
        found = tries(now_s, state, want.endpoint, limit)
        lines.append(_Line(want, found, may_wake(state, want.endpoint), want.now))
    _raise(state, lines, lambda want: want.need, draft)
    _raise(state, lines, lambda want: want.want, draft)


def _raise(state: PoolState, lines: Sequence[_Line], goal: Callable[[Want], int], draft: Draft) -> None:
    """All to this goal: first those that need no other slots than their own, then the others by turns."""
    turns: list[tuple[float, int]] = []  # share of what it is for, place in `lines`
    for place, line in enumerate(lines):
        least = goal(line.want)
        if line.have < least and not line.lacks:
            line.have += wake(line.want, line.may_wake, least - line.have, state, draft)
            turns.append((line.have / least, place))
    heapify(turns)
    while turns:
        _, place = heappop(turns)
        line = lines[place]
        want, least = line.want, goal(line.want)
        if line.have >= least:
            continue
        slots = draft.free.for_replica(state.endpoints[want.endpoint].spec.slots_per_replica)
        if line.used < len(line.found.seats) and slots:
            why = f"{want.reason}: {many(want.want, 'replica')} instead of {want.now}"
            draft.grant(GrantSeat(line.found.seats[line.used], slots, why))
            line.used, line.have = line.used + 1, line.have + 1
            heappush(turns, (line.have / least, place))
        else:
            line.lacks = True
            _lack(state, line, draft)


def _lack(state: PoolState, line: _Line, draft: Draft) -> None:
    """None of its further replicas can be placed now."""
    want, found, seats = line.want, line.found, line.left()
    if len(seats) < want.want - line.have:
        why = found.story() if found.failures else "all its seats are taken"
        draft.waits.append((want.endpoint, f"{want.reason}; {why}"))
    if not seats:
        return
    count = state.endpoints[want.endpoint].spec.slots_per_replica
    # guard: jobs step aside for a failing seat less and less often
    if found.disturb_in_s and not draft.free.fits(count):
        no_job = f"no job steps aside for it within the next {found.disturb_in_s:.0f} s"
        why = f"{want.reason}; {found.story()} when a slot is free, {no_job}"
        draft.waits += [(seat, why) for seat in seats]
        return
    draft.denied.append(want.endpoint)
    draft.best |= {slot for one in seats_of_warm(state, want.endpoint) for slot in one.slots}
    for number, seat in enumerate(seats):
        if not note_lack(state, want, seat, draft):
            note_more(state, want, seats[number + 1 :], draft)
            return
