"""What gateways say becomes bins and an outlook; silence becomes neither."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.pool.ids import EndpointName
from ebbtide_autoscaler.core.demand.demand_watch import SURGES_EVERY, Closed, DemandWatch
from ebbtide_autoscaler.core.forecast.demand_bins import BIN_S, KEPT, Bin, Demand, bin_of
from ebbtide_autoscaler.core.forecast.experts import GAP_BINS
from ebbtide_autoscaler.core.forecast.surge import ENOUGH, SAMPLE_S
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals
from ebbtide_autoscaler.journal.demand_records import demand_record, with_record
from tests.examples import examples

CHAT = EndpointName("chat")
START_S = 1000 * BIN_S
TICK_S = 15.0


def said(requests: int, *, known: bool = True) -> dict[EndpointName, EndpointSignals]:
    """One endpoint's requests, some of them held."""
    return {CHAT: EndpointSignals(held=requests // 4, inflight=requests - requests // 4, known=known)}


def hear(watch: DemandWatch, requests: int, *, from_s: float, bins: float, known: bool = True) -> list[Closed]:
    """So many requests for so many bins."""
    ticks = int(bins * BIN_S / TICK_S)
    return [one for n in range(ticks + 1) for one in watch.hear(from_s + n * TICK_S, said(requests, known=known))]


def test_held_and_running_requests_are_demand() -> None:
    watch = DemandWatch()
    closed = hear(watch, 8, from_s=START_S, bins=2)
    assert closed == [Closed(CHAT, 1000, Bin(8.0, 8.0)), Closed(CHAT, 1001, Bin(8.0, 8.0))]


def test_silent_gateways_leave_a_gap_and_no_zero() -> None:
    watch = DemandWatch()
    hear(watch, 8, from_s=START_S, bins=1)
    hear(watch, 0, from_s=START_S + BIN_S + TICK_S, bins=1.5, known=False)
    closed = hear(watch, 8, from_s=START_S + 3 * BIN_S, bins=1)
    assert [(one.number, one.value) for one in closed] == [(1001, None), (1003, Bin(8.0, 8.0))]
    assert watch.demand[CHAT].bins == (Bin(8.0, 8.0), None, None, Bin(8.0, 8.0))


STEP = st.tuples(
    st.sampled_from([TICK_S, 20.0, BIN_S, 3 * BIN_S, (KEPT - 1) * BIN_S, (KEPT + 1) * BIN_S]), st.booleans()
)


@settings(max_examples=examples(200), deadline=None, database=None, derandomize=True)
@given(st.lists(st.tuples(STEP, st.integers(1, 40)), max_size=12))
def test_records_come_to_what_was_heard_however_clocks_jump(steps: list[tuple[tuple[float, bool], int]]) -> None:
    """However far the clock is set ahead: what is written is no more than was heard, and is read back as it was."""
    watch, now_s, replayed = DemandWatch(), 0.0, dict[EndpointName, Demand]()
    for (after_s, known), ticks in steps:
        now_s += after_s
        for _ in range(ticks):
            now_s += TICK_S
            closed = watch.hear(now_s, said(8, known=known))
            assert len(closed) <= 1
            for one in closed:
                replayed = with_record(replayed, demand_record(one))
    assert replayed == watch.demand


def test_an_outlook_comes_with_history_and_is_made_anew_with_each_bin() -> None:
    watch = DemandWatch()
    hear(watch, 8, from_s=START_S, bins=12)
    assert watch.outlooks[CHAT].most(0.9, BIN_S, 8.0) is None
    hear(watch, 8, from_s=START_S + 12 * BIN_S, bins=24)
    before = watch.outlooks
    most = before[CHAT].most(0.9, BIN_S, 8.0)
    assert most is not None and 7.9 < most < 8.2
    watch.hear(START_S + 36 * BIN_S + TICK_S, said(8))
    assert watch.outlooks is before, "within a bin nothing is reckoned again"


def test_who_speaks_seldom_is_heard_by_one_who_knows() -> None:
    every_s = 90.0
    for silent_s, known in ((30.0, False), (2 * every_s, True)):
        watch = DemandWatch(silent_s=silent_s)
        for number in range(int(40 * BIN_S / every_s)):
            watch.hear(START_S + number * every_s, said(8))
        found = watch.outlooks[CHAT]
        assert (bool(found.expected), bool(found.surges)) == (known, known)
        assert all((one is not None) == known for one in watch.demand[CHAT].bins)


def test_another_arbiter_goes_on_from_what_was_kept() -> None:
    first = DemandWatch()
    closed = hear(first, 8, from_s=START_S, bins=36)
    second = DemandWatch(first.demand)
    assert second.outlooks[CHAT].most(0.9, BIN_S, 8.0) == first.outlooks[CHAT].most(0.9, BIN_S, 8.0)
    assert len(closed) == 36


@given(st.integers(0, 8 * 12), st.booleans())
def test_what_is_expected_is_as_of_now_however_long_nobody_listened(gap: int, known: bool) -> None:
    """Of a busy pool that comes back: after an hour what was last heard says nothing, with a day less than known."""
    watch = DemandWatch({CHAT: Demand(1000, (Bin(40.0, 42.0),) * 60)})
    now_s = (1060 + gap) * BIN_S + 1.0
    watch.hear(now_s, said(1, known=known))
    found = watch.outlooks[CHAT]
    assert found.made == bin_of(now_s) - 1
    expected = found.running_in(BIN_S, 1.0)
    assert expected == (pytest.approx(40.0) if gap <= GAP_BINS else 1.0)
    before = watch.outlooks
    watch.hear(now_s + TICK_S, said(1, known=known))
    assert watch.outlooks is before, "once a bin"


def test_after_hours_of_silence_what_is_expected_is_as_of_that_time_yesterday() -> None:
    day, night = (Bin(40.0, 42.0),) * 144, (Bin(4.0, 5.0),) * 144
    watch = DemandWatch({CHAT: Demand(0, (day + night) * 3 + day)})
    for hours, expected in ((8, 4.0), (13, 40.0)):
        watch.hear((7 * 144 + hours * 12) * BIN_S, said(1))
        assert watch.outlooks[CHAT].running_in(3 * BIN_S, 1.0) == pytest.approx(expected, rel=0.1)


def test_a_bin_that_closes_late_is_known_although_it_was_taken_for_unknown_meanwhile() -> None:
    watch, end_s = DemandWatch(), START_S + BIN_S
    hear(watch, 8, from_s=START_S, bins=0.9)
    watch.hear(end_s + 1.0, {})
    assert [one.value for one in watch.hear(end_s + 2.0, said(8))] == [Bin(8.0, 8.0)]
    assert watch.demand[CHAT] == Demand(1000, (Bin(8.0, 8.0),))


def surge(watch: DemandWatch, samples: int, *, from_s: float = START_S) -> float:
    """Demand that doubles and halves; gives when it ended."""
    for number in range(samples):
        watch.hear(from_s + number * SAMPLE_S, said(8 * (1 + number % 2)))
    return from_s + samples * SAMPLE_S


def test_demand_is_what_arrives_times_how_long_it_stays_not_what_is_there_at_a_moment() -> None:
    watch, seen = (
        DemandWatch(),
        EndpointSignals(inflight=13, arriving_per_s=4.0, stay_s=2.0, known=True),
    )  # 13 by chance
    closed = [one for tick in range(21) for one in watch.hear(START_S + tick * TICK_S, {CHAT: seen})]
    assert closed == [Closed(CHAT, 1000, Bin(8.0, 8.0, 4.0))], (
        "and how many came, from which follows how long each took"
    )


def test_how_demand_surges_is_known_before_its_days_are_and_stays_when_a_bin_is_full() -> None:
    watch = DemandWatch()
    end_s = surge(watch, ENOUGH - 1, from_s=START_S + 7.0)  # so no sample is due when a bin ends
    assert not watch.outlooks[CHAT].surges
    end_s = surge(watch, 100 - (ENOUGH - 1), from_s=end_s)
    known = watch.outlooks[CHAT].surges
    assert known and not watch.outlooks[CHAT].expected
    assert watch.hear(START_S + 5 * BIN_S, said(8))
    assert watch.outlooks[CHAT].surges is known


def test_it_is_looked_at_once_a_minute_and_begins_anew_after_a_gap() -> None:
    watch = DemandWatch()
    end_s = surge(watch, ENOUGH + 2 * SURGES_EVERY + 1)
    known = watch.outlooks
    assert known[CHAT].surges
    surge(watch, SURGES_EVERY - 1, from_s=end_s)
    assert watch.outlooks[CHAT].surges is known[CHAT].surges
    surge(watch, SURGES_EVERY, from_s=end_s + 100 * SAMPLE_S)
    assert watch.outlooks[CHAT].surges == ()


def test_silent_gateways_tell_nothing_of_surges() -> None:
    watch = DemandWatch()
    end_s = surge(watch, ENOUGH + SURGES_EVERY + 1)
    known = watch.outlooks
    for number in range(40):
        watch.hear(end_s + number, said(1000, known=False))
    assert watch.outlooks is known
