"""Minima that replicas leave to restarting jobs: kept where they can be met, and only there."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from ebbtide.pool.events import GrantJob, JobCrashed, JobRunning, JobSubmitted, NodeDraining, SlotFreed
from ebbtide.pool.ids import JobName, NodeId
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.owed import minima_owed
from tests.autoscaler.closed_loop import a_job
from tests.autoscaler.test_policy import HELD, S0, S1, a_pool, fold, kinds, look, slots, with_job

SEMI = WorkloadClass.SEMI_PREEMPTIBLE


def crashed(state: PoolState, name: str, workers_min: int, count: int, priority: int = 0) -> PoolState:
    """One that ran on the first ``count`` slots and is on its way back."""
    spec = a_job(name, workload_class=SEMI, workers_min=workers_min, workers_max=4, priority=priority)
    gang = tuple(state.free_slots())[:count]
    state = fold(state, JobSubmitted(spec, "i"), GrantJob(spec.name, gang, "r"), JobRunning(spec.name, 1))
    return fold(state, JobCrashed(spec.name, "w", 0), *(SlotFreed(slot) for slot in gang))


def test_the_rest_of_a_minimum_that_cannot_be_met_is_not_kept_from_replicas() -> None:
    """Two jobs that may not lose their 2 workers on 3 slots: the third slot would idle while requests wait."""
    state = crashed(a_pool(), "train", 2, 2)
    assert minima_owed(state) == {"train": 2}
    state = with_job(state, a_job("other", workload_class=SEMI, workers_min=2), (S0, S1))
    assert minima_owed(state) == {}
    assert kinds(look(state, traffic=HELD)) == ["GrantSeat"]


def test_slots_that_a_running_job_lets_go_can_come_to_it() -> None:
    state = crashed(a_pool(), "train", 2, 2)
    for kind, least, kept in ((WorkloadClass.PREEMPTIBLE, 2, 2), (SEMI, 1, 2), (WorkloadClass.NON_PREEMPTIBLE, 1, 0)):
        running = with_job(state, a_job("other", workload_class=kind, workers_min=least), (S0, S1))
        assert sum(minima_owed(running).values()) == kept, kind


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
