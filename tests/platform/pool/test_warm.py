"""Replicas that park, stay warm and wake: whose slots are whose, and whose memory."""

from dataclasses import replace

import pytest

from ebbtide.pool.errors import IllegalTransition
from ebbtide.pool.events import (
    Body,
    DrainSeat,
    EndpointDeclared,
    GrantJob,
    GrantSeat,
    JobRunning,
    NodeDraining,
    ParkSeat,
    SeatDrained,
    SeatGone,
    SeatLanded,
    SeatParked,
    SeatReady,
    SeatStopped,
    SlotFreed,
    WakeSeat,
)
from ebbtide.pool.rules.drain import is_drained, occupants
from ebbtide.pool.rules.promises import violations
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from tests.platform.pool.builder import CHAT, ENDPOINT, JOB, NODE, PARKED, READY, S0, S1, S2, SEAT, WARM, after, pool

UP = WARM[:4]  # ready, and it may park


def warm() -> PoolState:
    return after(pool(), *WARM)


def test_its_slots_are_everybodys_and_come_back_to_it_under_a_new_lease() -> None:
    state = warm()
    before = state.seats[SEAT]
    assert state.slots[S2].state is SlotState.FREE and state.warm_bytes(NODE) == 30
    state = after(state, WakeSeat(SEAT, "r"))
    assert state.slots[S2].occupant == SEAT and state.slots[S2].state is SlotState.LEASED
    assert state.seats[SEAT].epoch > before.epoch and state.seats[SEAT].replica == before.replica
    state = after(state, SeatReady(SEAT, (), park_bytes=30), at_s=103.0)
    record = state.seats[SEAT]
    assert (record.state, record.parks, record.wakes, record.starts) == (SeatState.READY, False, 1, 1)
    assert state.endpoints[CHAT].wake_s == 3.0 and state.endpoints[CHAT].start_s == 0.0, "a wake is no start"
    assert violations(state) == []


@pytest.mark.parametrize("end", [DrainSeat(SEAT, "r"), SeatStopped(SEAT, "it died")])
def test_the_end_of_a_warm_replica_takes_no_slot_from_whoever_has_it_now(end: Body) -> None:
    state = after(warm(), GrantJob(JOB, (S1, S2), "r"), JobRunning(JOB, 1), end)
    assert state.slots[S2].occupant == JOB and state.slots[S2].state is SlotState.LEASED
    assert state.jobs[JOB].state is JobState.RUNNING
    state = after(state, SeatGone(SEAT))
    assert state.seats[SEAT].state is SeatState.COLD and state.warm_bytes(NODE) == 0
    assert violations(state) == []


def test_it_is_not_woken_on_a_slot_that_somebody_has() -> None:
    state = after(warm(), GrantJob(JOB, (S1, S2), "r"))
    with pytest.raises(IllegalTransition, match="it is leased"):
        after(state, WakeSeat(SEAT, "r"))


def test_it_is_not_woken_for_another_revision() -> None:
    state = after(warm(), EndpointDeclared(replace(ENDPOINT, warm_replicas=1, revision="b")))
    with pytest.raises(IllegalTransition, match="revision"):
        after(state, WakeSeat(SEAT, "r"))


def test_it_is_warm_only_when_its_slots_are_proven_free() -> None:
    state = after(pool(), *UP, ParkSeat(SEAT, "r"), SeatDrained(SEAT))
    with pytest.raises(IllegalTransition, match="not proven free"):
        after(state, SeatParked(SEAT))
    assert state.slots[S2].state is SlotState.RECLAIMING


@pytest.mark.parametrize(
    ("host", "ready", "why"),
    [
        (29, UP, "29 and 0 are lent"),
        (1000, (*UP[:3], SeatReady(SEAT, (), cannot_park="on a CPU")), "on a CPU"),
        (1000, READY, "started to end"),
        (40, (*PARKED, *UP), "40 and 20 are lent"),
    ],
)
def test_it_parks_only_where_it_can_and_host_memory_is_left(host: int, ready: tuple[Body, ...], why: str) -> None:
    with pytest.raises(IllegalTransition, match=why):
        after(pool(host_bytes=host), *ready, ParkSeat(SEAT, "r"))


def test_a_drained_node_has_no_warm_replica() -> None:
    state = after(warm(), NodeDraining(NODE, "r"))
    assert SEAT in occupants(state, NODE) and not is_drained(state, NODE)
    state = after(state, DrainSeat(SEAT, "r"), SeatGone(SEAT))
    assert is_drained(state, NODE)


def test_a_replica_that_may_park_leaves_the_fence_where_it_is() -> None:
    state = after(pool(), EndpointDeclared(replace(ENDPOINT, warm_replicas=1)), GrantSeat(SEAT, (S2,), "r"))
    assert state.slots[S2].state is SlotState.LEASED and state.seats[SEAT].fenced
    state = after(state, SeatLanded(SEAT, "a"), SeatReady(SEAT, ()), EndpointDeclared(ENDPOINT))
    assert state.seats[SEAT].fenced, "as it was started, whatever the file says now"


def test_a_failure_to_wake_is_the_endpoints_and_no_failed_start() -> None:
    state = after(warm(), WakeSeat(SEAT, "r"), SeatStopped(SEAT, "it did not wake"), SlotFreed(S2), SeatGone(SEAT))
    assert state.seats[SEAT].failures == 0
    assert (state.endpoints[CHAT].park_error, state.endpoints[CHAT].park_failed_s) == ("it did not wake", 100.0)
    assert S0 in state.free_slots() and S2 in state.free_slots()


def test_a_failure_to_wake_of_a_replaced_revision_says_nothing_of_the_one_in_force() -> None:
    failed = after(warm(), WakeSeat(SEAT, "r"), SeatStopped(SEAT, "it did not wake"))
    kept = after(failed, EndpointDeclared(replace(ENDPOINT, warm_replicas=2, revision=ENDPOINT.revision)))
    assert kept.endpoints[CHAT].park_error == "it did not wake"
    new = after(failed, EndpointDeclared(replace(ENDPOINT, warm_replicas=2, revision="b")))
    assert (new.endpoints[CHAT].park_error, new.endpoints[CHAT].park_failed_s) == ("", 0.0)
    late = after(
        warm(),
        WakeSeat(SEAT, "r"),
        EndpointDeclared(replace(ENDPOINT, warm_replicas=2, revision="b")),
        SeatStopped(SEAT, "it did not wake"),
    )
    assert (late.endpoints[CHAT].park_error, late.seats[SEAT].failures) == ("", 0)


def test_the_death_of_a_parked_replica_keeps_the_next_one_from_nothing() -> None:
    state = after(warm(), SeatStopped(SEAT, "it died"), SeatGone(SEAT))
    assert (state.seats[SEAT].failures, state.endpoints[CHAT].park_failed_s) == (0, 0.0)
    state = after(state, GrantSeat(SEAT, (S0,), "r"), SeatLanded(SEAT, "b"), SeatReady(SEAT, (), park_bytes=20))
    assert after(state, ParkSeat(SEAT, "r")).seats[SEAT].parks
