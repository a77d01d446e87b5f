"""Which seats of an endpoint may start now, after earlier failures. Pure.

While no replica of the revision in force has shown that it works, all seats of the endpoint share one series of
failures and one is tried at a time: else an endpoint that fails at once would fail on every seat in turn. Each try
waits twice as long as the last one, and jobs step aside for a try less and less often, as they lose time by it.

A failure is permanent where the engine does not take what the revision tells it: that is so on every seat and slot.
Then the same seat is tried, at the longest pause from the first failure on, and at the cost of a job after the longest
time of all: only what the revision names, such as its model's files, may have been mended meanwhile.
"""

from dataclasses import dataclass
from functools import lru_cache

from ebbtide.pool.backoff import BACKOFF_MAX_S, backoff_s
from ebbtide.pool.handlers.seat_handlers import is_sound
from ebbtide.pool.ids import EndpointName, SeatId, number_of, seat_id
from ebbtide.pool.lookup.derived_maps import group_by
from ebbtide.pool.plural import many
from ebbtide.pool.state import PoolState, SeatRecord
from ebbtide.pool.transitions import SeatState

MOST_WHY = 350  # characters of a cause; what an engine says is cut after 300
DISTURB_MAX_S = 600.0  # longest wait before a job steps aside for it: some seconds lost, so 1 % of its time at most


@dataclass(frozen=True, slots=True)
class StartAttempts:
    """``seats`` may start now; the rest is about those that may not, or not at the cost of a job."""

    seats: tuple[SeatId, ...]
    wait_s: float = 0.0  # until the next of the others may start; 0: none is held back by a failure
    disturb_in_s: float = 0.0  # until a job may be asked to step aside for them; 0: at once
    failures: int = 0  # in a row, of the revision in force
    why: str = ""  # the last of these failures
    last: SeatRecord | None = None  # whose that was
    permanent: bool = False  # another start ends alike

    def story(self) -> str:
        """What has failed, and when it is tried again, for a person."""
        when = f"the next try is in {self.wait_s:.0f} s" if self.wait_s else "it is tried again"
        more = f"; more: ebbtide logs {self.last.id}" if self.last is not None else ""
        alike = ", and would on every slot" if self.permanent else ""
        return f"its start failed {many(self.failures, 'time')} in a row{alike}: {self.why[:MOST_WHY]}; {when}{more}"


def refresh_lookups(state: PoolState) -> None:
    """Look at what ``start_attempts`` asks for: see ``warm_pool.refresh_lookups``."""
    _taken(state.seats)
    _failed(state.seats)


def failing_endpoints(state: PoolState) -> tuple[EndpointName, ...]:
    """Endpoints with a seat whose last replica failed, however long ago that was."""
    return tuple(name for name in _failed(state.seats) if name in state.endpoints)


def start_attempts(now_s: float, state: PoolState, endpoint: EndpointName, limit: int) -> StartAttempts:
    """The seats 0..``limit``-1 of ``endpoint`` that may start now."""
    names, taken = _names(endpoint, 1 << limit.bit_length())[:limit], _taken(state.seats).get(endpoint, {})
    cold = [name for name in names if name not in taken]
    revision = state.endpoints[endpoint].spec.revision
    failed = [seat for seat in _failed(state.seats).get(endpoint, {}).values() if seat.revision == revision]
    if not failed:
        return StartAttempts(tuple(cold))
    known = {seat.id: seat for seat in state.seats_of(endpoint)}
    works = any(seat.state is SeatState.READY and seat.revision == revision for seat in known.values())
    failing = [seat for seat in failed if _fails(now_s, seat, works=works)]
    if not failing:
        return StartAttempts(tuple(cold))
    last = max(failing, key=lambda seat: seat.since_s)
    count = sum(seat.failures for seat in failing)
    # guard: a seat that failed beside good ones waits alone
    if works:  # so it is the seat, or its slots
        held = {
            seat.id: left for seat in failing if (left := _left_s(now_s, seat.since_s, seat.failures, BACKOFF_MAX_S))
        }
        free = tuple(name for name in cold if name not in held)
        return StartAttempts(free, min(held.values(), default=0.0), 0.0, last.failures, last.last_error, last)
    permanent = any(seat.permanent for seat in failing)
    wait_s = max(0.0, last.since_s + pause_s(count, permanent=permanent) - now_s)
    # guard: no job steps aside for a start that would end alike
    longest_s = DISTURB_MAX_S if permanent else backoff_s(count, DISTURB_MAX_S)
    disturb_in_s = max(0.0, last.since_s + longest_s - now_s)
    trying = any(seat.state in (SeatState.PLACING, SeatState.STARTING, SeatState.STOPPING) for seat in known.values())
    best = min(cold, key=lambda name: known[name].failures if name in known else 0, default=None)
    if permanent and last.id in cold:  # guard: no other seat is tried after a permanent failure
        best = last.id
    may = (
        ()
        if (
            wait_s  # guard: a failed start is tried again after a pause
            or trying  # guard: one seat is tried at a time while none has worked
            or best is None
        )
        else (best,)
    )
    return StartAttempts(may, wait_s, disturb_in_s, count, last.last_error, last, permanent)


def pause_s(failures: int, *, permanent: bool) -> float:
    """Seconds from the last of this many failures in a row to the next try."""
    return BACKOFF_MAX_S if permanent else backoff_s(failures)


@group_by(order=number_of)
def _taken(seat: SeatRecord) -> tuple[EndpointName, bool] | None:
    return None if seat.state is SeatState.COLD else (seat.endpoint, True)


@group_by(order=number_of)
def _failed(seat: SeatRecord) -> tuple[EndpointName, SeatRecord] | None:
    return (seat.endpoint, seat) if seat.failures else None


@lru_cache(256)
def _names(endpoint: EndpointName, limit: int) -> tuple[SeatId, ...]:
    return tuple(seat_id(endpoint, number) for number in range(limit))


def _fails(now_s: float, seat: SeatRecord, *, works: bool) -> bool:
    """Whether the seat's failures still count: without a success since, and not of long ago, unless nothing works."""
    counts = now_s - seat.since_s < DISTURB_MAX_S or (seat.permanent and not works)
    return counts and not is_sound(seat, now_s)


def _left_s(now_s: float, since_s: float, failures: int, at_most_s: float) -> float:
    return max(0.0, since_s + backoff_s(failures, at_most_s) - now_s)
