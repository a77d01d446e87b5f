"""Whole runs: nobody beats the bound, equal seeds give equal runs, and our policy does what it is for."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.plan.inputs import PolicyConfig, Snapshot
from ebbtide_simulator.model.meter import Use
from ebbtide_simulator.model.warm_start import Standing
from ebbtide_simulator.policies.contenders import CONTENDERS
from ebbtide_simulator.run.bound import training_bound_s
from ebbtide_simulator.run.run import BEGINS_S, Run, Scene, job_spec
from ebbtide_simulator.run.score import figures
from ebbtide_simulator.traffic.draws import Job
from tests.autoscaler.simulator.small_scenes import ENGINE, HOUR_S, jobs_of, load_of, scene_of, tide
from tests.builders.simulate import played
from tests.examples import examples


def test_every_slot_second_is_used_for_one_thing() -> None:
    found = played(scene_of(tide(4, 0.3, 3.0), jobs_of(6, every_s=600.0, workers=2, hours=1.0)), "ebbtide")
    assert sum(found.slot_s.values()) == pytest.approx(8 * 4 * HOUR_S)
    assert not found.refused


def test_a_job_alone_does_exactly_its_work() -> None:
    scene = scene_of(load_of(np.zeros(3 * HOUR_S)), (Job(0.0, 4, 4, 4.0 * HOUR_S),))
    found = played(scene, "ebbtide")
    assert found.slot_s[Use.TRAINING] == pytest.approx(4.0 * HOUR_S)
    [one] = found.training.values()
    assert one.end_s is not None and one.left_s == 0.0


@pytest.mark.parametrize("before_s", [7.0, 30.0, 59.0])
def test_a_job_that_ends_after_the_last_tick_has_ended(before_s: float) -> None:
    work_s = HOUR_S - 60.0 - before_s  # it begins to train after a minute
    scene = replace(scene_of(load_of(np.zeros(HOUR_S)), (Job(0.0, 1, 1, work_s),)), tick_s=60.0)
    found = played(scene, "ebbtide")
    [one] = found.training.values()
    assert one.end_s == pytest.approx(BEGINS_S + HOUR_S - before_s)
    assert found.slot_s[Use.TRAINING] == pytest.approx(work_s)


@given(st.lists(st.tuples(st.floats(0.0, 1000.0), st.integers(1, 4), st.floats(1.0, 500.0)), min_size=1, max_size=6))
def test_the_bound_has_room_for_every_job_of_an_empty_pool(jobs: list[tuple[float, int, float]]) -> None:
    alone = tuple(Job(at_s, workers, workers, took_s * workers) for at_s, workers, took_s in sorted(jobs))
    scene = scene_of(load_of(np.zeros(HOUR_S)), alone, nodes=8)
    assert training_bound_s(scene) >= sum(job.work_s for job in alone) - 1e-6


def test_the_bound_has_the_seconds_that_are_no_whole_minute() -> None:
    jobs = tuple(Job(0.0, 1, 1, 1e6) for _ in range(64))
    scene = replace(scene_of(load_of(np.full(658, 0.6)), jobs, nodes=16), tick_s=5.0, warm_up_s=329.0)
    assert played(scene, "ebbtide").slot_s[Use.TRAINING] <= training_bound_s(scene)


def test_what_is_preempted_does_its_work_once() -> None:
    found = played(scene_of(tide(6, 0.1, 4.5), jobs_of(4, every_s=0.0, workers=2, hours=1.5)), "ebbtide")
    preempted = sum(one.preempted for one in found.training.values())
    assert preempted > 0
    done_s = sum(one.work_s - one.left_s for one in found.training.values())
    to_safe_points_s = 1.0 * 2 * preempted  # in which they train, and are counted as leaving
    assert found.slot_s[Use.TRAINING] == pytest.approx(done_s, abs=to_safe_points_s)
    assert found.slot_s[Use.TRAINING] <= done_s + 1e-6


def test_equal_seeds_give_equal_runs() -> None:
    scene = scene_of(tide(3, 0.3, 3.0), jobs_of(6, every_s=600.0, workers=2, hours=1.0))
    assert figures(scene, played(scene, "ebbtide")) == figures(scene, played(scene, "ebbtide"))


def test_lending_trains_more_than_a_partition_and_is_as_good_to_users() -> None:
    scene = scene_of(tide(8, 0.3, 3.0), jobs_of(40, every_s=60.0, workers=1, hours=2.0))
    ours, static = played(scene, "ebbtide"), played(scene, "static-p100")
    assert ours.slot_s[Use.TRAINING] > static.slot_s[Use.TRAINING]
    assert figures(scene, static)["slo_attainment"] > 0.99


@settings(max_examples=examples(20), deadline=None)
@given(
    st.sampled_from(sorted(CONTENDERS)),
    st.integers(0, 10_000),
    st.floats(0.0, 4.0),
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(100, 4000),
)
def test_nobody_beats_the_bound(name: str, seed: int, high: float, count: int, workers: int, took_s: int) -> None:
    jobs = jobs_of(count, every_s=300.0, workers=workers, hours=took_s / HOUR_S)
    scene = scene_of(tide(1.5, 0.0, high, seed), jobs, seed=seed)
    found = played(scene, name)
    assert not found.refused
    asked_s = float(scene.services[0].load.work_s.sum())
    behind_s = (asked_s - found.busy_s) / 0.65  # who leaves requests waiting has their slots for training
    assert found.slot_s[Use.TRAINING] <= training_bound_s(scene) + behind_s + 1e-6


@pytest.mark.parametrize("warm_up_s", [299.0, 300.0, 301.0, 750.0])
@pytest.mark.parametrize("singly", [False, True])
def test_what_is_asked_in_the_warm_up_is_not_scored_wherever_that_ends(warm_up_s: float, singly: bool) -> None:
    work_s = np.zeros(1500)
    work_s[: int(warm_up_s)] = 20.0  # more than the pool can do, and nothing afterwards but one request a minute
    work_s[int(warm_up_s) + 300 :: 60] = ENGINE.work_s(100, 50)
    scene = replace(scene_of(load_of(work_s)), tick_s=1.0, warm_up_s=warm_up_s, singly=singly)
    found = played(scene, "ebbtide")
    assert found.requests.sum() == pytest.approx(np.count_nonzero(work_s[int(warm_up_s) :]))
    assert found.requests[0] == 0.0, "five minutes in which nobody asks"


# ---- decisions that follow at once


def asked_at(second: int, *, seconds: int = 600) -> Scene:
    """One request's worth of work at one second; a job that trains on all slots, and no replica, until then."""
    work_s = np.zeros(seconds)
    work_s[second] = 0.05
    one = scene_of(load_of(work_s), (Job(0.0, 8, 8, 1e9),))
    spec = replace(one.services[0].spec, replicas_min=0)
    return replace(one, services=(replace(one.services[0], spec=spec),), tick_s=10.0)


