"""What teams do instead: in which order jobs go, and how many replicas there are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.pool.events import ParkJob, StopJob
from ebbtide.pool.ids import EndpointName, JobName
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.decide.policy import Reclaim
from ebbtide_autoscaler.core.plan.free_slots import FreeSlots
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals, PolicyConfig, Snapshot
from ebbtide_autoscaler.core.plan.plan import Plan
from ebbtide_simulator.policies.rivals import (
    DAY_S,
    SLICE_S,
    Schedule,
    Servers,
    newest_first,
    preemption_cost,
    whole_servers,
)
from tests.autoscaler.closed_loop import a_job
from tests.builders.policy import a_pool, fold, slots, with_job

CHAT = EndpointName("chat")
SLICES = int(DAY_S // SLICE_S)
CONFIG = PolicyConfig()
HEADROOM = 1.02


def lacking(count: int, state: PoolState) -> Plan:
    """A plan of which replicas lack so many slots, with no slot free."""
    plan = Plan(5000.0, state, CONFIG, free=FreeSlots(0.0, a_pool(), {*a_pool().free_slots()}))
    plan.shortfall.endpoint, plan.shortfall.why = CHAT, "why"
    plan.shortfall.lack(count)
    return plan


def asking(requests: float) -> Snapshot:
    return Snapshot(a_pool(), {CHAT: EndpointSignals(arriving_per_s=requests, stay_s=1.0, known=True)})


def test_the_newest_goes_first() -> None:
    state = a_pool(nodes={"n0": 3})
    for number, slot in enumerate(slots(3)):
        state = with_job(state, a_job(f"j{number}", workers_max=1), (slot,), at_s=1000.0 + number)
    plan = lacking(2, state)
    newest_first(plan)
    assert [getattr(move, "job", "") for move in plan.moves] == ["j2", "j1"]


def test_nobody_goes_for_slots_that_are_on_their_way() -> None:
    state = a_pool(nodes={"n0": 4})
    for number in range(2):
        gang = slots(4)[2 * number : 2 * number + 2]
        state = with_job(state, a_job(f"j{number}", workers_max=2), gang, at_s=1000.0 + number)
    leaving = fold(state, ParkJob(JobName("j1"), "r"), at_s=4999.0)
    for reclaim in (newest_first, whole_servers):
        plan = lacking(2, leaving)
        reclaim(plan)
        assert plan.moves == []
        plan = lacking(3, leaving)
        reclaim(plan)
        assert [getattr(move, "job", "") for move in plan.moves] == ["j0"]


def test_nobody_goes_where_nothing_is_missing() -> None:
    state = with_job(a_pool(), a_job("j0", workers_max=3), slots(3))
    for reclaim in (newest_first, whole_servers):
        plan = lacking(0, state)
        reclaim(plan)
        assert plan.moves == []


def test_all_jobs_of_a_server_go_though_one_would_do() -> None:
    state = with_job(a_pool(nodes={"n0": 2, "n1": 3}), a_job("wide", workers_min=3, workers_max=3), slots(3, "n1"))
    for number, slot in enumerate(slots(2, "n0")):
        state = with_job(state, a_job(f"small{number}", workers_max=1), (slot,))
    plan = lacking(1, state)
    whole_servers(plan)
    assert [getattr(move, "job", "") for move in plan.moves] == ["small0", "small1"]


def test_the_server_whose_jobs_have_the_fewest_gpus_comes_back_first_and_all_of_it() -> None:
    n1 = slots(2, "n1")
    state = with_job(a_pool(nodes={"n0": 2, "n1": 2}), a_job("both", workers_min=2, workers_max=2), slots(2))
    state = with_job(state, a_job("a", workers_max=1), n1[:1])
    plan = lacking(1, state)
    whole_servers(plan)
    assert [getattr(move, "job", "") for move in plan.moves] == ["a"]
    plan = lacking(2, state)
    whole_servers(plan)
    assert [getattr(move, "job", "") for move in plan.moves] == ["a", "both"]


def test_elastic_jobs_shrink_first_those_with_the_most_to_spare() -> None:
    """A rigid job of one GPU would cost least; but who shrinks goes on."""
    state = with_job(a_pool(nodes={"n0": 7}), a_job("rigid", workers_min=1, workers_max=1), slots(7)[:1])
    state = with_job(state, a_job("some", workers_min=2, workers_max=4), slots(7)[1:4])
    state = with_job(state, a_job("most", workers_min=1, workers_max=3), slots(7)[4:])
    plan = lacking(2, state)
    whole_servers(plan)
    [move] = plan.moves
    assert isinstance(move, StopJob) and (move.job, move.preempts) == ("most", True)
    assert "goes on with 1 worker" in move.reason
    plan = lacking(3, state)
    whole_servers(plan)
    assert [getattr(move, "job", "") for move in plan.moves] == ["most", "some"]
    plan = lacking(4, state)
    whole_servers(plan)
    assert [getattr(move, "job", "") for move in plan.moves] == ["most", "some", "rigid"]


def test_a_job_that_leaves_anyway_costs_its_other_servers_nothing() -> None:
    state = a_pool(nodes={"n0": 4, "n1": 4, "n2": 2})
    state = with_job(state, a_job("wide", workers_min=4, workers_max=4), (*slots(2), *slots(2, "n1")))
    state = with_job(state, a_job("beside", workers_min=1, workers_max=1), slots(4, "n1")[2:3])
    state = with_job(state, a_job("alone", workers_min=2, workers_max=2), slots(2, "n2"))
    for count, who in ((1, ["alone"]), (3, ["alone", "wide"]), (7, ["alone", "wide", "beside"])):
        plan = lacking(count, state)
        whole_servers(plan)
        assert [getattr(move, "job", "") for move in plan.moves] == who
    assert preemption_cost(list(state.jobs.values()), {JobName("wide")}) == 3


@pytest.mark.parametrize("reclaim", [newest_first, whole_servers])
def test_rivals_too_leave_jobs_alone_that_never_step_aside(reclaim: Reclaim) -> None:
    state = a_pool(nodes={"n0": 6})
    fixed = a_job("fixed", workers_max=1, workload_class=WorkloadClass.NON_PREEMPTIBLE)
    semi = a_job("semi", workers_min=1, workers_max=3, workload_class=WorkloadClass.SEMI_PREEMPTIBLE)
    least = a_job("least", workers_min=2, workers_max=3, workload_class=WorkloadClass.SEMI_PREEMPTIBLE)
    for spec, gang in ((fixed, slots(6)[:1]), (semi, slots(6)[1:4]), (least, slots(6)[4:])):
        state = with_job(state, spec, gang)
    plan = lacking(6, state)
    reclaim(plan)
    [move] = plan.moves
    assert isinstance(move, StopJob) and move.job == "semi"


def test_servers_are_whole_and_are_held_for_a_while() -> None:
    servers = Servers({CHAT: (4, 8)}, {CHAT: 64}, 300.0, HEADROOM)
    assert servers(0.0, asking(4.0))[CHAT] == (8, 8)
    assert servers(5.0, asking(50.0))[CHAT] == (16, 16)
    assert servers(10.0, asking(4.0))[CHAT] == (16, 16)
    assert servers(306.0, asking(4.0))[CHAT] == (8, 8)


@given(st.lists(st.tuples(st.floats(1.0, 400.0), st.floats(0.0, 300.0)), min_size=1, max_size=40))
def test_there_are_always_whole_servers_enough_and_no_more_than_there_may_be(steps: list[tuple[float, float]]) -> None:
    servers, now_s, of_server, most = Servers({CHAT: (4, 8)}, {CHAT: 60}, 300.0, HEADROOM), 0.0, 8, 60
    for after_s, requests in steps:
        now_s += after_s
        least, same = servers(now_s, asking(requests))[CHAT]
        assert least == same
        assert least % of_server == 0 or least == most
        assert least >= min(most, requests * HEADROOM / 4)


def test_servers_go_one_after_the_other_each_after_its_time() -> None:
    servers = Servers({CHAT: (4, 8)}, {CHAT: 64}, 300.0, HEADROOM)
    counts = [servers(at, asking(90.0 if at == 0 else 1.0))[CHAT][0] for at in range(0, 1000, 100)]
    assert counts == [24, 24, 24, 16, 16, 16, 8, 8, 8, 8]


def test_what_waits_takes_servers_too() -> None:
    waiting = Snapshot(a_pool(), {CHAT: EndpointSignals(held=2000, arriving_per_s=4.0, stay_s=1.0, known=True)})
    assert Servers({CHAT: (4, 8)}, {CHAT: 64}, 300.0, HEADROOM)(0.0, waiting)[CHAT] == (32, 32)  # 4.08 and 100 at once


def test_a_schedule_goes_by_the_higher_of_two_days_and_a_quarter_of_an_hour_ahead() -> None:
    schedule = Schedule({CHAT: 2}, {CHAT: 100}, 1.1)
    for day, requests in enumerate((20.0, 40.0)):
        for at in range(SLICES):
            schedule(day * DAY_S + at * SLICE_S, asking(requests if at == 40 else 2.0))
    found = {at: schedule(2 * DAY_S + at * SLICE_S, asking(2.0))[CHAT] for at in range(37, 43)}
    assert found == {37: (2, 100), 38: (2, 100), 39: (22, 100), 40: (22, 100), 41: (2, 100), 42: (2, 100)}
    for day in (3, 4):
        for at in range(SLICES):
            schedule(day * DAY_S + at * SLICE_S, asking(0.0))
    assert schedule(5 * DAY_S + 40 * SLICE_S, asking(0.0))[CHAT] == (1, 100), "two quiet days, and it is forgotten"


def test_a_schedule_lends_nothing_on_the_first_day_and_what_the_day_before_left_on_the_second() -> None:
    schedule = Schedule({CHAT: 1}, {CHAT: 50}, 1.1)
    first = [schedule(at, asking(30.0 if at < DAY_S / 2 else 5.0)) for at in range(0, int(DAY_S), int(SLICE_S))]
    assert {found[CHAT] for found in first} == {(50, 50)}
    assert schedule(DAY_S + 1.0, asking(2.0))[CHAT] == (33, 50)  # as yesterday morning, and ten per cent
    assert schedule(1.75 * DAY_S, asking(2.0))[CHAT] == (6, 50)
