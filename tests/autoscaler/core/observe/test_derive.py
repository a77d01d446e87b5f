"""Which facts follow from reports, where a report alone must not be believed."""

from dataclasses import replace

import pytest

from ebbtide.client.messages import (
    AgentAnswer,
    AgentReport,
    ControllerPhase,
    ControllerReport,
    LockHolder,
    RankPhase,
    RankReport,
    ReplicaPhase,
    ReplicaReport,
)
from ebbtide.pool.events import (
    Body,
    GrantJob,
    GrantSeat,
    JobCrashed,
    JobRunning,
    JobSubmitted,
    ParkJob,
    SeatDied,
    SeatLanded,
    SeatReady,
    SeatStopped,
    SlotForeign,
    SlotFreed,
    SlotUnfenced,
    StopJob,
)
from ebbtide.pool.ids import NodeId
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.observe.derive import derive_facts
from ebbtide_autoscaler.core.observe.observation import FenceView, Limits, Observation, Timestamped
from tests.autoscaler.closed_loop import a_job
from tests.builders.policy import S0, S1, SEAT0, TRAIN, a_pool, fold

LIMITS = Limits(placement_timeout_s=15.0, start_timeout_s=40.0, gang_timeout_s=50.0, silence_s=10.0)
T = 2_000.0  # the last event
RUNNING = fold(a_pool(), JobSubmitted(a_job(), "i"), GrantJob(TRAIN, (S0,), "r"), JobRunning(TRAIN, 1))
PARKING = fold(RUNNING, ParkJob(TRAIN, "r"), at_s=T)
SERVING = fold(a_pool(), GrantSeat(SEAT0, (S0,), "r"), SeatLanded(SEAT0, "a"), SeatReady(SEAT0, ()), at_s=T)


def agent(at_s: float, holder: LockHolder | None = None) -> Timestamped[AgentReport]:
    return Timestamped(at_s, AgentReport("n0", "b", {0: holder, 1: None, 2: None}, after=AgentAnswer("a", at_s)))


def rank(at_s: float, phase: RankPhase, directive: int) -> Timestamped[RankReport]:
    report = RankReport(
        job="train",
        incarnation="i",
        rank=0,
        world=1,
        node="n0",
        pid=1,
        lease_epoch=1,
        directive=directive,
        phase=phase,
        step=5,
        durable_step=0,
    )
    return Timestamped(at_s, report)


def replica(at_s: float, phase: ReplicaPhase, name: str = "a") -> Timestamped[ReplicaReport]:
    return Timestamped(
        at_s, ReplicaReport(seat=SEAT0, replica=name, node="n0", pid=1, lease_epoch=1, phase=phase, url="u")
    )


def controller(at_s: float, phase: ControllerPhase, epoch: int = 1) -> Timestamped[ControllerReport]:
    return Timestamped(at_s, ControllerReport("train", "i", phase, epoch))


def seen(state: PoolState, **changes: object) -> Observation:
    base = Observation(started_s=0.0, fences=dict.fromkeys(state.slots, FenceView.HELD))
    return replace(base, **changes)  # type: ignore[arg-type]


def follow(state: PoolState, view: Observation, now_s: float = T + 1.0) -> list[Body]:
    return list(derive_facts(state, view, now_s, LIMITS))


def test_a_free_lock_alone_proves_nothing_of_a_rank_that_may_still_come() -> None:
    """All of fence, lock and the rank's own word are needed, and each must be newer than the order."""
    directive = PARKING.jobs[TRAIN].directive
    alive = {TRAIN: controller(T + 0.5, ControllerPhase.GANG)}
    free = {NodeId("n0"): agent(T + 0.5)}
    said = {(TRAIN, 0): rank(T + 0.5, RankPhase.PARKED, directive)}
    good = seen(PARKING, controllers=alive, agents=free, ranks=said)
    assert SlotFreed(S0) in follow(PARKING, good)
    for bad in (
        replace(good, ranks={}),
        replace(good, ranks={(TRAIN, 0): rank(T + 0.5, RankPhase.RUNNING, directive)}),
        replace(good, ranks={(TRAIN, 0): rank(T + 0.5, RankPhase.PARKED, directive - 1)}),
        replace(good, ranks={(TRAIN, 0): rank(T - 0.5, RankPhase.PARKED, directive)}),
        replace(good, agents={NodeId("n0"): agent(T - 0.5)}),
        replace(good, agents={NodeId("n0"): agent(T + 0.5, LockHolder("train", 1, 1, 1))}),
        replace(good, agents={}),
        replace(good, fences={}),
    ):
        assert SlotFreed(S0) not in follow(PARKING, bad), bad


