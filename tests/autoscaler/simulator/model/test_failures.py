"""Nodes that fail: drawn alike for all who play, and whoever was there goes back to what is durable."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.pool.rules.promises import check
from ebbtide.pool.transitions import SlotState
from ebbtide_autoscaler.core.plan.inputs import PolicyConfig
from ebbtide_simulator.model.failures import STORM_FROM_S, Failure, failures
from ebbtide_simulator.model.meter import Use
from ebbtide_simulator.policies.contenders import CONTENDERS
from ebbtide_simulator.run.run import BEGINS_S, Outcome, Run, Scene
from ebbtide_simulator.traffic.draws import Job
from tests.autoscaler.simulator.small_scenes import HOUR_S, jobs_of, load_of, scene_of, tide
from tests.examples import examples


def drawn(seed: int, *, nodes: int = 1000, each: float | None = 10_000.0, storm: bool = True) -> tuple[Failure, ...]:
    return failures(
        nodes,
        8,
        gpu_hours_each=each,
        storm=storm,
        repair_s=3600.0,
        scored_s=(STORM_FROM_S, 7 * STORM_FROM_S),
        seed=seed,
    )


def played(scene: Scene, name: str = "ebbtide") -> Outcome:
    play = CONTENDERS[name](scene, PolicyConfig())
    return Run(play.scene, play.contender, play.config).outcome()


def test_there_are_as_many_as_stated() -> None:
    expected = 1000 * 8 * 7 * 24 / 10_000
    counts = [len(drawn(seed, storm=False)) for seed in range(20)]
    assert np.mean(counts) == pytest.approx(expected, rel=0.1)


def test_a_storm_takes_a_hundredth_of_the_nodes_within_five_minutes_of_scored_time() -> None:
    found = drawn(3, each=None)
    assert len({one.node for one in found}) == len(found) == 10
    assert found[-1].at_s - found[0].at_s <= 300.0
    assert found[0].at_s >= STORM_FROM_S and found[-1].at_s <= 7 * STORM_FROM_S


def test_an_hour_has_no_storm() -> None:
    none = failures(8, 8, gpu_hours_each=None, storm=True, repair_s=60.0, scored_s=(0.0, 3600.0), seed=0)
    assert none == ()


@given(st.integers(0, 10**6))
def test_equal_seeds_draw_equal_failures_and_no_node_fails_while_it_is_down(seed: int) -> None:
    found = drawn(seed, nodes=20, each=50.0)
    assert found == drawn(seed, nodes=20, each=50.0)
    back_s: dict[int, float] = {}
    for one in found:
        assert one.at_s >= back_s.get(one.node, 0.0)
        back_s[one.node] = one.at_s + one.repair_s
    assert list(found) == sorted(found, key=lambda one: one.at_s)


def test_a_job_goes_back_to_its_last_checkpoint_and_does_its_work() -> None:
    scene = scene_of(load_of(np.zeros(4 * HOUR_S)), (Job(0.0, 4, 4, 4.0 * HOUR_S),), nodes=2)
    scene = replace(scene, failures=(Failure(60.0 + 2000.0, 1, 600.0),))
    found = played(scene)
    [one] = found.training.values()
    assert len(one.crashed_s) == 1 and one.end_s is not None and one.left_s == 0.0
    saves = scene.times.saves
    assert one.lost_s == pytest.approx((2000.0 - saves.every_s - saves.pause_s) * 4, abs=1e-6)
    assert found.slot_s[Use.LOST] == pytest.approx(one.lost_s)
    assert found.slot_s[Use.TRAINING] == pytest.approx(one.work_s)
    assert found.slot_s[Use.DOWN] == pytest.approx(4 * 600.0)
    assert found.tally.asked_slot_s == 0.0 and not found.refused


def test_replicas_of_a_node_that_failed_are_replaced_elsewhere_and_it_is_used_again() -> None:
    scene = scene_of(load_of(np.full(2 * HOUR_S, 2.0)), nodes=2)
    begun = CONTENDERS["ebbtide"](replace(scene, failures=(Failure(3000.0, 0, 600.0),)), PolicyConfig())
    run = Run(begun.scene, begun.contender, begun.config)
    run.to(2995.0)
    endpoint = scene.services[0].spec.name
    assert run.pool.ready(endpoint) >= 4
    run.to(3005.0)
    before = run.pool.ready(endpoint)
    run.to(3500.0)
    assert run.pool.ready(endpoint) == 4 > before
    assert run.pool.meter.now[Use.DOWN] == 4
    found = run.outcome()
    assert len(run.pool.state.nodes) == 2 and found.slot_s[Use.DOWN] == pytest.approx(4 * 600.0)
    assert sum(found.slot_s.values()) == pytest.approx(8 * 2 * HOUR_S)


@settings(max_examples=examples(25), deadline=None)
@given(
    st.sampled_from(sorted(CONTENDERS)),
    st.lists(st.tuples(st.floats(0.0, 5300.0), st.integers(0, 1), st.floats(0.5, 900.0)), min_size=1, max_size=8),
    st.integers(1, 8),
    st.sampled_from([None, 1e8, 50e9]),
)
def test_whatever_fails_when_every_slot_second_is_used_once_and_no_work_is_forgotten(
    name: str, fails: list[tuple[float, int, float]], workers: int, bytes_per_s: float | None
) -> None:
    jobs = jobs_of(8, every_s=200.0, workers=workers, hours=0.3)
    given_failures = tuple(Failure(*one) for one in sorted(fails))
    scene = scene_of(tide(1.5, 0.0, 3.0), jobs)
    scene = replace(scene, failures=given_failures, bytes_per_s=bytes_per_s)
    play = CONTENDERS[name](scene, PolicyConfig())
    run = Run(play.scene, play.contender, play.config)
    for second in range(0, 5400, 60):
        run.to(second)
        slots = run.pool.state.slots.values()
        assert run.pool.meter.now[Use.DOWN] == sum(one.state is SlotState.LOST for one in slots)
        check(run.pool.state)
    found = run.outcome()
    assert found.double_s == 0.0
    assert sum(found.slot_s.values()) == pytest.approx(8 * 1.5 * HOUR_S)
    for one in found.training.values():
        assert 0.0 <= one.saved_s <= one.done_s + 1e-6 <= one.work_s + 1e-5
        assert one.end_s is None or (one.left_s == 0.0 and one.end_s <= BEGINS_S + 1.5 * HOUR_S)
