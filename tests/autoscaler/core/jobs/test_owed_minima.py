"""Minima that replicas leave to restarting jobs: kept where they can be met, and only there."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.pool.events import (
    DrainSeat,
    GrantJob,
    GrantSeat,
    JobCrashed,
    JobParked,
    JobRecovered,
    JobRunning,
    JobStopped,
    JobSubmitted,
    NodeDraining,
    ParkJob,
    ResumeJob,
    SeatLanded,
    SeatReady,
    SlotForeign,
    SlotFreed,
    SlotUnfenced,
    StopJob,
)
from ebbtide.pool.ids import JobName, NodeId, SeatId
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import JobRecord
from ebbtide_autoscaler.core.jobs.owed_minima import minima_owed, reserve_minima
from ebbtide_autoscaler.core.plan.fair_share import Shares, Team
from tests.autoscaler.closed_loop import a_job, an_endpoint
from tests.builders.policy import (
    CONFIG,
    HELD,
    NOW,
    S0,
    S1,
    S2,
    SEAT0,
    SEMI,
    TRAIN,
    a_pool,
    crashed,
    fold,
    kinds,
    look,
    parked,
    signals,
    slots,
    with_job,
    with_ready,
)


def test_the_rest_of_a_minimum_that_cannot_be_met_is_not_kept_from_replicas() -> None:
    """Two jobs that may not lose their 2 workers on 3 slots: the third slot would idle while requests wait."""
    state = crashed(a_pool(), "train", 2, 2)
    assert minima_owed(state) == {"train": 2}
    state = with_job(state, a_job("other", workload_class=SEMI, workers_min=2), (S0, S1))
    assert minima_owed(state) == {}
    assert kinds(look(state, traffic=HELD)) == ["GrantSeat"]


def test_slots_that_a_running_job_lets_go_can_come_to_it() -> None:
    state = crashed(a_pool(), "train", 2, 2)
    for kind, least, stay in ((WorkloadClass.PREEMPTIBLE, 2, 2), (SEMI, 1, 2), (WorkloadClass.NON_PREEMPTIBLE, 1, 0)):
        running = with_job(state, a_job("other", workload_class=kind, workers_min=least), (S0, S1))
        assert sum(minima_owed(running).values()) == stay, kind


def test_slots_of_draining_nodes_are_nobodys() -> None:
    state = crashed(a_pool(nodes={"n0": 2, "n1": 1}), "train", 2, 2)
    assert minima_owed(fold(state, NodeDraining(NodeId("n0"), "r"))) == {}
    held = with_job(crashed(a_pool(nodes={"n0": 2, "n1": 2}), "train", 2, 2), a_job("other"), slots(2, "n1"))
    firm = a_job("third", workload_class=WorkloadClass.NON_PREEMPTIBLE, workers_min=1)
    gone = fold(with_job(held, firm, slots(1)), NodeDraining(NodeId("n0"), "r"))
    assert minima_owed(gone) == {"train": 2}, "what runs on a node that drains takes nothing of the others"


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), max_size=4),
    st.lists(st.tuples(st.integers(1, 2), st.sampled_from(WorkloadClass)), max_size=2),
)
def test_all_that_is_owed_fits_beside_what_nobody_may_take(
    away: list[tuple[int, int]], running: list[tuple[int, WorkloadClass]]
) -> None:
    state = a_pool(nodes={"n0": 4})
    for number, (least, priority) in enumerate(away):
        state = crashed(state, f"a{number}", least, least, priority)
    fixed = 0
    for number, (least, kind) in enumerate(running):
        gang = tuple(state.free_slots())[:2]
        state = with_job(state, a_job(f"r{number}", workload_class=kind, workers_min=least), gang)
        fixed += {WorkloadClass.PREEMPTIBLE: 0, SEMI: least, WorkloadClass.NON_PREEMPTIBLE: 2}[kind]
    owed: Mapping[JobName, int] = minima_owed(state)
    left = 4 - fixed - sum(owed.values())
    assert left >= 0
    for number, (least, _) in enumerate(away):
        assert JobName(f"a{number}") in owed or least > left, "and nobody is passed over for whom there is room"


def test_of_two_that_do_not_both_fit_the_one_of_higher_priority_is_served() -> None:
    state = crashed(crashed(a_pool(), "a", 2, 2), "b", 2, 2, priority=1)
    assert minima_owed(state) == {"b": 2}


def test_what_a_quota_forbids_is_in_nobodys_way() -> None:
    """A minimum of two beyond a quota of one was counted first, and the other had none: seed 1089 of the storms."""
    state = crashed(crashed(a_pool(), "a", 2, 2, priority=1), "b", 2, 2)
    state = replace(state, jobs={name: _of_team(job, str(name)) for name, job in state.jobs.items()})
    one = (Team("a", quota=1), Team("b"))
    assert minima_owed(state) == {"a": 2}
    assert minima_owed(state, Shares(one, state.jobs)) == {"b": 2}


def test_two_minima_of_a_team_fit_its_quota_together() -> None:
    state = crashed(crashed(a_pool(nodes={"n0": 4}), "a", 2, 2, priority=1), "b", 2, 2)
    state = replace(state, jobs={name: _of_team(job, "both") for name, job in state.jobs.items()})
    assert minima_owed(state, Shares((Team("both", quota=3),), state.jobs)) == {"a": 2}
    assert minima_owed(state, Shares((Team("both", quota=4),), state.jobs)) == {"a": 2, "b": 2}


def _of_team(job: JobRecord, team: str) -> JobRecord:
    return replace(job, spec=replace(job.spec, team=team))


def test_slots_of_replicas_that_stay_and_of_strangers_cannot_come_to_it() -> None:
    """Else what is free would idle for as long as the other endpoint has demand, while requests are held."""
    state = crashed(a_pool(), "train", 2, 2)
    ready = fold(state, GrantSeat(SEAT0, (S1,), "r"), SeatLanded(SEAT0, "a"), SeatReady(SEAT0, ()))
    assert minima_owed(ready) == {"train": 2}, "2 others are left"
    unfenced = fold(ready, SlotUnfenced(S2))
    assert minima_owed(unfenced) == {"train": 2}
    foreign = fold(unfenced, SlotForeign(S2, "somebody"))
    assert minima_owed(foreign) == {}
    assert minima_owed(fold(foreign, DrainSeat(SEAT0, "r"))) == {"train": 2}, "its replica goes"


def test_what_is_kept_does_not_part_the_slots_of_a_node_that_a_replica_needs_together() -> None:
    state = crashed(a_pool(nodes={"n0": 1, "n1": 2, "n2": 1}), "train", 1, 1)
    assert reserve_minima(state, state.free_slots(), minima_owed(state)) == {"n0:0"}
    held = with_job(state, a_job("other", workload_class=SEMI), slots(1))
    assert reserve_minima(held, held.free_slots(), minima_owed(held)) == {"n2:0"}
    coming = with_job(held, a_job("third"), slots(2, "n1")[1:])  # preemptible: n1 can come to have both
    assert reserve_minima(coming, coming.free_slots(), minima_owed(coming)) == {"n2:0"}


def test_what_a_parked_job_waits_for_is_kept_only_if_nothing_else_is_there() -> None:
    state = with_job(crashed(a_pool(), "train", 1, 1), a_job("other"), (S0,))
    parked = fold(state, ParkJob(JobName("other"), "r"), SlotFreed(S0), JobParked(JobName("other"), 1))
    assert reserve_minima(parked, parked.free_slots(), minima_owed(parked)) == {S1}
    assert reserve_minima(parked, (S0,), minima_owed(parked)) == {S0}


def test_a_minimum_that_is_owed_goes_before_the_reserve_and_before_what_is_kept_for_parked_jobs() -> None:
    """It did so only while replicas waited for slots: else it waited, and a job before it grew into them."""
    state = crashed(a_pool(), "train", 2, 2)
    back = fold(state, JobRecovered(JobName("train")))
    reserve = replace(CONFIG, reserve=2)
    [grant] = look(back, config=reserve).moves
    assert isinstance(grant, GrantJob) and len(grant.slots) == 2
    first = fold(a_pool(), JobSubmitted(a_job("train", workload_class=SEMI, workers_min=2), "i"))
    assert look(first, config=reserve).moves == (), "one that has never run has no minimum to come back to"
    taken = parked(with_job(back, a_job("other"), (S0, S1)), JobName("other"))
    busy = signals(inflight=1, last_arrival_s=NOW)
    [grant] = look(with_ready(taken, SEAT0, (S1,)), traffic=busy).moves
    assert isinstance(grant, GrantJob) and grant.slots == (S2, S0), "what nobody waits for first"


@pytest.mark.proves("jobs leave a minimum that is owed")
def test_a_job_that_was_stopped_to_grow_keeps_its_minimum_from_one_before_it_in_turn() -> None:
    """The storms found it: one of more priority took all that was free, and the other waited for minutes."""
    state = with_job(a_pool(), a_job("train", workload_class=SEMI), (S0,))
    state = fold(state, StopJob(JobName("train"), "r", preempts=False), SlotFreed(S0))
    before = fold(state, JobSubmitted(a_job("more", priority=5), "i"))
    [grant] = look(before).moves
    assert isinstance(grant, GrantJob) and grant.job == "more" and len(grant.slots) == 2
    large = look(fold(state, JobSubmitted(a_job("large", priority=5, workers_min=3), "i")))
    assert large.moves == ()
    assert "1 left to train, which may not lose all" in dict(large.waits)[JobName("large")]


@pytest.mark.proves("a quota holds for a minimum that is owed")
def test_a_minimum_that_is_owed_is_no_more_than_a_quota() -> None:
    """Also while replicas wait for slots; and nothing is kept for it meanwhile, which they could use."""
    state = fold(crashed(a_pool(), "train", 1, 1), JobRecovered(JobName("train")))
    state = with_job(state, a_job("other", workload_class=WorkloadClass.NON_PREEMPTIBLE), (S0, S1))
    short = signals(held=50, last_arrival_s=NOW)
    config = replace(CONFIG, teams=(Team("t", 0, quota=2),))
    assert [move.kind for move in look(state, traffic=short).moves] == ["grant_job"]
    found = look(state, traffic=short, config=config)
    assert kinds(found) == ["GrantSeat"]
    assert "its quota is 2" in dict(found.waits)[JobName("train")]


def test_of_two_minima_the_one_that_can_be_met_now_is_left_its_slot_and_gets_it() -> None:
    """The first one is still backing off after a crash; a third one, before the second in turn, took the slot."""
    state = with_job(a_pool(), a_job("first", workload_class=SEMI, priority=2), (S0,))
    crash = (JobCrashed(JobName("first"), "w", 0), SlotFreed(S0), JobRecovered(JobName("first")))
    state = fold(state, *crash, at_s=NOW - 0.1)
    state = with_ready(with_ready(state, SEAT0, (S0,)), SeatId("chat/1"), (S1,))
    state = with_job(state, a_job("second", workload_class=SEMI), (S2,))
    state = fold(
        state, StopJob(JobName("second"), "r", preempts=False), SlotFreed(S2), JobStopped(JobName("second"), 1)
    )
    state = fold(state, JobSubmitted(a_job("third", priority=1), "i"))
    busy = signals(inflight=8, last_arrival_s=NOW)
    [grant] = look(state, traffic=busy).moves
    assert isinstance(grant, GrantJob) and grant.job == "second"


def test_one_that_grows_at_its_bound_does_not_lose_its_slots_by_that() -> None:
    """It was preempted as often as it may be, then stopped to take two more: a surge leaves it its minimum."""
    state = a_pool(nodes={"n0": 4}, endpoints=(an_endpoint(replicas_max=4),))
    state = with_job(state, a_job(workers_min=2, workers_max=4, max_preemptions_per_h=1), slots(2), at_s=NOW - 3000.0)
    state = parked(state, at_s=NOW - 2000.0)
    state = fold(state, ResumeJob(TRAIN, "r"), JobRunning(TRAIN, 4), at_s=NOW - 1990.0)
    grows = fold(state, StopJob(TRAIN, "r", preempts=False), *(SlotFreed(s) for s in slots(2)), at_s=NOW - 2.0)
    grows = fold(grows, JobStopped(TRAIN, 5), at_s=NOW - 1.0)
    moves = look(grows, traffic=signals(held=16, last_arrival_s=NOW), for_s=5.0).moves
    assert sum(isinstance(move, GrantSeat) for move in moves) == 1, "one at a time on a node"
    [job] = [move for move in moves if isinstance(move, GrantJob)]
    assert job.job == TRAIN and len(job.slots) == 2
    assert minima_owed(grows) == {TRAIN: 2}
    again = replace(grows, jobs={TRAIN: replace(grows.jobs[TRAIN], preempted_s=())})
    assert minima_owed(again) == {}, "one that may still be preempted waits its turn"
