"""From what came about to the seven groups of figures."""

import math
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.pool.events import StopJob
from ebbtide.pool.ids import JobName
from ebbtide.pool.transitions import JobState
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.plan.inputs import PolicyConfig, Snapshot
from ebbtide_simulator.model.meter import Use
from ebbtide_simulator.model.tally import Tally
from ebbtide_simulator.model.training import Training
from ebbtide_simulator.report.tables import comparison_tables, moves_table
from ebbtide_simulator.run.run import BEGINS_S, Outcome, Run, Scene, Service
from ebbtide_simulator.run.score import HOUR_S, _most_in_an_hour, figures, over_seeds, student_t, waste_of
from ebbtide_simulator.traffic.draws import Job
from tests.autoscaler.simulator.small_scenes import jobs_of, scene_of, tide

CAUSES = {"lost", "loading", "saving", "starting", "draining", "idle-reserved", "fragmentation"}


@cache
def scene() -> Scene:
    return scene_of(tide(2, 0.3, 4.0), jobs_of(10, every_s=300.0, workers=2, hours=0.5))


@cache
def outcome(reserve: int = 0) -> Outcome:
    return Run(scene(), decide, PolicyConfig(reserve=reserve)).outcome()


def test_waste_is_the_sum_of_its_causes() -> None:
    found = figures(scene(), outcome())
    assert set(found["waste"]) == CAUSES
    assert found["waste_share"] == pytest.approx(sum(found["waste"].values()))
    assert sum(found["waste_gpu_h"].values()) * 3600 == pytest.approx(found["waste_share"] * 8 * 2 * HOUR_S)


def test_what_is_used_wasted_idle_and_free_is_the_whole_pool() -> None:
    found = figures(scene(), outcome())
    moved = sum(found["waste"][use.value] for use in (Use.LOST, Use.LOADING, Use.SAVING, Use.STARTING, Use.DRAINING))
    assert moved + found["goodput_share"] + found["ready_share"] + found["free_share"] == pytest.approx(1.0)
    assert found["useful_gpu_s"] == pytest.approx((found["busy_share"] + found["goodput_share"]) * 8 * 2 * HOUR_S)


def test_free_slots_are_wasted_only_while_somebody_waits() -> None:
    quiet = scene_of(tide(2, 0.3, 2.0))  # so little that no two replicas have to be placed on a node at once
    found = waste_of(Run(quiet, decide, PolicyConfig(reserve=2, forecast_share=0.0)).outcome())
    assert found["idle-reserved"] == 0.0
    with_reserve = waste_of(outcome(reserve=2))
    assert with_reserve["idle-reserved"] > 0.0 == waste_of(outcome())["idle-reserved"]
    assert with_reserve["idle-reserved"] + with_reserve["fragmentation"] <= outcome(reserve=2).slot_s[Use.FREE] * 1.01


def test_a_gang_that_finds_too_few_slots_is_fragmentation() -> None:
    wide = replace(scene(), jobs=(Job(0.0, 5, 5, 1e6), Job(0.0, 3, 3, 1e6)))
    found = waste_of(Run(wide, decide, PolicyConfig()).outcome())
    assert found["fragmentation"] > 60.0 * 60.0


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), max_size=20), st.integers(0, 4))
def test_reserved_and_fragmented_are_what_was_free_while_somebody_waited(
    ticks: list[tuple[int, bool, bool]], reserve: int
) -> None:
    tally = Tally()
    for free, waits, _ in ticks:
        tally.idle(free, reserve, ["a job"] if waits else [], 5.0)
    assert tally.reserved_slot_s + tally.fragmented_slot_s == 5.0 * sum(free for free, waits, _ in ticks if waits)
    assert tally.reserved_slot_s <= 5.0 * reserve * len(ticks)


def test_moves_take_what_the_model_says() -> None:
    found, times = figures(scene(), outcome()), scene().times
    assert found["reclaim_s"]["p50"] == pytest.approx(times.safe_point_s + times.park_s)
    assert times.resume_s <= found["lend_s"]["p50"] <= times.gang_start_s
    assert found["lend_s"]["p99"] <= times.gang_start_s + 1e-6
    assert times.wake_s <= found["replica_s"]["p50"] <= 3 * times.start_s


