"""Who gives slots and who gets them, where a node leaves, a reserve is new or a job is young."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.pool.events import GrantJob, JobLoading, JobRunning, JobSubmitted, NodeDraining, NodeLost, StopJob
from ebbtide.pool.ids import JobName, NodeId, SlotId
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import PoolState
from ebbtide.snapshot.tiers import Tier
from ebbtide.snapshot.tiers.step_aside import StepAside
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.plan.inputs import Memory, Snapshot
from tests.autoscaler.closed_loop import a_job, an_endpoint
from tests.builders.policy import (
    CHAT,
    CONFIG,
    HELD,
    NOW,
    RUNNING3,
    S0,
    S1,
    S2,
    TRAIN,
    a_pool,
    fold,
    look,
    parked,
    signals,
    slots,
    with_job,
)


@pytest.mark.proves(
    "a parked job waits as long as a restart costs",
    "jobs leave the reserve free when they come back with fewer workers",
    "jobs leave the reserve free when they resume",
)
def test_a_parked_job_leaves_the_reserve_free_when_it_comes_back() -> None:
    """It had all three slots before the file asked for a reserve of one."""
    config = replace(CONFIG, reserve=1)
    found = look(parked(RUNNING3), config=config)
    assert found.moves == ()
    assert dict(found.waits)[TRAIN] == "parked: its slots are free, 1 slot is kept free as the reserve"
    (later,) = look(parked(RUNNING3, at_s=NOW - 25.0), config=config).moves
    assert isinstance(later, StopJob) and "goes on with 2 workers" in later.reason


@pytest.mark.proves("a job does not grow while a replica lacks slots", "a job does not grow within its minimum runtime")
def test_a_job_does_not_grow_within_its_minimum_runtime_nor_while_a_replica_lacks_slots() -> None:
    young = with_job(a_pool(), a_job(min_runtime_s=60.0), (S0, S1), at_s=NOW - 30.0)
    assert look(young, for_s=20.0).moves == ()
    n1 = slots(2, "n1")
    state = a_pool(nodes={"n0": 2, "n1": 2}, endpoints=(an_endpoint(slots_per_replica=2),))
    state = with_job(with_job(state, a_job("a", workers_max=1), (S0,)), a_job("b", workers_max=2), n1[:1])
    assert [getattr(move, "job", "") for move in look(state, traffic=HELD, for_s=15.0).moves] == ["a"]


@pytest.mark.proves(
    "jobs leave a draining node",
    "slots of a dead node are of no use to a replica",
    "slots of a draining node are of no use to a replica",
)
def test_slots_of_a_node_that_drains_or_died_are_of_no_use_to_a_replica() -> None:
    n1 = slots(2, "n1")
    state = with_job(a_pool(nodes={"n0": 1, "n1": 2}), a_job("a", workers_max=1, priority=-1), (S0,))
    state = with_job(state, a_job("b", workers_max=2), n1)
    drains = look(fold(state, NodeDraining(NodeId("n0"), "r")), traffic=HELD)
    assert {(type(move).__name__, getattr(move, "job", "")) for move in drains.moves} == {
        ("StopJob", "a"),
        ("ParkJob", "b"),
    }
    dead = look(fold(state, NodeLost(NodeId("n0"))), traffic=HELD)
    assert [getattr(move, "job", "") for move in dead.moves] == ["b"]


@pytest.mark.proves("what a job leaves by a drain is not asked for again")
def test_what_a_job_leaves_by_a_drain_is_not_asked_of_another_job_too() -> None:
    """It is on both nodes: its slot on the other one will do."""
    n1 = slots(2, "n1")
    state = with_job(a_pool(nodes={"n0": 1, "n1": 2}), a_job("a", workers_max=2), (S0, n1[0]))
    state = with_job(state, a_job("b", workers_max=1), n1[1:])
    found = look(fold(state, NodeDraining(NodeId("n0"), "r")), traffic=HELD)
    assert [getattr(move, "job", "") for move in found.moves] == ["a"]


@pytest.mark.proves("a job has one move in a decision")
def test_a_job_that_leaves_a_node_that_drains_is_not_asked_a_second_time() -> None:
    n1 = slots(3, "n1")
    state = with_job(a_pool(nodes={"n0": 1, "n1": 3}), a_job("a", workers_max=2, priority=-1), (S0, n1[0]))
    state = with_job(state, a_job("b", workers_max=2), n1[1:])
    flood = signals(held=12, last_arrival_s=NOW)
    found = look(fold(state, NodeDraining(NodeId("n0"), "r")), traffic=flood)
    assert [getattr(move, "job", "") for move in found.moves] == ["a", "b"]


def test_a_replica_of_several_slots_takes_the_node_that_can_be_had_now_and_nobody_leaves_another_in_vain() -> None:
    """Of two nodes with as little free one has a job at its bound; which of them is called a means nothing."""
    for kept, gives in (("a", "b"), ("b", "a")):
        state = a_pool(nodes={"a": 4, "b": 4}, endpoints=(an_endpoint(slots_per_replica=4),))
        state = with_job(state, a_job("small", workers_max=2), slots(4, kept)[:2])
        state = with_job(state, a_job("bound", workers_max=2, max_preemptions_per_h=0), slots(4, kept)[2:])
        state = with_job(state, a_job("easy", workers_max=4), slots(4, gives))
        (move,) = look(state, traffic=HELD).moves
        assert getattr(move, "job", "") == "easy"
    young = a_job("young", workers_max=4, min_runtime_s=1e6)
    state = a_pool(nodes={"a": 4}, endpoints=(an_endpoint(slots_per_replica=4),))
    state = with_job(state, a_job("small", workers_max=2), slots(4, "a")[:2])
    found = look(with_job(state, young, slots(4, "a")[2:]), traffic=HELD)
    assert found.moves == (), "it would stand aside for nothing"
    assert "4 slots short: job young is within its minimum runtime" in dict(found.waits)["chat"]


Shown = tuple[int, float, float, float | None]  # its slots, when it was submitted, since when it runs, seconds to leave


def leaving(seconds: float) -> StepAside:
    """As the cost model says of a job that parks in place."""
    return StepAside(
        tier=Tier.EVICT_AND_CUDA, fallbacks=(), free_s=seconds, resume_s=seconds, restart_costs_s=20.0, reason="r"
    )


def asked(shown: Sequence[Shown], names: Sequence[str], replicas: int = 1) -> list[int]:
    """Which of these jobs are asked to step aside for so many replicas, in that order."""
    count = sum(one[0] for one in shown)
    state: PoolState = a_pool(
        nodes={"n0": count}, endpoints=(an_endpoint(replicas_min=replicas, replicas_max=replicas),)
    )
    asides, left = {}, list(slots(count))
    for name, (size, submitted_s, since_s, seconds) in zip(names, shown, strict=True):
        gang, left = tuple(left[:size]), left[size:]
        state = fold(state, JobSubmitted(a_job(name, workers_max=size), "i"), at_s=submitted_s)
        state = fold(state, GrantJob(JobName(name), gang, "r"), JobRunning(JobName(name), 1), at_s=since_s)
        if seconds is not None:
            asides[JobName(name)] = leaving(seconds)
    found, _ = decide(NOW, Snapshot(state, {CHAT: HELD}, asides), Memory(), CONFIG)
    return [names.index(getattr(move, "job", "")) for move in found.moves if getattr(move, "job", "")]


@pytest.mark.parametrize(
    ("shown", "first"),
    [
        ([(1, 0.0, 900.0, 30.0), (1, 0.0, 100.0, 2.0)], 1),  # it leaves sooner, though it has run for longer
        ([(4, 0.0, 100.0, 1.0), (1, 0.0, 100.0, 10.0)], 0),  # four slots for a second each are less than one for ten
        ([(4, 0.0, 100.0, 3.0), (1, 0.0, 100.0, 10.0)], 1),
        ([(2, 0.0, 100.0, None), (1, 0.0, 100.0, None)], 1),  # nobody has reckoned: by slots
        ([(1, 0.0, 100.0, 2.0), (1, 0.0, 100.0, None), (1, 0.0, 100.0, 9.0)], 0),
        ([(1, 0.0, 100.0, 9.0), (1, 0.0, 100.0, None), (1, 0.0, 100.0, 9.5), (1, 0.0, 100.0, 2.0)], 3),
        ([(1, 0.0, 100.0, 5.0), (1, 0.0, 300.0, 5.0)], 1),  # as dear: the one that has run for the shortest time
        ([(1, 0.0, 300.0, 5.0), (1, 50.0, 300.0, 5.0), (1, 20.0, 300.0, 5.0)], 1),  # and then the one that came last
    ],
)
def test_of_equal_jobs_the_one_goes_that_costs_the_pool_least(shown: Sequence[Shown], first: int) -> None:
    for names in (["a", "b", "c", "d"], ["d", "c", "b", "a"]):
        assert asked(shown, names[: len(shown)]) == [first]


@pytest.mark.proves("the least important job steps aside first")
def test_cost_comes_after_priority() -> None:
    state = with_job(a_pool(), a_job("cheap", priority=5, workers_max=1), (S0,))
    state = with_job(state, a_job("dear", priority=0, workers_max=2), (S1, S2))
    asides = {JobName("cheap"): leaving(0.1), JobName("dear"): leaving(60.0)}
    found, _ = decide(NOW, Snapshot(state, {CHAT: HELD}, asides), Memory(), CONFIG)
    assert [getattr(move, "job", "") for move in found.moves] == ["dear"]


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3),
            st.sampled_from([1.0, 2.0]),
            st.sampled_from([10.0, 20.0]),
            st.sampled_from([None, 1.0, 8.0]),
        ),
        min_size=2,
        max_size=6,
    ),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
)
def test_other_names_have_the_same_jobs_leave(shown: list[Shown], replicas: int, random: object) -> None:
    # Jobs that came in the same instant would be equal: nothing but their place in the ledger tells them apart.
    shown = [(size, came_s + n / 100, since_s, seconds) for n, (size, came_s, since_s, seconds) in enumerate(shown)]
    names = [f"job-{n}" for n in range(len(shown))]
    others = names.copy()
    random.shuffle(others)  # type: ignore[attr-defined]
    assert asked(shown, names, replicas) == asked(shown, others, replicas)


def test_a_job_that_loads_gives_its_slots_up_after_those_that_train_and_no_step_is_lost() -> None:
    def loads(state: PoolState, name: str, slot: str, **more: object) -> PoolState:
        spec = a_job(name, workers_max=1, **more)
        granted = fold(state, JobSubmitted(spec, "i"), GrantJob(spec.name, (SlotId(slot),), "r"), at_s=NOW - 60.0)
        return fold(granted, JobLoading(spec.name), at_s=NOW - 40.0)

    alone = loads(a_pool(nodes={"n0": 1}), "a", S0)
    (stop,) = look(alone, traffic=HELD, for_s=15.0).moves
    assert isinstance(stop, StopJob) and stop.preempts and "before it trains" in stop.reason
    both = with_job(loads(a_pool(nodes={"n0": 2}), "a", S0), a_job("b", workers_max=1), (S1,))
    assert [getattr(move, "job", "") for move in look(both, traffic=HELD, for_s=15.0).moves] == ["b"]
    less = with_job(loads(a_pool(nodes={"n0": 2}), "a", S0, priority=-1), a_job("b", workers_max=1), (S1,))
    assert [getattr(move, "job", "") for move in look(less, traffic=HELD, for_s=15.0).moves] == ["a"]
    never = loads(a_pool(nodes={"n0": 1}), "a", S0, workload_class=WorkloadClass.NON_PREEMPTIBLE)
    assert look(never, traffic=HELD, for_s=15.0).moves == ()
    starts = fold(
        a_pool(nodes={"n0": 1}),
        JobSubmitted(a_job("a", workers_max=1), "i"),
        GrantJob(JobName("a"), (S0,), "r"),
        at_s=NOW - 60.0,
    )
    assert look(starts, traffic=HELD, for_s=15.0).moves == (), "its ranks were not heard yet"
