"""A decision that is not made again is the one that would have been made."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.pool.events import (
    Decision,
    DrainSeat,
    JobCrashed,
    JobRecovered,
    JobSubmitted,
    ParkJob,
    SeatStopped,
    SlotFreed,
)
from ebbtide.pool.ids import JobName
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import SeatState
from ebbtide_autoscaler.core.decide import policy
from ebbtide_autoscaler.core.decide.idle_cache import IdleCache
from ebbtide_autoscaler.core.decide.lookahead import look_ahead
from ebbtide_autoscaler.core.plan.inputs import Away, Memory, PolicyConfig, Snapshot
from ebbtide_autoscaler.core.tick import tick
from tests.autoscaler.chaos import Chaos
from tests.autoscaler.closed_loop import a_job
from tests.builders.closed_loop import training
from tests.builders.policy import CHAT, CONFIG, NOW, S0, SEAT0, a_pool, fold, parked, signals, slots
from tests.builders.policy import with_job as running
from tests.builders.policy import with_ready as ready
from tests.builders.pools import Draw, add_job, aside, pools, tried
from tests.examples import examples

decide = policy.decide
P = JobName("p")
BUSY = signals(inflight=1, last_arrival_s=NOW + 1e6)
LONG = tuple(Away(NOW - after_s, 50.0) for after_s in (30.0, 20.0, 10.0))  # longer than a restart costs


class Twice:
    """Decides with a cache, as the product does, and again without one."""

    def __init__(self) -> None:
        self.calls = self.remembered = 0
        self._own = IdleCache()

    def __call__(
        self,
        now_s: float,
        snapshot: Snapshot,
        memory: Memory,
        config: PolicyConfig,
        *,
        cache: IdleCache | None = None,
    ) -> Any:
        cache = self._own if cache is None else cache
        before = cache.last
        found = decide(now_s, snapshot, memory, config, cache=cache)
        anew = decide(now_s, snapshot, memory, config)
        assert self._said(found) == self._said(anew)
        self.calls += 1
        self.remembered += before is cache.last and before is not None and found[0].waits is before.waits
        return found

    def _said(self, found: tuple[Decision, Memory]) -> object:
        """Words may be a few seconds old; who waits may not."""
        decision, memory = found
        return decision.moves, {name for name, _ in decision.waits}, memory


@pytest.mark.parametrize("seed", range(10))
def test_through_all_kinds_of_bad_luck(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = Twice()
    monkeypatch.setattr(tick, "decide", twice)
    for number in range(seed, 100, 10):  # how many decisions a storm takes depends on it
        Chaos(number).run(60.0)
        if twice.calls > 500:
            break
    assert twice.calls > 500


def test_most_decisions_of_a_pool_at_rest_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, _ = training()
    loop.run(60.0)
    twice = Twice()
    monkeypatch.setattr(tick, "decide", twice)
    loop.run(60.0)
    assert twice.remembered > 0.5 * twice.calls


# ---- pools of all kinds that stay as they are while time passes


CONFIGS = st.builds(
    lambda reserve, starve_s, grow_s: replace(CONFIG, reserve=reserve, starve_after_s=starve_s, grow_after_s=grow_s),
    st.integers(0, 1),
    st.sampled_from([5.0, 30.0, 14_400.0]),
    st.sampled_from([5.0, 20.0]),
)
AFTER_S = st.lists(st.sampled_from([0.05, 1.0, 5.0, 17.0, 60.0]), min_size=3, max_size=15)


def some_traffic(draw: Draw, state: PoolState) -> Any:
    """Mostly as much as the replicas that are there are for: then nothing but time moves anything."""
    up = sum(seat.state is SeatState.READY for seat in state.seats.values())
    if draw(st.integers(0, 3)):
        return signals(inflight=4 * up, last_arrival_s=NOW + 1e6 if up else 0.0)
    inflight, held, known = draw(st.sampled_from([(0, 0, True), (1, 0, True), (6, 1, True), (1, 0, False)]))
    return signals(inflight=inflight, held=held, last_arrival_s=NOW - 1000.0, known=known)


@settings(max_examples=examples(400), deadline=None, database=None, derandomize=True)
@given(pools(), CONFIGS, CONFIGS, AFTER_S, st.data())
def test_in_pools_of_all_kinds_as_time_passes(
    state: PoolState, config: PolicyConfig, other: PolicyConfig, after_s: list[float], data: st.DataObject
) -> None:
    """On the way another file is read; now and then something moves, or traffic or what a restart costs changes."""
    now_s, twice, memory = NOW, Twice(), Memory(away=data.draw(st.sampled_from([(), LONG])))
    seldom = st.integers(0, 5).map(lambda number: number == 5)
    seen = some_traffic(data.draw, state)
    asides = {name: aside(data.draw(st.sampled_from([5.0, 40.0]))) for name in sorted(state.jobs)[:2]}
    for number, more_s in enumerate(after_s):
        now_s += more_s
        if number == len(after_s) // 2:
            config = other
        if data.draw(seldom):
            seen = some_traffic(data.draw, state)
        if data.draw(seldom):
            asides = {name: aside(data.draw(st.sampled_from([5.0, 40.0]))) for name in asides}
        found, memory = twice(now_s, Snapshot(state, {CHAT: seen}, dict(asides)), memory, config)
        if found.moves and data.draw(seldom):
            state = tried(state, found.moves[0], at_s=now_s)


def test_the_clock_of_one_who_waits_ends_it() -> None:
    """A crashed job's next try, starvation, and growth are due at a time, with nothing else new."""
    crashed = fold(running(a_pool(), a_job("p", workers_max=3), (S0,)), JobCrashed(P, "w", 0), at_s=NOW)
    crashed = fold(crashed, SlotFreed(S0), JobRecovered(P), at_s=NOW)
    starves = fold(a_pool(nodes={"n0": 1}), JobSubmitted(a_job("p", workers_max=1), "i"), at_s=NOW - 90.0)
    starves = running(starves, a_job("w", workers_max=1), (S0,), at_s=NOW - 50.0)
    grows = running(a_pool(), a_job("p"), (S0,))
    config = replace(CONFIG, starve_after_s=100.0)
    for state in (crashed, starves, grows):
        twice, memory, moved = Twice(), Memory(), []
        for after in range(40):
            found, memory = twice(NOW + after, Snapshot(state), memory, config)
            moved.append(bool(found.moves))
        assert not moved[0] and moved[-1]


