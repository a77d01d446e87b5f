"""What ``make bench-policy`` puts together from its parts."""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.policy import PARTS, _line, merged


def a_part(slots: int, hours: float = 168.0, **bars: float) -> dict[str, Any]:
    return {
        "seeds": 5,
        "took_s": 10.4,
        "date": "2026-01-01",
        "inputs": {"slots": slots, "hours": hours},
        "policies": {"ebbtide": {}},
        "run_s": {"ebbtide": 7.0},
        "impossible": [] if slots == 64 else ["oracle, seed 0: too much"],
        "bars": {name: {"value": value, "at_least": 1.0, "met": value >= 1.0} for name, value in bars.items()},
    }


def test_bars_keep_their_ids_and_a_part_that_is_no_week_adds_its_name() -> None:
    found = merged({"64-week": a_part(64, goodput_64=2.0), "64-flat": a_part(64, goodput_64=0.5)})
    assert [(one["bar"], one.get("met")) for one in found["bars"]] == [
        ("goodput_64", True),
        ("goodput_64:64-flat", False),
        ("sim_week_64_s", True),
    ]


def test_slots_with_two_occupants_are_one_bar_for_all_parts() -> None:
    parts = {"64-week": a_part(64, double_allocated_gpu_s=0.0), "64-burst": a_part(64, double_allocated_gpu_s=2.0)}
    bars = [one for one in merged(parts)["bars"] if one["bar"].startswith("double")]
    assert bars == [{"bar": "double_allocated_gpu_s", "value": 2.0, "at_most": 0.0, "met": False}]


def test_a_bar_that_could_not_be_measured_is_kept_and_not_met() -> None:
    why = {"value": None, "at_least": 0.9, "met": False, "why": "oracle trains nothing to compare with"}
    part = {**a_part(64), "bars": {"goodput_vs_oracle_64": why}}
    [bar, _] = merged({"64-week": part})["bars"]
    assert bar == {"bar": "goodput_vs_oracle_64", **why}
    told = _line(("goodput_vs_oracle_64", why))
    assert told == "missed goodput_vs_oracle_64: no value, at least 0.9: oracle trains nothing to compare with"


def test_a_bar_whose_goal_is_another_s_figure_may_lack_that_too() -> None:
    why = {"value": None, "at_most": None, "met": False, "why": "no job came after the warm-up"}
    assert _line(("jct_s_vs_lyra_64", why)) == "missed jct_s_vs_lyra_64: no value, -: no job came after the warm-up"


def test_bars_of_parts_without_a_pool_keep_their_names() -> None:
    told = {"seeds": 1, "took_s": 1.0, "date": "2026-01-01", "bars": {"fidelity_gpu_s": {"value": 0.1, "met": True}}}
    assert merged({"fidelity": told})["bars"] == [{"bar": "fidelity_gpu_s", "value": 0.1, "met": True}]


def test_figures_and_inputs_of_each_part_are_kept() -> None:
    found = merged({"64-week": a_part(64), "512-week": a_part(512)})
    assert found["policies"]["512-week"] == {"ebbtide": {}} and found["inputs"]["64-week"]["slots"] == 64
    assert found["seeds"] == {"64-week": 5, "512-week": 5}


def test_a_contradiction_is_kept_with_its_part() -> None:
    found = merged({"64-week": a_part(64), "512-week": a_part(512)})
    assert found["impossible"] == ["512-week: oracle, seed 0: too much"]


def test_a_part_of_a_week_tells_what_a_week_would_take_and_that_it_was_none() -> None:
    found = merged({"512-week": a_part(512, 48.0)})
    assert found["bars"] == [{"bar": "sim_week_512_s", "value": 24.5, "at_most": 20.0, "met": False}]
    assert found["parts"]["512-week"]["hours"] == 48.0 and found["parts"]["512-week"]["policies"] == 1


@pytest.mark.parametrize("name", ["64-week", "64-burst"])
def test_traffic_that_is_multiplied_is_measured_with_both_noises(name: str) -> None:
    kept, other = PARTS[name], PARTS[f"{name}-aggregated"]
    assert (kept.noise, other.noise) == ("kept", "aggregated")
    assert replace(other, noise="kept") == kept
