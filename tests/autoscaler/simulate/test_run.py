"""Whole runs: nobody beats the bound, equal seeds give equal runs, and our policy does what it is for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide_autoscaler.signals import PolicyConfig
from ebbtide_autoscaler.simulate.contenders import CONTENDERS
from ebbtide_autoscaler.simulate.draws import Job
from ebbtide_autoscaler.simulate.meter import Use
from ebbtide_autoscaler.simulate.oracle import training_bound_s
from ebbtide_autoscaler.simulate.run import Outcome, Run, Scene
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


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.0, 4.0), st.integers(1, 12), st.integers(1, 4))
def test_nobody_beats_the_bound(seed: int, high: float, count: int, workers: int) -> None:
    scene = scene_of(tide(2, 0.0, high, seed), jobs_of(count, every_s=300.0, workers=workers, hours=0.7), seed=seed)
    for name in CONTENDERS:
        found = played(scene, name)
        assert not found.refused, name
        served_s = found.busy_s
        asked_s = float(scene.services[0].load.work_s.sum())
        behind_s = (asked_s - served_s) / 0.65  # who leaves requests waiting has their slots for training
        assert found.slot_s[Use.TRAINING] <= training_bound_s(scene) + behind_s + 1e-6, name
