"""What decisions cost as a pool grows becomes bars of their own names, and only decisions that move something count."""

from typing import Any

import pytest

from benchmarks import decide_growth, policy
from benchmarks.large_pool import large_pool


@pytest.mark.parametrize("slots", [200, 1_000])
def test_the_pool_has_as_many_workloads_as_are_asked_for(slots: int) -> None:
    state = large_pool(slots, workloads=slots // 5).world.state
    assert len(state.slots) == slots and len(state.jobs) + len(state.endpoints) == slots // 5


def test_it_gives_a_bar_for_each_goal_and_a_point_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide_growth, "DECIDE_MS", {104: 1e9, 200: 0.0})
    found = decide_growth.figures({104: 9, 200: 9}, rounds=3)
    met = {name: bar["met"] for name, bar in found["bars"].items()}
    assert met == {"decide_104_p99_ms": True, "decide_200_p99_ms": False, "tick_200_p99_ms": True}
    assert len(found["pace_ms_rounds"]) == 3 and found["pace_ms"] == sorted(found["pace_ms_rounds"])[1] > 0
    assert [point["slots"] for point in found["growth"]] == [104, 200]
    for point in found["growth"]:
        assert point["moves_min"] > 0 and 0 < point["calls"] <= 9
        assert point["decide_p99_ms"] == sorted(point["decide_p99_ms_rounds"])[1] and point["rounds"] == 3
        assert 0 < point["decide_p50_ms"] <= point["decide_p99_ms"] < point["tick_p99_ms"]


def test_its_bars_keep_their_names_beside_those_of_pools() -> None:
    bar: dict[str, Any] = {"value": 1.0, "at_most": 2.0, "met": True}
    one = {"seeds": 1, "took_s": 1.0, "date": "2026-01-01"}
    found = policy.merged(
        {"64-flat": {**one, "bars": {"waste_share_64": bar}}, "decide": {**one, "bars": {"d_ms": bar}}}
    )
    assert [one["bar"] for one in found["bars"]] == ["waste_share_64:64-flat", "d_ms"]
