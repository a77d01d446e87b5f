"""Replicas that make place for another endpoint's where no job can, and when they do not."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.pool.events import Decision, DrainSeat, EndpointDeclared, GrantSeat, SeatLanded, SeatReady, WakeSeat
from ebbtide.pool.ids import EndpointName, seat_id
from ebbtide.pool.spec import EndpointSpec, Scheduled
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.plan.inputs import EndpointMemory, EndpointSignals, Memory, Snapshot
from tests.autoscaler.closed_loop import a_job, an_endpoint
from tests.builders.policy import (
    CONFIG,
    IDLE,
    NOW,
    a_pool,
    at_work,
    crashed,
    fold,
    signals,
    slots,
    warm,
    with_job,
    with_ready,
)

A, B = EndpointName("a"), EndpointName("b")
HELD = signals(held=1, last_arrival_s=NOW)


def full(
    nodes: dict[str, int], *theirs: int, taken: int | None = None, of_b: EndpointSpec | None = None, **of_a: object
) -> PoolState:
    """A pool whose slots replicas of ``a`` have, one each; of ``b`` those of these numbers."""
    a = an_endpoint("a", replicas_max=64, min_uptime_factor=0.0, **of_a)
    state = a_pool(nodes=nodes, endpoints=(a, of_b or an_endpoint("b", replicas_max=64, min_uptime_factor=0.0)))
    every = [slot for node, count in nodes.items() for slot in slots(count, node)][:taken]
    for number, slot in enumerate(every):
        name = "b" if number in theirs else "a"
        state = with_ready(state, f"{name}/{number}", (slot,))  # type: ignore[arg-type]
    return state


def of_seats(decision: Decision) -> list[GrantSeat | DrainSeat | WakeSeat]:
    """The moves of a decision that has none of another kind."""
    moves = [move for move in decision.moves if isinstance(move, GrantSeat | DrainSeat | WakeSeat)]
    assert len(moves) == len(decision.moves)
    return moves


def goes(state: PoolState, of_a: EndpointSignals, of_b: EndpointSignals, aim: int = 64) -> list[DrainSeat]:
    memory = Memory({A: EndpointMemory(aim=aim, strained_at_s=NOW - 1e4)})
    decision, _ = decide(NOW, Snapshot(state, {A: of_a, B: of_b}), memory, CONFIG)
    assert all(isinstance(move, DrainSeat) for move in decision.moves)
    return [move for move in decision.moves if isinstance(move, DrainSeat)]


def test_who_has_none_gets_one_from_whoever_keeps_room() -> None:
    [one] = goes(full({"n0": 8}), at_work(5), HELD)
    assert one.seat.startswith("a/")
    assert one.reason == "makes place for b, which has 0 of 1 replica that it needs now; a needs 5 and has 8"


def test_who_has_none_gets_one_even_of_what_the_other_needs_but_not_its_last() -> None:
    assert len(goes(full({"n0": 8}), at_work(20), HELD)) == 1
    assert len(goes(full({"n0": 2}), at_work(20), HELD)) == 1
    assert not goes(full({"n0": 1}), at_work(20), HELD)


def test_who_has_some_gets_what_the_other_does_not_need_and_a_fifth_more_is_kept() -> None:
    state = full({"n0": 8, "n1": 8}, 0)
    assert len(goes(state, at_work(10), at_work(8))) == 15 - 12
    assert not goes(state, at_work(14), at_work(8))


def test_what_room_alone_asks_for_takes_nothing() -> None:
    state = full({"n0": 8}, 0, 1)
    assert not goes(state, at_work(3), at_work(2))


def test_what_comes_free_already_is_not_asked_for_twice() -> None:
    state = full({"n0": 8})
    [one] = goes(state, at_work(5), HELD)
    assert not goes(fold(state, one, at_s=NOW), at_work(5), HELD)


def test_a_job_steps_aside_before_a_replica_does() -> None:
    state = full({"n0": 8}, taken=7)
    state = with_job(state, a_job(workers_min=1, workers_max=1), slots(8)[7:])
    memory = Memory({A: EndpointMemory(aim=64)})
    decision, _ = decide(NOW, Snapshot(state, {A: at_work(5), B: HELD}), memory, CONFIG)
    assert not any(isinstance(move, DrainSeat) for move in decision.moves) and decision.moves


def test_a_slot_that_is_granted_is_none_that_comes() -> None:
    state = full({"n0": 9}, taken=8)
    memory = Memory({A: EndpointMemory(aim=64, strained_at_s=NOW - 1e4)})
    decision, _ = decide(NOW, Snapshot(state, {A: at_work(4), B: at_work(2)}), memory, CONFIG)
    assert [(type(move), move.seat[0]) for move in of_seats(decision)] == [(GrantSeat, "b"), (DrainSeat, "a")]


def test_a_free_slot_that_a_job_is_owed_is_none_that_comes() -> None:
    state = crashed(full({"n0": 9}, taken=8), "train", 1, 1)
    memory = Memory({A: EndpointMemory(aim=64, strained_at_s=NOW - 1e4)})
    decision, _ = decide(NOW, Snapshot(state, {A: at_work(5), B: HELD}), memory, CONFIG)
    assert [move.seat[0] for move in decision.moves if isinstance(move, DrainSeat)] == ["a"]


def test_a_request_that_waits_alone_needs_one_replica() -> None:
    waits = signals(held=1, stay_s=2.0, last_arrival_s=NOW - 60.0)
    assert len(goes(full({"n0": 8}), at_work(5), waits)) == 1


def test_of_those_who_lack_slots_the_higher_priority_goes_first() -> None:
    c = EndpointName("c")
    state = fold(full({"n0": 5}, taken=4), EndpointDeclared(an_endpoint("c", replicas_max=64, priority=20)))
    state = with_ready(state, seat_id(c, 0), slots(5)[4:])
    memory = Memory({A: EndpointMemory(aim=64, strained_at_s=NOW - 1e4)})
    decision, _ = decide(NOW, Snapshot(state, {A: at_work(2), B: HELD, c: at_work(2)}), memory, CONFIG)
    whom = [move.reason.split(",")[0] for move in decision.moves if isinstance(move, DrainSeat)]
    assert whom == ["makes place for c", "makes place for b"]


def test_a_replica_of_several_slots_gets_all_of_them_on_one_node() -> None:
    of_b = an_endpoint("b", slots_per_replica=4)
    going = goes(full({f"n{number}": 4 for number in range(4)}, of_b=of_b), at_work(9), HELD)
    assert len(going) == 4 and len({int(move.seat[2:]) // 4 for move in going}) == 1


@pytest.mark.proves("a higher priority makes no place")
def test_the_lower_priority_makes_place_and_never_the_higher() -> None:
    of_b = an_endpoint("b", priority=9)
    assert not goes(full({"n0": 8}, of_b=of_b), at_work(5), HELD)
    assert goes(full({"n0": 8}, of_b=an_endpoint("b", priority=11)), at_work(5), HELD)


def test_a_minimum_is_kept_and_so_is_what_nothing_is_known_of() -> None:
    assert not goes(full({"n0": 8}, replicas_min=8), at_work(5), HELD)
    assert not goes(full({"n0": 8}), signals(known=False), HELD)
    assert not goes(full({"n0": 8}, 0), at_work(5, unheard_s=3.0), at_work(8))


@pytest.mark.proves("what is scheduled makes no place for another endpoint")
def test_what_is_scheduled_is_kept() -> None:
    launch = Scheduled(days=tuple(range(7)), from_minute=0, minutes=1440, replicas=8)
    assert not goes(full({"n0": 8}, scheduled=(launch,)), at_work(5), HELD)


def test_what_is_needed_goes_before_room_even_if_a_warm_replica_could_wake_there() -> None:
    """Else it would take back at once what its endpoint has just given."""
    sleeps = an_endpoint("a", replicas_max=64, warm_replicas=1, min_uptime_factor=0.0)
    state = a_pool(nodes={"n0": 3}, endpoints=(sleeps, an_endpoint("b", replicas_max=64)))
    first, *others = slots(3)
    state = warm(state, seat_id(A, 0), first)
    for number, slot in enumerate(others, 1):
        state = with_ready(state, seat_id(A, number), (slot,))
    memory = Memory({A: EndpointMemory(aim=64, strained_at_s=NOW - 1e4)})
    decision, _ = decide(NOW, Snapshot(state, {A: at_work(2), B: HELD}), memory, CONFIG)
    assert [(type(move), move.seat) for move in of_seats(decision)] == [(GrantSeat, "b/0")]
    decision, _ = decide(NOW, Snapshot(state, {A: at_work(2), B: IDLE}), memory, CONFIG)
    assert [(type(move), move.seat) for move in of_seats(decision)] == [(WakeSeat, "a/0")]


def test_what_is_needed_goes_before_room_whoever_has_the_larger_share_of_what_it_wants() -> None:
    state = full({"n0": 4}, 2, taken=3)  # two replicas of a, one of b, one slot free
    of_b = EndpointMemory(aim=3, strained_at_s=NOW - 1e4)
    memory = Memory({A: EndpointMemory(aim=64, strained_at_s=NOW - 1e4), B: of_b})
    decision, _ = decide(NOW, Snapshot(state, {A: at_work(2), B: at_work(3)}), memory, CONFIG)
    assert [move.seat for move in decision.moves if isinstance(move, GrantSeat)] == ["b/0"]


@pytest.mark.proves("a starting replica lets no other make place")
def test_a_replica_that_still_starts_lets_none_make_place_that_answers() -> None:
    state, theirs = full({"n0": 2}, taken=1), seat_id(A, 1)
    starts = fold(state, GrantSeat(theirs, slots(2)[1:], "r"), SeatLanded(theirs, "a"))
    assert not goes(starts, at_work(20), HELD)
    assert len(goes(fold(starts, SeatReady(theirs, ())), at_work(20), HELD)) == 1


def test_a_replica_that_has_just_come_stays() -> None:
    state = full({"n0": 8})
    a = replace(state.endpoints[A].spec, min_uptime_factor=2.0)
    young = replace(state, endpoints={**state.endpoints, A: replace(state.endpoints[A], spec=a, start_s=NOW)})
    assert not goes(young, at_work(5), HELD)


@given(st.integers(2, 24), st.data())
def test_nobody_takes_back_what_was_given(count: int, data: st.DataObject) -> None:
    """Whatever each needs and had, once what was asked for has moved nothing moves any more."""
    needs = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 30))
    theirs = data.draw(st.integers(0, count))
    aims = 64, 64
    state, traffic = full({"n0": count}, *range(theirs)), (at_work(needs[0]), at_work(needs[1]))
    going = both(state, *traffic, aims)
    moved = Counter(move.seat[0] for move in going)
    assert len(moved) < 2, "one gives, the other takes"
    has_b = theirs + moved["a"] - moved["b"]
    assert not both(full({"n0": count}, *range(has_b)), *traffic, aims)


def both(state: PoolState, of_a: EndpointSignals, of_b: EndpointSignals, aims: tuple[int, int]) -> list[DrainSeat]:
    calm_s = NOW - 1e4
    memory = Memory({name: EndpointMemory(aim, strained_at_s=calm_s) for name, aim in zip((A, B), aims, strict=True)})
    decision, _ = decide(NOW, Snapshot(state, {A: of_a, B: of_b}), memory, CONFIG)
    return [move for move in decision.moves if isinstance(move, DrainSeat)]


def test_nothing_is_taken_while_one_of_its_gateways_is_silent() -> None:
    """What goes through that one is in no count. Who misses its SLO gives one to an endpoint that has none at all."""
    state = full({"n0": 2})
    assert len(goes(state, at_work(2), HELD)) == 1
    assert goes(state, at_work(2, unheard_s=5.0), HELD) == []
    memory = Memory({A: EndpointMemory(aim=2, strained_at_s=NOW - 1e4, slow_since_s=NOW - 100.0)})
    misses = at_work(2, ttft_p90_s=9.0)
    assert [one.seat for one in of_seats(decide(NOW, Snapshot(state, {A: misses, B: HELD}), memory, CONFIG)[0])] == [
        "a/1"
    ]
