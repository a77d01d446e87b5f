"""The arbiter's time never goes back, stands still or waits: whatever is done to the machine's clock."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.pool.ids import JobName
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.forecast.demand_bins import BIN_S, Bin, Demand
from ebbtide_autoscaler.journal.recovery import latest_s
from ebbtide_autoscaler.process.steady_clock import SteadyClock
from tests.autoscaler.closed_loop import a_job
from tests.builders.policy import S0, a_pool, with_job
from tests.examples import examples


class Machine:
    """Its clock, which may be set, and time as it passes."""

    def __init__(self) -> None:
        self.passed_s, self.set_by_s = 100.0, 1_000_000.0

    def wall(self) -> float:
        return self.passed_s + self.set_by_s

    def clock(self) -> SteadyClock:
        return SteadyClock(self.wall, lambda: self.passed_s)


@settings(max_examples=examples(100), deadline=None, database=None, derandomize=True)
@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(-1e4, 1e4)), max_size=20))
def test_it_goes_on_at_least_as_time_does(steps: list[tuple[float, float]]) -> None:
    machine = Machine()
    clock = machine.clock()
    last_s = clock.now_s()
    for passes_s, jumps_s in steps:
        machine.passed_s += passes_s
        machine.set_by_s += jumps_s
        now_s = clock.now_s()
        assert now_s - last_s >= passes_s - 1e-6
        assert now_s >= machine.wall(), "it is behind nothing that the machine says"
        last_s = now_s


def test_it_follows_a_clock_that_is_set_forward_and_is_right_while_nobody_sets_it() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.passed_s += 5.0
    assert clock.now_s() == machine.wall()
    machine.set_by_s += 3600.0
    assert clock.now_s() == machine.wall()
    machine.set_by_s -= 60.0
    machine.passed_s += 61.0
    assert clock.now_s() == machine.wall() + 60.0


def test_who_takes_over_goes_on_from_the_latest_time_of_the_ledger() -> None:
    machine = Machine()
    clock = machine.clock()
    clock.not_before(machine.wall() + 30.0)
    machine.passed_s += 1.0
    assert clock.now_s() == machine.wall() + 30.0
    clock.not_before(5.0)
    assert clock.now_s() == machine.wall() + 30.0


def test_the_latest_time_of_a_state_is_of_whatever_happened_last() -> None:
    state = with_job(a_pool(), a_job(), (S0,), at_s=2_000.0)
    assert latest_s(state) == 2_000.0
    job = state.jobs[JobName("train")]
    assert latest_s(replace(state, jobs={JobName("train"): replace(job, asked_s=3_000.0)})) == 3_000.0
    assert latest_s(PoolState()) == 0.0
    # A pool in which nothing moved for days: its bins say that it was there.
    assert latest_s(state, [Demand(first=10, bins=(Bin(1.0, 2.0), None)), Demand()]) == 12 * BIN_S
