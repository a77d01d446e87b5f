"""What gateways say becomes bins and an outlook; silence becomes neither."""

from ebbtide.pool.ids import EndpointName
from ebbtide_autoscaler.forecast.demand import BIN_S, Bin
from ebbtide_autoscaler.forecast.watch import Closed, Watch
from ebbtide_autoscaler.signals import EndpointSignals

CHAT = EndpointName("chat")
START_S = 1000 * BIN_S
TICK_S = 15.0


def said(requests: int, *, known: bool = True) -> dict[EndpointName, EndpointSignals]:
    """One endpoint's requests, some of them held."""
    return {CHAT: EndpointSignals(held=requests // 4, inflight=requests - requests // 4, known=known)}


def hear(watch: Watch, requests: int, *, from_s: float, bins: float, known: bool = True) -> list[Closed]:
    """So many requests for so many bins."""
    ticks = int(bins * BIN_S / TICK_S)
    return [one for n in range(ticks + 1) for one in watch.hear(from_s + n * TICK_S, said(requests, known=known))]


def test_held_and_running_requests_are_demand() -> None:
    watch = Watch()
    closed = hear(watch, 8, from_s=START_S, bins=2)
    assert closed == [Closed(CHAT, 1000, Bin(8.0, 8.0)), Closed(CHAT, 1001, Bin(8.0, 8.0))]


def test_silent_gateways_leave_a_gap_and_no_zero() -> None:
    watch = Watch()
    hear(watch, 8, from_s=START_S, bins=1)
    hear(watch, 0, from_s=START_S + BIN_S + TICK_S, bins=1.5, known=False)
    closed = hear(watch, 8, from_s=START_S + 3 * BIN_S, bins=1)
    assert [(one.number, one.value) for one in closed] == [(1001, None), (1002, None), (1003, Bin(8.0, 8.0))]


def test_an_outlook_comes_with_history_and_is_made_anew_with_each_bin() -> None:
    watch = Watch()
    hear(watch, 8, from_s=START_S, bins=12)
    assert watch.outlooks[CHAT].most(0.9, BIN_S) is None
    hear(watch, 8, from_s=START_S + 12 * BIN_S, bins=24)
    before = watch.outlooks
    most = before[CHAT].most(0.9, BIN_S)
    assert most is not None and 7.9 < most < 8.2
    watch.hear(START_S + 36 * BIN_S + TICK_S, said(8))
    assert watch.outlooks is before, "within a bin nothing is reckoned again"


def test_another_arbiter_goes_on_from_what_was_kept() -> None:
    first = Watch()
    closed = hear(first, 8, from_s=START_S, bins=36)
    second = Watch(first.demand)
    assert second.outlooks[CHAT].most(0.9, BIN_S) == first.outlooks[CHAT].most(0.9, BIN_S)
    assert len(closed) == 36
