"""What our policy is held to, and what cannot be."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide_simulator.played.one_run import Played
from ebbtide_simulator.policies.contenders import LYRA, ORACLE, OURS, STATIC
from ebbtide_simulator.policies.contradictions import AS_WELL, SERVES
from ebbtide_simulator.report.bars import SLO, SLO_BEHIND_STATIC, VS_ORACLE, VS_STATIC, VS_STATIC_FLAT, WASTE, bars
from ebbtide_simulator.report.report import Report
from ebbtide_simulator.report.tables import held_to
from ebbtide_simulator.run.score import over_seeds

BOUND_S = 100.0


def of(**more: float) -> dict[str, object]:
    """A policy's figures, of which ``wait`` is the mean time in the queue and to the end."""
    found: dict[str, object] = {name: {"mean": value} for name, value in more.items()}
    spread = {"mean": {"mean": more.get("wait", 1.0)}}
    return found | {"queue_s": spread, "jct_s": spread}


GOOD = {
    "slo_attainment": 0.9985,
    "waste_share": 0.01,
    "double_allocated_gpu_s": 0.0,
    "jobs_preempted_beyond_bound": 0.0,
    "goodput_vs_oracle": 0.95,
    "goodput_vs_static": 3.0,
}


NEEDED = {
    "slo_attainment": 1.0,
    "waste_share": 0.0,
    "double_allocated_gpu_s": 0.0,
    "jobs_preempted_beyond_bound": 0.0,
}


def missed(**changes: float) -> set[str]:
    found = bars(64, {OURS: of(**GOOD | changes), STATIC: of(slo_attainment=0.999), LYRA: of(wait=1.0)})
    return {name for name, bar in found.items() if not bar["met"]}


def test_who_is_good_meets_every_bar() -> None:
    assert missed() == set()


@pytest.mark.parametrize(
    ("figure", "value", "bar"),
    [
        ("slo_attainment", SLO - 0.001, "slo_attainment_64"),
        ("slo_attainment", 0.999 - SLO_BEHIND_STATIC - 0.0001, "slo_attainment_64"),
        ("waste_share", WASTE + 0.001, "waste_share_64"),
        ("double_allocated_gpu_s", 1.0, "double_allocated_gpu_s"),
        ("jobs_preempted_beyond_bound", 0.2, "jobs_preempted_beyond_bound_64"),
        ("goodput_vs_oracle", VS_ORACLE - 0.001, "goodput_vs_oracle_64"),
        ("goodput_vs_static", VS_STATIC - 0.001, "goodput_vs_static_64"),
    ],
)
def test_each_bar_can_be_missed_alone(figure: str, value: float, bar: str) -> None:
    assert missed(**{figure: value}) == {bar}


def test_where_demand_is_flat_no_worse_than_static_is_enough() -> None:
    def flat(vs_static: float) -> bool:
        found = bars(64, {OURS: of(**GOOD | {"goodput_vs_static": vs_static})}, flat=True)
        return bool(found["goodput_vs_static_64"]["met"])

    assert flat(VS_STATIC_FLAT) and not flat(VS_STATIC_FLAT - 0.001)


def test_jobs_may_wait_no_longer_than_with_lyra() -> None:
    assert missed(wait=1.01) == {"queue_s_vs_lyra_64", "jct_s_vs_lyra_64"}


def test_where_no_job_came_nothing_is_said_to_be_met() -> None:
    none = {"queue_s": {"mean": None}, "jct_s": {"mean": None}}
    found = bars(64, {OURS: of(**NEEDED) | none, LYRA: of() | none})
    told = {"value": None, "at_most": None, "met": False, "why": "no job came after the warm-up"}
    assert found["queue_s_vs_lyra_64"] == found["jct_s_vs_lyra_64"] == told
    assert held_to(found).rows[-1] == ("jct_s_vs_lyra_64", "-", "-", "not measured: no job came after the warm-up")