def test_what_a_job_leaves_is_given_away_at_once_where_decisions_are_prompt() -> None:
    """Asked for at 95.0, seen at the next tick; a safe point and a park later the slots are free."""
    starts = {}
    for prompt in (False, True):
        run = Run(replace(asked_at(95), prompt=prompt), decide, PolicyConfig())
        run.to(200.0)
        [seat] = run.pool.state.seats.values()
        starts[prompt] = seat.granted_s - BEGINS_S
        parked_s = run.pool.state.jobs[next(iter(run.pool.state.jobs))].since_s - BEGINS_S
    assert starts[True] == pytest.approx(parked_s) and parked_s < starts[False]
    assert starts[False] % 10 == 0.0, "at a tick"


@pytest.mark.parametrize("prompt", [False, True])
def test_every_decision_is_counted(prompt: bool) -> None:
    taken = list[float]()

    def noting(now_s: float, *rest: Any) -> Any:
        taken.append(now_s)
        return decide(now_s, *rest)

    scene = replace(asked_at(95), prompt=prompt)
    assert Run(scene, noting, PolicyConfig()).outcome().decisions == len(taken)
    assert any((at_s - BEGINS_S) % scene.tick_s for at_s in taken) == prompt


def test_the_next_tick_comes_its_time_after_a_prompt_decision_and_all_time_counts() -> None:
    scene = replace(asked_at(95), prompt=True)
    run = Run(scene, decide, PolicyConfig())
    times: list[float] = []
    tell = run._contender

    def told(now_s: float, *rest: Any) -> Any:
        times.append(now_s - BEGINS_S)
        return tell(now_s, *rest)

    run._contender = told
    found = run.outcome()
    assert max(later - sooner for sooner, later in pairwise(times)) == pytest.approx(10.0)
    assert sum(found.slot_s.values()) == pytest.approx(8 * 600.0)
    assert any(at_s % 1.0 for at_s in times) and not found.refused


def test_a_gang_that_trained_already_has_its_minimum_runtime_behind_it() -> None:
    preempted = {}
    for trained_s in (0.0, 300.0):
        scene = asked_at(15)
        spec = replace(job_spec(0, scene.jobs[0]), min_runtime_s=100.0)
        stands = Standing(gangs={spec.name: 8}, trained_s={spec.name: trained_s})
        run = Run(replace(scene, jobs=(replace(scene.jobs[0], spec=spec),), standing=stands), decide, PolicyConfig())
        run.to(300.0)
        [one] = run.pool.training.values()
        preempted[trained_s] = one.preempted_s[0] - BEGINS_S
        assert one.done_s <= 8 * 300.0, "what it did before is none of its work"
    assert preempted == {0.0: 100.0, 300.0: 20.0}


@pytest.mark.parametrize("tick_s", [15.0, 60.0, 90.0])
def test_the_season_is_known_however_seldom_it_is_looked_at(tick_s: float) -> None:
    seen: list[Snapshot] = []

    def told(now_s: float, snapshot: Snapshot, *rest: Any) -> Any:
        seen.append(snapshot)
        return decide(now_s, snapshot, *rest)

    scene = replace(scene_of(tide(4, 0.3, 3.0)), tick_s=tick_s)
    Run(scene, told, PolicyConfig(forecast_share=0.95)).outcome()
    [found] = seen[-1].outlooks.values()
    assert found.expected and found.surges
