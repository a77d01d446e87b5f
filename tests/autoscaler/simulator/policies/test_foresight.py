"""What perfect foresight orders: enough for everybody, and not much more."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide_simulator.policies.foresight import DIP_S, STRETCH_S, plan
from ebbtide_simulator.traffic.draws import Load
from ebbtide_simulator.traffic.queue import Queue
from tests.autoscaler.simulator.small_scenes import ENGINE, load_of, tide
from tests.examples import examples

SLO_S = 2.0


def late_share(load: Load, slo_s: float, lead_s: float = 0.0) -> float:
    """Of the requests, with as many replicas as the plan says."""
    queue = Queue(load, ENGINE, slo_s)
    replicas = plan(load, ENGINE, slo_s, lead_s)
    late = sum(queue.serve((at + 1) * STRETCH_S, int(count)).late for at, count in enumerate(replicas))
    return late / max(1e-9, float(load.requests.sum()))


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 10_000), st.floats(0.2, 30.0), st.floats(1.0, 60.0), st.sampled_from([0.0, 15.0]))
def test_with_it_nobody_waits_too_long(seed: int, mean: float, dispersion: float, lead_s: float) -> None:
    work_s = np.random.default_rng(seed).gamma(mean / dispersion, dispersion, 900)
    assert late_share(load_of(work_s), SLO_S, lead_s) <= 0.01


@pytest.mark.parametrize("slo_s", [0.5, 1.0, 5.0, 10.0, 30.0])
@pytest.mark.parametrize(("mean", "dispersion"), [(1.0, 30.0), (20.0, 1.0), (20.0, 20.0)])
def test_nor_where_more_or_less_is_promised(slo_s: float, mean: float, dispersion: float) -> None:
    work_s = np.random.default_rng(7).gamma(mean / dispersion, dispersion, 900)
    assert late_share(load_of(work_s), slo_s) <= 0.01


@pytest.mark.parametrize("replicas", [1, 30, 100, 1000])
def test_what_is_asked_for_all_the_time_is_there_all_the_time(replicas: int) -> None:
    load = load_of(np.full(1800, replicas * ENGINE.full))
    assert plan(load, ENGINE, SLO_S, 0.0).min() == replicas
    assert late_share(load, SLO_S) == 0.0


def test_it_follows_demand() -> None:
    load = tide(1, 1.0, 20.0)
    replicas = plan(load, ENGINE, SLO_S, 0.0)
    needed = load.work_s.reshape(-1, STRETCH_S).mean(axis=1) / ENGINE.full
    assert len(replicas) == len(needed)
    assert replicas.mean() < 1.5 * needed.mean()


@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=200), st.floats(0.0, 60.0))
def test_it_has_a_whole_replica_or_more_at_all_times(work_s: list[float], lead_s: float) -> None:
    replicas = plan(load_of(np.array(work_s)), ENGINE, SLO_S, lead_s)
    assert len(replicas) == -(-len(work_s) // STRETCH_S)
    assert (replicas >= 1).all() and (replicas == np.floor(replicas)).all()


@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=200), st.integers(0, 6))
def test_ordering_ahead_never_orders_less(work_s: list[float], stretches: int) -> None:
    load = load_of(np.array(work_s))
    now, ahead = (plan(load, ENGINE, SLO_S, lead_s) for lead_s in (0.0, float(stretches * STRETCH_S)))
    assert (ahead >= now).all()
    later = now[stretches:]
    assert (ahead[: len(later)] >= later).all(), "what is needed then has begun by now"


def test_it_orders_ahead() -> None:
    load = load_of(np.array([1.0] * 300 + [10.0] * 300))
    now, ahead = plan(load, ENGINE, SLO_S, 0.0), plan(load, ENGINE, SLO_S, 60.0)
    assert np.argmax(now > 5) - np.argmax(ahead > 5) == pytest.approx(60 / STRETCH_S, abs=1)


@pytest.mark.parametrize(("dip_s", "used"), [(DIP_S - 20, False), (DIP_S + 300, True)])
def test_a_dip_is_used_only_if_it_lasts(dip_s: int, used: bool) -> None:
    load = load_of(np.array([10.0] * 300 + [1.0] * dip_s + [10.0] * 300))
    assert bool((plan(load, ENGINE, SLO_S, 0.0)[31:-1] < 5).any()) is used
