"""Whole runs: nobody beats the bound, equal seeds give equal runs, and our policy does what it is for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide_autoscaler.signals import PolicyConfig
from ebbtide_autoscaler.simulate.contenders import CONTENDERS
from ebbtide_autoscaler.simulate.draws import Job
from ebbtide_autoscaler.simulate.meter import Use
from ebbtide_autoscaler.simulate.oracle import training_bound_s
from ebbtide_autoscaler.simulate.run import BEGINS_S, Outcome, Run, Scene
from ebbtide_autoscaler.simulate.score import figures
from tests.autoscaler.simulate.scenes import HOUR_S, jobs_of, load_of, scene_of, tide


def played(scene: Scene, name: str) -> Outcome:
    """One contender's run."""
    play = CONTENDERS[name](scene, PolicyConfig())
    return Run(play.scene, play.contender, play.config).outcome()


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


@settings(max_examples=20, deadline=None)
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
