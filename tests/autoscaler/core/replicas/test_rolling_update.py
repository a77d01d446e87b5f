"""When an outdated replica is replaced, and when it is left alone: one situation at a time."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from ebbtide.pool.events import (
    DrainSeat,
    EndpointDeclared,
    GrantSeat,
    NodeDraining,
    SeatGone,
    SeatLanded,
    SeatStopped,
    SlotFreed,
)
from ebbtide.pool.ids import NodeId, SlotId
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals
from tests.autoscaler.closed_loop import a_job, an_endpoint
from tests.builders.policy import (
    CHAT,
    NOW,
    S0,
    S1,
    SEAT0,
    SEAT1,
    a_pool,
    fold,
    kinds,
    look,
    signals,
    slots,
    with_job,
    with_ready,
)

BUSY = signals(inflight=1, last_arrival_s=NOW)
N0 = NodeId("n0")


def stale(*, nodes: Mapping[str, int] | None = None, most: int = 1, **changes: object) -> PoolState:
    """One replica of revision a is ready on S0; b is in force."""
    spec = replace(an_endpoint(replicas_min=1, replicas_max=most, revision="a"), **changes)  # type: ignore[arg-type]
    state = with_ready(a_pool(nodes=nodes or {"n0": 2}, endpoints=(spec,)), SEAT0, (S0,))
    return fold(state, EndpointDeclared(replace(spec, revision="b")))


def failed(state: PoolState, ago_s: float, slot: SlotId = S1, *, permanent: bool = False) -> PoolState:
    """Its successor was tried there and did not come up."""
    stopped = SeatStopped(SEAT1, "out of memory", permanent=permanent)
    state = fold(state, GrantSeat(SEAT1, (slot,), "r"), stopped, at_s=NOW - ago_s)
    return fold(state, SlotFreed(slot), SeatGone(SEAT1), at_s=NOW - ago_s)


def moves(state: PoolState, traffic: EndpointSignals = BUSY, for_s: float = 0.0) -> list[str]:
    return kinds(look(state, traffic=traffic, for_s=for_s))


@pytest.mark.proves("a new replica comes first where there is a slot for it")
def test_the_new_one_comes_first_where_a_slot_allows_it_and_else_the_old_one_goes() -> None:
    (grant,) = look(stale(), traffic=BUSY).moves
    assert isinstance(grant, GrantSeat) and "takes the place of chat/0" in grant.reason
    assert moves(stale(nodes={"n0": 1})) == ["DrainSeat"]


@pytest.mark.proves(
    "no replica is replaced while another one leaves", "no replica is replaced while another one starts"
)
def test_while_one_starts_or_leaves_no_other_is_touched() -> None:
    starting = fold(stale(), GrantSeat(SEAT1, (S1,), "r"), SeatLanded(SEAT1, "b"), at_s=NOW - 1.0)
    found = look(starting, traffic=BUSY)
    assert found.moves == () and "waits for the replica that starts" in dict(found.waits)[SEAT0]
    two = with_ready(stale(nodes={"n0": 3}, most=2), SEAT1, (S1,))
    leaving = fold(two, DrainSeat(SEAT1, "r"), at_s=NOW - 1.0)
    assert moves(leaving) == []


@pytest.mark.proves("demand goes before replacement")
def test_a_replica_that_serves_is_not_given_up_for_a_demand_that_cannot_be_met() -> None:
    """More is wanted and no slot is left: to drain the only one now would make it worse."""
    state = stale(nodes={"n0": 1}, most=2)
    found = look(state, traffic=signals(held=4, inflight=4, last_arrival_s=NOW), for_s=5.0)
    assert found.moves == ()


@pytest.mark.proves("no replica is replaced while gateways are silent")
def test_while_the_gateways_are_silent_nothing_is_replaced() -> None:
    assert moves(stale(), EndpointSignals()) == [] == moves(stale(nodes={"n0": 1}), EndpointSignals())


@pytest.mark.proves(
    "a revision that does not come up replaces no replica",
    "no old replica is drained for a revision that does not come up",
)
def test_a_revision_that_does_not_come_up_replaces_nobody() -> None:
    found = look(failed(stale(), 1.0), traffic=BUSY)
    assert found.moves == () and "its successor does not come up" in dict(found.waits)[SEAT0]
    assert moves(failed(stale(), 30.0)) == ["GrantSeat"], "it is tried again"
    taken = with_job(failed(stale(), 30.0), a_job(workers_max=1), (S1,), at_s=NOW - 20.0)
    found = look(taken, traffic=BUSY)
    assert "DrainSeat" not in kinds(found)
    assert "stays until a slot is free for its successor" in dict(found.waits)[SEAT0]


# ---- a node that must be left


@pytest.mark.proves("an endpoint has one move in a decision")
def test_demand_and_a_drain_at_once_are_one_grant_at_a_time() -> None:
    state = stale(nodes={"n0": 1, "n1": 1, "n2": 1}, most=3)
    flood = signals(held=4, inflight=4, last_arrival_s=NOW)
    assert moves(fold(state, NodeDraining(N0, "r")), flood, for_s=5.0) == ["GrantSeat"]


@pytest.mark.proves(
    "an old replica waits for no room that there cannot be", "an old replica waits for room that there can be"
)
def test_the_old_one_waits_for_room_that_can_be_made_and_not_for_room_that_cannot() -> None:
    state = with_job(stale(nodes={"n0": 1, "n1": 1}), a_job(workers_max=1), slots(1, "n1"))
    assert moves(fold(state, NodeDraining(N0, "r"))) == ["ParkJob"]
    state = with_job(stale(nodes={"n0": 1, "n1": 1}), a_job(workers_max=1, min_runtime_s=10**6), slots(1, "n1"))
    assert moves(fold(state, NodeDraining(N0, "r"))) == ["DrainSeat"]


@pytest.mark.proves("no job steps aside for the successor that would not come up")
def test_for_a_successor_that_would_end_alike_no_job_makes_room() -> None:
    """The old replica serves on, though its node drains; a successor that failed by chance is given its try."""
    (away,) = slots(1, "n1")
    for permanent, ago_s, found in (
        (True, 61.0, []),
        (True, 590.0, []),
        (True, 610.0, ["ParkJob"]),
        (False, 61.0, ["ParkJob"]),
    ):
        state = failed(stale(nodes={"n0": 1, "n1": 1}), ago_s, away, permanent=permanent)
        state = with_job(state, a_job(workers_max=1), (away,), at_s=NOW - 40.0)
        assert moves(fold(state, NodeDraining(N0, "r"))) == found, (permanent, ago_s)
    free = failed(stale(nodes={"n0": 1, "n1": 1}), 61.0, away, permanent=True)
    assert moves(fold(free, NodeDraining(N0, "r"))) == ["GrantSeat"], "a free slot costs no job anything"


@pytest.mark.proves("a replica that starts on a draining node stops at once")
def test_one_that_still_starts_on_a_node_that_drains_stops_at_once() -> None:
    state = fold(a_pool(nodes={"n0": 1, "n1": 1}), GrantSeat(SEAT0, (S0,), "r"), SeatLanded(SEAT0, "a"), at_s=NOW - 1.0)
    found = look(fold(state, NodeDraining(N0, "r")), traffic={CHAT: BUSY})
    assert [move.seat for move in found.moves if isinstance(move, DrainSeat)] == [SEAT0]