@pytest.mark.parametrize("way", ["it still parks", "preemptions usually last for longer"])
def test_the_time_for_which_slots_are_kept_ends_it(way: str) -> None:
    """Then the job that waits gets one."""
    gang = running(a_pool(), a_job("p", workers_min=3), slots(3))
    if way == "it still parks":
        state = fold(gang, ParkJob(P, "r"), SlotFreed(slots(3)[1]), SlotFreed(slots(3)[2]), at_s=NOW - 5.0)
        memory = Memory()
    else:
        state = ready(parked(gang, P, at_s=NOW - 5.0), SEAT0, (S0,), at_s=NOW - 4.0)
        memory = Memory(away=LONG)
    state = fold(state, JobSubmitted(a_job("w", workers_max=1), "i"), at_s=NOW - 1.0)
    twice = Twice()
    for after_s in (0.0, 14.0, 16.0):
        _, memory = twice(NOW + after_s, Snapshot(state, {CHAT: BUSY} if way[0] == "p" else {}), memory, CONFIG)


ASKED_AT_S = st.sampled_from([-30.0, -3.0, 0.0, 0.7, 1.5, 5.0, 17.0, 60.0, 400.0, 5 * 3600.0, 86_400.0])


@st.composite
def with_one_that_waits_for_all(draw: Draw) -> PoolState:
    """A replica has just ended, and a job waits for its slot and all that is free; others may run on fewer.

    Once it starves the free ones are kept for it: much of what moves now does not move then.
    """
    count = draw(st.integers(2, 5))
    state = ready(a_pool(nodes={"n0": count}), SEAT0, (S0,), at_s=NOW - 5000.0)
    free = list(slots(count)[1:])
    for number in range(draw(st.integers(1, 3))):
        state = add_job(draw, state, JobName(f"j{number}"), free)
    state = fold(state, DrainSeat(SEAT0, "r"), SeatStopped(SEAT0, "drained", failed=False), at_s=NOW - 1.0)
    all_of_it = 1 + len(state.free_slots())
    large = a_job("large", workers_min=all_of_it, workers_max=all_of_it, priority=1)
    return fold(state, JobSubmitted(large, "i"), at_s=NOW - draw(st.sampled_from([0.5, 100.0])))


