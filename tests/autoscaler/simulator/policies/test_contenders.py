"""Everybody who is compared, on one small tide."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from ebbtide.pool.spec import WorkloadClass
from ebbtide_autoscaler.core.plan.inputs import PolicyConfig
from ebbtide_simulator.model.meter import Use
from ebbtide_simulator.played.one_run import Played
from ebbtide_simulator.policies.contenders import CONTENDERS, LYRA, ORACLE, OURS, STATIC, TURNED, knobs_of
from ebbtide_simulator.report.report import Report
from ebbtide_simulator.run.bound import training_bound_s
from ebbtide_simulator.run.mix import Mix, cast
from ebbtide_simulator.run.run import Outcome, Run, Scene
from ebbtide_simulator.run.score import figures
from ebbtide_simulator.traffic.draws import Job
from tests.autoscaler.simulator.small_scenes import ENGINE, HOUR_S, jobs_of, load_of, scene_of, tide
from tests.builders.simulate import played

HOURS = 3


@cache
def scene() -> Scene:
    return scene_of(tide(HOURS, 0.3, 4.0), jobs_of(12, every_s=300.0, workers=2, hours=1.0))


@cache
def outcome(name: str) -> Outcome:
    return played(scene(), name)


def contradictions(of: Scene, *names: str) -> list[str]:
    report = Report({"slots": of.slots, "seeds": 1})
    for name in names:
        found = outcome(name) if of is scene() else played(of, name)
        report.add(name, 0, Played(figures(of, found) | {"bound_gpu_s": training_bound_s(of)}, {}, 0.0))
    return report.impossible()


@pytest.mark.parametrize("name", CONTENDERS)
def test_every_slot_second_has_one_use_and_no_move_is_refused(name: str) -> None:
    found = outcome(name)
    assert sum(found.slot_s.values()) == pytest.approx(8 * HOURS * HOUR_S)
    assert min(found.slot_s.values()) >= 0.0
    assert not found.refused


@pytest.mark.parametrize("name", CONTENDERS)
def test_equal_seeds_give_equal_runs_whoever_played_in_between(name: str) -> None:
    first, again = outcome(name), played(scene(), name)
    assert first.late.tolist() == again.late.tolist()
    for part in ("slot_s", "busy_s", "training", "course", "decisions"):
        assert getattr(first, part) == getattr(again, part), part
    assert figures(scene(), first) == figures(scene(), again)


@pytest.mark.parametrize("name", CONTENDERS)
def test_what_was_trained_is_what_is_done_and_what_was_lost(name: str) -> None:
    found = outcome(name)
    done_s = sum(one.work_s - one.left_s for one in found.training.values())
    lost_s = sum(one.lost_s for one in found.training.values())
    preempted = sum(one.preempted for one in found.training.values())
    assert found.slot_s[Use.TRAINING] == pytest.approx(done_s, abs=1.0 * 2 * preempted + 1e-6)
    assert found.slot_s[Use.LOST] == pytest.approx(lost_s, abs=1e-6)
    assert bool(lost_s) == (name.startswith("kill") or (name.endswith("-own") and bool(preempted)))


# Where nobody steps aside, who comes first has the slots for hours: by chance, whatever starts take.
STARVES = ("no-preemption-own",)


@pytest.mark.parametrize("name", [name for name in CONTENDERS if name.endswith("-own") and name not in STARVES])
def test_its_own_system_is_no_better_than_ours_for_it(name: str) -> None:
    """At equal settings: each is compared at its own best."""
    with_ours = name.removesuffix("-own")
    play = TURNED[name](scene(), PolicyConfig(), knobs_of(with_ours))
    own = figures(scene(), Run(play.scene, play.contender, play.config).outcome())
    ours = figures(scene(), outcome(with_ours))
    assert own["goodput_gpu_s"] <= ours["goodput_gpu_s"]
    assert own["slo_attainment"] <= ours["slo_attainment"]


def test_nobody_contradicts_the_bound_nor_foresight() -> None:
    assert contradictions(scene(), *CONTENDERS) == []


def test_where_every_job_is_done_nobody_contradicts_foresight() -> None:
    few = scene_of(tide(2, 0.2, 2.0, 2), jobs_of(3, every_s=100.0, workers=2, hours=0.3))
    assert all(one.end_s is not None for name in (ORACLE, STATIC) for one in played(few, name).training.values())
    assert contradictions(few, ORACLE, STATIC) == []


def test_who_leaves_work_of_the_warm_up_for_later_does_not_contradict_foresight() -> None:
    few = scene_of(tide(2, 0.2, 2.0, 2), jobs_of(6, every_s=0.0, workers=2, hours=1.0), nodes=3)
    assert contradictions(replace(few, warm_up_s=float(HOUR_S)), ORACLE, STATIC) == []


def mixed(seed: int) -> Scene:
    """Jobs of all kinds on a pool of three nodes, for a tide that needs half of it."""
    mix = Mix(elastic=0.4, semi_preemptible=0.5, non_preemptible=0.3, priorities={0: 0.7, 3: 0.3})
    jobs = cast(jobs_of(24, every_s=200.0, workers=1, hours=1.0), mix, seed, gpus_max=12)
    return replace(scene_of(tide(HOURS, 0.3, 4.0, seed), jobs, nodes=3, seed=seed), warm_up_s=900.0)


@pytest.mark.parametrize("name", CONTENDERS)
def test_jobs_of_all_kinds_are_treated_as_their_class_allows(name: str) -> None:
    of = mixed(1)
    found = played(of, name)
    assert not found.refused
    assert sum(found.slot_s.values()) == pytest.approx(12 * (HOURS * HOUR_S - 900.0))
    left = {one.spec.name for one in of.jobs if one.spec and one.spec.workload_class is WorkloadClass.NON_PREEMPTIBLE}
    assert left and not any(found.training[job].preempted for job in left if job in found.training)


@pytest.mark.parametrize("seed", range(3))
def test_with_jobs_of_all_kinds_nobody_contradicts_foresight_either(seed: int) -> None:
    assert contradictions(mixed(seed), OURS, "ebbtide-reactive", LYRA, "kill-and-requeue", STATIC, ORACLE) == []


def test_lyra_keeps_two_per_cent_of_the_pool_free_or_what_the_file_says() -> None:
    for slots, reserve, kept in ((64, 0, 2), (64, 5, 5), (8192, 0, 164)):
        of = replace(scene(), nodes=slots // 4)
        assert TURNED[LYRA](of, PolicyConfig(reserve=reserve), knobs_of(LYRA)).config.reserve == kept


def test_a_kill_loses_what_is_behind_the_last_checkpoint() -> None:
    rise_s, workers = 4000, 7
    comes_s = 1200.0  # the endpoint's first start is cold, and what it holds up has it ask for more than it needs
    load = load_of(np.array([0.1] * rise_s + [4 * ENGINE.full] * 600))
    found = played(scene_of(load, (Job(comes_s, workers, workers, 1e6),)), "kill-and-requeue")
    [one] = found.training.values()
    assert one.preempted == 1
    every_s = knobs_of("kill-and-requeue").checkpoint_every_s
    ran_s = rise_s - comes_s - 60.0
    kept_s = ran_s // every_s * every_s
    trained_s = ran_s - kept_s  # since the last checkpoint, when demand rises
    assert trained_s - 15.0 <= one.lost_s / workers <= trained_s + 90.0
    assert one.work_s - one.left_s == pytest.approx(kept_s * workers)
    assert found.slot_s[Use.TRAINING] + found.slot_s[Use.LOST] == pytest.approx(
        one.work_s - one.left_s + one.lost_s, abs=1e-6
    )


def test_who_steps_aside_in_place_loses_nothing() -> None:
    found = outcome("ebbtide")
    assert sum(one.preempted for one in found.training.values()) > 0
    assert found.slot_s[Use.LOST] == 0.0


def test_the_controls_stand_at_both_ends() -> None:
    """Nobody serves better than a pool that only serves, and nobody trains more than one that only trains."""
    found = {name: figures(scene(), outcome(name)) for name in ("all-serving", "all-training", "ebbtide", STATIC)}
    assert found["all-serving"]["slo_attainment"] == max(one["slo_attainment"] for one in found.values())
    assert found["all-training"]["goodput_gpu_s"] == max(one["goodput_gpu_s"] for one in found.values())
    assert found["all-training"]["slo_attainment"] < found["ebbtide"]["slo_attainment"]
    assert found["all-serving"]["goodput_gpu_s"] == min(one["goodput_gpu_s"] for one in found.values())
