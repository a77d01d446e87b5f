"""Slots with two occupants are counted from what workloads hold, whatever the slots' own records say."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.pool.events import GrantJob
from ebbtide.pool.handlers import job_handlers
from ebbtide.pool.ids import JobName, NodeId, SlotId, slot_id
from ebbtide_simulator.model.engine import Times
from ebbtide_simulator.model.occupants import Occupants
from ebbtide_simulator.model.pool import Pool
from ebbtide_simulator.run.run import job_spec
from ebbtide_simulator.traffic.draws import Job

STEPS = st.lists(
    st.tuples(st.integers(0, 4), st.sets(st.integers(0, 5), max_size=4), st.integers(0, 20)), min_size=1, max_size=30
)


@given(STEPS)
def test_it_is_the_time_during_which_two_name_one_slot(steps: list[tuple[int, set[int], int]]) -> None:
    occupants, now, expected = Occupants(0.0), 0, 0
    holds: dict[int, set[int]] = {}
    for who, slots, after_s in steps:
        now += after_s
        counts = Counter(slot for held in holds.values() for slot in held)
        expected += after_s * sum(count > 1 for count in counts.values())
        holds[who] = slots
        occupants.put(JobName(f"j{who}"), tuple(SlotId(f"s{slot}") for slot in sorted(slots)), float(now))
    occupants.until(float(now))
    assert occupants.double_s == expected


def a_pool() -> Pool:
    pool = Pool(1, 2, 1 << 40, Times(), 0, now_s=0.0, from_s=0.0)
    for number in range(2):
        pool.submit(job_spec(number, Job(0.0, 2, 2, 1e6)), 1e6)
    return pool


def both_on_the_same(pool: Pool) -> None:
    slots = tuple(slot_id(NodeId("node-0000"), index) for index in range(2))
    pool.carry_out([GrantJob(job_spec(number, Job(0.0, 2, 2, 1e6)).name, slots, "r") for number in range(2)])
    pool.now_s = 100.0
    pool.settle()


def test_a_slot_is_not_granted_twice() -> None:
    pool = a_pool()
    both_on_the_same(pool)
    assert len(pool.refused) == 1
    assert pool.occupants.double_s == 0.0


def test_were_it_granted_twice_it_would_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard of the slots' own records is taken away, as a fault of ours would."""
    monkeypatch.setattr(job_handlers, "occupy", lambda state, *_rest, **_named: state)
    pool = a_pool()
    both_on_the_same(pool)
    assert not pool.refused
    assert pool.occupants.double_s == 2 * 100.0


def test_who_has_left_is_counted_no_more() -> None:
    occupants: Any = Occupants(0.0)
    occupants.put("a", ("s", "t"), 0.0)
    occupants.put("b", ("t",), 5.0)
    occupants.put("a", (), 8.0)
    occupants.until(50.0)
    assert occupants.double_s == 3.0
