"""More replicas: wake warm ones, grant slots to cold seats, or note how many slots are missing. Pure.

Endpoints of one priority take turns: next is the one that has the smallest share of what it wants. Else whoever is
looked at first would take all that is free, and the others would wait until its demand falls.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from ebbtide.pool.events import GrantSeat
from ebbtide.pool.ids import SeatId
from ebbtide.pool.state import PoolState
from ebbtide.pool.words import many
from ebbtide_autoscaler import retry, warm
from ebbtide_autoscaler.draft import Draft
from ebbtide_autoscaler.lack import note_lack, note_more
from ebbtide_autoscaler.retry import Tries, tries
from ebbtide_autoscaler.serving import Want
from ebbtide_autoscaler.warm import aside, wake


def followed(state: PoolState) -> None:
    """Look at what a burst asks for in the ticks between bursts too: see ``warm.followed``."""
    warm.followed(state)
    retry.followed(state)


def raise_by_turns(now_s: float, state: PoolState, wants: Sequence[Want], draft: Draft) -> None:
    """``wants``: of one priority, each for more replicas than there are."""
    turns: list[tuple[float, int, int]] = []  # share of what it wants, place in `wants`, replicas
    lines: list[tuple[Tries, list[SeatId]]] = []
    for place, want in enumerate(wants):
        have = want.now + wake(state, want, draft)
        limit = state.endpoints[want.endpoint].spec.replicas_max + len(aside(state, want.endpoint))
        found = tries(now_s, state, want.endpoint, limit)
        if len(found.seats) < want.want - have:
            why = found.story() if found.failures else "all its seats are taken"
            draft.waits.append((want.endpoint, f"{want.reason}; {why}"))
        lines.append((found, list(reversed(found.seats[: want.want - have]))))
        turns.append((have / want.want, place, have))
    heapify(turns)
    while turns:
        _, place, have = heappop(turns)
        want, (found, seats) = wants[place], lines[place]
        if not seats:
            continue
        slots = draft.free.for_replica(state.endpoints[want.endpoint].spec.slots_per_replica)
        if slots:
            why = f"{want.reason}: {many(want.want, 'replica')} instead of {want.now}"
            draft.grant(GrantSeat(seats.pop(), slots, why))
            heappush(turns, ((have + 1) / want.want, place, have + 1))
        else:
            _lack(state, want, found, seats[::-1], draft)


def _lack(state: PoolState, want: Want, found: Tries, seats: Sequence[SeatId], draft: Draft) -> None:
    """None of these replicas can be placed now."""
    count = state.endpoints[want.endpoint].spec.slots_per_replica
    if found.disturb_in_s and not draft.free.fits(count):
        no_job = f"no job steps aside for it within the next {found.disturb_in_s:.0f} s"
        why = f"{want.reason}; {found.story()} when a slot is free, {no_job}"
        draft.waits += [(seat, why) for seat in seats]
        return
    draft.best |= {slot for one in aside(state, want.endpoint) for slot in one.slots}
    for number, seat in enumerate(seats):
        if not note_lack(state, want, seat, draft):
            note_more(state, want, seats[number + 1 :], draft)
            return
