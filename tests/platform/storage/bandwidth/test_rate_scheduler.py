"""Byte-rate classes under a virtual clock: the budget, priorities, shares and fairness, whoever asks how."""

import heapq
from dataclasses import dataclass, field
from itertools import count, pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.storage.bandwidth.rate_scheduler import (
    ASK_AGAIN_S,
    LEAST_BYTES_PER_S,
    SHARES,
    Answer,
    Ask,
    Budget,
    RateSchedule,
    TrafficClass,
    leave,
    take,
)
from tests.examples import examples

MIB = 1 << 20
LOAD, WRITE, PREFETCH, SCRUB = TrafficClass
RATE = 1e9


@dataclass(frozen=True)
class Client:
    """A transfer that wants bytes from ``begin_s`` to ``end_s``."""

    kind: TrafficClass
    nbytes: int = 16 * MIB
    threads: int = 4
    begin_s: float = 0.0
    end_s: float = 1e9
    pause_s: float = 0.001  # between the end of a chunk and the next question
    mortal_s: float = 1e9  # killed then, without a word


@dataclass
class Moved:
    """What was granted: (start, bytes, client's number), in order."""

    grants: list[tuple[float, int, int]] = field(default_factory=list)

    def bytes(self, clients: list[Client], *, after_s: float, before_s: float, **what: object) -> int:
        """Of the clients with these attributes."""
        return sum(
            nbytes
            for at_s, nbytes, number in self.grants
            if after_s <= at_s < before_s
            and all(getattr(clients[number], name) == value for name, value in what.items())
        )


def play(budget: Budget, clients: list[Client], seconds: float, seed: int = 0) -> Moved:
    """Let all threads ask as `rate_limiter` does, in virtual time, each waking up a little late.

    Those of a client in turn.
    """
    random, numbers, moved = Random(seed), count(), Moved()
    book = RateSchedule.new(budget, 0.0)
    due: list[tuple[float, int, int, bool]] = []  # when, a number, whose thread, whether it has its client's turn
    queues = [0] * len(clients)
    busy = [False] * len(clients)

    def at(when_s: float, who: int, has_turn: bool) -> None:
        heapq.heappush(due, (when_s, next(numbers), who, has_turn))

    for who, client in enumerate(clients):
        for _ in range(client.threads):
            at(client.begin_s, who, False)
    while due and due[0][0] < seconds:
        now_s, _, who, has_turn = heapq.heappop(due)
        client = clients[who]
        if now_s >= client.mortal_s:
            continue
        if now_s >= client.end_s:
            book = leave(book, str(who))
            continue
        if not has_turn and busy[who]:
            queues[who] += 1
            continue
        busy[who] = True
        book, answer = take(book, budget, Ask(client.kind, str(who), client.nbytes), now_s)
        late_s = random.uniform(0.0, 0.002)
        if answer.granted:
            start_s = now_s + answer.wait_s
            moved.grants.append((start_s, client.nbytes, who))
            at(start_s + client.pause_s + late_s, who, False)
            busy[who] = False
            if queues[who]:
                queues[who], busy[who] = queues[who] - 1, True
                at(start_s, who, True)
        else:
            assert answer.why
            at(now_s + max(min(answer.wait_s, ASK_AGAIN_S), 0.0005) + late_s, who, True)
    moved.grants.sort()
    return moved


def check_budget(moved: Moved, rate: float, burst: int) -> None:
    """Over any span of time, no more than the budget and one burst."""
    level, at_s = 0.0, 0.0
    for start_s, nbytes, _ in moved.grants:
        level = max(0.0, level - rate * (start_s - at_s)) + nbytes
        at_s = start_s
        assert level <= burst + 1, f"at {start_s:.3f} s: {level / MIB:.1f} MiB beyond the budget"


def clients(kinds: st.SearchStrategy[TrafficClass]) -> st.SearchStrategy[list[Client]]:
    some = st.builds(
        Client,
        kinds,
        st.sampled_from([65536, 4 * MIB, 16 * MIB, 32 * MIB]),
        st.integers(1, 8),
        st.sampled_from([0.0, 0.5, 3.0]),
        st.sampled_from([2.0, 5.0, 100.0]),
        st.sampled_from([0.001, 0.05, 0.5]),
    )
    return st.lists(some, min_size=1, max_size=5)


@settings(max_examples=examples(40), deadline=None)
@given(clients(st.sampled_from(TrafficClass)), st.sampled_from([5e7, 1e9, 5e9]), st.integers(0, 9))
def test_the_budget_is_never_exceeded_by_more_than_a_burst(some: list[Client], rate: float, seed: int) -> None:
    budget = Budget(rate)
    check_budget(play(budget, some, 3.0, seed), rate, budget.burst_bytes)


