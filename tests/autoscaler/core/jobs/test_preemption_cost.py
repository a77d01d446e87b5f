"""The cost model's word in the policy: from reports to how each job would step aside, and what is decided by it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.client.messages import AgentReport, NodeCapabilities
from ebbtide.pool.events import JobHeld, ParkJob, ResumeJob, StopJob
from ebbtide.pool.ids import NodeId
from ebbtide.pool.state import PoolState
from ebbtide.snapshot.tiers import Tier
from ebbtide.snapshot.tiers.step_aside import StepAside
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.jobs.preemption_cost import at_admission, preemption_costs
from ebbtide_autoscaler.core.jobs.preemption_duration import ENOUGH, KEPT, OLD_S, expected_s, with_ended
from ebbtide_autoscaler.core.observe.observation import Observation, Timestamped
from ebbtide_autoscaler.core.plan.inputs import Away, Memory, Snapshot
from tests.autoscaler.closed_loop import a_job
from tests.builders.policy import (
    CHAT,
    CONFIG,
    HELD,
    IDLE,
    NOW,
    RUNNING3,
    S0,
    S1,
    S2,
    TRAIN,
    a_pool,
    fold,
    parked,
    rank,
    with_job,
)

N0 = NodeId("n0")


def seen(
    state: PoolState, means: NodeCapabilities | None = None, uuids: dict[int, str] | None = None, **said: Any
) -> Observation:
    ranks = {(TRAIN, number): Timestamped(NOW, rank(number, world=3, **said)) for number in range(3)}
    agent = Timestamped(NOW, AgentReport(N0, "b", {}, 0.0, uuids or {}, means or NodeCapabilities()))
    return Observation(started_s=0.0, ranks=ranks, agents={N0: agent})


def of(state: PoolState, heard: Observation) -> StepAside:
    return preemption_costs(state, heard, restart_s=20.0)[TRAIN]


def test_what_the_ranks_measured_counts_and_else_what_was_declared() -> None:
    rates = NodeCapabilities(rates=(("memcpy_out", 100.0),))
    assert of(RUNNING3, seen(RUNNING3, rates)).free_s == pytest.approx(30 / 100)  # 3 workers of 10 declared bytes
    assert of(RUNNING3, seen(RUNNING3, rates, tracked_bytes=40)).free_s == pytest.approx(120 / 100)
    assert of(RUNNING3, Observation(started_s=0.0)).parks  # nobody has said a word yet
    other = seen(RUNNING3, rates, tracked_bytes=40, incarnation="another")
    assert of(RUNNING3, other).free_s == pytest.approx(30 / 100)


@pytest.mark.parametrize(
    ("means", "uuids", "said", "why"),
    [
        (NodeCapabilities(), {}, {"in_place_hindered": "a graph is captured"}, "a graph is captured"),
        (NodeCapabilities(host_free_bytes=5), {}, {}, "can be taken on this node"),
        (NodeCapabilities(), {0: "GPU-1", 1: "GPU-2", 2: "GPU-3"}, {}, "no helper is there"),
        (NodeCapabilities(), {}, {"tracked_bytes": 400}, "left of the budget"),
    ],
)
def test_a_job_that_cannot_park_is_stopped_at_once_with_the_reason(
    means: NodeCapabilities, uuids: dict[int, str], said: dict[str, Any], why: str
) -> None:
    for state in (RUNNING3, fold(RUNNING3, JobHeld(TRAIN, "ann", "debugging"))):
        ways = preemption_costs(state, seen(state, means, uuids, **said), restart_s=20.0)
        decision, _ = decide(NOW, Snapshot(state, {CHAT: HELD}, ways), Memory(), CONFIG)
        (move,) = (one for one in decision.moves if getattr(one, "job", "") == TRAIN)
        assert isinstance(move, StopJob) and move.preempts and why in move.reason
    assert why in of(RUNNING3, seen(RUNNING3, means, uuids, **said)).warning


def test_a_park_says_what_it_costs_and_what_comes_next_and_the_ledger_keeps_it() -> None:
    ways = preemption_costs(RUNNING3, seen(RUNNING3), restart_s=20.0)
    decision, _ = decide(NOW, Snapshot(RUNNING3, {CHAT: HELD}, ways), Memory(), CONFIG)
    (move,) = decision.moves
    assert isinstance(move, ParkJob) and move.tiers == ("evict_and_cuda", "stop_and_restart", "kill")
    assert "slots free after" in move.reason and "if it cannot: stop and restart" in move.reason
    assert fold(RUNNING3, move, at_s=NOW).jobs[TRAIN].tiers == move.tiers


def test_what_a_parked_job_has_of_the_budget_is_not_missing_to_it() -> None:
    state = parked(with_job(a_pool(host=30), a_job(), (S0, S1, S2)))
    assert of(state, seen(state)).parks


def test_of_equal_jobs_the_one_that_would_lose_work_is_asked_last() -> None:
    state = with_job(with_job(a_pool(), a_job("a", workers_max=1), (S0,)), a_job("b", workers_max=1), (S1,))
    free = fold(state)
    lost = StepAside(tier=Tier.KILL, fallbacks=(), free_s=7.0, resume_s=1.0, restart_costs_s=1.0, reason="r")
    for victim, other in (("a", "b"), ("b", "a")):
        ways = {job: lost for job in state.jobs if job == other}
        busy = replace(HELD, held=9)
        decision, _ = decide(NOW, Snapshot(free, {CHAT: busy}, ways), Memory(), CONFIG)
        first = next(move for move in decision.moves if isinstance(move, ParkJob | StopJob))
        assert first.job == victim


def test_admission_reckons_with_whole_nodes_whoever_is_parked_there_now() -> None:
    state = parked(with_job(a_pool(host=30), a_job(), (S0, S1, S2)))
    found = at_admission(state, seen(state), a_job("new", workers_min=3), restart_s=20.0)
    assert found is not None and found.parks
    too_large = at_admission(state, seen(state), a_job("new", workers_min=3, host_bytes_per_worker=11), restart_s=20.0)
    assert too_large is not None and "left of the budget" in too_large.warning
    assert at_admission(PoolState(), seen(state), a_job(), restart_s=20.0) is None


# ---- how long preemptions last


def test_a_parked_job_that_is_usually_away_for_long_is_restarted_smaller_at_once() -> None:
    state = fold(parked(with_job(a_pool(), a_job(), (S0, S1)), at_s=NOW - 5.0))
    state = with_job(state, a_job("other", workers_max=1), (S0,))
    for lasted_s, moves in ((100.0, [StopJob]), (10.0, [])):
        away = tuple(Away(NOW - 60.0, lasted_s) for _ in range(ENOUGH))
        for known, expected in ((away, moves), (away[1:], [])):
            decision, _ = decide(NOW, Snapshot(state, {CHAT: IDLE}), Memory(away=known), CONFIG)
            assert [type(one) for one in decision.moves if getattr(one, "job", "") == TRAIN] == expected
            always, _ = decide(NOW, Snapshot(state, {CHAT: IDLE}), Memory(away=known), replace(CONFIG, park_first=True))
            assert not [one for one in always.moves if getattr(one, "job", "") == TRAIN]


def test_a_park_that_ends_is_remembered_and_one_that_a_person_kept_is_not() -> None:
    state = parked(RUNNING3, at_s=NOW - 8.0)
    decision, memory = decide(NOW, Snapshot(state, {CHAT: IDLE}), Memory(), CONFIG)
    assert [type(one) for one in decision.moves] == [ResumeJob] and memory.away == (Away(NOW, 8.0),)
    kept = replace(state, jobs={TRAIN: replace(state.jobs[TRAIN], asked_s=NOW - 1.0)})  # released a second ago
    assert decide(NOW, Snapshot(kept, {CHAT: IDLE}), Memory(), CONFIG)[1].away == ()
    stop = StopJob(TRAIN, "r", preempts=True)
    for worth_s, found in ((8.0, (Away(NOW, 8.0),)), (8.1, ())):  # cut short before it was worth it: says nothing
        assert with_ended((), NOW, state, [stop], {TRAIN: worth_s}) == found
    assert with_ended((), NOW, state, [replace(stop, preempts=False)], {TRAIN: 1.0}) == ()  # its node drains
    assert with_ended((), NOW, RUNNING3, [stop], {TRAIN: 0.0}) == ()


@given(st.lists(st.tuples(st.floats(0.0, 2 * OLD_S), st.floats(0.0, 1e5)), max_size=2 * KEPT))
def test_what_is_expected_lies_within_what_was_seen_within_the_hour(seen_before: list[tuple[float, float]]) -> None:
    away = tuple(Away(NOW - ago_s, lasted_s) for ago_s, lasted_s in seen_before)
    recent = [one.lasted_s for one in away if NOW - one.at_s < OLD_S]
    found = expected_s(away, NOW)
    assert (found is None) == (len(recent) < ENOUGH)
    assert found is None or min(recent) <= found <= max(recent)
    assert len(with_ended(away, NOW, parked(RUNNING3), [ResumeJob(TRAIN, "r")], {})) <= KEPT
