"""What perfect foresight orders: enough for everybody, and not much more."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide_autoscaler.simulate.foresight import DIP_S, STRETCH_S, plan
from ebbtide_autoscaler.simulate.queue import Queue
from tests.autoscaler.simulate.scenes import ENGINE, load_of, tide

SLO_S = 2.0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.2, 30.0), st.floats(1.0, 60.0))
def test_with_it_nobody_waits_too_long(seed: int, mean: float, dispersion: float) -> None:
    work_s = np.random.default_rng(seed).gamma(mean / dispersion, dispersion, 900)
    load = load_of(work_s)
    queue = Queue(load, ENGINE, SLO_S)
    replicas = plan(load, ENGINE, SLO_S, 0.0)
    late = sum(queue.serve((at + 1) * STRETCH_S, int(count)).late for at, count in enumerate(replicas))
    assert late <= 0.01 * load.requests.sum()


def test_it_follows_demand() -> None:
    load = tide(1, 1.0, 20.0)
    replicas = plan(load, ENGINE, SLO_S, 0.0)
    needed = load.work_s.reshape(-1, STRETCH_S).mean(axis=1) / ENGINE.full
    assert len(replicas) == len(needed)
    assert replicas.mean() < 1.5 * needed.mean()


def test_it_orders_ahead() -> None:
    load = load_of(np.array([1.0] * 300 + [10.0] * 300))
    now, ahead = plan(load, ENGINE, SLO_S, 0.0), plan(load, ENGINE, SLO_S, 60.0)
    assert np.argmax(now > 5) - np.argmax(ahead > 5) == pytest.approx(60 / STRETCH_S, abs=1)


@pytest.mark.parametrize(("dip_s", "used"), [(DIP_S - 20, False), (DIP_S + 300, True)])
def test_a_dip_is_used_only_if_it_lasts(dip_s: int, used: bool) -> None:
    load = load_of(np.array([10.0] * 300 + [1.0] * dip_s + [10.0] * 300))
    assert bool((plan(load, ENGINE, SLO_S, 0.0)[31:-1] < 5).any()) is used
