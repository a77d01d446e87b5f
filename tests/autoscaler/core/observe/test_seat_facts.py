"""What follows for a seat from what is said of it: each condition alone keeps the fact from following."""

from dataclasses import replace
from typing import Any

import pytest

from ebbtide.client.messages import GatewayReport, RankLoad, ReplicaPhase, ReplicaReport, Traffic
from ebbtide.pool.events import (
    Body,
    DrainSeat,
    GrantSeat,
    Loaded,
    NodeLost,
    SeatDied,
    SeatGone,
    SeatLanded,
    SeatReady,
    SeatStopped,
    SlotFreed,
)
from ebbtide.pool.ids import NodeId
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.observe.observation import Limits, Observation, Timestamped
from ebbtide_autoscaler.core.observe.seat_facts import MOST_CAUSE, MOST_WHY, facts
from tests.builders.policy import S0, SEAT0, a_pool, fold

LIMITS = Limits(placement_timeout_s=15.0, start_timeout_s=40.0, gang_timeout_s=50.0, silence_s=10.0)
T = 2_000.0  # the last event
PLACING = fold(a_pool(), GrantSeat(SEAT0, (S0,), "r"), at_s=T)
STARTING = fold(PLACING, SeatLanded(SEAT0, "a"), at_s=T)
READY = fold(STARTING, SeatReady(SEAT0, ()), at_s=T)
DEAD = fold(READY, SeatDied(SEAT0, "w"), at_s=T)
READY_AGAIN = fold(DEAD, SeatReady(SEAT0, (), "b"), at_s=T)
DRAINING = fold(READY, DrainSeat(SEAT0, "r"), at_s=T)
STOPPING = fold(DRAINING, SeatStopped(SEAT0, "drained"), at_s=T)
STOPPING_FREE = fold(STOPPING, SlotFreed(S0), at_s=T)
HERE = {SEAT0: ("actor",)}


def report(phase: ReplicaPhase = ReplicaPhase.READY, **changes: Any) -> ReplicaReport:
    return replace(ReplicaReport(SEAT0, "a", "n0", 7, 1, phase, "u"), **changes)


def gateway(
    name: str = "g", *, routes_seen: int = 4, inflight: int = 0, at_s: float = T + 0.9
) -> Timestamped[GatewayReport]:
    traffic = Traffic(seat_inflight={SEAT0: inflight} if inflight else {})
    return Timestamped(at_s, GatewayReport(name, "n0", 1.0, "http://g", routes_seen, {"chat": traffic}))


def follow(
    state: PoolState,
    said: ReplicaReport | None = None,
    *,
    after_s: float = 1.0,
    heard_s: float | None = None,
    gateways: tuple[Timestamped[GatewayReport], ...] = (),
    **changes: Any,
) -> list[Body]:
    """The facts ``after_s`` after the last event; its actor is there, and was looked for a moment ago."""
    at_s = T + (after_s if heard_s is None else heard_s)
    seen = Observation(
        started_s=0.0,
        replicas={SEAT0: Timestamped(at_s, said)} if said is not None else {},
        gateways={one.report.gateway: one for one in gateways},
        living=HERE,
        living_at_s=T + after_s - 0.1,
        routes_version=4,
    )
    return list(facts(state, replace(seen, **changes), T + after_s, LIMITS))


def types(found: list[Body]) -> list[type]:
    return [type(one) for one in found]


# ---- coming up


@pytest.mark.proves("a replica's word of an earlier lease says nothing")
def test_a_seat_has_landed_when_its_replica_says_so_under_this_lease() -> None:
    assert follow(PLACING, report(ReplicaPhase.STARTING)) == [SeatLanded(SEAT0, "a")]
    assert follow(PLACING, report(lease_epoch=0)) == [], "the last one's word"
    assert follow(PLACING) == []


@pytest.mark.proves("a replica that does not become ready is given up", "a replica that does not land is given up")
def test_a_replica_that_does_not_land_or_is_not_ready_in_its_time_is_given_up() -> None:
    for state, said, limit_s in ((PLACING, None, 15.0), (STARTING, report(ReplicaPhase.STARTING), 40.0)):
        assert follow(state, said, after_s=limit_s - 0.1) == []
        assert types(follow(state, said, after_s=limit_s + 0.1)) == [SeatStopped]
        late = follow(state, said, after_s=limit_s + 0.1, started_s=T + 5.0)
        assert late == [], "a new arbiter gives it its whole time"