@settings(max_examples=examples(400), deadline=None, database=None, derandomize=True)
@given(st.one_of(pools(), with_one_that_waits_for_all()), CONFIGS, st.lists(ASKED_AT_S, min_size=2), st.data())
def test_whoever_asked_before_and_for_whatever_time(
    state: PoolState, config: PolicyConfig, asked_at_s: list[float], data: st.DataObject
) -> None:
    """Whoever looks ahead asks for a later time with the state of now, and a clock may be set back."""
    up = sum(seat.state is SeatState.READY for seat in state.seats.values())
    seen = signals(inflight=4 * up, last_arrival_s=NOW + 1e6 if up else 0.0)
    known, twice = [Memory(), Memory(away=LONG)], Twice()
    for after_s in asked_at_s:
        memory = data.draw(st.sampled_from(known))
        known.append(twice(NOW + after_s, Snapshot(state, {CHAT: seen}), memory, config)[1])


def test_a_look_ahead_changes_no_decision() -> None:
    """By then a job has starved and would have the free slot kept for it; now another one gets it."""
    state = ready(a_pool(nodes={"n0": 2}), SEAT0, (S0,))
    state = fold(state, JobSubmitted(a_job("large", workers_min=2, workers_max=2), "i"), at_s=NOW - 100.0)
    state = running(state, a_job("p", workers_max=1), slots(2)[1:], at_s=NOW - 50.0)
    crashed = JobCrashed(P, "w", 0), SlotFreed(slots(2)[1]), JobRecovered(P)
    drained = DrainSeat(SEAT0, "r"), SeatStopped(SEAT0, "drained", failed=False)
    state = fold(state, *crashed, *drained, at_s=NOW - 1.0)
    snapshot = Snapshot(state, {CHAT: signals(last_arrival_s=NOW - 1000.0)})
    cache = IdleCache()
    _, memory = decide(NOW, snapshot, Memory(), CONFIG, cache=cache)
    look_ahead(NOW, NOW + 5 * 3600.0, snapshot, memory, CONFIG)
    found, _ = decide(NOW + 5.0, snapshot, memory, CONFIG, cache=cache)
    assert [move.kind for move in found.moves] == ["grant_job"]


def test_a_decision_depends_on_its_arguments_alone() -> None:
    """It once did not: the cache was the module's, and did not know who was to step aside."""
    asked = []

    def spy(*arguments: Any) -> None:
        asked.append(arguments)

    snapshot = Snapshot(a_pool(), {CHAT: signals()})
    for _ in range(3):
        decide(NOW, snapshot, Memory(), CONFIG, reclaim=spy)
        decide(NOW, snapshot, Memory(), CONFIG)
    assert len(asked) == 3
    cache = IdleCache()
    decide(NOW, snapshot, Memory(), CONFIG, cache=cache)
    assert cache.last is not None
    decide(NOW, snapshot, Memory(), CONFIG, reclaim=spy, cache=cache)
    assert len(asked) == 4, "what was decided with another reclaim says nothing of this one"
