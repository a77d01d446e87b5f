"""What luck may make of a run: all of what foresight lacks in ten minutes, and next to nothing in a week."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide_simulator.model.failures import Failure, failures
from ebbtide_simulator.policies.contenders import ALL_SERVING, ALL_TRAINING, ORACLE, OURS
from ebbtide_simulator.policies.contradictions import AS_WELL, GANGS, SERVES, contradictions
from ebbtide_simulator.run.bound import training_bound_s
from ebbtide_simulator.run.luck import luck
from ebbtide_simulator.run.run import Scene
from ebbtide_simulator.run.score import figures
from ebbtide_simulator.traffic.draws import Job, Load
from tests.autoscaler.simulator.small_scenes import ENGINE, jobs_of, load_of, scene_of, tide
from tests.builders.simulate import played

TEN_MIN_S, WEEK_S, DAY_S = 600, 7 * 86_400, 86_400


def short(seed: int) -> Scene:
    """Ten minutes that are scored, each with another demand, and gangs of several sizes that come amid them."""
    random = np.random.default_rng(seed)
    busy = np.repeat(random.choice([0.2, 1.0, 2.5], 20), 60)
    come_s, gangs = np.sort(random.uniform(0, 1200, 16)), random.choice([1, 2, 4, 7], 16)
    jobs = tuple(Job(float(at_s), int(n), int(n), 900.0 * int(n)) for at_s, n in zip(come_s, gangs, strict=True))
    return replace(scene_of(load_of(random.gamma(20.0, busy / 20.0)), jobs, seed=seed), warm_up_s=float(TEN_MIN_S))


def shown(scene: Scene, name: str) -> dict[str, Any]:
    return figures(scene, played(scene, name)) | {"bound_gpu_s": training_bound_s(scene), "luck": luck(scene)}


def of(trained_s: float, done_s: float, serves: float = 1.0, **more: float) -> dict[str, Any]:
    """Figures of a run, with what luck may make of it."""
    nothing = {"start_gpu_s": 0.0, "failures_gpu_s": 0.0, "requests_share": 0.0, "failures_share": 0.0}
    known = {"goodput_gpu_s": trained_s, "work_done_gpu_s": done_s, "slo_attainment": serves, "bound_gpu_s": 1e12}
    return known | {"luck": nothing | more}


def told(mine: dict[str, Any], foreseen: dict[str, Any]) -> bool:
    return bool(contradictions({OURS: {0: mine}, ORACLE: {0: foreseen}}, ORACLE))


def test_a_gang_that_happens_to_fit_in_ten_minutes_is_no_contradiction() -> None:
    scene = short(262)
    runs = {name: {262: shown(scene, name)} for name in ("static-p95", ORACLE)}
    assert contradictions(runs, ORACLE) == []
    sharp = {name: {262: {**one[262], "luck": of(0.0, 0.0)["luck"]}} for name, one in runs.items()}
    assert contradictions(sharp, ORACLE), "the test needs a scene in which one per cent is less than one start"


@pytest.mark.parametrize("seed", range(3))
def test_foresight_that_is_broken_is_still_found_in_ten_minutes(seed: int) -> None:
    """It only serves: what is then trained more than by it is more than luck."""
    scene = short(seed)
    [found] = contradictions({OURS: {0: shown(scene, OURS)}, ORACLE: {0: shown(scene, ALL_SERVING)}}, ORACLE)
    assert found.startswith("ebbtide, seed 0: ") and "with perfect foresight it is" in found


@given(st.floats(0.0, 1e8), st.floats(0.0, 1e5), st.floats(0.0, 1e6))
def test_beyond_a_start_and_a_hundredth_or_the_failures_it_is_told(
    foreseen_s: float, start_s: float, fail_s: float
) -> None:
    open_s = max(GANGS * foreseen_s, fail_s) + start_s
    allowed = {"start_gpu_s": start_s, "failures_gpu_s": fail_s}
    other = of(foreseen_s, foreseen_s)
    for more_s, tells in ((0.99 * open_s - 1e-3, False), (1.01 * open_s + 1e-3, True)):
        assert told(of(foreseen_s + more_s, foreseen_s + more_s, **allowed), other) == tells


def test_what_is_done_in_the_warm_up_is_not_compared() -> None:
    assert not told(of(100.0, 500.0), of(100.0, 300.0))
    assert not told(of(150.0, 200.0), of(100.0, 200.0)), "work that was left for later"
    assert told(of(150.0, 250.0), of(100.0, 200.0))


def test_one_request_of_a_few_is_luck_and_so_is_whom_a_failure_strikes() -> None:
    assert not told(of(1.0, 1.0, 1.0, requests_share=0.04), of(1.0, 1.0, 0.97))
    assert not told(of(1.0, 1.0, 1.0, failures_share=0.04), of(1.0, 1.0, 0.97))
    assert told(of(1.0, 1.0, 1.0, requests_share=0.02), of(1.0, 1.0, 0.97))
    assert told(of(1.0, 1.0, 1.0, failures_share=0.02), of(1.0, 1.0, 0.97))


@pytest.mark.parametrize(("slo_s", "more"), [(30.0, 1.02), (60.0, 1.05)])
def test_what_may_wait_at_the_end_need_not_be_served_by_then(slo_s: float, more: float) -> None:
    """A little more than the only replica takes, for so short a time that all of it is in time, and some is undone."""
    work_s = np.concatenate([np.full(1200, 0.3), np.full(1200, more * ENGINE.full)])
    scene = scene_of(load_of(work_s), jobs_of(8, every_s=0.0, workers=1, hours=4.0), nodes=1, per_node=8)
    [one] = scene.services
    services = (replace(one, spec=replace(one.spec, ttft_slo_s=slo_s)),)
    scene = replace(scene, tick_s=5.0, warm_up_s=1200.0, services=services)
    found = shown(scene, ALL_TRAINING)
    assert found["slo_attainment"] > SERVES
    assert found["goodput_gpu_s"] > 1200.0 * (scene.slots - more), "the test needs a scene that leaves some undone"
    assert contradictions({ALL_TRAINING: {0: found}}, None) == []
    assert found["bound_gpu_s"] <= 1200.0 * (scene.slots - more) + (slo_s + 1.0) * more


def test_what_a_start_makes_is_of_the_largest_gang() -> None:
    scene = replace(scene_of(tide(0.5, 0.3, 2.0), (Job(0.0, 2, 6, 1e4), Job(0.0, 1, 1, 1e4))), tick_s=5.0)
    found = luck(scene)
    assert found["start_gpu_s"] == 6 * (scene.times.gang_start_s + 2 * 5.0)
    assert found["requests_share"] == pytest.approx(1.0 / scene.services[0].load.requests.sum())
    assert (found["failures_gpu_s"], found["failures_share"]) == (0.0, 0.0)
    assert luck(replace(scene, jobs=()))["start_gpu_s"] == 0.0


def test_failures_count_where_they_are_scored_and_by_the_root_of_their_number() -> None:
    fail = tuple(Failure(at_s, 0, 60.0) for at_s in (10.0, 700.0, 800.0, 900.0, 1000.0))
    scene = replace(scene_of(tide(0.5, 0.3, 2.0), (Job(0.0, 2, 6, 1e4),)), warm_up_s=600.0, failures=fail)
    four, one = luck(scene), luck(replace(scene, failures=fail[:2]))
    assert one["failures_gpu_s"] == 6 * (scene.times.saves.every_s + scene.times.gang_start_s)
    assert four["failures_gpu_s"] == 2 * one["failures_gpu_s"]
    assert four["failures_share"] == pytest.approx(min(1.0, 2 * one["failures_share"])) and one["failures_share"] > 0.0


@pytest.mark.parametrize(
    ("nodes", "gang", "every_s"), [(8, 16, 1800.0), (64, 64, 1800.0), (1024, 1024, 300.0)], ids=["64", "512", "8192"]
)
def test_over_a_week_with_the_usual_failures_the_check_stays_as_sharp_as_it_was(
    nodes: int, gang: int, every_s: float
) -> None:
    """Of pools as `configs` have them, half of which trains."""
    work_s = np.full(WEEK_S, 0.4 * nodes * 8 * ENGINE.full)
    load = Load(work_s, work_s / ENGINE.work_s(100, 50), 100.0, 50.0)
    scene = scene_of(load, jobs_of(1, every_s=0.0, workers=gang, hours=1.0), nodes=nodes, per_node=8)
    saves = replace(scene.times.saves, every_s=every_s)
    scene = replace(scene, warm_up_s=float(DAY_S), tick_s=5.0, times=replace(scene.times, saves=saves))
    fail = failures(
        nodes, 8, gpu_hours_each=10_000.0, storm=True, repair_s=3600.0, scored_s=(DAY_S, WEEK_S), seed=nodes
    )
    found, half_s = luck(replace(scene, failures=fail)), 0.5 * scene.slots * (WEEK_S - DAY_S)
    assert fail
    assert found["failures_gpu_s"] < GANGS * half_s and found["failures_share"] < AS_WELL
    assert found["start_gpu_s"] < 0.01 * GANGS * half_s and found["requests_share"] < 1e-6
