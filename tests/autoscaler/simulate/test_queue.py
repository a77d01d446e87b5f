"""The fluid queue does in one go what a loop over seconds does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide_autoscaler.simulate.queue import Queue
from tests.autoscaler.simulate.scenes import ENGINE, load_of

WORKS = st.lists(st.floats(0.0, 10.0), min_size=1, max_size=60)
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


@given(WORKS, CUTS)
def test_it_does_what_a_loop_over_seconds_does(work_s: list[float], stretches: list[tuple[int, int]]) -> None:
    load = load_of(np.array(work_s))
    queue = Queue(load, ENGINE, SLO_S)
    done_s, late = 0.0, []
    for length, replicas in stretches:
        served = queue.serve(queue.second + length, replicas)
        done_s += float(served.done_s.sum())
        late += [bool(one) for one in served.late > 0]
    waits_s, all_s, were_late = by_seconds(work_s, stretches)
    assert queue.backlog_s == pytest.approx(waits_s, abs=1e-9)
    assert done_s == pytest.approx(all_s, abs=1e-9)
    doubtful = [second for second, work in enumerate(work_s) if work == 0.0]  # nobody came who could be late
    assert [one for n, one in enumerate(late) if n not in doubtful] == [
        one for n, one in enumerate(were_late) if n not in doubtful
    ]


def test_nobody_is_late_who_finds_room_and_everybody_without_a_replica() -> None:
    load = load_of(np.full(100, 1.0))
    assert Queue(load, ENGINE, SLO_S).serve(100, 2).late.sum() == 0.0
    queue = Queue(load, ENGINE, SLO_S)
    assert queue.serve(100, 0).late.sum() == load.requests.sum()
    assert queue.backlog_s == pytest.approx(100.0)
