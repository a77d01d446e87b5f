"""Requests that are repeated cost memory only where each is played by itself, and no more than is there."""

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ebbtide_simulator.scenes import scene as scenes
from ebbtide_simulator.traffic.trace_files import BadTrace
from ebbtide_simulator.traffic.traces import Requests
from tests.builders.simulate import drawn, file_of, replicas

WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"requests": "singly"},
    {"noise": "aggregated"},
    {"requests": "singly", "noise": "aggregated"},
)
TINY = Requests(np.arange(500, dtype=np.float64), np.full(500, 1.0), np.full(500, 1.0))
BLOCKS = replace(TINY, blocks=np.arange(5000), blocks_from=np.arange(501) * 10)


@pytest.fixture(autouse=True)
def tried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """To try out a replica takes ten seconds each time, and says nothing about copies; `test_scene.py` does it."""
    monkeypatch.setattr(scenes, "at_full", lambda *_: 20)


@pytest.mark.parametrize("ways", WAYS)
def test_demand_beyond_the_pool_is_refused_before_a_request_is_repeated(ways: dict[str, Any]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadTrace, match=r"at its height it needs .* GPUs, the pool has 4"):
            drawn(file_of(**ways), BLOCKS, factor=1e6)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("ways", WAYS)
def test_only_who_plays_requests_one_by_one_has_them(ways: dict[str, Any]) -> None:
    [service] = drawn(file_of(**ways), BLOCKS, factor=3.0).services
    assert (service.load.rows is not None) == ("requests" in ways)


@pytest.mark.parametrize("noise", ["kept", "aggregated"])
def test_a_load_is_the_same_with_and_without_each_request(noise: str) -> None:
    fluid, singly = (
        drawn(file_of(noise=noise, requests=how), BLOCKS, factor=2.5, seed=3).services[0].load
        for how in ("fluid", "singly")
    )
    assert fluid.requests.tolist() == singly.requests.tolist()
    np.testing.assert_allclose(fluid.work_s, singly.work_s)
    assert singly.rows is not None and len(singly.rows.part_s) == singly.requests.sum()


@pytest.mark.parametrize(("ways", "which"), [(one, next(iter(one.values()))) for one in WAYS[1:]])
def test_more_than_memory_holds_is_refused_with_the_factor_that_it_can_have(
    ways: dict[str, Any], which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenes, "COPIES_BYTES", 10.0 * 500 * scenes.REQUEST_BYTES)
    with pytest.raises(BadTrace, match=rf"t0.parquet: 20 times its 500 requests, .* run.*{which}, .* by less than 10$"):
        drawn(file_of(**ways), TINY, factor=20.0)
    assert drawn(file_of(**ways), TINY, factor=10.0)
    assert drawn(file_of(), TINY, factor=20.0), "a fluid needs none of them"


def test_rates_are_not_repeated_but_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenes, "COPIES_BYTES", 0.0)
    assert drawn(file_of(requests="singly"), replicas([1.0, 1.0]), factor=2.0)
