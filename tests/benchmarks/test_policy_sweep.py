"""Rivals are turned over as many points as ours, and stand where they serve and train best."""

import json

import pytest

from benchmarks.policy_sweep import AS_THEY_ARE, Point, chosen, grid, is_at
from ebbtide_simulator.policies.contenders import CONTENDERS, OURS, knobs_of
from ebbtide_simulator.report.bars import SLO
from evidence.provenance import RESULTS

RIVALS = [name for name in CONTENDERS if name not in AS_THEY_ARE and not name.startswith(OURS)]


def a_point(served: float, trained: float) -> Point:
    return {"slo_attainment": served, "goodput_gpu_s": trained}


def test_of_those_that_serve_the_one_that_trains_most_is_chosen() -> None:
    points = [a_point(SLO - 0.001, 100.0), a_point(SLO, 5.0), a_point(1.0, 4.0)]
    assert chosen(points) == points[1]


def test_where_none_serves_the_one_that_serves_best_is_chosen() -> None:
    points = [a_point(0.5, 100.0), a_point(0.9, 5.0), a_point(0.9, 6.0)]
    assert chosen(points) == points[2]


@pytest.mark.parametrize("name", RIVALS)
def test_a_rival_is_turned_as_widely_as_ours(name: str) -> None:
    points = grid(name)
    assert len(points) >= len(grid(OURS))
    assert len(set(points)) == len(points)
    assert len({(one.headroom, one.hold_s) for one in points}) >= 12


def test_a_point_that_was_played_is_known_again() -> None:
    first, second, *_ = grid(OURS)
    had = {"forecast_share": first.forecast_share, "reserve": first.reserve, "slo_attainment": 1.0}
    had |= {"headroom": first.headroom, "hold_s": first.hold_s, "checkpoint_every_s": first.checkpoint_every_s}
    assert is_at(had, first) and not is_at(had, second)


@pytest.mark.parametrize("name", RIVALS)
def test_a_rival_stands_where_the_sweep_found_it_best(name: str) -> None:
    points = json.loads((RESULTS / "policy" / "sweep.json").read_text())["points"][name]
    assert is_at(chosen(points), knobs_of(name))
    assert len(points) >= 12
