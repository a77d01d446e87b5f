"""How the number of replicas comes down: one by one, and never by one that others still count on."""

from ebbtide.pool.events import GrantSeat, SeatLanded, SeatReady
from ebbtide.pool.ids import seat_id
from ebbtide_autoscaler.policy import decide
from ebbtide_autoscaler.signals import Memory, Snapshot
from tests.autoscaler.test_policy import (
    CHAT,
    CONFIG,
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
    with_ready,
)


def test_replicas_go_one_by_one_each_after_demand_has_been_lower_for_a_while() -> None:
    state, memory = a_pool(), Memory()
    for number, slot in enumerate((S0, S1, S2)):
        state = with_ready(state, seat_id(CHAT, number), (slot,))
    one_is_enough = {CHAT: signals(inflight=1, last_arrival_s=NOW)}
    drained_s = []
    for tenths in range(100):
        found, memory = decide(NOW + tenths / 10, Snapshot(state, one_is_enough), memory, CONFIG)
        drained_s += [tenths / 10 for _ in found.moves]
        state = fold(state, *found.moves, at_s=NOW + tenths / 10)
    assert drained_s == [3.0, 6.0]


def test_a_replica_that_still_starts_stands_in_for_none_that_serves() -> None:
    state = with_ready(a_pool(), SEAT0, (S0,))
    state = fold(state, GrantSeat(SEAT1, (S1,), "r"), SeatLanded(SEAT1, "a"), at_s=NOW - 5.0)
    one_is_enough = signals(inflight=1, last_arrival_s=NOW)
    assert look(state, traffic=one_is_enough, for_s=30.0).moves == ()
    both = fold(state, SeatReady(SEAT1, ()), at_s=NOW - 4.0)
    assert kinds(look(both, traffic=one_is_enough, for_s=30.0)) == ["DrainSeat"]


def test_what_was_wanted_beyond_the_largest_number_does_not_keep_replicas_afterwards() -> None:
    state, memory = a_pool(), Memory()
    for number, slot in enumerate((S0, S1, S2)):
        state = with_ready(state, seat_id(CHAT, number), (slot,))
    flood = {CHAT: signals(held=100, last_arrival_s=NOW)}
    for seconds in (-3.0, -2.0, -1.0):
        found, memory = decide(NOW + seconds, Snapshot(state, flood), memory, CONFIG)
        assert found.moves == ()
    calm = {CHAT: signals(inflight=1, last_arrival_s=NOW)}
    _, memory = decide(NOW, Snapshot(state, calm), memory, CONFIG)
    found, _ = decide(NOW + 3.0, Snapshot(state, calm), memory, CONFIG)
    assert kinds(found) == ["DrainSeat"]