def test_a_static_partition_that_serves_badly_lowers_no_bar() -> None:
    found = bars(8, {OURS: of(**GOOD), STATIC: of(slo_attainment=0.9)})
    assert found["slo_attainment_8"]["at_least"] == SLO


def test_bars_without_their_rival_are_left_out_and_without_us_all_are() -> None:
    found = bars(64, {OURS: of(**NEEDED)})
    assert set(found) == {
        "slo_attainment_64",
        "waste_share_64",
        "jobs_preempted_beyond_bound_64",
        "double_allocated_gpu_s",
    }
    assert bars(64, {ORACLE: of(**GOOD)}) == {}


def test_where_a_rival_trains_nothing_the_bar_is_there_and_not_met() -> None:
    ours = of(**NEEDED) | {"goodput_vs_oracle": None, "goodput_vs_static": None}
    found = bars(64, {OURS: ours})
    told = {"value": None, "at_least": VS_ORACLE, "met": False, "why": "oracle trains nothing to compare with"}
    assert found["goodput_vs_oracle_64"] == told
    assert found["goodput_vs_static_64"]["at_least"] == VS_STATIC and not found["goodput_vs_static_64"]["met"]
    last = held_to(found).rows[-1]
    assert last == (
        "goodput_vs_static_64",
        "-",
        "at least 2.5",
        "not measured: static-p100 trains nothing to compare with",
    )


@given(st.lists(st.none() | st.floats(0.0, 10.0), min_size=1, max_size=6))
def test_a_mean_is_of_the_seeds_that_have_a_figure(values: list[float | None]) -> None:
    found = over_seeds([{"figure": value, "parts": {"one": value}, "all": 1.0} for value in values])
    known = [value for value in values if value is not None]
    assert found["all"] == {"mean": 1.0, "ci95": 0.0 if len(values) > 1 else None}
    assert found["parts"]["one"] == found["figure"]
    if not known:
        assert found["figure"] is None
        return
    assert found["figure"]["mean"] == pytest.approx(sum(known) / len(known))
    assert found["figure"].get("seeds", len(values)) == len(known)
    assert found["figure"]["ci95"] == over_seeds([{"figure": value} for value in known])["figure"]["ci95"]


def a_report(*seeds: dict[str, tuple[float, float]]) -> Report:
    """For each seed, contenders with their goodput and their requests in time."""
    report = Report({"slots": 8, "seeds": len(seeds)})
    for seed, goodput in enumerate(seeds):
        for name, (done_s, slo) in goodput.items():
            figures = {"goodput_gpu_s": done_s, "slo_attainment": slo, "bound_gpu_s": BOUND_S}
            report.add(name, seed, Played(figures, {}, 0.0))
    return report


def test_what_is_below_foresight_and_the_bound_can_be() -> None:
    fine = {"ebbtide": (90.0, 1.0), ORACLE: (95.0, 1.0), STATIC: (10.0, 1.0)}
    assert a_report(fine, {**fine, "ebbtide": (95.0, 1.0), ORACLE: (BOUND_S, 1.0)}).impossible() == []


def test_who_beats_the_bound_is_told_with_name_and_seed() -> None:
    [told] = a_report({OURS: (90.0, 1.0)}, {OURS: (101.0, 1.0)}).impossible()
    assert told == "ebbtide, seed 1: 101 GPU-s of training, and the bound is 100"


def test_nobody_beats_the_bound_not_even_foresight() -> None:
    [told] = a_report({ORACLE: (101.0, 1.0), OURS: (50.0, 1.0)}).impossible()
    assert told.startswith("oracle, seed 0")


def test_who_beats_foresight_is_told() -> None:
    [told] = a_report({OURS: (96.0, 1.0), ORACLE: (95.0, 1.0)}).impossible()
    assert told == "ebbtide, seed 0: 96 GPU-s of training, and with perfect foresight it is 95"
    assert a_report({OURS: (96.0, 1.0)}, {ORACLE: (95.0, 1.0)}).impossible() == [], "each seed is a world of its own"


