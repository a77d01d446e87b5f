"""The pool that decisions are measured on is a possible one, stands still when nobody asks, and moves in a surge."""

from random import Random

import pytest

from benchmarks import decide
from benchmarks.large_pool import NOW_S, large_pool, with_demand
from ebbtide.pool.events import GrantSeat
from ebbtide.pool.rules.promises import violations
from ebbtide.pool.transitions import JobState, SlotState
from ebbtide_autoscaler.core.tick.tick import tick


@pytest.mark.parametrize("slots", [64, 200])
def test_it_has_everything_in_it_and_breaks_no_promise(slots: int) -> None:
    state = large_pool(slots).world.state
    assert len(state.slots) == slots and not violations(state)
    assert {record.state for record in state.slots.values()} == {SlotState.FREE, SlotState.LEASED}
    states = {job.state for job in state.jobs.values()}
    assert states == {JobState.RUNNING, JobState.PARKED, JobState.WAITING}


def test_without_demand_nothing_moves() -> None:
    pool = large_pool(200)
    done = tick(pool.world, with_demand(pool, Random(1), 0.0), (), NOW_S, decide.KNOBS)
    assert done.events == () and done.refused == ()


def test_in_a_surge_cold_endpoints_get_slots() -> None:
    pool = large_pool(200)
    done = tick(pool.world, with_demand(pool, Random(1), 1.0), (), NOW_S, decide.KNOBS)
    granted = [event.body.seat for event in done.events if isinstance(event.body, GrantSeat)]
    assert granted and all(seat.startswith("cold-") for seat in granted)
    assert not violations(done.world.state)


def test_it_gives_rows_for_every_part_and_one_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "SIZES", (104, 1_000))
    monkeypatch.setattr(decide, "CALLS", {104: 2, 1_000: 2})
    rows, bars = decide.measure(quick=True)
    assert len(rows) == 2 * len(decide.CASES) * len(decide.PARTS) * 2
    assert [bar.bar for bar in bars] == ["decide_1000"]
    assert all(0 < one.min <= one.median <= one.max for one in rows)