@settings(max_examples=examples(12), deadline=None)
@given(
    st.lists(st.sampled_from([WRITE, PREFETCH, SCRUB]), min_size=1, max_size=3, unique=True),
    st.sampled_from([4 * MIB, 16 * MIB]),
    st.integers(1, 8),
    st.integers(0, 9),
)
def test_a_higher_class_that_wants_all_gets_all_but_the_shares_and_no_share_starves(
    lower: list[TrafficClass], nbytes: int, threads: int, seed: int
) -> None:
    budget, seconds = Budget(RATE), 10.0
    everyone = [Client(LOAD, 16 * MIB, 4), *(Client(kind, nbytes, threads) for kind in lower)]
    moved = play(budget, everyone, seconds, seed)
    check_budget(moved, RATE, budget.burst_bytes)
    shares = sum(SHARES[kind] for kind in lower)
    load = moved.bytes(everyone, after_s=0, before_s=seconds, kind=LOAD)
    assert load >= (1 - shares) * RATE * seconds * 0.98 - 3 * budget.burst_bytes
    for kind in lower:
        its = moved.bytes(everyone, after_s=0, before_s=seconds, kind=kind)
        due = SHARES[kind] * RATE * seconds
        assert due - 2 * budget.burst_bytes <= its <= due + 2 * budget.burst_bytes, kind


@pytest.mark.parametrize("kind", [WRITE, PREFETCH, SCRUB])
def test_a_lower_class_gets_all_when_the_higher_ones_are_quiet_and_steps_aside_at_once(kind: TrafficClass) -> None:
    budget = Budget(RATE)
    both = [Client(LOAD, begin_s=5.0, end_s=10.0), Client(kind, threads=8)]
    moved = play(budget, both, 20.0)
    check_budget(moved, RATE, budget.burst_bytes)
    for after_s, before_s in ((0.0, 5.0), (11.2, 20.0)):
        its = moved.bytes(both, after_s=after_s, before_s=before_s, kind=kind)
        assert its >= 0.97 * RATE * (before_s - after_s) - budget.burst_bytes
    held_down = moved.bytes(both, after_s=5.0, before_s=10.9, kind=kind)
    assert held_down <= SHARES[kind] * RATE * 5.9 + 2 * budget.burst_bytes
    first_s = next(at_s for at_s, _, who in moved.grants if who == 0)
    assert first_s - 5.0 <= 2 * budget.burst_bytes / RATE, "it waits for one burst that was begun, and one chunk"


def test_pauses_between_the_chunks_of_a_load_let_nobody_in() -> None:
    both = [Client(LOAD, threads=1, pause_s=0.7), Client(PREFETCH, threads=8)]
    moved = play(Budget(RATE), both, 20.0)
    its = moved.bytes(both, after_s=0.0, before_s=20.0, kind=PREFETCH)
    assert its <= SHARES[PREFETCH] * RATE * 20.0 + 2 * Budget(RATE).burst_bytes


@settings(max_examples=examples(12), deadline=None)
@given(st.sampled_from(TrafficClass), st.integers(1, 16), st.sampled_from([4 * MIB, 16 * MIB]), st.integers(0, 9))
def test_two_transfers_of_a_class_get_the_same_whatever_their_threads_and_chunks(
    kind: TrafficClass, threads: int, nbytes: int, seed: int
) -> None:
    budget = Budget(RATE)
    pair = [Client(kind, 16 * MIB, 1), Client(kind, nbytes, threads)]
    moved = play(budget, pair, 10.0, seed)
    one, other = (sum(n for _, n, who in moved.grants if who == number) for number in (0, 1))
    if threads * nbytes >= 16 * MIB:  # less cannot want its half
        assert abs(one - other) <= 3 * budget.burst_bytes
    assert one + other >= 0.9 * RATE * 10.0


def test_only_who_keeps_nobody_waiting_may_ask_for_more_than_a_burst() -> None:
    unknown = Budget(None)
    assert unknown.ask_bytes(LOAD) == 4 * unknown.burst_bytes
    assert {unknown.ask_bytes(kind) for kind in (WRITE, PREFETCH, SCRUB)} == {unknown.burst_bytes}
    assert {Budget(RATE).ask_bytes(kind) for kind in TrafficClass} == {Budget(RATE).burst_bytes}
    book = RateSchedule.new(unknown, 0.0)
    for n in range(100):  # without a budget, loads never wait, neither for themselves nor for each other
        nbytes = unknown.ask_bytes(LOAD) if n % 2 else MIB
        book, answer = take(book, unknown, Ask(LOAD, str(n % 2), nbytes), n / 100)
        assert answer.granted and not answer.wait_s
    book, answer = take(book, unknown, Ask(SCRUB, "s", unknown.burst_bytes), 1.0)
    book, again = take(book, unknown, Ask(SCRUB, "s", unknown.burst_bytes), 1.0)
    assert answer.granted and not again.granted, "what is due to it is no more than it was"


def test_a_newcomer_shares_from_now_on_and_does_not_catch_up() -> None:
    pair = [Client(LOAD), Client(LOAD, begin_s=10.0)]
    moved = play(Budget(RATE), pair, 20.0)
    late = [sum(n for at_s, n, who in moved.grants if who == number and at_s >= 10.0) for number in (0, 1)]
    assert abs(late[0] - late[1]) <= 3 * Budget(RATE).burst_bytes


