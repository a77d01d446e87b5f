"""The simulator against live runs: what is asked of both, what one run teaches, how two are compared."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.demo.client import Outcome
from benchmarks.demo.traffic import Request
from benchmarks.fidelity import calibrate
from benchmarks.fidelity.calibrate import SHARES, Users, at_shares, fitted, users
from benchmarks.fidelity.compare import Figures, bars, beside
from benchmarks.fidelity.live import Lived
from benchmarks.fidelity.replay import asked
from benchmarks.fidelity.windows import CALIBRATION, SPAN_S, WINDOWS
from ebbtide_simulator.model.batching import BINS, seconds_of_bin
from ebbtide_simulator.model.engine import Engine
from ebbtide_simulator.model.meter import Use

ENGINE = Engine(prefill_tok_s=5_000, decode_tok_s=500, step_s=0.01)


def outcome(number: int, sent_s: float, *, ttft_s: float = 0.1, tokens: int = 11, total_s: float = 1.1) -> Outcome:
    return Outcome(number, sent_s, 200, ttft_s, total_s, tokens, True)


def figures(*, preemptions: int = 2, p50_s: float = 0.1, p99_s: float = 10.0, **uses: float) -> Figures:
    return Figures({Use[name.upper()]: s for name, s in uses.items()}, preemptions, p50_s, p99_s)


LIVE = figures(training=400.0, ready=100.0, starting=60.0, loading=40.0, free=200.0)

# ---- what is asked


def test_no_two_windows_have_a_request_in_common_and_all_of_each_is_scored() -> None:
    ends = sorted(
        (one.first, one.first + sum(max(1, round(p.duration_s * p.rate_per_s)) for p in one.phases))
        for one in WINDOWS.values()
    )
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ends))
    assert all(max(p.start_s + p.duration_s for p in one.phases) < SPAN_S for one in WINDOWS.values())
    assert len(WINDOWS) == 3 and CALIBRATION in WINDOWS


def test_the_simulator_is_asked_what_was_sent_when_it_was_sent_and_then_nothing() -> None:
    requests = (Request(0.0, 30, 99), Request(2.0, 40, 99))
    lived = Lived(None, 1000.0, requests, (outcome(1, 1002.6, tokens=7), outcome(0, 1000.2, tokens=5)))  # type: ignore[arg-type]
    load = asked(lived, ENGINE, 20)
    assert load.requests.tolist() == [1, 0, 1] + 17 * [0]
    assert load.work_s[2] == pytest.approx(40 / 5000 + 7 / 500) and load.work_s.sum() == pytest.approx(
        load.work_s[0] + load.work_s[2]
    )
    assert load.rows is not None
    assert load.rows.first.tolist() == [0, 1, 1] + 18 * [2] and load.rows.part_s.tolist() == pytest.approx([0.2, 0.6])
    assert len(asked(lived, ENGINE, 2).requests) == 2, "what comes after the end is none of it"


# ---- what a run teaches


def test_shares_of_a_histogram_are_told_within_a_bin() -> None:
    counts = np.zeros(BINS)
    counts[100] = 10.0
    low, middle, high = at_shares(counts, np.array([0.001, 0.5, 0.999]))
    edges = (seconds_of_bin(np.array([99])) * seconds_of_bin(np.array([100]))) ** 0.5
    assert middle == pytest.approx(seconds_of_bin(np.array([100]))[0], rel=1e-6)
    assert low == pytest.approx(edges[0], rel=1e-3) and low < middle < high


def test_users_are_told_by_their_waits_and_their_tokens_pace() -> None:
    seen = [outcome(n, 0.0, ttft_s=0.1 * n, tokens=11, total_s=0.1 * n + 2.0) for n in range(1, 101)]
    found = users([*seen, outcome(0, 0.0, ttft_s=5.05, tokens=1, total_s=5.05)])
    assert found.tpot_s == pytest.approx(np.full(len(SHARES), 0.2))
    assert found.ttft_s[len(SHARES) // 2] == pytest.approx(5.05, rel=0.02)


def test_speeds_are_found_again_from_what_users_of_such_a_replica_would_see() -> None:
    """Users of a stand-in for the replica: times that depend on each speed in another way."""
    shares = np.linspace(0.1, 1.0, len(SHARES))

    def play(engine: Engine) -> Users:
        ttft_s = 300 * shares / engine.prefill_tok_s + engine.step_s
        return Users(ttft_s, engine.step_s + 5 * shares**2 / engine.decode_tok_s)

    true = calibrate._engine((8_000.0, 900.0, 0.012, 0.0))
    was = Users(play(true).ttft_s + 0.03, play(true).tpot_s)
    assert fitted(play, was) == pytest.approx((8_000.0, 900.0, 0.012, 0.03), rel=0.1)


# ---- how two are compared


def test_a_use_is_off_by_its_own_share_and_by_the_pools() -> None:
    found = beside(LIVE, figures(training=360.0, ready=110.0, starting=60.0, loading=40.0, free=230.0))
    training = found["uses"]["training"]
    assert (training["of_itself"], training["of_pool"]) == (pytest.approx(-0.1), pytest.approx(-0.05))
    assert found["uses"]["switching"]["of_itself"] == pytest.approx(0.0)
    assert found["finer"]["starting"] == {"live": 60.0, "simulated": 60.0} and "down" not in found["finer"]
    assert found["ttft_p99_s"] == {"live": 10.0, "simulated": 10.0, "off": 0.0}


def test_a_use_of_less_than_a_tenth_of_the_pool_is_told_and_not_judged() -> None:
    small = replace(LIVE, slot_s={**LIVE.slot_s, Use.STARTING: 20.0, Use.LOADING: 20.0})
    found = beside(small, replace(small, slot_s={**small.slot_s, Use.STARTING: 35.0, Use.FREE: 185.0}))
    assert not found["uses"]["switching"]["judged"] and found["uses"]["switching"]["of_itself"] == pytest.approx(0.375)
    assert bars({"a": found})["fidelity_gpu_s"]["value"] == pytest.approx(0.075)


def test_the_worst_window_counts_and_a_use_that_was_not_there_is_off_by_all_of_itself() -> None:
    good, bad = beside(LIVE, LIVE), beside(LIVE, replace(LIVE, preemptions=4, ttft_p50_s=0.07))
    found = bars({"good": good, "bad": bad})
    assert found["fidelity_gpu_s"] == {"value": 0.0, "at_most": 0.1, "met": True}
    assert found["fidelity_preemptions"] == {"value": 2, "at_most": 1, "met": False}
    assert found["fidelity_ttft_p50"]["value"] == pytest.approx(0.3) and not found["fidelity_ttft_p50"]["met"]
    none = beside(figures(training=800.0), figures(training=600.0, ready=200.0))
    assert bars({"none": none})["fidelity_gpu_s"]["value"] == 1.0
