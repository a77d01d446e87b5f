"""A plan made leaner keeps to what it may have of late requests, and gives away what saves the most."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.pool.ids import EndpointName
from ebbtide_simulator.policies.foresight import STRETCH_S
from ebbtide_simulator.policies.leaner import late_with, leaner
from ebbtide_simulator.run.run import Service, endpoint_spec
from ebbtide_simulator.traffic.queue import Queue
from tests.autoscaler.simulator.small_scenes import ENGINE, load_of
from tests.examples import examples

LARGE = replace(ENGINE, slots=4)
WARM_S = 40
PARTS = st.lists(st.tuples(st.floats(0.0, 6.0), st.integers(1, 9)), min_size=12, max_size=12)
"""Of each stretch its work per second, and the plan's replicas."""


def service(name: str, work_s: list[float], *, large: bool = False) -> Service:
    engine, load = LARGE if large else ENGINE, load_of(np.repeat(work_s, STRETCH_S))
    return Service(endpoint_spec(name, engine, load, replicas_max=9), engine, load)


def asked(services: list[Service]) -> float:
    return sum(float(one.load.requests[WARM_S:].sum()) for one in services)


@settings(max_examples=examples(40))
@given(some=PARTS, others=PARTS, late_share=st.sampled_from([0.0, 0.001, 0.02, 0.3]))
def test_it_has_no_more_replicas_and_no_more_late_requests_than_it_may(
    some: list[tuple[float, int]], others: list[tuple[float, int]], late_share: float
) -> None:
    parts = {EndpointName("a"): some, EndpointName("b"): others}
    services = [service(name, [work_s for work_s, _ in part], large=name == "b") for name, part in parts.items()]
    plans = {name: np.array([float(count) for _, count in part]) for name, part in parts.items()}
    found = leaner(services, plans, late_share, WARM_S)
    usual, late = (sum(late_with(one, these[one.spec.name], WARM_S) for one in services) for these in (plans, found))
    for name, plan in plans.items():
        assert (found[name] <= plan).all() and (found[name] >= 1).all() and (found[name] % 1 == 0).all()
    assert late <= max(late_share * asked(services), usual) + 1e-6


@given(parts=PARTS)
def test_late_are_those_that_a_queue_finds_late_second_by_second(parts: list[tuple[float, int]]) -> None:
    one = service("a", [work_s for work_s, _ in parts])
    queue, late = Queue(one.load, ENGINE, one.spec.ttft_slo_s), 0.0
    for second in range(len(one.load.work_s)):
        served = queue.serve(second + 1, parts[second // STRETCH_S][1])
        late += served.late if second >= WARM_S else 0.0
    assert late_with(one, np.array([float(count) for _, count in parts]), WARM_S) == pytest.approx(late, abs=1e-6)


def test_who_saves_the_most_goes_without() -> None:
    """Each has one stretch of twelve that a replica less cannot serve; one of the two replicas is of four GPUs."""
    work_s = [ENGINE.full * 0.9] * 12
    work_s[6] = ENGINE.full * 1.9
    services = [service("small", work_s), service("large", work_s, large=True)]
    plans = {one.spec.name: np.full(12, 2.0) for one in services}
    late = late_with(services[0], np.ones(12), WARM_S) / asked(services)
    assert late > 0
    found = leaner(services, plans, late * 1.01, WARM_S)
    assert found[EndpointName("large")].tolist() == [1.0] * 12
    assert found[EndpointName("small")].max() == 2.0
    both = leaner(services, plans, late * 2.01, WARM_S)
    assert both[EndpointName("small")].tolist() == both[EndpointName("large")].tolist() == [1.0] * 12


def test_what_nobody_needs_goes_for_nothing() -> None:
    one = service("a", [ENGINE.full * 2.5] * 12)
    found = leaner([one], {one.spec.name: np.full(12, 7.0)}, 0.0, WARM_S)
    assert found[EndpointName("a")].tolist() == [3.0] * 12
