"""When a slot is proven empty: each condition alone keeps it from being free, or ours."""

from dataclasses import replace
from typing import Any

import pytest

from ebbtide.client.messages import (
    AgentAnswer,
    AgentReport,
    ControllerPhase,
    ControllerReport,
    LockHolder,
    RankPhase,
    RankReport,
)
from ebbtide.pool.events import (
    Body,
    DrainSeat,
    GrantJob,
    GrantSeat,
    JobEnded,
    JobRunning,
    JobSubmitted,
    ParkJob,
    SeatLanded,
    SeatReady,
    SeatStopped,
    SlotFreed,
    SlotUnfenced,
    StopJob,
)
from ebbtide.pool.ids import NodeId
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.observe.observation import STRAGGLER_S, FenceView, Observation, Timestamped
from ebbtide_autoscaler.core.observe.slot_facts import ORPHAN_S, facts
from tests.autoscaler.closed_loop import a_job
from tests.builders.policy import S0, S1, SEAT0, TRAIN, a_pool, fold

T = 2_000.0  # the last event
N0 = NodeId("n0")
HOLDER = LockHolder("train", 1, 7, 1)
RUNNING = fold(a_pool(), JobSubmitted(a_job(), "i"), GrantJob(TRAIN, (S0,), "r"), JobRunning(TRAIN, 1))
PARKING = fold(RUNNING, ParkJob(TRAIN, "r"), at_s=T)
ENDED = fold(RUNNING, JobEnded(TRAIN, "finished", ""), at_s=T)
SERVING = fold(a_pool(), GrantSeat(SEAT0, (S0,), "r"), SeatLanded(SEAT0, "a"), SeatReady(SEAT0, ()))
STOPPED = fold(SERVING, DrainSeat(SEAT0, "r"), SeatStopped(SEAT0, "drained"), at_s=T)


def agent(at_s: float = T + 0.5, late_s: float = 0.0, **holders: Any) -> dict[NodeId, Timestamped[AgentReport]]:
    """The word of a look at ``at_s``, which came in so much later."""
    found = {0: None, 1: None, 2: None} | {int(key[1:]): holder for key, holder in holders.items()}
    return {N0: Timestamped(at_s + late_s, AgentReport("n0", "b", found, after=AgentAnswer("a", at_s)))}


def seen(state: PoolState, **changes: Any) -> Observation:
    """All fences stand, and a look at n0 half a second ago found every lock free."""
    base = Observation(started_s=0.0, fences=dict.fromkeys(state.slots, FenceView.HELD), agents=agent())
    return replace(base, **changes)


def follow(state: PoolState, view: Observation, after_s: float = 1.0) -> list[Body]:
    return list(facts(state, view, T + after_s))


def said(phase: ControllerPhase, epoch: int = 1, *, at_s: float = T + 0.5, incarnation: str = "i") -> Any:
    return {TRAIN: Timestamped(at_s, ControllerReport("train", incarnation, phase, epoch))}


# ---- of jobs


@pytest.mark.proves(
    '"no gang" of before the lease proves nothing',
    "a controller's word must be newer than the order",
    "a controller's word must be of this submission and lease",
    "a slot is not freed before its occupant's word",
)
def test_a_slot_is_free_when_its_gang_is_gone_by_the_word_of_its_own_controller() -> None:
    gone = seen(PARKING, controllers=said(ControllerPhase.NO_GANG))
    assert follow(PARKING, gone) == [SlotFreed(S0)]
    nobody: dict[Any, Any] = {}
    for controllers in (
        nobody,
        said(ControllerPhase.GANG),
        said(ControllerPhase.NO_GANG, at_s=T - 0.5),
        said(ControllerPhase.NO_GANG, incarnation="before"),
        said(ControllerPhase.NO_GANG, 0),
    ):
        assert follow(PARKING, seen(PARKING, controllers=controllers)) == [], controllers


@pytest.mark.proves(
    "a lock is free by a report newer than the order only",
    "a lock is free only if the report speaks of it",
    "a slot is not freed before its lock is free",
    "a slot is not freed before our fence stands",
)
def test_neither_a_word_nor_a_free_lock_is_enough_without_the_other_and_the_fence() -> None:
    gone = seen(PARKING, controllers=said(ControllerPhase.NO_GANG))
    assert follow(PARKING, gone) == [SlotFreed(S0)]
    word = agent()[N0].report
    without_index = {N0: Timestamped(T + 0.5, replace(word, holders={1: None, 2: None}))}
    of_no_age = {N0: Timestamped(T + 0.5, replace(word, after=None))}  # it had no answer of this arbiter yet
    for agents in ({}, agent(T - 0.5), agent(T - 0.5, late_s=1.0), of_no_age, agent(_0=HOLDER), without_index):
        assert follow(PARKING, replace(gone, agents=agents)) == [], agents
    for fence in (FenceView.ABSENT, FenceView.REFUSED):
        found = follow(PARKING, replace(gone, fences={**gone.fences, S0: fence}))
        assert SlotFreed(S0) not in found, fence


