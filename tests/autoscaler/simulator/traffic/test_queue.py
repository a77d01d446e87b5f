"""The fluid queue does in one go what a loop over seconds does."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ebbtide_simulator.traffic import queue
from ebbtide_simulator.traffic.arrivals import Served
from ebbtide_simulator.traffic.queue import Queue
from tests.autoscaler.simulator.small_scenes import ENGINE, HOUR_S, load_of, tide

WORKS = st.lists(st.floats(0.0, 10.0), min_size=1, max_size=60)
SOLID = st.lists(st.just(0.0) | st.floats(1e-6, 10.0), min_size=1, max_size=60)  # work whose reciprocal is a number
CUTS = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 12)), min_size=1, max_size=8)
SLO_S = 2.0


def by_seconds(work_s: list[float], stretches: list[tuple[int, int]]) -> tuple[float, float, list[bool]]:
    """What waits in the end, all that was done, and in which seconds who came was late."""
    waits_s, done_s, late, second = 0.0, 0.0, [], 0
    for length, replicas in stretches:
        rate = replicas * ENGINE.full
        for work in work_s[second : second + length]:
            late.append(not rate or (waits_s + work / 2) > rate * (SLO_S + 0.5))
            now = min(rate, waits_s + work)
            waits_s, done_s = waits_s + work - now, done_s + now
        second += length
    return waits_s, done_s, late


@pytest.mark.parametrize("few", [0, queue.FEW])
@given(work_s=WORKS, stretches=CUTS)
def test_it_does_what_a_loop_over_seconds_does(few: int, work_s: list[float], stretches: list[tuple[int, int]]) -> None:
    load = load_of(np.array(work_s))
    served_here, done_s, late, requests = Queue(load, ENGINE, SLO_S), 0.0, 0.0, 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue, "FEW", few)
        for length, replicas in stretches:
            served = served_here.serve(served_here.arrivals.second + length, replicas)
            done_s, late, requests = done_s + served.done_s, late + served.late, requests + served.requests
    waits_s, all_s, were_late = by_seconds(work_s, stretches)
    assert served_here.backlog_s == pytest.approx(waits_s, abs=1e-9)
    assert done_s == pytest.approx(all_s, abs=1e-6)
    assert requests == pytest.approx(load.requests[: len(were_late)].sum(), abs=1e-6)
    assert late == pytest.approx(load.requests[: len(were_late)][np.array(were_late, dtype=bool)].sum(), abs=1e-6)


@given(
    work_s=WORKS,
    cuts=st.lists(st.integers(1, 60), max_size=6),
    replicas=st.integers(0, 12),
    few=st.sampled_from([0, queue.FEW]),
)
def test_in_one_stretch_or_in_many_it_comes_to_the_same(
    work_s: list[float], cuts: list[int], replicas: int, few: int
) -> None:
    load, end = load_of(np.array(work_s)), len(work_s)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue, "FEW", few)
        one, many = Queue(load, ENGINE, SLO_S), Queue(load, ENGINE, SLO_S)
        whole = one.serve(end, replicas)
        parts = [many.serve(until, replicas) for until in sorted({*(cut for cut in cuts if cut < end), end})]
    for name in ("requests", "late", "done_s"):
        assert sum(getattr(part, name) for part in parts) == pytest.approx(getattr(whole, name), abs=1e-6), name
    assert many.backlog_s == pytest.approx(one.backlog_s, abs=1e-9)
    assert whole.done_s + one.backlog_s == pytest.approx(sum(work_s), abs=1e-6), "work is done, or it waits"


def test_an_hour_in_one_go_is_as_second_by_second() -> None:
    load = tide(1, 0.5, 6.0)
    at_once, one_by_one = Queue(load, ENGINE, SLO_S), Queue(load, ENGINE, SLO_S)
    whole = at_once.serve(HOUR_S, 5)
    late = sum(one_by_one.serve(second + 1, 5).late for second in range(HOUR_S))
    assert 0.0 < whole.late < whole.requests
    assert whole.late == pytest.approx(late)
    assert at_once.backlog_s == pytest.approx(one_by_one.backlog_s)


def test_nothing_comes_twice_nor_after_the_end() -> None:
    load = load_of(np.full(10, 1.0))
    one = Queue(load, ENGINE, SLO_S)
    assert one.serve(20, 2).requests == pytest.approx(load.requests.sum())
    assert one.serve(20, 2) == one.serve(30, 2) == Served(0.0, 0.0, 0.0)


def test_nobody_is_late_who_finds_room_and_everybody_without_a_replica() -> None:
    load = load_of(np.full(100, 1.0))
    assert Queue(load, ENGINE, SLO_S).serve(100, 2).late == 0.0
    one = Queue(load, ENGINE, SLO_S)
    assert one.serve(100, 0).late == pytest.approx(load.requests.sum())
    assert one.backlog_s == pytest.approx(100.0)


def test_what_came_lately_is_told_per_second() -> None:
    load = load_of(np.array([0.0] * 10 + [2.0] * 10))
    one = Queue(load, ENGINE, SLO_S)
    assert (one.arrivals.work_per_s(5), one.arrivals.mean_work_s(5)) == (0.0, 0.0)
    one.serve(15, 1)
    assert one.arrivals.work_per_s(5) == pytest.approx(2.0)
    assert one.arrivals.work_per_s(10) == pytest.approx(1.0)
    assert one.arrivals.mean_work_s(5) == pytest.approx(ENGINE.work_s(100, 50))
    assert one.arrivals.per_s(5) * one.arrivals.mean_work_s(5) == pytest.approx(2.0)


def test_who_comes_while_no_replica_is_there_waits_for_it_and_for_those_before() -> None:
    work_s = np.zeros(60)
    work_s[5] = 10 * ENGINE.full  # ten seconds of one replica
    queue_ = Queue(load_of(work_s), ENGINE, SLO_S, timed=True)
    queue_.serve(20, 0)
    queue_.serve(60, 1)
    assert queue_.waits_s()[5] == pytest.approx(20 - 5.5 + 5.0), "half of those that came with it are before it"
    assert queue_.arrivals.load.requests[:60].sum() == pytest.approx(load_of(work_s).requests.sum())


@pytest.mark.parametrize("few", [0, queue.FEW])
@given(work_s=SOLID, replicas=st.lists(st.integers(0, 12), min_size=3, max_size=3))
@example(work_s=[0.0, 0.9, 0.0, 0.0], replicas=[0, 1, 0])  # a part of one second's work waits for three more
def test_waiting_by_request_is_as_much_as_waiting_by_second(few: int, work_s: list[float], replicas: list[int]) -> None:
    """Little's law: what waits, second by second, is the work of each second times how long it waits."""
    all_s = [*work_s, *[0.0] * 400]  # until nothing waits any more
    timed = Queue(load_of(np.array(all_s)), ENGINE, SLO_S, timed=True)
    waiting_s, before_s = 0.0, 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue, "FEW", few)
        for second in range(len(all_s)):
            timed.serve(second + 1, replicas[second % 3] if second < len(work_s) else 8)
            waiting_s += (before_s + timed.backlog_s) / 2
            before_s = timed.backlog_s
    assert before_s == 0.0
    waited_s = float((timed.waits_s() * np.array(all_s)).sum())
    assert waited_s == pytest.approx(waiting_s, abs=1e-6)