def test_a_transfer_that_was_away_does_not_catch_up_either() -> None:
    budget = Budget(RATE)
    book, _ = take(RateSchedule.new(budget, 0.0), budget, Ask(LOAD, "away", 16 * MIB), 0.0)
    for n in range(1, 100):
        book, answer = take(book, budget, Ask(LOAD, "busy", 16 * MIB), n / 10)
        assert answer.granted
    granted = {"away": 0, "busy": 0}
    for n in range(1000):
        name = "away" if n % 2 else "busy"
        book, answer = take(book, budget, Ask(LOAD, name, 16 * MIB), 10.0 + n / 1000)
        granted[name] += answer.granted
    assert abs(granted["away"] - granted["busy"]) <= 2 * budget.burst_bytes / (16 * MIB)


def test_a_transfer_that_was_killed_while_it_waited_stops_nobody() -> None:
    crowd = [Client(LOAD, threads=4), Client(LOAD, 32 * MIB, threads=16, mortal_s=5.0)]
    moved = play(Budget(RATE), crowd, 20.0)
    its = moved.bytes(crowd, after_s=6.5, before_s=20.0, threads=4)
    assert its >= 0.95 * RATE * 13.5


def test_the_smallest_class_is_served_below_three_that_want_all() -> None:
    budget = Budget(RATE)
    crowd = [Client(kind, threads=8) for kind in TrafficClass]
    moved = play(budget, crowd, 40.0)
    check_budget(moved, RATE, budget.burst_bytes)
    starts = [at_s for at_s, _, who in moved.grants if crowd[who].kind is SCRUB]
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert max(gaps) <= 2 * 16 * MIB / (SHARES[SCRUB] * RATE)


# --- no budget known -----------------------------------------------------------------------------------------------


def ask(kind: TrafficClass, transfer: str, nbytes: int = MIB) -> Ask:
    return Ask(kind, transfer, nbytes)


def test_without_a_budget_everything_goes_until_a_higher_class_asks() -> None:
    budget = Budget(None)
    book = RateSchedule.new(budget, 0.0)
    for n in range(100):
        book, answer = take(book, budget, ask(SCRUB, str(n), budget.burst_bytes), 0.0)
        assert answer == Answer(True, sharers=n + 1)
    book, _ = take(book, budget, ask(LOAD, "l"), 0.0)
    _, answer = take(book, budget, ask(SCRUB, "s", budget.burst_bytes), 0.0)
    assert not answer.granted
    assert answer.why == "SERVE_LOAD comes first: 2% of its bytes are left for SCRUB"


@settings(max_examples=examples(20), deadline=None)
@given(
    st.sampled_from([WRITE, PREFETCH, SCRUB]), st.sampled_from([4 * MIB, 16 * MIB]), st.sampled_from([0.02, 0.1, 0.9])
)
def test_without_a_budget_a_class_gets_its_share_of_what_the_higher_ones_move_and_a_chunk_a_second(
    kind: TrafficClass, nbytes: int, pause_s: float
) -> None:
    budget, seconds = Budget(None), 10.0
    both = [Client(LOAD, threads=4, pause_s=pause_s), Client(kind, nbytes, threads=8)]
    moved = play(budget, both, seconds)
    load = moved.bytes(both, after_s=0, before_s=seconds, kind=LOAD)
    assert load >= 0.6 * seconds * 4 * 16 * MIB / pause_s, "it waits for nobody"
    due = SHARES[kind] * load + LEAST_BYTES_PER_S * seconds
    its = moved.bytes(both, after_s=0, before_s=seconds, kind=kind)
    assert due - 3 * budget.burst_bytes <= its <= due + 3 * budget.burst_bytes


# --- the book ------------------------------------------------------------------------------------------------------


def test_a_clock_that_begins_anew_begins_a_new_book() -> None:
    budget = Budget(RATE)
    book, _ = take(RateSchedule.new(budget, 1e6), budget, ask(LOAD, "l"), 1e6)
    book, answer = take(book, budget, ask(SCRUB, "s", budget.burst_bytes), 5.0)
    assert answer.granted, "no load is remembered that would hold it down"
    assert set(book.transfers) == {"s"}


def test_who_has_left_or_not_been_heard_of_is_forgotten() -> None:
    budget = Budget(RATE)
    book = RateSchedule.new(budget, 0.0)
    for n in range(50):
        book, _ = take(book, budget, ask(LOAD, str(n)), float(n))
    book, _ = take(leave(book, "49"), budget, ask(LOAD, "now"), 70.0)
    assert set(book.transfers) == {str(n) for n in range(11, 49)} | {"now"}


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_budget_that_cannot_be_kept_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="cannot be kept"):
        Budget(rate)


@pytest.mark.parametrize(
    "shares",
    [
        {},
        {**SHARES, SCRUB: 0.0},
        {**SHARES, WRITE: 0.95},
        {kind: share for kind, share in SHARES.items() if kind is not WRITE},
    ],
)
def test_shares_that_would_starve_somebody_are_refused(shares: dict[TrafficClass, float]) -> None:
    with pytest.raises(ValueError, match="needs a share"):
        Budget(RATE, shares=shares)