@pytest.mark.proves(
    "a dead replica's last word is not its successor's",
    "a replica that dies while it starts is given up",
)
def test_a_seat_is_ready_when_this_very_replica_answers() -> None:
    assert follow(STARTING, report()) == [SeatReady(SEAT0, (), "a")]
    assert follow(STARTING, report(lease_epoch=0)) == []
    assert follow(STARTING, report(), heard_s=-0.5) == [], "it said so before it landed here"
    assert types(follow(STARTING, report(replica="b"))) == [SeatStopped], "the one that landed has died"
    assert types(follow(STARTING, report(ReplicaPhase.STARTING, error="out of memory"))) == [SeatStopped]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("out of memory", "it did not start: out of memory"),
        ("\n  vLLM: KeyError: 'x'\nTraceback\nmore", "it did not start: vLLM: KeyError: 'x'"),
        ("x" * 1000, f"it did not start: {'x' * MOST_CAUSE}"),
    ],
)
def test_why_a_start_failed_is_one_line(said: str, why: str) -> None:
    (stopped,) = follow(STARTING, report(ReplicaPhase.STARTING, error=said))
    assert isinstance(stopped, SeatStopped) and stopped.why == why


@pytest.mark.parametrize("permanent", [False, True])
def test_a_replica_says_whether_another_start_would_end_alike(permanent: bool) -> None:
    said = report(ReplicaPhase.STARTING, error="no such value", permanent=permanent)
    assert follow(STARTING, said) == [SeatStopped(SEAT0, "it did not start: no such value", permanent=permanent)]


def test_a_seat_that_is_ready_tells_how_its_ranks_got_their_weights() -> None:
    loads = (
        RankLoad(0, "ebbtide_flat", {"posix direct": 7, "buffered": 1}, 0.5),
        RankLoad(1, "ebbtide", {"posix direct": 20}, 2.0, ("no flat form yet", "w" * 1000)),
        RankLoad(2, "ebbtide_flat", {"posix direct": 4}, 0.7, ("no GPU",)),
    )
    (ready,) = follow(STARTING, report(loads=loads))
    assert isinstance(ready, SeatReady)
    flat, slow = ready.weights
    assert flat == Loaded("ebbtide_flat", 2, 12, 0.7, "no GPU")
    assert slow == Loaded("ebbtide", 1, 20, 2.0, ("no flat form yet; " + "w" * 1000)[:MOST_WHY])


# ---- dying


@pytest.mark.proves("a ready replica that is silent is dead")
def test_a_ready_replica_is_dead_when_it_says_so_is_gone_or_silent() -> None:
    assert follow(READY, report()) == []
    assert types(follow(READY, report(ReplicaPhase.STARTING, replica="b"))) == [SeatDied]
    assert types(follow(READY, report(), living={})) == [SeatDied]
    assert follow(READY, report(), living={}, living_at_s=T - 0.1) == [], "it was looked for before it was ready"
    assert types(follow(READY, report(), heard_s=1.0, after_s=11.1)) == [SeatDied]
    assert follow(READY, report(), heard_s=1.0, after_s=11.1, started_s=T + 2.0) == []


def test_an_arbiter_that_was_away_takes_nobody_for_dead_at_once() -> None:
    away: dict[str, Any] = {"heard_s": 1.0, "after_s": 13.1, "back_s": T + 13.0}
    assert follow(READY, report(), **away) == []
    assert follow(STARTING, report(ReplicaPhase.STARTING), after_s=40.1, back_s=T + 40.0) == []
    assert follow(PLACING, after_s=15.1, back_s=T + 15.0) == []
    busy = gateway(inflight=1, at_s=T - 5.0)
    assert follow(DRAINING, report(), after_s=9.9, gateways=(busy,), back_s=T + 9.8) == [], "it still sends there"


@pytest.mark.proves("a replica that dies again soon gives its slots back")
def test_one_that_dies_again_soon_after_it_was_ready_gives_its_slots_back() -> None:
    assert types(follow(READY_AGAIN, report(), living={})) == [SeatStopped]
    assert types(follow(READY_AGAIN, report(), living={}, after_s=61.0, heard_s=60.0)) == [SeatDied]


