"""Stories of warm replicas against the fake cluster: what is killed at which edge, and that requests are answered."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from ebbtide.pool.events import DrainSeat, EndpointDeclared, GrantSeat, ParkSeat, SeatStopped
from ebbtide.pool.ids import SeatId, SlotId
from ebbtide.pool.transitions import JobState, SeatState, SlotState
from tests.autoscaler.closed_loop import Loop, a_job, an_endpoint, moves
from tests.builders.closed_loop import S0, SEAT, TRAIN, until

WARMS = an_endpoint(replicas_max=1, warm_replicas=1, min_uptime_factor=0.0)


def state_of(loop: Loop, seat: SeatId = SEAT) -> SeatState | None:
    return loop.state.seats[seat].state if seat in loop.state.seats else None


def pool(seed: int = 1, *, gpus: int = 1) -> Loop:
    """A pool whose engines can park."""
    loop = Loop(seed, nodes={"n0": gpus}, endpoints=(WARMS,))
    loop.cluster.serve.park_bytes = 30
    loop.run(3.0)
    return loop


def serve_one(loop: Loop) -> None:
    """One request is answered."""
    done = loop.gateways[0].completed["chat"]
    loop.gateways[0].offer("chat")
    until(loop, lambda: loop.gateways[0].completed["chat"] > done)


def warm(seed: int = 1, *, gpus: int = 1) -> Loop:
    """A pool with a warm replica."""
    loop = pool(seed, gpus=gpus)
    serve_one(loop)
    until(loop, lambda: state_of(loop) is SeatState.WARM)
    return loop


def test_the_tide_with_a_warm_replica_wakes_it_and_starts_no_other() -> None:
    loop = warm()
    actor = loop.state.seats[SEAT].replica
    loop.submit(a_job(workers_max=1))
    loop.run(0.4)
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.RUNNING)
    assert loop.cluster.scheduler.logical[S0] == "fence", "it never left"
    loop.run(3.0)
    since = len(loop.events)
    serve_one(loop)
    kinds = [type(event.body).__name__ for event in moves(loop.events[since:])]
    assert kinds[:2] == ["ParkJob", "WakeSeat"], loop.story()
    assert loop.state.seats[SEAT].replica == actor and loop.state.seats[SEAT].starts == 1
    until(loop, lambda: loop.state.jobs[TRAIN].state is JobState.RUNNING)
    assert state_of(loop) is SeatState.WARM, loop.story()
    assert 0.0 < loop.state.endpoints[WARMS.name].wake_s < loop.state.endpoints[WARMS.name].start_s


def test_a_request_that_comes_while_it_parks_is_held_and_answered() -> None:
    loop = pool()
    loop.cluster.serve.park_s = (2.0, 2.0)
    serve_one(loop)
    until(loop, lambda: state_of(loop) is SeatState.PARKING)
    serve_one(loop)
    assert not any(isinstance(e.body, GrantSeat) for e in loop.events[-40:] if e.at_s > loop.clock.now_s - 12.0)
    assert loop.state.seats[SEAT].wakes == 1


def test_a_replica_that_does_not_wake_ends_and_a_cold_start_takes_over() -> None:
    loop = warm()
    loop.cluster.serve.park_fails = 1.0
    serve_one(loop)
    said = [e.body for e in loop.events if isinstance(e.body, SeatStopped)]
    assert "does not come back" in said[0].why, loop.story()
    assert sum(isinstance(e.body, GrantSeat) for e in loop.events) == 2
    later = loop.run(30.0)
    assert not any(isinstance(e.body, ParkSeat) for e in later), "none parks again for a while"
    assert any(isinstance(e.body, DrainSeat) and "does not come back" in e.body.reason for e in later)


def kill_actor(loop: Loop) -> None:
    (actor,) = loop.cluster.serve.actors[SEAT]
    loop.cluster.serve.kill_actor(actor)


def kill_engine(loop: Loop) -> None:
    (actor,) = loop.cluster.serve.actors[SEAT]
    assert actor.engine is not None
    loop.cluster.machines.kill(actor.engine)


def kill_arbiter(loop: Loop) -> None:
    loop.kill_arbiter(4.0)


def silence_agent(loop: Loop) -> None:
    node = loop.cluster.nodes[0]
    loop.cluster.machines.silent_agents.add(node)
    loop.clock.call_later(8.0, lambda: loop.cluster.machines.silent_agents.discard(node))


EDGES = (SeatState.DRAINING, SeatState.PARKING, SeatState.WARM, SeatState.WAKING)


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("kill", [kill_actor, kill_engine, kill_arbiter, silence_agent])
def test_a_kill_at_any_edge_leaves_the_books_right_and_requests_are_answered(
    kill: Callable[[Loop], None], edge: SeatState
) -> None:
    """A job wants the slot all the while: if it were told too early that this is free, it would sit beside another."""
    loop = pool(seed=3)
    loop.cluster.serve.park_s = (1.0, 1.0)
    serve_one(loop)
    if edge is SeatState.WAKING:
        until(loop, lambda: state_of(loop) is SeatState.WARM)
        loop.gateways[0].offer("chat")
    else:
        loop.submit(a_job(workers_max=1))
    until(loop, lambda: state_of(loop) is edge)
    kill(loop)
    loop.run(0.6)
    loop.gateways[0].offer("chat")
    until(loop, lambda: loop.gateways[0].completed["chat"] == (3 if edge is SeatState.WAKING else 2), 120.0)
    loop.run(60.0)
    (record,) = loop.state.slots.values()
    assert record.state in (SlotState.FREE, SlotState.LEASED), loop.story()
    assert state_of(loop) in (SeatState.WARM, SeatState.COLD), loop.story()
    if edge is not SeatState.WAKING:
        assert loop.state.jobs[TRAIN].state is JobState.RUNNING, loop.story()


def test_the_death_of_a_warm_replica_is_seen_although_serve_starts_another_at_once() -> None:
    loop = warm()
    kill_actor(loop)
    until(loop, lambda: state_of(loop) is SeatState.COLD, 5.0)
    assert "died while it was warm" in next(e.body.why for e in loop.events if isinstance(e.body, SeatStopped))


def test_a_warm_replica_whose_node_dies_is_gone_with_it() -> None:
    loop = warm()
    loop.lose_node("n0")
    until(loop, lambda: state_of(loop) is SeatState.COLD)
    loop.add_node("n1", 1)
    serve_one(loop)
    assert loop.state.slots[SlotId("n1:0")].occupant == SEAT or state_of(loop) is not SeatState.COLD


def test_another_endpoint_may_have_the_slot_of_a_warm_replica() -> None:
    other = an_endpoint("other", replicas_max=1, min_uptime_factor=0.0)
    loop = Loop(1, nodes={"n0": 1}, endpoints=(WARMS, other))
    loop.cluster.serve.park_bytes = 30
    loop.run(3.0)
    for name in ("chat", "other", "chat"):
        done = loop.gateways[0].completed[name]
        loop.gateways[0].offer(name)
        until(loop, lambda name=name, done=done: loop.gateways[0].completed[name] > done)  # type: ignore[misc]
    assert loop.state.seats[SEAT].wakes == 1, loop.story()


def test_a_changed_model_ends_the_warm_replica() -> None:
    loop = warm()
    from_now = replace(WARMS, revision="b")
    loop.specs[from_now.name] = from_now
    loop.tell(EndpointDeclared(from_now))
    until(loop, lambda: state_of(loop) is SeatState.COLD)
    serve_one(loop)
    assert loop.state.seats[SEAT].revision == "b"
