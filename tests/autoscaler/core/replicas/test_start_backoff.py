"""Which seat is tried after failures, and at whose cost."""

from dataclasses import replace

import pytest

from ebbtide.pool.events import GrantSeat, SeatGone, SeatLanded, SeatStopped, SlotFreed
from ebbtide.pool.ids import SeatId, SlotId, seat_id
from ebbtide.pool.state import PoolState
from tests.autoscaler.closed_loop import a_job
from tests.builders.policy import (
    CHAT,
    NOW,
    S0,
    S1,
    S2,
    SEAT0,
    SEAT1,
    a_pool,
    fold,
    kinds,
    look,
    signals,
    with_job,
    with_ready,
)

FLOOD = signals(held=8, last_arrival_s=NOW)


def failed(state: PoolState, seat: SeatId, slot: SlotId, ago_s: float, times: int = 1) -> PoolState:
    at_s = NOW - ago_s
    state = fold(state, GrantSeat(seat, (slot,), "r"), SeatStopped(seat, "out of memory"), at_s=at_s)
    state = fold(state, SlotFreed(slot), SeatGone(seat), at_s=at_s)
    return replace(state, seats={**state.seats, seat: replace(state.seats[seat], failures=times)})


def granted(state: PoolState) -> list[str]:
    return [move.seat for move in look(state, traffic=FLOOD, for_s=2.0).moves if isinstance(move, GrantSeat)]


@pytest.mark.proves("one seat is tried at a time while none has worked")
def test_while_nothing_has_shown_that_it_works_one_seat_is_tried_at_a_time() -> None:
    state = failed(a_pool(), SEAT0, S0, 30.0)
    assert granted(state) == ["chat/1"], "one that has not failed yet"
    trying = fold(state, GrantSeat(SEAT1, (S1,), "r"), SeatLanded(SEAT1, "a"), at_s=NOW - 5.0)
    assert granted(trying) == []


@pytest.mark.proves("a seat that failed beside good ones waits alone")
def test_beside_a_replica_that_works_a_seat_that_failed_waits_alone() -> None:
    state = failed(with_ready(a_pool(), SEAT0, (S0,)), SEAT1, S1, 1.0)
    assert granted(state) == ["chat/2"]
    assert granted(failed(with_ready(a_pool(), SEAT0, (S0,)), SEAT1, S1, 3.0)) == ["chat/1"]


@pytest.mark.proves("jobs step aside for a failing seat less and less often")
def test_jobs_step_aside_for_a_try_less_often_than_it_is_tried() -> None:
    """After eight failures it is tried each minute where a slot is free, and at a job's cost after four."""
    for ago_s, moves in ((50.0, []), (100.0, []), (260.0, ["ParkJob"])):
        state = failed(a_pool(), SEAT0, S0, ago_s, times=8)
        busy = with_job(state, a_job(), (S0, S1, S2), at_s=NOW - 40.0)
        found = look(busy, traffic=FLOOD)
        assert kinds(found) == moves, ago_s
        if ago_s == 100.0:
            assert "no job steps aside for it" in dict(found.waits)[seat_id(CHAT, 1)]
            assert granted(state) == ["chat/1"], "a free slot costs nobody anything"
