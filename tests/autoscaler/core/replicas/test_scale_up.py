"""Endpoints of one priority that want more than there is: who gets what, and what is said of the rest."""

from hypothesis import given
from hypothesis import strategies as st

from ebbtide.pool.events import DrainSeat, GrantSeat
from ebbtide.pool.ids import EndpointName
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.plan.inputs import EndpointMemory, Memory, Snapshot
from tests.autoscaler.closed_loop import an_endpoint
from tests.builders.policy import CONFIG, NOW, a_pool, kinds, look, signals, with_ready
from tests.platform.pool.builder import CHAT

NAMES = tuple(EndpointName(name) for name in ("a", "b", "c"))


def wanting(*replicas: int) -> dict[EndpointName, object]:
    """Held requests for so many replicas of each, four at each."""
    held = zip(NAMES, replicas, strict=False)
    return {name: signals(held=4 * count, last_arrival_s=NOW) for name, count in held}


@given(st.lists(st.integers(1, 40), min_size=3, max_size=3), st.integers(3, 40))
def test_what_is_free_is_shared_by_what_each_wants(wanted: list[int], nodes: int) -> None:
    endpoints = tuple(an_endpoint(name, replicas_max=40) for name in NAMES)
    state = a_pool(nodes={f"n{number:02}": 1 for number in range(nodes)}, endpoints=endpoints)
    found = look(state, traffic=wanting(*wanted))  # type: ignore[arg-type]
    granted = [sum(isinstance(m, GrantSeat) and m.seat.startswith(f"{name}/") for m in found.moves) for name in NAMES]
    assert sum(granted) == min(nodes, sum(wanted))
    assert all(count <= want for count, want in zip(granted, wanted, strict=True))
    for has, want in zip(granted, wanted, strict=True):
        for other, theirs in zip(granted, wanted, strict=True):
            # Nobody is ahead by more than the replica that was its turn.
            assert has == want or (other - 1) / theirs <= has / want + 1e-9


def test_a_surge_that_nothing_can_meet_is_told_in_few_words_and_counted_whole() -> None:
    state = a_pool(endpoints=(an_endpoint(replicas_max=8000),))
    found = look(state, traffic={CHAT: signals(held=4 * 8000, last_arrival_s=NOW)})
    assert kinds(found) == ["GrantSeat"], "one at a time is placed on a node"
    assert len(found.waits) < 8
    assert any("7996 more replicas wait for slots" in why for _, why in found.waits), found.waits


def test_all_that_is_too_many_goes_at_once() -> None:
    """The aim comes down step by step; what is beyond it would only be in the way of others."""
    state = a_pool(nodes={"n0": 4}, endpoints=(an_endpoint(replicas_max=4, min_uptime_factor=0.0),))
    for number in range(4):
        state = with_ready(state, f"chat/{number}", (f"n0:{number}",))  # type: ignore[arg-type]
    memory = Memory({CHAT: EndpointMemory(aim=1)})
    busy = signals(arriving_per_s=1.0, stay_s=2.0, inflight=2, last_arrival_s=NOW)
    decision, _ = decide(NOW, Snapshot(state, {CHAT: busy}), memory, CONFIG)
    assert [move.seat for move in decision.moves if isinstance(move, DrainSeat)] == ["chat/3", "chat/2", "chat/1"]