def test_slots_that_nobody_was_on_are_not_reclaimed_at_once() -> None:
    """Jobs that have parked give up their slots for good, once others have had them for long; then they are free."""
    parked = scene_of(tide(24, 0.3, 5.5), jobs_of(4, every_s=60.0, workers=2, hours=20.0))
    stopped, tell = Counter[JobState](), decide

    def told(now_s: float, snapshot: Snapshot, *rest: Any) -> Any:
        decision, memory = tell(now_s, snapshot, *rest)
        stopped.update(snapshot.state.jobs[move.job].state for move in decision.moves if isinstance(move, StopJob))
        return decision, memory

    found = Run(parked, told, PolicyConfig()).outcome()
    assert stopped[JobState.PARKED] > 1
    assert {seconds for seconds, _ in found.tally.reclaimed} == {parked.times.safe_point_s + parked.times.park_s}
    assert sum(count for _, count in found.tally.reclaimed) == 2 * sum(one.preempted for one in found.training.values())


def test_gpus_come_in_time_or_not_and_never_more_than_asked_for() -> None:
    found = figures(scene(), outcome())
    assert 0.5 < found["on_time_share"] <= 1.0
    assert found["on_time_gpu_s"] <= found["asked_gpu_s"]
    starved = replace(scene(), services=tuple(_never(one) for one in scene().services))
    assert figures(starved, Run(starved, decide, PolicyConfig()).outcome())["on_time_share"] < found["on_time_share"]


def _never(service: Service) -> Service:
    return replace(service, spec=replace(service.spec, replicas_min=0, replicas_max=1))


def test_nothing_asked_for_is_all_in_time() -> None:
    tally = Tally()
    tally.demand(0, 0, 5.0)
    assert (tally.asked_slot_s, tally.on_time_slot_s) == (0.0, 0.0)
    assert figures(scene(), replace(outcome(), tally=tally))["on_time_share"] == 1.0


@given(st.lists(st.integers(0, 30_000), max_size=40))
def test_preemptions_are_counted_within_any_hour(times: list[int]) -> None:
    times = sorted(times)
    expected = max(
        (sum(end - HOUR_S < at_s <= end for at_s in times[: n + 1]) for n, end in enumerate(times)), default=0
    )
    assert _most_in_an_hour(times) == expected


def test_a_job_beyond_its_bound_is_told() -> None:
    jobs = dict(outcome().training)
    [first, *_] = jobs
    jobs[first] = replace(jobs[first], per_h_max=2, preempted_s=[BEGINS_S + at_s for at_s in (0, 10, 20, 5000)])
    found = figures(scene(), replace(outcome(), training=jobs))
    assert found["jobs_preempted_beyond_bound"] == 1
    assert found["preemptions_per_job_h_max"] >= 3
    assert figures(scene(), outcome())["jobs_preempted_beyond_bound"] == 0


TIMES_S = st.lists(st.floats(0.0, 8.0 * HOUR_S), max_size=20).map(sorted)


@given(st.lists(st.tuples(TIMES_S, TIMES_S), min_size=1, max_size=4))
def test_what_befell_jobs_in_the_warm_up_is_not_counted_but_a_bound_is_a_bound(
    jobs: list[tuple[list[float], list[float]]],
) -> None:
    warm_s, training = 4.0 * HOUR_S, dict[JobName, Training]()
    for number, (left, fell) in enumerate(jobs):
        preempted_s, crashed_s = ([BEGINS_S + at_s for at_s in times] for times in (left, fell))
        one = Training(1.0, 1.0, BEGINS_S, preempted_s=preempted_s, crashed_s=crashed_s, per_h_max=6)
        training[JobName(f"job-{number}")] = one
    warm = replace(scene(), warm_up_s=warm_s, horizon_s=8.0 * HOUR_S)
    found = figures(warm, replace(outcome(), training=training))
    scored = [[at_s for at_s in left if at_s >= warm_s] for left, _ in jobs]
    assert found["preemptions"] == sum(map(len, scored))
    assert found["preemptions_per_job_max"] == max(map(len, scored))
    assert found["preemptions_per_job_h_max"] == max(map(_most_in_an_hour, scored))
    assert found["jobs_preempted_often"] == sum(len(left) > 3 for left in scored)
    assert found["crashes"] == sum(at_s >= warm_s for _, fell in jobs for at_s in fell)
    assert found["jobs_preempted_beyond_bound"] == sum(_most_in_an_hour(left) > 6 for left, _ in jobs)


