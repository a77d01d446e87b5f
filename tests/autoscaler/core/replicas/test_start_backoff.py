"""Which seat is tried after failures, and at whose cost."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.pool.events import EndpointDeclared, GrantSeat, SeatGone, SeatLanded, SeatStopped, SlotFreed
from ebbtide.pool.ids import SeatId, SlotId, seat_id
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.replicas.start_backoff import start_attempts
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


def failed(
    state: PoolState, seat: SeatId, slot: SlotId, ago_s: float, times: int = 1, *, permanent: bool = False
) -> PoolState:
    at_s, why = NOW - ago_s, "no such value" if permanent else "out of memory"
    state = fold(state, GrantSeat(seat, (slot,), "r"), SeatStopped(seat, why, permanent=permanent), at_s=at_s)
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
            assert granted(state) == ["chat/1"], "a free slot costs no job anything"


# ---- failures that are permanent


@pytest.mark.proves("no other seat is tried after a permanent failure")
def test_after_a_permanent_failure_the_same_seat_is_tried_a_minute_later() -> None:
    """Another kind of failure goes on with another seat, after two seconds."""
    for ago_s, seats in ((3.0, []), (59.0, []), (61.0, ["chat/0"]), (5_000.0, ["chat/0"])):
        assert granted(failed(a_pool(), SEAT0, S0, ago_s, permanent=True)) == seats, ago_s
    assert granted(failed(a_pool(), SEAT0, S0, 3.0)) == ["chat/1"]


@pytest.mark.proves("no job steps aside for a start that would end alike")
def test_no_job_steps_aside_for_a_start_that_would_end_alike() -> None:
    """Where slots are free it is tried; at a job's cost after ten minutes, since the model may have been mended."""
    for ago_s, moves in ((3.0, []), (61.0, []), (590.0, []), (610.0, ["ParkJob"])):
        state = failed(a_pool(), SEAT0, S0, ago_s, permanent=True)
        busy = with_job(state, a_job(), (S0, S1, S2), at_s=NOW - 40.0)
        found = look(busy, traffic=FLOOD)
        assert kinds(found) == moves, ago_s
        if not moves:
            assert "in a row, and would on every slot: no such value; " in " ".join(why for _, why in found.waits)
    other = with_job(failed(a_pool(), SEAT0, S0, 3.0), a_job(), (S0, S1, S2), at_s=NOW - 40.0)
    assert kinds(look(other, traffic=FLOOD)) == ["ParkJob"]


def test_seats_that_started_at_once_and_failed_for_good_are_one_series() -> None:
    state = failed(failed(a_pool(), SEAT0, S0, 30.0, permanent=True), SEAT1, S1, 5.0)
    assert granted(state) == [], "whichever of them failed last"


@pytest.mark.proves("failures of another revision say nothing of this one")
def test_a_new_revision_is_tried_at_once_and_at_a_jobs_cost() -> None:
    state = failed(a_pool(), SEAT0, S0, 3.0, permanent=True)
    state = fold(state, EndpointDeclared(replace(state.endpoints[CHAT].spec, revision="mended")))
    assert granted(state)[0] == "chat/0"
    assert kinds(look(with_job(state, a_job(), (S0, S1, S2), at_s=NOW - 40.0), traffic=FLOOD)) == ["ParkJob"]
    state = fold(state, GrantSeat(SEAT0, (S0,), "r"), at_s=NOW)
    assert not state.seats[SEAT0].permanent


def test_the_same_seat_that_fails_by_chance_after_that_is_no_permanent_failure_any_more() -> None:
    state = failed(failed(a_pool(), SEAT0, S0, 70.0, permanent=True), SEAT0, S0, 5.0)
    assert not state.seats[SEAT0].permanent
    assert granted(state) == ["chat/1"]


def test_beside_a_replica_that_works_it_is_the_seat_that_is_wrong() -> None:
    """Its node has another model in that directory, say."""
    state = failed(with_ready(a_pool(), SEAT1, (S1,)), SEAT0, S0, 1.0, permanent=True)
    assert granted(state) == ["chat/2"]
    assert granted(failed(with_ready(a_pool(), SEAT1, (S1,)), SEAT0, S0, 700.0, permanent=True)) == ["chat/0"]


@given(
    ago_s=st.floats(0.0, 10_000.0),
    times=st.integers(1, 20),
    permanent=st.booleans(),
)
def test_a_permanent_failure_is_never_tried_sooner_nor_at_a_dearer_cost_than_another(
    ago_s: float, times: int, permanent: bool
) -> None:
    one = start_attempts(NOW, failed(a_pool(), SEAT0, S0, ago_s, times, permanent=permanent), CHAT, 3)
    chance = start_attempts(NOW, failed(a_pool(), SEAT0, S0, ago_s, times), CHAT, 3)
    assert one.permanent == permanent and len(one.seats) <= max(1, len(chance.seats))
    assert one.wait_s >= chance.wait_s and one.disturb_in_s >= chance.disturb_in_s
    assert one.wait_s <= 60.0 and one.disturb_in_s <= 600.0, "but it is tried again"
    assert not permanent or set(one.seats) <= {SEAT0}