def test_who_does_not_serve_is_not_compared() -> None:
    assert a_report({"no-preemption": (150.0, SERVES - 0.001), ORACLE: (95.0, 1.0)}).impossible() == []
    served = 1.0 - AS_WELL - 0.0001
    assert a_report({"static-p95": (96.0, served), ORACLE: (95.0, 1.0)}).impossible() == []
    [told] = a_report({"static-p95": (101.0, served), ORACLE: (95.0, 1.0)}).impossible()
    assert "the bound" in told


@pytest.mark.parametrize(("done_s", "told"), [(94.9, False), (95.0, True), (95.5, True)])
def test_who_serves_better_than_foresight_and_trains_no_less_is_told(done_s: float, told: bool) -> None:
    """As recorded once: foresight had 97.2 % in time, our policy 99.6 %, in another hour."""
    [*found] = a_report({OURS: (done_s, 0.996), ORACLE: (95.0, 0.972)}).impossible()
    words = "ebbtide, seed 0: 99.60% of the requests in time, and with perfect foresight and no more training it is"
    assert found == ([f"{words} 97.20%"] if told else [])


def test_so_is_who_serves_better_but_does_not_serve() -> None:
    assert len(a_report({"lyra": (96.0, SERVES - 0.01), ORACLE: (95.0, SERVES - 0.02)}).impossible()) == 1


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ((110.0, 0.997), False),  # it serves as well, and trains as much
        ((109.5, 0.997), False),
        ((105.0, 0.997), True),  # it trains less
        ((110.0, 0.9949), True),  # it serves less well
    ],
)
def test_who_does_no_better_than_another_plan_of_foresight_has_not_beaten_it(
    plan: tuple[float, float], told: bool
) -> None:
    report = a_report({"static-p95": (110.0, 0.9971), ORACLE: (95.0, 0.998)})
    for name in list(report.runs):
        found = report.runs[name][0]
        more = {"bound_gpu_s": 200.0, "work_done_gpu_s": found.figures["goodput_gpu_s"]}
        others = [{"goodput_gpu_s": plan[0], "slo_attainment": plan[1], "work_done_gpu_s": plan[0]}]
        report.add(name, 0, replace(found, figures=found.figures | more, others=others if name == ORACLE else ()))
    assert bool(report.impossible()) == told


def test_seeds_noise_is_no_contradiction() -> None:
    assert a_report({OURS: (95.0, 0.997 + 0.9 * AS_WELL), ORACLE: (95.0, 0.997)}).impossible() == []


def test_bars_and_contradictions_are_in_the_figures() -> None:
    figures = {"goodput_gpu_s": 101.0, "slo_attainment": 1.0, "bound_gpu_s": BOUND_S, "waste_share": 0.0}
    report = Report({"slots": 8, "seeds": 1})
    more = {"double_allocated_gpu_s": 0.0, "jobs_preempted_beyond_bound": 0}
    report.add(OURS, 0, Played(figures | more, {}, 1.5))
    found = json.loads(json.dumps(report.as_json(3.0)))
    assert set(found["bars"]) == {
        "slo_attainment_8",
        "waste_share_8",
        "jobs_preempted_beyond_bound_8",
        "double_allocated_gpu_s",
    }
    assert len(found["impossible"]) == 1
    assert (found["run_s"], found["took_s"]) == ({OURS: 1.5}, 3.0)


def test_where_tides_are_shallow_ours_is_held_to_what_can_be_had() -> None:
    def held_to(most: float) -> float:
        policies = {OURS: of(**GOOD), ORACLE: of(**GOOD | {"goodput_vs_static": most})}
        return float(bars(64, policies)["goodput_vs_static_64"]["at_least"])

    assert held_to(2.0) == pytest.approx(VS_ORACLE * 2.0)
    assert held_to(4.0) == VS_STATIC