def test_where_nothing_is_trained_preemptions_are_for_each_hour_of_nothing() -> None:
    slot_s = {**outcome().slot_s, Use.TRAINING: 0.0}
    found = figures(scene(), replace(outcome(), slot_s=slot_s))
    assert found["preemptions"] > 0 and found["preemptions_per_1000_gpu_h"] is None
    [row] = moves_table({"ebbtide": over_seeds([found])}).rows
    assert row[-2] == "-"
    hours = outcome().slot_s[Use.TRAINING] / HOUR_S
    assert figures(scene(), outcome())["preemptions_per_1000_gpu_h"] == pytest.approx(
        found["preemptions"] / hours * 1e3
    )


def test_jobs_are_told_by_their_size() -> None:
    sizes = replace(scene(), jobs=(Job(0.0, 1, 1, 60.0), Job(0.0, 4, 4, 4000.0)))
    found = figures(sizes, Run(sizes, decide, PolicyConfig()).outcome())
    for figure in ("queue_by_gpus_s", "jct_by_gpus_s", "slowdown_by_gpus"):
        assert list(found[figure]) == ["1-1", "2-8", "9-64", ">64"]
        assert found[figure][">64"] == dict.fromkeys(("mean", "p50", "p95", "p99")), "of no job nobody knows"
    assert found["jct_by_gpus_s"]["2-8"]["mean"] > found["jct_by_gpus_s"]["1-1"]["mean"] > 60.0


def test_a_seed_without_jobs_is_in_no_mean_of_their_times() -> None:
    idle = replace(scene(), jobs=())
    none, some = (figures(one, Run(one, decide, PolicyConfig()).outcome()) for one in (idle, scene()))
    together, nobody = over_seeds([some, none]), over_seeds([none, none])
    for figure in ("queue_s", "jct_s", "slowdown", "lend_s", "reclaim_s"):
        assert together[figure]["p50"] == {"mean": some[figure]["p50"], "ci95": None, "seeds": 1}
        assert nobody[figure] == dict.fromkeys(("mean", "p50", "p95", "p99"))
    assert together["jct_by_gpus_s"]["2-8"]["mean"]["seeds"] == 1
    assert together["jobs"]["mean"] == some["jobs"] / 2, "a count of none is one"
    [changed], [held] = moves_table({"ebbtide": nobody}).rows, comparison_tables({"ebbtide": nobody})[0].rows
    assert changed[1:5] == ("-",) * 4 and held[-3:-1] == ("-", "-")


@pytest.mark.parametrize("freedom", [*range(1, 31), 99])
def test_the_interval_of_a_mean_has_95_percent_of_such_means(freedom: int) -> None:
    """The integral of Student's density, with t = tan(angle), for t's tails are long."""
    angles = np.linspace(0.0, np.arctan(student_t(freedom)), 20_001)
    density = (1 + np.tan(angles) ** 2 / freedom) ** (-(freedom + 1) / 2) / np.cos(angles) ** 2
    scale = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
    inside = 2 * scale * float(np.sum((density[1:] + density[:-1]) / 2) * (angles[1] - angles[0]))
    assert 0.9495 <= inside <= (0.952 if freedom < 20 else 0.963)


def test_a_job_that_somebody_cancels_waits_until_then_and_is_not_done() -> None:
    gone = Job(600.0, 8, 8, 8 * HOUR_S, until_s=2400.0)  # there is never room for it beside a replica
    ended = Job(0.0, 2, 2, 2 * 100 * HOUR_S, until_s=3000.0)  # in a run of two hours
    done = Job(0.0, 2, 2, 2 * HOUR_S)
    asked = replace(scene(), jobs=(done, ended, gone))
    found = figures(asked, Run(asked, decide, PolicyConfig()).outcome())
    assert (found["jobs"], found["jobs_done"]) == (3, 1)
    assert found["queue_s"]["mean"] * 3 == pytest.approx(1800.0, abs=3 * asked.tick_s)
    assert found["jct_by_gpus_s"]["2-8"]["p50"] == pytest.approx(3000.0, abs=60.0)
    slow = found["slowdown_by_gpus"]["2-8"]
    assert slow == found["slowdown"], "of the two that could be through within the run"
    ours = found["jct_by_gpus_s"]["2-8"]["mean"] * 3 - 3000.0 - 1800.0
    assert slow["mean"] * 2 == pytest.approx(ours / HOUR_S + 1800.0 / HOUR_S, abs=0.05)


def test_minutes_of_bad_service_are_those_of_the_stretches() -> None:
    late = outcome().late * 0.0
    late[3] = outcome().requests[3]
    assert figures(scene(), replace(outcome(), late=late))["slo_minutes_below_99"] == 5.0
