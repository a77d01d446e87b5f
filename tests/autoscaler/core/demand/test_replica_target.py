"""How the number of replicas comes down: one by one, and never by one that others still count on."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.client.messages import LATENCY_WINDOW_S
from ebbtide.pool.events import GrantSeat, SeatLanded, SeatReady, SeatStopped
from ebbtide.pool.ids import EndpointName, seat_id
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.demand.replica_target import may_go, replica_targets
from ebbtide_autoscaler.core.demand.slo import SLOW_KEPT_S
from ebbtide_autoscaler.core.forecast.outlook import Expected, Outlook
from ebbtide_autoscaler.core.forecast.surge import Surge
from ebbtide_autoscaler.core.plan.inputs import NOTED_EVERY_S, EndpointMemory, EndpointSignals, Memory, Snapshot
from tests.autoscaler.closed_loop import an_endpoint
from tests.builders.policy import (
    CHAT,
    CONFIG,
    MANY,
    NOW,
    S0,
    S1,
    S2,
    SEAT0,
    SEAT1,
    a_pool,
    aims,
    arriving,
    fold,
    kinds,
    look,
    signals,
    slots,
    up,
    with_ready,
)


@pytest.mark.proves("replicas go a few at a time")
def test_replicas_go_one_by_one_each_after_demand_has_been_lower_for_a_while() -> None:
    state, memory = a_pool(), Memory()
    for number, slot in enumerate((S0, S1, S2)):
        state = with_ready(state, seat_id(CHAT, number), (slot,))
    one_is_enough = {CHAT: signals(inflight=1, last_arrival_s=NOW)}
    drained_s = []
    for tenths in range(100):
        found, memory = decide(NOW + tenths / 10, Snapshot(state, one_is_enough), memory, CONFIG)
        drained_s += [tenths / 10 for _ in found.moves]
        state = fold(state, *found.moves, at_s=NOW + tenths / 10)
    assert drained_s == [3.0, 6.0]


@pytest.mark.proves("a replica that starts stands in for none that serves")
def test_a_replica_that_still_starts_stands_in_for_none_that_serves() -> None:
    state = with_ready(a_pool(), SEAT0, (S0,))
    state = fold(state, GrantSeat(SEAT1, (S1,), "r"), SeatLanded(SEAT1, "a"), at_s=NOW - 5.0)
    one_is_enough = signals(inflight=1, last_arrival_s=NOW)
    assert look(state, traffic=one_is_enough, for_s=30.0).moves == ()
    third = fold(with_ready(state, seat_id(CHAT, 2), (S2,)), SeatStopped(SEAT0, "crashed"), at_s=NOW - 4.0)
    assert look(third, traffic=signals(inflight=7, last_arrival_s=NOW), for_s=30.0).moves == (), "nor is one added"
    both = fold(state, SeatReady(SEAT1, ()), at_s=NOW - 4.0)
    assert kinds(look(both, traffic=one_is_enough, for_s=30.0)) == ["DrainSeat"]
    last = seat_id(CHAT, 2)
    two_start = fold(state, GrantSeat(last, (S2,), "r"), SeatLanded(last, "b"), at_s=NOW - 5.0)
    two_are_enough = signals(inflight=7, last_arrival_s=NOW)
    _, memory = aims(two_start, [(-30.0, two_are_enough)])
    (want,), _ = replica_targets(NOW, Snapshot(two_start, {CHAT: two_are_enough}), memory, CONFIG)
    assert (want.now, want.replicas) == (3, 3), "nor does one more"


@pytest.mark.proves("no more replicas are wanted than the file allows")
def test_what_was_wanted_beyond_the_largest_number_does_not_keep_replicas_afterwards() -> None:
    state, memory = a_pool(), Memory()
    for number, slot in enumerate((S0, S1, S2)):
        state = with_ready(state, seat_id(CHAT, number), (slot,))
    flood = {CHAT: signals(held=100, last_arrival_s=NOW)}
    for seconds in (-3.0, -2.0, -1.0):
        found, memory = decide(NOW + seconds, Snapshot(state, flood), memory, CONFIG)
        assert found.moves == () and memory.endpoints[CHAT].aim == 3
    calm = {CHAT: signals(inflight=1, last_arrival_s=NOW)}
    _, memory = decide(NOW, Snapshot(state, calm), memory, CONFIG)
    found, _ = decide(NOW + 3.0, Snapshot(state, calm), memory, CONFIG)
    assert kinds(found) == ["DrainSeat"]


def test_the_aim_comes_down_to_the_most_that_was_wanted_meanwhile() -> None:
    story = [(0.0, arriving(16.0)), (1.0, arriving(2.0)), (2.0, arriving(13.5)), (3.0, arriving(2.0))]
    found, memory = aims(up(8), [*story, (3.9, arriving(2.0)), (4.0, arriving(2.0))])
    assert found == [8, 8, 8, 8, 8, 7]
    assert aims(up(8), [(6.9, arriving(2.0)), (7.0, arriving(2.0))], memory)[0] == [7, 6]


def test_demand_that_is_back_before_it_was_lower_for_a_while_begins_the_wait_anew() -> None:
    story = [(0.0, arriving(2.0)), (2.9, arriving(16.0)), (3.0, arriving(2.0)), (5.9, arriving(2.0))]
    assert aims(up(8), story)[0] == [8, 8, 8, 8]


def test_an_eighth_goes_at_once_at_most_and_one_of_few() -> None:
    found, _ = aims(up(32), [(float(second), arriving(2.0)) for second in range(0, 60, 3)])
    assert found == [32, 28, 25, 22, 20, 18, 16, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2]


def test_no_more_go_than_were_too_many_all_the_time() -> None:
    story = [(float(second), arriving(60.0 if second else 64.0)) for second in range(5)]
    assert aims(up(32), story)[0] == [32, 32, 32, 32, 30]


def test_arrivals_raise_it_at_once_and_a_count_of_one_moment_does_not() -> None:
    assert aims(up(1), [(0.0, arriving(10.0, inflight=4))])[0] == [5]
    count = signals(inflight=20, last_arrival_s=NOW)
    assert aims(up(1), [(0.0, count), (0.9, count), (1.0, count)])[0] == [1, 1, 5]


def test_silence_of_gateways_ages_nothing() -> None:
    _, memory = aims(up(8), [(0.0, arriving(2.0))])
    silent, after = aims(up(8), [(1.0, EndpointSignals()), (900.0, EndpointSignals())], memory)
    told = replace(memory.endpoints[CHAT], strained_at_s=0.0)
    assert silent == [8, 8] and after.endpoints == {CHAT: told}, "but that it was calm meanwhile is not known"


def test_endpoints_of_one_priority_come_as_they_were_declared_whatever_they_are_called() -> None:
    specs = [replace(an_endpoint(), name=EndpointName(name)) for name in ("zeta", "alpha")]
    found, _ = replica_targets(NOW, Snapshot(a_pool(endpoints=tuple(specs))), Memory(), CONFIG)
    assert [want.endpoint for want in found] == ["zeta", "alpha"]


def test_while_a_gateway_is_silent_replicas_are_added_and_none_is_taken_away() -> None:
    _, memory = aims(up(8), [(0.0, arriving(8.0))])
    there = max(aims(up(8), [(0.0, arriving(8.0))])[0])
    partly = replace(arriving(1.0), unheard_s=10.0)
    found, memory = aims(up(8), [(float(second), partly) for second in range(1, 400)], memory)
    assert min(found) == there
    found, _ = aims(up(8), [(400.0, replace(arriving(40.0), unheard_s=10.0))], memory)
    assert found[-1] > there
    found, _ = aims(up(8), [(float(second), arriving(1.0)) for second in range(400, 800)], memory)
    assert found[-1] < there


# ---- too few replicas


def missed(per_s: float = 6.0, replicas: int = 2) -> Memory:
    """So many replicas have just missed the SLO at that rate; what is asked for would be fewer or as many."""
    slow = arriving(per_s, stay_s=1.0, inflight=round(per_s), ttft_p90_s=3.0)
    found, memory = aims(up(replicas), [(-1.0, slow), (0.0, slow)])
    assert found[-1] == replicas + 1
    return memory


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.proves("no way back to a number of replicas that missed the SLO")
def test_one_more_than_missed_the_slo_stays_while_as_much_arrives(seed: int) -> None:
    """Arrivals over 15 s are off by some per cent each time: that swings nothing."""
    random = Random(seed)
    rates = [6.0 * random.uniform(0.93, 1.07) for _ in range(1000)]
    story = [(1.0 + number, arriving(rate, stay_s=1.0, ttft_p90_s=0.3)) for number, rate in enumerate(rates)]
    assert set(aims(up(3), story, missed())[0]) == {3}


def test_what_was_learnt_of_too_few_holds_in_proportion_and_for_half_an_hour() -> None:
    twice, _ = aims(up(3), [(1.0, arriving(12.0, stay_s=1.0, inflight=12))], missed())
    assert twice == [5]
    half, _ = aims(up(3), [(float(s), arriving(3.0, stay_s=1.0)) for s in (1, 5, 9)], missed())
    assert half[-1] == 2, "for half of it 2.5 halves are enough"
    same = arriving(6.0, stay_s=1.0, inflight=6)
    kept, memory = aims(up(3), [(s, same) for s in (1.0, SLOW_KEPT_S)], missed())
    assert kept == [3, 3]
    forgotten, memory = aims(up(3), [(SLOW_KEPT_S + more_s, same) for more_s in (0.1, 3.0, 3.1)], memory)
    assert forgotten == [3, 3, 2]
    assert memory.endpoints[CHAT].slow_replicas == 0


def test_replicas_on_their_way_are_waited_for_before_they_are_judged() -> None:
    slow = arriving(6.0, stay_s=1.0, ttft_p90_s=3.0)
    starting = fold(up(2), GrantSeat(seat_id(CHAT, 2), (slots(3)[2],), "r"), at_s=NOW - 1.0)
    _, memory = aims(starting, [(float(second), slow) for second in range(30)])
    assert memory.endpoints[CHAT].slow_replicas == 0


@given(st.integers(1, 4), st.sampled_from([0.0, 3.0, 60.0]), st.floats(0.05, 1.0))
def test_requests_that_each_have_a_replica_of_their_own_tell_nothing_of_too_few(
    replicas: int, stay_s: float, per_s: float
) -> None:
    """What is slow then is a request, and a hundred times as many short ones do not take a hundred times as many."""
    alone = arriving(per_s, stay_s=stay_s, inflight=replicas, ttft_p90_s=3.0)
    found, memory = aims(up(replicas), [(-1.0, alone), (0.0, alone)])
    assert set(found) == {replicas}, "nor does one more make it any quicker"
    assert not memory.endpoints[CHAT].slow_replicas


def joined(age_s: float, count: int = 2) -> PoolState:
    """So many replicas, all ready for long but the last one."""
    return with_ready(up(count - 1), seat_id(CHAT, count - 1), slots(count)[-1:], at_s=NOW - age_s)


def test_replicas_are_judged_by_requests_that_came_once_all_of_them_were_ready() -> None:
    """One replica takes 3 s to the first token, two take 0.1 s; the gateways tell of the tokens of the last 10 s."""
    story = list[tuple[float, EndpointSignals]]()
    for quarter in range(100):
        now_s = quarter / 4  # after the second one was ready
        came_s = [n / 4 for n in range(-120, 120)]
        began = [(at_s + took_s, took_s) for at_s in came_s for took_s in [3.0 if at_s < 0 else 0.1]]
        lately = sorted(took_s for at_s, took_s in began if now_s - LATENCY_WINDOW_S <= at_s <= now_s)
        story.append((now_s, arriving(4.0, stay_s=1.0, inflight=3, ttft_p90_s=lately[int(0.9 * (len(lately) - 1))])))
    assert [seen.ttft_p90_s for _, seen in story][44] == 3.0, "also when it has been ready for 11 s"
    found, memory = aims(joined(0.0), story, missed(4.0, 1))
    assert set(found) == {2} and memory.endpoints[CHAT].slow_replicas == 1


@given(st.floats(1.1, 30.0), st.integers(2, 6))
def test_a_miss_that_lasts_is_judged_once_and_soon_after_the_last_replica_was_ready(ttft_s: float, count: int) -> None:
    slow = arriving(count + 2.0, stay_s=1.0, inflight=count + 2, ttft_p90_s=ttft_s)
    theirs_s = LATENCY_WINDOW_S + ttft_s
    story = [(theirs_s * share, slow) for share in (0.1, 0.5, 0.99)]
    story += [(theirs_s + 0.1, slow), (theirs_s + 1.0, slow)]
    found, memory = aims(joined(0.0, count), story, missed(count + 2.0, count - 1))
    assert set(found) == {count} and memory.endpoints[CHAT].slow_replicas == count - 1
    found, memory = aims(joined(0.0, count), [(theirs_s + 1.2, slow)], memory)
    assert found == [count + 1] and memory.endpoints[CHAT].slow_replicas == count


def test_streams_that_end_tell_of_the_time_since_they_began() -> None:
    slow = arriving(1.0, stay_s=30.0, inflight=8, tpot_p90_s=0.9)
    story = [(age_s, slow) for age_s in (10.5, 12.0, 39.9, 40.1, 41.0, 41.2)]
    assert aims(joined(0.0), story)[0] == [2, 2, 2, 2, 2, 3]


def test_overload_raises_the_aim_also_while_one_replica_after_another_joins() -> None:
    """Then none of them is ever judged, and need not be: what is too slow is there for longer, and so more at once."""
    state, memory, reached = up(1), Memory({CHAT: EndpointMemory(aim=1)}), []
    for number in range(1, 12):
        at_s = 5.0 * number
        state = with_ready(state, seat_id(CHAT, number), slots(number + 1)[-1:], at_s=NOW + at_s)
        over = arriving(10.0, stay_s=1.0 + 0.5 * number, inflight=10 + 5 * number, ttft_p90_s=1.0 + 0.5 * number)
        found, memory = aims(state, [(at_s + 0.1, over), (at_s + 4.9, over)], memory)
        reached.append(found[-1])
    assert not memory.endpoints[CHAT].slow_replicas
    assert reached == [4, 5, 7, 8, 9, 10, 12, 13, 14, 15, 17], "four requests at once for each"


def test_one_that_joins_and_fails_again_and_again_keeps_nobody_from_judging_the_others() -> None:
    """Each try waits twice as long as the last one: between them there is time."""
    state = fold(joined(3.0, 3), SeatStopped(seat_id(CHAT, 2), "crashed"), at_s=NOW - 1.0)
    slow = arriving(1.0, stay_s=3.0, inflight=3, ttft_p90_s=3.0)
    found, memory = aims(state, [(0.0, slow), (1.0, slow)])
    assert found[-1] == 3 and memory.endpoints[CHAT].slow_replicas == 2


def changes(state: PoolState, seen: EndpointSignals, ticks: int, every_s: float = 0.2) -> int:
    """How often the memory changes, and so is written down, after the first tick of the same."""
    found = [aims(state, [(0.0, seen)])[1]]
    for tick in range(1, ticks):
        found.append(aims(state, [(tick * every_s, seen)], found[-1])[1])
    return sum(now != before for before, now in pairwise(found))


@pytest.mark.parametrize("ttft_s", [0.1, 0.9, 0.0, 3.0])
def test_what_lasts_is_written_down_once_in_a_while_and_not_on_every_tick(ttft_s: float) -> None:
    """At ease, strained, untold of, and too slow with no slot for one more."""
    seen = arriving(6.0, stay_s=1.0, inflight=6, ttft_p90_s=ttft_s)
    begins = 2 if ttft_s == 3.0 else 0  # one more is aimed at, and what was learnt
    renewed = 0 if ttft_s == 0.1 else 2 * (60.0 // NOTED_EVERY_S)
    assert changes(up(2), seen, ticks=300) <= begins + renewed


@given(st.floats(0.0, 3 * NOTED_EVERY_S), st.floats(0.1, 10.0))
def test_what_was_learnt_last_is_known_to_within_what_is_left_out(lasts_s: float, every_s: float) -> None:
    slow = arriving(6.0, stay_s=1.0, inflight=6, ttft_p90_s=3.0)
    ticks_s = [every_s * n for n in range(int(lasts_s / every_s) + 1)]
    _, memory = aims(up(2), [(at_s, slow) for at_s in (-1.0, *ticks_s)])
    one = memory.endpoints[CHAT]
    assert 0.0 <= NOW + ticks_s[-1] - one.slow_at_s <= NOTED_EVERY_S
    assert 0.0 <= NOW + ticks_s[-1] - one.strained_at_s <= NOTED_EVERY_S


@pytest.mark.parametrize("left", [{"inflight": 12}, {"inflight": 6, "held": 40}, {"inflight": 30, "stay_s": 0.0}])
def test_more_replicas_are_never_wanted_because_nothing_arrives_any_more(left: dict[str, float]) -> None:
    over = arriving(0.0, **({"stay_s": 1.0, "ttft_p90_s": 0.3} | left))
    story = [(16.0, over), (18.0, over)]  # a count has to last for a second
    plain, _ = aims(up(3), story, Memory({CHAT: EndpointMemory(aim=3)}))
    assert aims(up(3), story, missed())[0] == plain


@given(st.integers(1, 3), st.integers(1, 40), st.sampled_from([0.0, 3.0, 60.0]), st.floats(0.1, 50.0))
def test_replicas_that_are_slow_while_nothing_arrives_tell_nothing_of_how_many_arrivals_take(
    replicas: int, inflight: int, stay_s: float, per_s: float
) -> None:
    """A stream whose time to the first token leaves out that it was held begins when its arrival was long ago."""
    slow = arriving(0.0, stay_s=stay_s, inflight=inflight, ttft_p90_s=3.0)
    _, memory = aims(up(replicas), [(-1.0, slow), (0.0, slow)])
    now_aims = replace(memory, endpoints={CHAT: replace(memory.endpoints[CHAT], aim=1)})
    short = arriving(per_s, stay_s=0.4, inflight=round(0.4 * per_s), ttft_p90_s=0.1)
    plain = Memory({CHAT: EndpointMemory(aim=1)})
    assert aims(up(1), [(60.0, short)], now_aims)[0] == aims(up(1), [(60.0, short)], plain)[0]


# ---- which replica may go, and what is expected


@pytest.mark.parametrize(("sleeps", "up_s", "goes"), [(True, 5.9, False), (True, 6.1, True), (False, 6.1, False)])
def test_a_replica_that_can_sleep_may_go_after_a_multiple_of_what_waking_takes(
    sleeps: bool, up_s: float, goes: bool
) -> None:
    spec = an_endpoint(warm_replicas=1, min_uptime_factor=3.0)
    told = SeatReady(SEAT0, (), park_bytes=30 if sleeps else 0)
    state = fold(a_pool(endpoints=(spec,)), GrantSeat(SEAT0, (S0,), "r"), SeatLanded(SEAT0, "a"), told, at_s=NOW)
    record = replace(state.endpoints[CHAT], start_s=40.0, wake_s=2.0)
    assert may_go(NOW + up_s, state, record, state.seats[SEAT0]) is goes
    assert may_go(NOW + 120.0, state, record, state.seats[SEAT0])
    never_woke = replace(record, wake_s=0.0)
    assert not may_go(NOW + 119.0, state, never_woke, state.seats[SEAT0])


@pytest.mark.proves("only a ready replica is drained for less demand")
def test_a_replica_that_is_not_ready_may_not_go_for_less_demand() -> None:
    starts = fold(a_pool(), GrantSeat(SEAT0, (S0,), "r"), SeatLanded(SEAT0, "a"), at_s=NOW - 9_000.0)
    ready = fold(starts, SeatReady(SEAT0, ()), at_s=NOW - 8_000.0)
    for state in (starts, ready):
        assert may_go(NOW, state, state.endpoints[CHAT], state.seats[SEAT0]) is (state is ready)


def test_what_demand_grew_by_of_late_is_had_beforehand_and_what_is_expected_too() -> None:
    state = up(10)
    state = replace(state, endpoints={CHAT: replace(state.endpoints[CHAT], start_s=52.5)})
    grows = Outlook(0, (), (Surge(60.0, np.array([1.25] * 100)),))
    assert aims(state, [(0.0, arriving(20.0))])[0] == [10]
    # 0.25, less the promised second in the minute until more replicas answer
    assert aims(state, [(0.0, arriving(20.0))], outlooks={CHAT: grows})[0] == [13]
    soon = Outlook(0, (Expected(52.5, 56.0, np.zeros(1), np.zeros(1)),))
    assert aims(state, [(0.0, arriving(20.0))], outlooks={CHAT: soon})[0] == [14]
    less = Outlook(0, (Expected(52.5, 4.0, np.zeros(1), np.zeros(1)),))
    assert aims(state, [(0.0, arriving(20.0))], outlooks={CHAT: less})[0] == [10], "it never goes ahead of an ebb"


def test_what_is_remembered_of_slowness_stays_while_the_aim_changes() -> None:
    before = EndpointMemory(aim=1, slow_replicas=7, slow_per_s=8.0, slow_at_s=NOW - 9.0, strained_at_s=NOW)
    state = with_ready(a_pool(), SEAT0, (S0,))
    busy = {CHAT: signals(inflight=9, last_arrival_s=NOW)}
    config = replace(CONFIG, up_after_s=0.0)
    (want,), remembered = replica_targets(NOW, Snapshot(state, busy), Memory(endpoints={CHAT: before}), config)
    after = remembered[CHAT]
    assert after.aim == want.replicas > before.aim and after.busy_since_s == NOW
    assert after == replace(before, aim=after.aim, busy_since_s=NOW)
    quiet = {CHAT: signals(last_arrival_s=NOW - 1000.0)}
    same = replica_targets(
        NOW, Snapshot(a_pool(), quiet), Memory(endpoints={CHAT: EndpointMemory(strained_at_s=NOW)}), CONFIG
    )[1]
    assert replica_targets(NOW, Snapshot(a_pool(), quiet), Memory(endpoints=same), CONFIG)[1][CHAT] is same[CHAT]


def test_the_tail_of_a_burst_teaches_nothing_of_the_little_that_arrives_in_it() -> None:
    """What waits has the SLO missed when hardly any arrives: one replica was too few for the burst, not for that."""
    full = with_ready(a_pool(nodes={"n0": 1}, endpoints=(MANY,)), SEAT0, slots(1))
    busy = [(float(second), arriving(6.0, inflight=9, ttft_p90_s=3.0)) for second in range(60)]
    tail = [(60.0 + second, arriving(0.07, inflight=9, ttft_p90_s=9.0)) for second in range(60)]
    _, memory = aims(full, [*busy, *tail])
    assert memory.endpoints[CHAT].slow_replicas == 1 and memory.endpoints[CHAT].slow_per_s == 6.0
    well = [(150.0 + second, arriving(0.07, inflight=1)) for second in range(3)]
    again = [(200.0 + second, arriving(2.0, inflight=9, ttft_p90_s=3.0)) for second in range(3)]
    _, memory = aims(full, [*well, *again], memory)
    assert memory.endpoints[CHAT].slow_per_s == 2.0, "another time of missing it tells of itself"
