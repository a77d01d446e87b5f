"""What must be true of every decision: it can be carried out, nobody waits in silence, names do not matter."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.pool.errors import IllegalTransition
from ebbtide.pool.events import (
    Decision,
    DrainSeat,
    Event,
    GrantJob,
    GrantSeat,
    JobRunning,
    JobSubmitted,
    ParkJob,
    SeatLanded,
    SeatReady,
)
from ebbtide.pool.handlers.apply import apply
from ebbtide.pool.ids import EndpointName, JobName, RecordId, SeatId
from ebbtide.pool.rules.promises import violations
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState, SeatState
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals
from tests.autoscaler.closed_loop import a_job, an_endpoint
from tests.builders.policy import (
    CHAT,
    CONFIG,
    HELD,
    IDLE,
    NOW,
    S0,
    S1,
    S2,
    a_pool,
    fold,
    look,
    parked,
    signals,
    slots,
    with_job,
)
from tests.builders.pools import random_states, traffics
from tests.examples import examples


@settings(max_examples=examples(300), deadline=None, database=None, derandomize=True)
@given(random_states(), traffics(), st.integers(0, 2), st.sampled_from([0.0, 2.0, 30.0]))
def test_every_decision_can_be_carried_out_and_nobody_waits_in_silence(
    state: PoolState, traffic: EndpointSignals, reserve: int, for_s: float
) -> None:
    config = replace(CONFIG, reserve=reserve)
    found = look(state, traffic=traffic, config=config, for_s=for_s)
    after = state
    for number, move in enumerate(found.moves):
        try:
            after = apply(after, Event(RecordId(f"2-{number}"), NOW, None, move))
        except IllegalTransition as error:
            pytest.fail(f"{move}: {error}")
    assert violations(after) == []
    assert len({getattr(move, "job", None) or getattr(move, "seat", None) for move in found.moves}) == len(found.moves)
    moved = {str(getattr(move, "job", "")) for move in found.moves}
    for name, job in state.jobs.items():
        if job.state.value in ("waiting", "parked") and name not in moved:
            assert name in dict(found.waits)
    moved |= {str(getattr(move, "seat", "")) for move in found.moves}
    for slot, record in state.slots.items():
        if record.slot.node not in state.draining or record.occupant is None:
            continue
        mine = str(record.occupant).partition("/")[0]
        ready = record.occupant in state.seats and state.seats[SeatId(str(record.occupant))].state is SeatState.READY
        runs = record.occupant in state.jobs and state.jobs[JobName(str(record.occupant))].state is JobState.RUNNING
        acted = {name.partition("/")[0] for name in [*moved, *dict(found.waits)]}
        assert mine in acted or not (ready or runs), f"{record.occupant} stays on {slot} in silence"
    for move in found.moves:
        assert not isinstance(move, GrantJob) or state.jobs[move.job].not_before_s <= NOW, "it crashed a moment ago"
    if not traffic.known and not state.draining:
        assert not any(isinstance(move, GrantSeat | DrainSeat | ParkJob) for move in found.moves)


@settings(max_examples=examples(100), deadline=None, database=None, derandomize=True)
@given(random_states(), traffics(), st.sampled_from([0.0, 2.0, 30.0]))
def test_deciding_twice_gives_the_same(state: PoolState, traffic: EndpointSignals, for_s: float) -> None:
    assert look(state, traffic=traffic, for_s=for_s) == look(state, traffic=traffic, for_s=for_s)


def renamed(value: object, names: Mapping[str, str]) -> str:
    text = repr(value)
    for old, new in names.items():
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("traffic", [IDLE, HELD, signals(inflight=9, last_arrival_s=NOW)])
def test_other_names_change_nothing_but_names(traffic: EndpointSignals) -> None:
    def story(endpoint: str, job: str) -> list[Decision]:
        state = a_pool(endpoints=(an_endpoint(endpoint),))
        state = with_job(state, a_job(job), (S0, S1, S2))
        seen = {EndpointName(endpoint): traffic}
        long = look(state, traffic=seen, for_s=30.0)
        return [look(state, traffic=seen), look(parked(state, JobName(job)), traffic=seen), long]

    names = {"zz-endpoint": "chat", "aa-job": "train"}
    assert renamed(story("zz-endpoint", "aa-job"), names) == repr(story("chat", "train"))


@settings(max_examples=examples(50), deadline=None, database=None, derandomize=True)
@given(st.permutations(["a", "b", "c", "d"]))
def test_jobs_of_one_tick_have_their_turn_as_they_were_submitted(names: list[str]) -> None:
    """First to run, last to be asked aside; whatever they are called."""
    state = a_pool(nodes={"n0": 3}, endpoints=(an_endpoint("chat"),))
    jobs = [a_job(name, workers_min=1, workers_max=1) for name in names]
    state = fold(state, *(JobSubmitted(job, "1") for job in jobs))
    assert [move.job for move in look(state).moves if isinstance(move, GrantJob)] == names[:3]
    for name, slot in zip(names[:3], slots(3), strict=True):
        state = fold(state, GrantJob(JobName(name), (slot,), "r"), JobRunning(JobName(name), 1))
    assert [move.job for move in look(state, traffic={CHAT: HELD}).moves if isinstance(move, ParkJob)] == [names[2]]


@pytest.mark.parametrize("held", [1, 5, 9, 20])
def test_more_slots_never_leave_more_replicas_wanting(held: int) -> None:
    """Replicas still missing after the pool has done what it can, for pools of 1 to 6 slots."""
    missing = []
    for total in range(1, 7):
        state = a_pool(nodes={"n0": total}, endpoints=(an_endpoint(replicas_max=4),))
        got = 0
        for _ in range(8):
            found = look(state, traffic=signals(held=held, last_arrival_s=NOW), for_s=2.0)
            grants = [move for move in found.moves if isinstance(move, GrantSeat)]
            if not grants:
                break
            state = fold(state, grants[0], SeatLanded(grants[0].seat, "a"), SeatReady(grants[0].seat, ()), at_s=NOW)
            got += 1
        missing.append(min(4, -(-held // 4)) - got)
    assert missing == sorted(missing, reverse=True)
    assert missing[-1] == 0
