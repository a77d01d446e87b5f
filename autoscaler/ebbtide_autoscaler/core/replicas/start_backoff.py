"""Which seats of an endpoint may start now, after earlier failures. Pure.

While no replica of the revision in force has shown that it works, all seats of the endpoint share one series of
failures and one is tried at a time: else an endpoint that fails at once would fail on every seat in turn. Each try
waits twice as long as the last one, and jobs step aside for a try less and less often, as they lose time by it.
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

    def story(self) -> str:
        """What has failed, and when it is tried again, for a person."""
        when = f"the next try is in {self.wait_s:.0f} s" if self.wait_s else "it is tried again"
        more = f"; more: ebbtide logs {self.last.id}" if self.last is not None else ""
        return f"its start failed {many(self.failures, 'time')} in a row: {self.why[:MOST_WHY]}; {when}{more}"


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
    failing = [seat for seat in _failed(state.seats).get(endpoint, {}).values() if _fails(now_s, seat, revision)]
    if not failing:
        return StartAttempts(tuple(cold))
    known = {seat.id: seat for seat in state.seats_of(endpoint)}
    last = max(failing, key=lambda seat: seat.since_s)
    count = sum(seat.failures for seat in failing)
    works = any(seat.state is SeatState.READY and seat.revision == revision for seat in known.values())
    # guard: a seat that failed beside good ones waits alone
    if works:  # so it is the seat, or its slots
        held = {
            seat.id: left for seat in failing if (left := _left_s(now_s, seat.since_s, seat.failures, BACKOFF_MAX_S))
        }
        free = tuple(name for name in cold if name not in held)
        return StartAttempts(free, min(held.values(), default=0.0), 0.0, last.failures, last.last_error, last)
    wait_s = _left_s(now_s, last.since_s, count, BACKOFF_MAX_S)
    disturb_in_s = _left_s(now_s, last.since_s, count, DISTURB_MAX_S)
    trying = any(seat.state in (SeatState.PLACING, SeatState.STARTING, SeatState.STOPPING) for seat in known.values())
    best = min(cold, key=lambda name: known[name].failures if name in known else 0, default=None)
    may = (
        ()
        if (
            wait_s  # guard: a failed start is tried again after a pause
            or trying  # guard: one seat is tried at a time while none has worked
            or best is None
        )
        else (best,)
    )
    return StartAttempts(may, wait_s, disturb_in_s, count, last.last_error, last)


@group_by(order=number_of)
def _taken(seat: SeatRecord) -> tuple[EndpointName, bool] | None:
    return None if seat.state is SeatState.COLD else (seat.endpoint, True)


@group_by(order=number_of)
def _failed(seat: SeatRecord) -> tuple[EndpointName, SeatRecord] | None:
    return (seat.endpoint, seat) if seat.failures else None


@lru_cache(256)
def _names(endpoint: EndpointName, limit: int) -> tuple[SeatId, ...]:
    return tuple(seat_id(endpoint, number) for number in range(limit))


def _fails(now_s: float, seat: SeatRecord, revision: str) -> bool:
    """Whether the seat's failures still count: of this revision, without a success since, and not of long ago."""
    recent = now_s - seat.since_s < DISTURB_MAX_S
    return bool(seat.failures) and seat.revision == revision and recent and not is_sound(seat, now_s)


def _left_s(now_s: float, since_s: float, failures: int, at_most_s: float) -> float:
    return max(0.0, since_s + backoff_s(failures, at_most_s) - now_s)