def test_a_straggling_no_gang_does_not_free_the_slot_of_a_gang_that_starts() -> None:
    """The controller said so before it heard of its lease; by now its ranks may be on their way."""
    state = fold(a_pool(), JobSubmitted(a_job(), "i"), GrantJob(TRAIN, (S0,), "r"))
    state = fold(state, StopJob(TRAIN, "r", preempts=True), at_s=T)
    view = seen(state, agents={NodeId("n0"): agent(T + 7.0)})
    straggler = replace(view, controllers={TRAIN: controller(T + 1.0, ControllerPhase.NO_GANG, epoch=0)})
    assert SlotFreed(S0) not in follow(state, straggler, T + 3.0)
    later = replace(view, controllers={TRAIN: controller(T + 6.0, ControllerPhase.NO_GANG, epoch=0)})
    assert SlotFreed(S0) in follow(state, later, T + 7.0)
    gone = replace(view, controllers={TRAIN: controller(T + 1.0, ControllerPhase.NO_GANG, epoch=1)})
    assert SlotFreed(S0) in follow(state, gone, T + 7.0)


def test_the_last_word_of_a_dead_replica_makes_its_successor_neither_ready_nor_failed() -> None:
    dead = fold(SERVING, SeatDied(SEAT0, "w"), at_s=T + 10.0)
    assert follow(dead, seen(dead, replicas={SEAT0: replica(T + 9.9, ReplicaPhase.READY)}), T + 10.1) == []
    error = replace(replica(T + 9.9, ReplicaPhase.STOPPING).report, error="out of memory")
    assert follow(dead, seen(dead, replicas={SEAT0: Timestamped(T + 9.9, error)}), T + 10.1) == []
    fresh = seen(dead, replicas={SEAT0: replica(T + 12.0, ReplicaPhase.READY, "b")})
    assert SeatReady(SEAT0, (), "b") in follow(dead, fresh, T + 12.1)


def test_a_ready_replica_that_is_silent_counts_as_dead_but_not_to_a_new_arbiter() -> None:
    silent = seen(SERVING, replicas={SEAT0: replica(T + 1.0, ReplicaPhase.READY)}, living={SEAT0: ("successor",)})
    assert [type(fact) for fact in follow(SERVING, silent, T + 10.0)] == []
    assert [type(fact) for fact in follow(SERVING, silent, T + 11.5)] == [SeatDied]
    assert follow(SERVING, seen(SERVING, started_s=T + 5.0), T + 14.0) == []


@pytest.mark.proves(
    "a replica in the wrong place is noticed at once",
    "a word of a wrong place must be newer than the grant",
)
def test_a_replica_that_asks_for_its_lease_from_another_slot_is_stopped_without_blame() -> None:
    placing = fold(a_pool(), GrantSeat(SEAT0, (S0,), "r"), at_s=T)
    astray = seen(placing, misplaced={SEAT0: Timestamped(T + 1.0, (S1,))})
    stopped = follow(placing, astray, T + 1.1)
    assert stopped == [SeatStopped(SEAT0, "its replica landed on n0:1 instead of n0:0", failed=False)]
    assert follow(placing, seen(placing, misplaced={SEAT0: Timestamped(T - 1.0, (S1,))}), T + 1.1) == [], (
        "an earlier grant's"
    )


@pytest.mark.proves("a replica that strayed is no stranger")
def test_the_slot_of_a_replica_that_is_astray_is_no_strangers() -> None:
    state = fold(a_pool(), SlotUnfenced(S1), at_s=T)
    refused = {**dict.fromkeys(state.slots, FenceView.HELD), S1: FenceView.REFUSED}
    astray = seen(state, fences=refused, misplaced={SEAT0: Timestamped(T + 1.0, (S1,))}, living={SEAT0: ("a",)})
    assert follow(state, astray) == []
    assert [type(fact) for fact in follow(state, replace(astray, living={}))] == [SlotForeign]


def test_a_replica_that_dies_while_it_starts_and_one_that_does_not_come_back_are_given_up() -> None:
    starting = fold(a_pool(), GrantSeat(SEAT0, (S0,), "r"), SeatLanded(SEAT0, "a"), at_s=T)
    another = seen(starting, replicas={SEAT0: replica(T + 1.0, ReplicaPhase.STARTING, "b")})
    assert follow(starting, another, T + 1.1) == [SeatStopped(SEAT0, "its replica died while it started")]
    dead = fold(SERVING, SeatDied(SEAT0, "w"), at_s=T + 10.0)
    assert follow(dead, seen(dead), T + 24.9) == []
    assert [type(fact) for fact in follow(dead, seen(dead), T + 25.1)] == [SeatStopped]


def test_a_new_arbiter_gives_gangs_and_replicas_their_whole_time_again() -> None:
    state = fold(a_pool(), JobSubmitted(a_job(), "i"), GrantJob(TRAIN, (S0,), "r"), at_s=T)
    heard = {TRAIN: controller(T + 60.0, ControllerPhase.GANG)}
    late = T + 61.0
    assert [type(fact) for fact in follow(state, seen(state, controllers=heard), late)] == [JobCrashed]
    assert follow(state, seen(state, controllers=heard, started_s=T + 30.0), late) == []