@pytest.mark.proves("a dead node stops its seats")
def test_a_seat_stops_when_its_node_died() -> None:
    for state in (PLACING, STARTING, READY, DRAINING):
        dead = fold(state, NodeLost(NodeId("n0")), at_s=T)
        (stopped,) = follow(dead, report())
        assert isinstance(stopped, SeatStopped) and "its node is gone" in stopped.why


# ---- draining


@pytest.mark.proves(
    "a gateway must obey the present table",
    "a gateway must wait for nothing from the seat",
    "a gateway's word must be newer than the drain",
    "a replica's word of being idle must be newer than the drain",
    "a seat is drained when every gateway has heard",
    "a seat is drained when no request is left at it",
)
def test_a_seat_is_drained_when_it_is_idle_and_every_gateway_has_turned_away() -> None:
    assert follow(DRAINING, report(), gateways=(gateway(),)) == [SeatStopped(SEAT0, "drained")]
    for said, found in (
        (None, gateway()),
        (report(inflight=1), gateway()),
        (report(), gateway(routes_seen=3)),
        (report(), gateway(inflight=1)),
        (report(), gateway(at_s=T - 0.1)),
    ):
        assert follow(DRAINING, said, gateways=(found,)) == [], (said, found)
    assert follow(DRAINING, report(), heard_s=-0.1, gateways=(gateway(),)) == [], "it was idle before the drain"
    assert follow(DRAINING, report(), gateways=(gateway(), gateway("h", inflight=1))) == []


@pytest.mark.proves("a new arbiter waits for gateways first")
def test_a_gateway_that_is_dead_keeps_no_seat_draining_but_a_new_arbiter_waits_for_it_first() -> None:
    dead = gateway(inflight=1, at_s=T - 60.0)
    assert follow(DRAINING, report(), gateways=(dead,)) == [SeatStopped(SEAT0, "drained")]
    assert follow(DRAINING, report(), gateways=()) == [SeatStopped(SEAT0, "drained")]
    assert follow(DRAINING, report(), gateways=(), started_s=T - 1.0) == []


@pytest.mark.proves(
    "a drain has a bound",
    "a replica that dies while it drains is given up",
    "a replica that falls silent while it drains is given up",
)
def test_a_drain_ends_by_its_limit_by_death_and_by_silence() -> None:
    busy = gateway(inflight=1, at_s=T + 8.9)
    said = report(inflight=1)
    slow = fold(DRAINING, at_s=T)
    assert follow(slow, said, after_s=9.0, gateways=(busy,)) == []
    (limit,) = follow(slow, said, after_s=10.1, gateways=(busy,))
    assert isinstance(limit, SeatStopped) and "did not end within 10 s" in limit.why
    (died,) = follow(slow, said, after_s=9.0, gateways=(busy,), living={})
    assert isinstance(died, SeatStopped) and "died while draining" in died.why
    assert follow(slow, said, after_s=9.0, gateways=(busy,), living={}, living_at_s=T - 0.1) == []
    spec = replace(slow.endpoints[slow.seats[SEAT0].endpoint].spec, drain_s=100.0)
    patient = replace(slow, endpoints={spec.name: replace(slow.endpoints[spec.name], spec=spec)})
    assert follow(patient, said, after_s=10.9, heard_s=1.0, gateways=(gateway(inflight=1, at_s=T + 10.5),)) == []
    (silent,) = follow(patient, said, after_s=11.1, heard_s=1.0, gateways=(gateway(inflight=1, at_s=T + 11.0),))
    assert isinstance(silent, SeatStopped) and "silent" in silent.why


# ---- leaving


@pytest.mark.proves("a seat is cold when its actor is gone", "a seat is said to be gone when its slots are proven free")
def test_a_seat_is_gone_when_its_slots_are_proven_free_and_no_actor_is_left() -> None:
    assert follow(STOPPING_FREE, living={}) == [SeatGone(SEAT0)]
    assert follow(STOPPING_FREE) == [], "its actor is there"
    assert follow(STOPPING, living={}) == [], "its slot is not proven free"
    assert follow(STOPPING_FREE, living={}, living_at_s=T - 0.1) == [], "it was looked for before it was told to go"