def test_a_controller_that_was_told_to_wait_starts_no_gang_under_a_lease_that_it_never_took() -> None:
    state = fold(a_pool(), JobSubmitted(a_job(), "i"), GrantJob(TRAIN, (S0,), "r"))
    state = fold(state, StopJob(TRAIN, "r", preempts=True), at_s=T)
    late_s = T + STRAGGLER_S + 0.5
    for at_s, freed in ((T + 0.5, []), (late_s, [SlotFreed(S0)])):
        view = seen(state, controllers=said(ControllerPhase.NO_GANG, 0, at_s=at_s))
        assert follow(state, view, STRAGGLER_S + 1.0) == freed


@pytest.mark.proves("a rank of an ended job may still come for a moment")
def test_a_rank_of_a_job_that_is_over_has_a_moment_in_which_it_may_still_come() -> None:
    after = agent(T + ORPHAN_S + 0.05)
    assert follow(ENDED, seen(ENDED, agents=after), ORPHAN_S - 0.1) == []
    assert follow(ENDED, seen(ENDED, agents=after), ORPHAN_S + 0.1) == [SlotFreed(S0)]
    assert follow(ENDED, seen(ENDED), ORPHAN_S + 0.1) == [], "nobody has looked since then"
    assert follow(ENDED, seen(ENDED, agents=agent(_0=HOLDER)), ORPHAN_S + 0.1) == [], "it came"


def test_the_slot_of_an_earlier_submission_is_not_freed_by_the_new_ones_controller() -> None:
    again = fold(ENDED, JobSubmitted(a_job(), "i2"), at_s=T)
    view = seen(again, controllers=said(ControllerPhase.NO_GANG, 1, incarnation="i2"))
    assert follow(again, view) == []
    assert follow(again, replace(view, agents=agent(T + ORPHAN_S + 0.05)), ORPHAN_S + 0.1) == [SlotFreed(S0)]


@pytest.mark.proves(
    "a rank must have carried out the very order",
    "a rank must say that it gave up its GPU",
    "a rank's word must be newer than the order",
)
@pytest.mark.parametrize("phase", [RankPhase.PARKED, RankPhase.STOPPED, RankPhase.DONE])
def test_a_rank_that_has_carried_out_this_very_order_is_enough(phase: RankPhase) -> None:
    directive = PARKING.jobs[TRAIN].directive

    def heard(at_s: float = T + 0.5, **changes: Any) -> Any:
        report = RankReport("train", "i", 0, 1, "n0", 7, 1, directive, phase, 5, 0)
        return {(TRAIN, 0): Timestamped(at_s, replace(report, **changes))}

    assert follow(PARKING, seen(PARKING, ranks=heard())) == [SlotFreed(S0)]
    for ranks in (heard(T - 0.5), heard(directive=directive - 1), heard(phase=RankPhase.RUNNING)):
        assert follow(PARKING, seen(PARKING, ranks=ranks)) == [], ranks


# ---- of replicas


@pytest.mark.proves(
    "a look that finds no actor must be newer than the order to free its slot",
    "a replica's slot is not freed while its actor is there",
)
def test_the_slot_of_a_replica_is_free_when_a_look_since_then_found_no_actor_of_it() -> None:
    assert follow(STOPPED, seen(STOPPED, living_at_s=T + 0.5)) == [SlotFreed(S0)]
    assert follow(STOPPED, seen(STOPPED, living_at_s=T - 0.5)) == [], "it was looked for before it was told to go"
    assert follow(STOPPED, seen(STOPPED, living_at_s=T + 0.5, living={SEAT0: ("a",)})) == []
    assert follow(STOPPED, seen(STOPPED, living_at_s=T + 0.5, agents=agent(_0=HOLDER))) == []


# ---- of nobody


@pytest.mark.proves("a free slot that a process has locked is not free", "a free slot whose fence fell is not free")
def test_a_free_slot_is_free_only_as_long_as_its_fence_stands_and_nobody_locks_it() -> None:
    free = a_pool()
    assert follow(free, seen(free)) == []
    for fence in (FenceView.ABSENT, FenceView.REFUSED):
        assert follow(free, seen(free, fences={**dict.fromkeys(free.slots, FenceView.HELD), S1: fence})) == [
            SlotUnfenced(S1)
        ]
    assert follow(free, seen(free, agents=agent(_1=HOLDER))) == [SlotUnfenced(S1)]


@pytest.mark.proves("a new slot is free when our fence stands", "a new slot is free when its lock is")
def test_a_slot_that_was_found_is_free_when_our_fence_stands_and_its_lock_is_free() -> None:
    found = fold(a_pool(), SlotUnfenced(S1), at_s=T)
    assert follow(found, seen(found)) == [SlotFreed(S1)]
    assert follow(found, seen(found, agents={})) == []
    assert follow(found, seen(found, agents=agent(T - 0.5))) == []
    absent = {**dict.fromkeys(found.slots, FenceView.HELD), S1: FenceView.ABSENT}
    assert follow(found, seen(found, fences=absent)) == []
